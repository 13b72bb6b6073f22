"""The elements of an error policy: which errors each of them is about, and what it wants done."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, fields

import cloudpickle

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.policies.backoff import Backoff, BackoffKind


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Matcher:
    """Chooses errors by their type and their text; subclasses say what is done with them.

    Attributes:
        exceptions: An error matches if it is an instance of one of these; empty: every error
            matches.
        match: Regular expression that `re.search` must find in `str(error)`; None: any text.
    """

    exceptions: tuple[type[BaseException], ...]
    match: str | None

    def __init__(self, *exceptions: type[BaseException], match: str | None = None) -> None:
        if match is not None:
            try:
                re.compile(match)
            except (re.error, OverflowError, RecursionError) as error:
                raise UdfDefinitionError(
                    f"match={match!r} is not a regular expression ({error}) - in {type(self).__name__} "
                    "- correct it, or use re.escape"
                ) from error
        # Frozen: the fields of a dataclass with an __init__ of its own are set past its guard, here
        # and in the subclasses.
        object.__setattr__(self, "exceptions", exceptions)
        object.__setattr__(self, "match", match)

    def __reduce__(self) -> tuple[object, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuilt, (type(self), values | {"exceptions": tuple(map(_PickledClass, self.exceptions))})

    def matches(self, error: BaseException) -> bool:
        """Tells whether this matcher is about an error."""
        if self.exceptions and not isinstance(error, self.exceptions):
            return False
        return self.match is None or re.search(self.match, message_of(error)) is not None


class _PickledClass:
    """An exception class in a pickle: where its module is missing, a class of no error instead.

    A UDF with packages of its own may name exceptions that only its own process can import.
    """

    def __init__(self, cls: type[BaseException]) -> None:
        self._cls = cls

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled_class, (cloudpickle.dumps(self._cls), self._cls.__module__, self._cls.__qualname__)


def _unpickled_class(payload: bytes, module: str, name: str) -> type[BaseException]:
    try:
        cls: type[BaseException] = pickle.loads(payload)  # noqa: S301 - within the pickle of a UDF, which is code
    except (ImportError, AttributeError):
        return type(name, (Exception,), {"__module__": module})
    return cls


def _rebuilt(cls: type[Matcher], values: dict[str, object]) -> Matcher:
    made = cls.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Retry(Matcher):
    """Calls again, after a wait.

    When the attempts are used up, the matchers that follow in the list decide.

    Attributes:
        max_attempts: Calls in all, the first one included, for one row (for one batch, where the
            UDF takes whole batches).
        backoff: Waiting times between them.
    """

    max_attempts: int
    backoff: Backoff

    def __init__(
        self,
        *exceptions: type[BaseException],
        match: str | None = None,
        max_attempts: int = 3,
        backoff: BackoffKind | Backoff = "exponential",
    ) -> None:
        Matcher.__init__(self, *exceptions, match=match)
        if max_attempts < 1:
            raise UdfDefinitionError(
                f"max_attempts={max_attempts!r} is not possible - in Retry - give a whole number from 1"
            )
        object.__setattr__(self, "max_attempts", max_attempts)
        object.__setattr__(self, "backoff", backoff if isinstance(backoff, Backoff) else Backoff(kind=backoff))


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Skip(Matcher):
    """Leaves the row NULL, records its error, and goes on.

    Attributes:
        max_skip_count: The job fails as soon as more rows than this were skipped; None: no limit.
        max_skip_fraction: The job fails if in the end more than this share of the rows (0 to 1) was
            skipped; None: no limit.
    """

    max_skip_count: int | None
    max_skip_fraction: float | None

    def __init__(
        self,
        *exceptions: type[BaseException],
        match: str | None = None,
        max_skip_count: int | None = None,
        max_skip_fraction: float | None = None,
    ) -> None:
        Matcher.__init__(self, *exceptions, match=match)
        if max_skip_count is not None and max_skip_count < 0:
            raise UdfDefinitionError(
                f"max_skip_count={max_skip_count!r} is not possible - in Skip - give a number from 0, or None"
            )
        if max_skip_fraction is not None and not 0 <= max_skip_fraction <= 1:
            raise UdfDefinitionError(
                f"max_skip_fraction={max_skip_fraction!r} is not possible - in Skip - give a share from 0 to 1, or None"
            )
        object.__setattr__(self, "max_skip_count", max_skip_count)
        object.__setattr__(self, "max_skip_fraction", max_skip_fraction)


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Fail(Matcher):
    """Ends the job.

    Useful before a broader matcher, for errors that must not be skipped or tried again.
    """

    def __init__(self, *exceptions: type[BaseException], match: str | None = None) -> None:
        Matcher.__init__(self, *exceptions, match=match)


def escape_surrogates(text: str) -> str:
    """Returns a text with escapes in place of lone surrogates, which have no encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def message_of(error: BaseException) -> str:
    """Returns `str(error)`, escaped; a text that says so where the user's exception has no text."""
    try:
        return escape_surrogates(str(error))
    except Exception as failure:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"<str() of the exception raised {type(failure).__name__}>"
