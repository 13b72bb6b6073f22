"""Times contestants in turn, and reports medians and ratios.

Shared machines are noisy, so only ratios from the same time are meaningful. The contestants of a
case run in sequence within each round
(A B C, A B C, ...), and the ratio is the median over the rounds of the pairwise quotients. The CPU
seconds of all processes are measured
too, because other work on the machine affects them less than the clock.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OURS = "lance-spark"


def quotient(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Returns the median of the quotients of all rounds."""
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True) if b)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """The result of a case.

    Attributes:
        case: Name of the case.
        seconds: Times of each contestant, a value per round.
        target: Maximum ratio of lance-spark to `versus`, or None.
        note: Description of the work.
        versus: The contestant of the target.
        cpu: CPU seconds of each contestant, a value per round; empty if not measured.
        cpu_target: Maximum ratio of CPU seconds, or None.
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
        """Ratio of lance-spark's time to each other contestant: the median of the quotients of all
        rounds."""
        ours = self.seconds[OURS]
        return {name: quotient(ours, times) for name, times in self.seconds.items() if name != OURS}

    @property
    def cpu_ratios(self) -> dict[str, float]:
        """Ratios of CPU seconds, for contestants with measured CPU seconds."""
        return {
            name: quotient(self.cpu[OURS], times)
            for name, times in self.cpu.items()
            if name != OURS and all(times)
        }

    @property
    def met(self) -> bool | None:
        """Whether the result meets the target; None without a target."""
        return None if self.target is None else self.ratios[self.versus] <= self.target


@dataclass(slots=True, kw_only=True)
class TimedCase:
    """A case to measure.

    Attributes:
        name: Short name.
        contestants: Functions to run, by name; must include `lance-spark`.
        note: Description of the work, for the report.
        targets: Maximum ratio of seconds to `versus`, by configuration.
        cpu_targets: Maximum ratio of CPU seconds to `versus`, by configuration.
        versus: The contestant of the targets.
        prepare: Untimed functions before each timed call, by contestant.
        rounds: Maximum number of timed rounds, for slow cases.
    """

    name: str
    contestants: Mapping[str, Callable[[], object]]
    note: str
    targets: Mapping[str, float] = field(default_factory=dict)
    cpu_targets: Mapping[str, float] = field(default_factory=dict)
    versus: str = "parquet"
    prepare: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    rounds: int = 100

    def run(self, rounds: int, configuration: str = "") -> CaseOutcome:
        """Warms every contestant up once, then runs `rounds` rounds in turn."""
        for name in self.contestants:
            self.once(name)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in self.contestants}
        for _ in range(min(rounds, self.rounds)):
            for name in self.contestants:
                measured[name].append(self.once(name))
        return CaseOutcome(
            case=self.name,
            seconds={name: [wall for wall, _ in values] for name, values in measured.items()},
            target=self.targets.get(configuration),
            note=self.note,
            versus=self.versus,
            cpu={name: [cpu for _, cpu in values] for name, values in measured.items()},
            cpu_target=self.cpu_targets.get(configuration),
        )

    def once(self, name: str) -> tuple[float, float]:
        """Runs a contestant, and returns its seconds and CPU seconds."""
        self.prepare.get(name, lambda: None)()
        before, start = _cpu_of_processes(), time.perf_counter()
        self.contestants[name]()
        wall, after = time.perf_counter() - start, _cpu_of_processes()
        return wall, sum(cpu - before.get(process, 0.0) for process, cpu in after.items())


def _cpu_of_processes() -> dict[int, float]:
    """Returns the CPU time of this process and each live descendant. Spark's workers usually
    outlive a query."""
    import psutil

    spent = {}
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent
