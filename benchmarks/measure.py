"""Times contestants in turn and reports medians and ratios.

Machines are shared and noisy, so that only ratios measured side by side mean something: the contestants of a case run one after the
other within each round (A B C, A B C, ...), and the ratio is the median over the rounds of the pairwise quotients. The CPU seconds of all
processes that take part are read beside the clock, since other work on the machine changes them less.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OURS = "lance-spark"


def quotient(ours: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median of the rounds' quotients."""
    return statistics.median(a / b for a, b in zip(ours, others, strict=True) if b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case measured.

    Attributes:
        case: Name of the case.
        seconds: Times of each contestant, a value per round.
        target: Largest ratio of lance-spark to `versus` that we want, or None.
        note: What was run.
        versus: The contestant that the target is about.
        cpu: CPU seconds of each contestant, a value per round; empty where they were not read.
        cpu_target: Largest ratio of CPU seconds that we want, or None.
    """

    case: str
    seconds: Mapping[str, Sequence[float]]
    target: float | None
    note: str
    versus: str
    cpu: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cpu_target: float | None = None

    @property
    def medians(self) -> dict[str, float]:
        """Median seconds of each contestant."""
        return {name: statistics.median(times) for name, times in self.seconds.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """lance-spark's time divided by each other contestant's: the median of the rounds' quotients."""
        ours = self.seconds[OURS]
        return {name: quotient(ours, times) for name, times in self.seconds.items() if name != OURS}

    @property
    def cpu_ratios(self) -> dict[str, float]:
        """The same of CPU seconds, of contestants that took any."""
        return {
            name: quotient(self.cpu[OURS], times) for name, times in self.cpu.items() if name != OURS and all(times)
        }

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.ratios[self.versus] <= self.target


@dataclass(slots=True, kw_only=True)
class Case:
    """One thing to measure.

    Attributes:
        name: Short name.
        contestants: What to run, by name; `lance-spark` is one of them.
        note: What is run, for the report.
        targets: Largest acceptable ratio of seconds to `versus`, by configuration.
        cpu_targets: The same for CPU seconds.
        versus: The contestant that the targets are about.
        prepare: Runs before each timed call of a contestant, untimed.
        rounds: Most timed rounds, for what takes long.
    """

    name: str
    contestants: Mapping[str, Callable[[], object]]
    note: str
    targets: Mapping[str, float] = field(default_factory=dict)
    cpu_targets: Mapping[str, float] = field(default_factory=dict)
    versus: str = "parquet"
    prepare: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    rounds: int = 100

    def run(self, rounds: int, configuration: str = "") -> Outcome:
        """Runs every contestant once to warm up, then `rounds` times in turn."""
        for name in self.contestants:
            self.once(name)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in self.contestants}
        for _ in range(min(rounds, self.rounds)):
            for name in self.contestants:
                measured[name].append(self.once(name))
        return Outcome(
            case=self.name,
            seconds={name: [wall for wall, _ in values] for name, values in measured.items()},
            target=self.targets.get(configuration),
            note=self.note,
            versus=self.versus,
            cpu={name: [cpu for _, cpu in values] for name, values in measured.items()},
            cpu_target=self.cpu_targets.get(configuration),
        )

    def once(self, name: str) -> tuple[float, float]:
        """Runs one contestant, and returns the seconds and the CPU seconds that it took."""
        self.prepare.get(name, lambda: None)()
        before, start = _cpu_of_processes(), time.perf_counter()
        self.contestants[name]()
        wall, after = time.perf_counter() - start, _cpu_of_processes()
        return wall, sum(cpu - before.get(process, 0.0) for process, cpu in after.items())


def _cpu_of_processes() -> dict[int, float]:
    """Returns the CPU time so far of this process and of each below it that lives; Spark's workers outlive a query as a rule."""
    import psutil

    spent = {}
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent
