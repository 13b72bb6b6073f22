"""Waiting times before the next attempt: pure functions of its number and randomness."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.errors import UdfDefinitionError

BackoffKind = Literal["exponential", "fixed", "linear"]


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times between attempts.

    Attributes:
        kind: `exponential` draws a time between `initial_s` and a bound that doubles with each
            attempt, so workers rejected together return at different times. `fixed` always waits
            `initial_s`. `linear` waits `initial_s` times the attempt.
        initial_s: Seconds before the second attempt (for `exponential`: the minimum).
        max_s: Maximum wait in seconds.

    Example:
        >>> import random
        >>> from udf_runtime import Backoff
        >>> backoff = Backoff(kind="linear", initial_s=2.0, max_s=5.0)
        >>> [backoff.delay_s(attempt, random.Random()) for attempt in (1, 2, 3)]
        [2.0, 4.0, 5.0]
    """

    kind: BackoffKind = "exponential"
    initial_s: float = 1.0
    max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(BackoffKind):
            raise UdfDefinitionError(
                f"The backoff {self.kind!r} of a Retry is unknown. Give one of {', '.join(get_args(BackoffKind))}, or "
                "a Backoff."
            )
        if not 0 <= self.initial_s <= self.max_s:
            raise UdfDefinitionError(
                f"A backoff of {self.initial_s} to {self.max_s} seconds in a Retry is not possible. "
                "Give 0 <= initial_s <= max_s."
            )

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Returns the seconds to wait after a failed attempt.

        Args:
            attempt: Number of the failed attempt, counted from 1.
            rng: Random numbers for `exponential`.
        """
        if self.kind == "fixed":
            return self.initial_s
        if self.kind == "linear":
            return min(self.max_s, self.initial_s * attempt)
        # 2.0**1024 overflows; the maximum is reached long before.
        return rng.uniform(
            self.initial_s, min(self.max_s, self.initial_s * 2.0 ** min(attempt, 64))
        )
