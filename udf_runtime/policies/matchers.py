"""The elements of an error policy: each selects errors and defines the action for them."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, fields

import cloudpickle

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.policies.backoff import Backoff, BackoffKind
from udf_runtime.unpickling import loads


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Matcher:
    """Selects errors by type and text; subclasses define the action.

    Attributes:
        exceptions: An error matches if it is an instance of any of these classes. Empty: every
            error matches.
        match: Regular expression to be found in `str(error)` by `re.search`; None: any text.
    """

    exceptions: tuple[type[BaseException], ...]
    match: str | None

    def __init__(self, *exceptions: type[BaseException], match: str | None = None) -> None:
        if match is not None:
            try:
                re.compile(match)
            except (re.error, OverflowError, RecursionError) as error:
                raise UdfDefinitionError(
                    f"The argument match={match!r} of {type(self).__name__} is not a regular expression: {error}. "
                    "Correct the expression, or use re.escape."
                ) from error
        # The dataclass is frozen and has its own __init__, so __init__ sets the fields past the
        # guard. The subclasses do the same.
        object.__setattr__(self, "exceptions", exceptions)
        object.__setattr__(self, "match", match)

    def __reduce__(self) -> tuple[object, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuilt, (
            type(self),
            values | {"exceptions": tuple(map(_PickledClass, self.exceptions))},
        )

    def matches(self, error: BaseException) -> bool:
        """Tells whether this matcher selects an error."""
        if self.exceptions and not isinstance(error, self.exceptions):
            return False
        return self.match is None or re.search(self.match, message_of(error)) is not None


class _PickledClass:
    """An exception class in a pickle; if its module is missing, a stand-in that no error has.

    A UDF with its own packages may name exceptions of modules in its own process only.
    """

    def __init__(self, cls: type[BaseException]) -> None:
        self._cls = cls

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled_class, (
            cloudpickle.dumps(self._cls),
            self._cls.__module__,
            self._cls.__qualname__,
        )


def _unpickled_class(payload: bytes, module: str, name: str) -> type[BaseException]:
    try:
        cls: type[BaseException] = loads(payload)  # within the pickle of a UDF, which is code
    except (ImportError, AttributeError):
        return type(name, (Exception,), {"__module__": module})
    return cls


def _rebuilt(cls: type[Matcher], values: dict[str, object]) -> Matcher:
    matcher = cls.__new__(cls)
    for name, value in values.items():
        object.__setattr__(matcher, name, value)
    return matcher


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Retry(Matcher):
    """Calls the UDF again after a wait.

    After the last attempt, the next matchers in the list decide.

    Attributes:
        max_attempts: Number of calls for a row, including the first call. For a UDF over whole
            batches: number of calls for a batch.
        backoff: Waiting times between the calls.

    Example:
        >>> from udf_runtime import Retry
        >>> retry = Retry(TimeoutError, max_attempts=5, backoff="linear")
        >>> retry.matches(TimeoutError()), retry.matches(ValueError())
        (True, False)
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
                f"The argument max_attempts={max_attempts!r} of Retry is not possible. Give a whole number from 1."
            )
        object.__setattr__(self, "max_attempts", max_attempts)
        object.__setattr__(
            self, "backoff", backoff if isinstance(backoff, Backoff) else Backoff(kind=backoff)
        )

    def delay_s(self, error: BaseException, attempt: int, rng: random.Random) -> float:  # noqa: ARG002 - for subclasses
        """Returns the seconds to wait after the failed attempt of this number."""
        return self.backoff.delay_s(attempt, rng)


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Skip(Matcher):
    """Leaves the row NULL, records its error, and continues.

    Attributes:
        max_skip_count: The job fails as soon as more rows than this were skipped; None: no limit.
        max_skip_fraction: At its end, the job fails if more than this share (0 to 1) of the rows
            was skipped; None: no limit.

    Example:
        >>> from udf_runtime import Skip, udf
        >>> @udf(on_error=Skip(ValueError, max_skip_fraction=0.01))
        ... def number(text: str) -> int:
        ...     return int(text)
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
                f"The argument max_skip_count={max_skip_count!r} of Skip is not possible. Give a number from 0, or "
                "None."
            )
        if max_skip_fraction is not None and not 0 <= max_skip_fraction <= 1:
            raise UdfDefinitionError(
                f"The argument max_skip_fraction={max_skip_fraction!r} of Skip is not possible. Give a share from 0 to "
                "1, or None."
            )
        object.__setattr__(self, "max_skip_count", max_skip_count)
        object.__setattr__(self, "max_skip_fraction", max_skip_fraction)


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class Fail(Matcher):
    """Ends the job.

    Place `Fail` before a broader matcher to exclude errors from skips and retries.

    Example:
        >>> from udf_runtime import Fail, Skip, udf
        >>> @udf(on_error=[Fail(MemoryError), Skip()])
        ... def number(text: str) -> int:
        ...     return int(text)
    """

    def __init__(self, *exceptions: type[BaseException], match: str | None = None) -> None:
        Matcher.__init__(self, *exceptions, match=match)


def escape_surrogates(text: str) -> str:
    """Returns a text with escapes for lone surrogates, which have no encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def message_of(error: BaseException) -> str:
    """Returns `str(error)`, escaped; a substitute text if `str` of the user's exception raises."""
    try:
        return escape_surrogates(str(error))
    except Exception as failure:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"<str() of the exception raised {type(failure).__name__}>"
