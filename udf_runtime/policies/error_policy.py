"""An ordered list of matchers, and the decision it makes about an error."""

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
"""What users may give as `on_error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about one error of one unit: a row, or a batch for UDFs over batches.

    Attributes:
        action: Call it again, leave it NULL, or end the work.
        delay_s: Seconds to wait before the call of a `retry`.
        matcher: Who decided; None: no matcher was about the error, and so it fails.
    """

    action: Literal["retry", "skip", "fail"]
    delay_s: float = 0.0
    matcher: Matcher | None = None


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What to do about errors: the first matcher that is about one decides; without one it fails.

    A `Retry` whose attempts are used up leaves the decision to the matchers behind it. Iterating
    gives the matchers, and `+` joins policies, so that
    `on_error=[Fail(KeyError), *retry_transient(), Skip(ValueError)]` and
    `retry_transient() + skip_on_error()` both work.

    Attributes:
        matchers: In the order in which they are asked.
    """

    matchers: tuple[Matcher, ...] = ()

    @staticmethod
    def of(on_error: OnError) -> ErrorPolicy:
        """Returns the policy that a user's `on_error` stands for; None fails at the first error.

        Raises:
            UdfDefinitionError: It holds something that is no matcher.
        """
        if on_error is None:
            return ErrorPolicy()
        if isinstance(on_error, ErrorPolicy):
            return on_error
        if isinstance(on_error, Matcher):
            on_error = (on_error,)
        items = list_items(on_error)
        if items is None:
            raise _no_matcher(on_error)
        matchers: list[Matcher] = []
        for item in items:
            if isinstance(item, ErrorPolicy):
                matchers.extend(item.matchers)
            elif isinstance(item, (Retry, Skip, Fail)):
                matchers.append(item)
            else:
                raise _no_matcher(item)
        return ErrorPolicy(tuple(matchers))

    def __iter__(self) -> Iterator[Matcher]:
        return iter(self.matchers)

    def __add__(self, other: OnError) -> ErrorPolicy:
        return ErrorPolicy(self.matchers + ErrorPolicy.of(other).matchers)

    def decide(self, error: BaseException, *, attempt: int, rng: random.Random) -> Decision:
        """Returns what to do about an error.

        Args:
            error: What the unit raised.
            attempt: How often the unit was called by now, this failure included, whatever the
                earlier ones failed with.
            rng: For the waiting time.
        """
        for matcher in self.matchers:
            if not matcher.matches(error):
                continue
            if isinstance(matcher, Retry):
                if attempt < matcher.max_attempts:
                    return Decision(action="retry", delay_s=matcher.backoff.delay_s(attempt, rng), matcher=matcher)
                continue
            return Decision(action="skip" if isinstance(matcher, Skip) else "fail", matcher=matcher)
        return Decision(action="fail")

    def decide_finally(self, error: BaseException) -> Decision:
        """Returns the decision when every `Retry` is used up: to skip, or to fail."""
        for matcher in self.matchers:
            if not isinstance(matcher, Retry) and matcher.matches(error):
                return Decision(action="skip" if isinstance(matcher, Skip) else "fail", matcher=matcher)
        return Decision(action="fail")

    def max_attempts(self, error: BaseException) -> int:
        """Returns how often a unit that keeps raising this error is called, at least 1."""
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
        """The least `max_skip_count` and `max_skip_fraction` of any `Skip`, for all rows."""
        skips = [matcher for matcher in self.matchers if isinstance(matcher, Skip)]
        counts = [skip.max_skip_count for skip in skips if skip.max_skip_count is not None]
        fractions = [skip.max_skip_fraction for skip in skips if skip.max_skip_fraction is not None]
        return min(counts, default=None), min(fractions, default=None)

    def check_skips(self, skipped: int, processed: int, final: bool) -> None:
        """Checks the skip threshold, on the driver.

        Args:
            skipped: Rows of the job that were skipped by now.
            processed: Rows of the job that were processed by now, the skipped ones included.
            final: Whether that was all; the fraction is judged only then, since the bad rows may
                all have come first.

        Raises:
            SkipThresholdExceededError: More rows were skipped than `threshold` allows.
        """
        count, fraction = self.threshold
        if count is not None and skipped > count:
            raise SkipThresholdExceededError(skipped=skipped, processed=processed, limit=f"max_skip_count={count}")
        if final and fraction is not None and skipped > fraction * processed:
            raise SkipThresholdExceededError(
                skipped=skipped, processed=processed, limit=f"max_skip_fraction={fraction}"
            )


def fail_fast() -> ErrorPolicy:
    """Ends the job at the first error; the same as giving no policy."""
    return ErrorPolicy((Fail(),))


@ARGUMENTS.function
def skip_on_error(*, max_skip_count: int | None = None, max_skip_fraction: float | None = None) -> ErrorPolicy:
    """Leaves rows NULL that raise anything, within limits (see :class:`Skip`)."""
    return ErrorPolicy((Skip(max_skip_count=max_skip_count, max_skip_fraction=max_skip_fraction),))


@ARGUMENTS.function
def retry_transient(*, max_attempts: int = 3, backoff: BackoffKind | Backoff = "exponential") -> ErrorPolicy:
    """A `Retry` of what network or system refused: ConnectionError, TimeoutError, OSError."""
    return ErrorPolicy((Retry(ConnectionError, TimeoutError, OSError, max_attempts=max_attempts, backoff=backoff),))


@ARGUMENTS.function
def retry_all(*, max_attempts: int = 3, backoff: BackoffKind | Backoff = "exponential") -> ErrorPolicy:
    """Tries again whatever was raised."""
    return ErrorPolicy((Retry(max_attempts=max_attempts, backoff=backoff),))


def _no_matcher(value: object) -> UdfDefinitionError:
    return UdfDefinitionError(
        f"{show_value(value)} is no error policy - in on_error "
        "- give Retry(...), Skip(...), Fail(...), a list of them, or a factory's result, for example skip_on_error()"
    )
