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
        kind: `exponential` draws between `initial_s` and a bound that doubles with each attempt, so
            that many workers that were turned away together do not come back together; `fixed`
            always waits `initial_s`; `linear` waits `initial_s` times the attempt.
        initial_s: Seconds before the second attempt (the least number of seconds, for
            `exponential`).
        max_s: No wait is longer than this, in seconds.
    """

    kind: BackoffKind = "exponential"
    initial_s: float = 1.0
    max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(BackoffKind):
            raise UdfDefinitionError(
                f"a backoff of the kind {self.kind!r} is not known - in Retry "
                f"- give one of {', '.join(get_args(BackoffKind))}, or a Backoff"
            )
        if not 0 <= self.initial_s <= self.max_s:
            raise UdfDefinitionError(
                f"a backoff of {self.initial_s} to {self.max_s} seconds is not possible - in Retry "
                "- give 0 <= initial_s <= max_s"
            )

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Returns the seconds to wait after an attempt that failed.

        Args:
            attempt: Number of the attempt that failed, counted from 1.
            rng: Where `exponential` draws from.
        """
        if self.kind == "fixed":
            return self.initial_s
        if self.kind == "linear":
            return min(self.max_s, self.initial_s * attempt)
        # 2.0**1024 overflows, and long before that the maximum has been reached.
        return rng.uniform(self.initial_s, min(self.max_s, self.initial_s * 2.0 ** min(attempt, 64)))
