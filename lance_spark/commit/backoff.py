"""Decides when to retry a commit: slot backoff and its bounds.

A slot lasts as long as the first attempt of the commit. After a lost race the commit waits for a
random number of slots. The upper bound of this number doubles with every loss. Colliding writers
therefore spread out, on fast and slow stores alike.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lance_spark.commit.store_check import allowed_by_environment
from lance_spark.errors import OptionError

RETRIES_VARIABLE = "LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES"
DEFAULT_RETRIES = 10
DEFAULT_TIMEOUT_S = 30 * 60.0

_MOST_DOUBLINGS = 8
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """Bounds the retries of a commit.

    Attributes:
        max_retries: Number of rounds without progress before the commit gives up. Lost races for a
            version slot are not counted: another writer made progress, and the content is fine.
        timeout_s: Seconds before the commit gives up in any case.
        allow_unsafe: Whether to commit to an object store on which concurrent writers lose each
            other's work.
    """

    max_retries: int = DEFAULT_RETRIES
    timeout_s: float = DEFAULT_TIMEOUT_S
    allow_unsafe: bool = False

    @staticmethod
    def of(
        max_retries: int | None, timeout_s: float | None = None, *, allow_unsafe: bool | None = None
    ) -> CommitPolicy:
        """Returns the policy for the options' values; by default from the environment.

        Raises:
            OptionError: The environment variable is not a number.
        """
        if max_retries is None:
            text = os.environ.get(RETRIES_VARIABLE, str(DEFAULT_RETRIES))
            if not text.strip().isdecimal():
                raise OptionError(RETRIES_VARIABLE, text, "a number, 0 or more")
            max_retries = int(text)
        return CommitPolicy(
            max_retries=max_retries,
            timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
            allow_unsafe=allowed_by_environment() if allow_unsafe is None else allow_unsafe,
        )


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Counts the rounds of one commit, and waits between the rounds. Belongs to one thread."""

    policy: CommitPolicy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform
    retries: int = 0
    _fruitless: int = 0
    _slot_s: float | None = None
    _began: float | None = None
    _attempt_began: float = field(default=0.0)

    def begin(self) -> None:
        """Records the start of an attempt."""
        self._attempt_began = self.clock()
        if self._began is None:
            self._began = self._attempt_began

    def again(self, *, race: bool) -> bool:
        """Waits for the next round, or returns False if the policy ends the loop.

        In a `race` the attempt only lost a version slot.
        """
        now_s = self.clock()
        if self._slot_s is None:
            self._slot_s = now_s - self._attempt_began
        if not race:
            if self._fruitless >= self.policy.max_retries:
                return False
            self._fruitless += 1
        slots = 1 << min(self.retries + 1, _MOST_DOUBLINGS)
        wait = min(self._slot_s * self.uniform(0, slots), _LONGEST_WAIT_S)
        if now_s + wait - (now_s if self._began is None else self._began) > self.policy.timeout_s:
            return False
        self.retries += 1
        self.sleep(wait)
        return True
