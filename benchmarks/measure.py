"""Times contestants in turn and reports medians and ratios.

Machines are shared and noisy, so that only ratios measured side by side mean something: the contestants of a case run one after the
other within each round (A B C, A B C, ...), and the ratio is the median over the rounds of the pairwise quotients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case measured.

    Attributes:
        case: Name of the case.
        seconds: Times of each contestant, a value per round.
        target: Largest ratio of lance-spark to the first other contestant that we want, or None.
        note: What was run.
    """

    case: str
    seconds: Mapping[str, tuple[float, ...]]
    target: float | None
    note: str
    versus: str

    @property
    def medians(self) -> dict[str, float]:
        """Median seconds of each contestant."""
        return {name: statistics.median(times) for name, times in self.seconds.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """lance-spark's time divided by each other contestant's: the median of the rounds' quotients."""
        ours = self.seconds["lance-spark"]
        return {
            name: statistics.median(a / b for a, b in zip(ours, times, strict=True))
            for name, times in self.seconds.items()
            if name != "lance-spark"
        }

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return (self.versus == "seconds" and self.medians["lance-spark"] <= self.target) or (
            self.versus != "seconds" and self.ratios[self.versus] <= self.target
        )


@dataclass(slots=True, kw_only=True)
class Case:
    """One thing to measure.

    Attributes:
        name: Short name.
        contestants: What to run, by name; `lance-spark` is one of them.
        note: What is run, for the report.
        target: Largest acceptable ratio to `versus`, or seconds where `versus` is `seconds`.
        versus: The contestant that the target is about.
        prepare: Runs before each timed call of a contestant, untimed.
    """

    name: str
    contestants: Mapping[str, Callable[[], object]]
    note: str
    target: float | None = None
    versus: str = "parquet"
    prepare: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    def run(self, rounds: int) -> Outcome:
        """Runs every contestant once to warm up, then `rounds` times in turn."""
        for name in self.contestants:
            self._once(name)
        times: dict[str, list[float]] = {name: [] for name in self.contestants}
        for _ in range(rounds):
            for name in self.contestants:
                times[name].append(self._once(name))
        seconds = {name: tuple(values) for name, values in times.items()}
        return Outcome(case=self.name, seconds=seconds, target=self.target, note=self.note, versus=self.versus)

    def _once(self, name: str) -> float:
        self.prepare.get(name, lambda: None)()
        start = time.perf_counter()
        self.contestants[name]()
        return time.perf_counter() - start
