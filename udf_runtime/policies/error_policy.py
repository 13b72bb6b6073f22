"""An ordered list of matchers, and its decision about an error."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from udf_runtime.arguments import ARGUMENTS, list_items, show_value
from udf_runtime.errors import SkipThresholdExceededError, UdfDefinitionError
from udf_runtime.policies.backoff import Backoff, BackoffKind
from udf_runtime.policies.matchers import Fail, Matcher, Retry, Skip

OnError: TypeAlias = "Matcher | ErrorPolicy | Iterable[Matcher | ErrorPolicy] | None"
"""Accepted values of `on_error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about an error of a unit: a row, or a batch for UDFs over batches.

    Attributes:
        action: Call the unit again, leave the row NULL, end the work, or give the service up: the
            row has no result.
        delay_s: Seconds to wait before the call of a `retry`.
        matcher: The deciding matcher; None: no matcher selected the error, and the unit fails.
    """

    action: Literal["retry", "skip", "fail", "give_up"]
    delay_s: float = 0.0
    matcher: Matcher | None = None


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """The reaction to errors: the first matcher for an error decides, else the job fails.

    After the last attempt of a `Retry`, the next matchers decide. Iteration yields the matchers,
    and `+` joins policies. So both `on_error=[Fail(KeyError), *retry_transient(),
    Skip(ValueError)]` and `retry_transient() + skip_on_error()` work.

    Attributes:
        matchers: Matchers in the order of their evaluation.

    Example:
        >>> import random
        >>> from udf_runtime import ErrorPolicy, Fail, Skip
        >>> policy = ErrorPolicy.of([Fail(KeyError), Skip()])
        >>> policy.decide(KeyError(), attempt=1, rng=random.Random()).action
        'fail'
        >>> policy.decide(ValueError(), attempt=1, rng=random.Random()).action
        'skip'
    """

    matchers: tuple[Matcher, ...] = ()

    @staticmethod
    def of(on_error: OnError) -> ErrorPolicy:
        """Returns the policy for a user's `on_error`; None fails at the first error.

        Raises:
            UdfDefinitionError: An element is no matcher.
        """
        if on_error is None:
            return ErrorPolicy()
        if isinstance(on_error, ErrorPolicy):
            return on_error
        if isinstance(on_error, Matcher):
            on_error = (on_error,)
        items = list_items(on_error)
        if items is None:
            raise _make_error(on_error)
        matchers: list[Matcher] = []
        for item in items:
            if isinstance(item, ErrorPolicy):
                matchers.extend(item.matchers)
            elif isinstance(item, (Retry, Skip, Fail)):
                matchers.append(item)
            else:
                raise _make_error(item)
        return ErrorPolicy(tuple(matchers))

    def __iter__(self) -> Iterator[Matcher]:
        return iter(self.matchers)

    def __add__(self, other: OnError) -> ErrorPolicy:
        return ErrorPolicy(self.matchers + ErrorPolicy.of(other).matchers)

    def decide(
        self, error: BaseException, *, attempt: int, rng: random.Random, waived: int = 0
    ) -> Decision:
        """Returns the decision about an error.

        Args:
            error: The exception of the unit.
            attempt: Number of calls of the unit so far, including this failure. Earlier errors of
                any type count.
            rng: Random numbers for the waiting time.
            waived: Number of failed calls that do not count towards `max_attempts`.
        """
        for matcher in self.matchers:
            if not matcher.matches(error):
                continue
            if isinstance(matcher, Retry):
                if attempt - waived < matcher.max_attempts:
                    return Decision(
                        action="retry",
                        delay_s=matcher.delay_s(error, attempt, rng),
                        matcher=matcher,
                    )
                continue
            return Decision(action="skip" if isinstance(matcher, Skip) else "fail", matcher=matcher)
        return Decision(action="fail")

    def decide_finally(self, error: BaseException) -> Decision:
        """Returns the decision after the last attempt of every `Retry`: skip or fail."""
        for matcher in self.matchers:
            if not isinstance(matcher, Retry) and matcher.matches(error):
                return Decision(
                    action="skip" if isinstance(matcher, Skip) else "fail", matcher=matcher
                )
        return Decision(action="fail")

    def max_attempts(self, error: BaseException) -> int:
        """Returns the number of calls for a unit that raises this error each time, at least 1."""
        most = 1
        for matcher in self.matchers:
            if not matcher.matches(error):
                continue
            if not isinstance(matcher, Retry):
                break
            most = max(most, matcher.max_attempts)
        return most

    @property
    def threshold(self) -> tuple[int | None, float | None]:
        """The smallest `max_skip_count` and `max_skip_fraction` of any `Skip`, for all rows."""
        skips = [matcher for matcher in self.matchers if isinstance(matcher, Skip)]
        counts = [skip.max_skip_count for skip in skips if skip.max_skip_count is not None]
        fractions = [skip.max_skip_fraction for skip in skips if skip.max_skip_fraction is not None]
        return min(counts, default=None), min(fractions, default=None)

    def check_skips(self, skipped: int, processed: int, final: bool) -> None:
        """Checks the skip threshold, on the driver.

        Args:
            skipped: Number of skipped rows of the job so far.
            processed: Number of processed rows of the job so far, including the skipped rows.
            final: Whether the job is complete. The fraction is checked only then, because all bad
                rows may come first.

        Raises:
            SkipThresholdExceededError: More rows were skipped than `threshold` allows.
        """
        count, fraction = self.threshold
        if count is not None and skipped > count:
            raise SkipThresholdExceededError(
                skipped=skipped, processed=processed, limit=f"max_skip_count={count}"
            )
        if final and fraction is not None and skipped > fraction * processed:
            raise SkipThresholdExceededError(
                skipped=skipped, processed=processed, limit=f"max_skip_fraction={fraction}"
            )


def fail_fast() -> ErrorPolicy:
    """Ends the job at the first error, like the default policy.

    Example:
        >>> from udf_runtime import fail_fast, udf
        >>> @udf(on_error=fail_fast())
        ... def number(text: str) -> int:
        ...     return int(text)
    """
    return ErrorPolicy((Fail(),))


@ARGUMENTS.function
def skip_on_error(
    *, max_skip_count: int | None = None, max_skip_fraction: float | None = None
) -> ErrorPolicy:
    """Leaves rows NULL if the UDF raises any error, within limits (see :class:`Skip`).

    Example:
        >>> from udf_runtime import skip_on_error, udf
        >>> @udf(on_error=skip_on_error(max_skip_count=100))
        ... def number(text: str) -> int:
        ...     return int(text)
    """
    return ErrorPolicy((Skip(max_skip_count=max_skip_count, max_skip_fraction=max_skip_fraction),))


@ARGUMENTS.function
def retry_transient(
    *, max_attempts: int = 3, backoff: BackoffKind | Backoff = "exponential"
) -> ErrorPolicy:
    """Retries errors of the network or the system: ConnectionError, TimeoutError, OSError.

    Example:
        >>> from udf_runtime import retry_transient, skip_on_error, udf
        >>> @udf(on_error=retry_transient(max_attempts=5) + skip_on_error())
        ... def number(text: str) -> int:
        ...     return int(text)
    """
    return ErrorPolicy(
        (Retry(ConnectionError, TimeoutError, OSError, max_attempts=max_attempts, backoff=backoff),)
    )


@ARGUMENTS.function
def retry_all(
    *, max_attempts: int = 3, backoff: BackoffKind | Backoff = "exponential"
) -> ErrorPolicy:
    """Retries every error.

    Example:
        >>> from udf_runtime import retry_all, udf
        >>> @udf(on_error=retry_all(max_attempts=2, backoff="fixed"))
        ... def number(text: str) -> int:
        ...     return int(text)
    """
    return ErrorPolicy((Retry(max_attempts=max_attempts, backoff=backoff),))


def _make_error(value: object) -> UdfDefinitionError:
    return UdfDefinitionError(
        f"The value {show_value(value)} of on_error is no error policy. Give Retry(...), Skip(...), Fail(...), a list "
        "of these, or a factory's result, for example skip_on_error()."
    )
