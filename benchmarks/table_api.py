"""Measures backfills of the table API: `python -m benchmarks.table_api [--rounds 5] [--scale 1.0]
[--only NAME ...] [--geneva PYTHON]`.

Contestants take turns within each round, and the ratios are medians over the rounds, as in the
other benchmarks. The first round is not
timed. It measures memory, and checks that all contestants compute the same values.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import CaseOutcome
from benchmarks.pictures import plot_bars
from benchmarks.report import (
    add_only,
    add_rounds,
    add_scale,
    describe_machine,
    is_chosen,
    make_parser,
    write_report,
)
from benchmarks.table_api_cases import OURS, Contestant, TableApiCases, TableCase
from benchmarks.table_api_child import geneva_version
from benchmarks.table_api_memory import Peaks, cpu_seconds, watched
from lance_spark.session.sessions import make_session


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """The result of a case.

    Attributes:
        case: The case.
        outcome: Times of the rounds.
        peaks: Memory of each contestant.
        cpu: CPU seconds of each round, by contestant. Other work on the machine hardly affects
            them.
        stages: Seconds of the stages of lance-spark's last run, summed over tasks.
        load: Load average of the last minute, before and after.
    """

    case: TableCase
    outcome: CaseOutcome
    peaks: dict[str, Peaks]
    cpu: dict[str, list[float]]
    stages: dict[str, float]
    load: tuple[float, float]

    @property
    def quotients(self) -> dict[str, float]:
        """Ratio of our time beyond `fixed_s` to each other contestant: medians of the quotients of
        all rounds."""
        ours = [max(seconds - self.case.fixed_s, 0.0) for seconds in self.outcome.seconds[OURS]]
        return {
            name: statistics.median(a / b for a, b in zip(ours, times, strict=True))
            for name, times in self.outcome.seconds.items()
            if name != OURS
        }

    @property
    def rates(self) -> dict[str, float]:
        """Rows per second and core, by the median time."""
        return {
            name: self.case.rows / seconds / self.case.contestants[name].cores
            for name, seconds in self.outcome.medians.items()
        }

    @property
    def met(self) -> bool | None:
        """Whether the result meets the target; None without a target."""
        case = self.case
        if case.worker_bytes is not None:
            return self.peaks[OURS].largest("worker") <= case.worker_bytes
        if case.target is None:
            return None
        return (
            self.outcome.medians[OURS] if case.versus == "seconds" else self.quotients[case.versus]
        ) <= case.target


def main() -> None:
    """Runs the cases, prints a table, and writes `table_api.json` and `table_api.png`."""
    parser = make_parser("table_api", __doc__)
    add_rounds(parser, 5, "timed rounds of each case, at most")
    add_scale(parser, "2 M rows and more")
    add_only(parser)
    parser.add_argument(
        "--geneva",
        metavar="PYTHON",
        default=os.environ.get("GENEVA_PYTHON"),
        help="the interpreter of an environment that has the package geneva and psutil; by default $GENEVA_PYTHON, else it is left out",
    )
    arguments = parser.parse_args()
    peer = geneva_version(arguments.geneva)
    print(f"geneva: {peer or 'left out, --geneva names an interpreter that has it'}", flush=True)
    spark = make_session("local[2,4]")
    measured = []
    with (
        tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder,
        TableApiCases(Path(folder), arguments.scale, arguments.geneva if peer else None) as stage,
    ):
        stage.warm(spark)
        for case in stage.cases(spark):
            if is_chosen(case.name, arguments):
                measured.append(measure(case, arguments.rounds))
                print(line(measured[-1]), flush=True)
                write_report(arguments, "table_api", as_json(measured, arguments, peer))
    spark.stop()
    plot(measured, arguments.out / "table_api.png")


def measure(case: TableCase, rounds: int) -> MeasuredCase:
    """Runs a case: a round for memory, then the timed rounds."""
    load = os.getloadavg()[0]
    peaks: dict[str, Peaks] = {}
    first: dict[str, float] = {}
    for name, contestant in case.contestants.items():
        contestant.prepare()
        if case.again:
            contestant.run()
        with watched(contestant.roots(), contestant.kind_of) as peaks[name]:
            first[name] = _timed(contestant, own_clock=name in case.own_clock)
    _compare(case)
    times: dict[str, list[float]] = {name: [] for name in case.contestants}
    cpu: dict[str, list[float]] = {
        name: [] for name, contestant in case.contestants.items() if contestant.roots()
    }
    for _ in range(min(rounds, case.rounds)):
        for name, contestant in case.contestants.items():
            if not case.again:
                contestant.prepare()
            before = _cpu_seconds(contestant)
            times[name].append(_timed(contestant, own_clock=name in case.own_clock))
            if name in cpu:
                cpu[name].append(_cpu_seconds(contestant) - before)
    seconds = {name: tuple(values) or (first[name],) for name, values in times.items()}
    outcome = CaseOutcome(
        case=case.name, seconds=seconds, target=case.target, note=case.note, versus=case.versus
    )
    result = getattr(case.contestants[OURS], "result", None)
    stages = (
        {} if result is None else {name: round(value, 4) for name, value in result.seconds.items()}
    )
    return MeasuredCase(
        case=case,
        outcome=outcome,
        peaks=peaks,
        cpu=cpu,
        stages=stages,
        load=(load, os.getloadavg()[0]),
    )


def _timed(contestant: Contestant, *, own_clock: bool) -> float:
    began = time.perf_counter()
    reported_seconds = contestant.run()
    return (
        float(reported_seconds)
        if own_clock and isinstance(reported_seconds, float)
        else time.perf_counter() - began
    )


def _cpu_seconds(contestant: Contestant) -> float:
    return sum(cpu_seconds(root) for root in contestant.roots())


def _compare(case: TableCase) -> None:
    """Raises an error if contestants computed different values."""
    for name, contestant in case.contestants.items():
        missing_rows = contestant.missing_rows()
        if missing_rows:
            raise RuntimeError(
                f"{case.name}: {missing_rows} of {case.rows} rows of {name} have no value"
            )
    competitors = {
        name: contestant for name, contestant in case.contestants.items() if name != OURS
    }
    ours = case.contestants[OURS].values() if competitors else None
    for name, contestant in competitors.items():
        if contestant.values() != ours:
            raise RuntimeError(f"{case.name}: {name} has other values than {OURS}")


def line(measured: MeasuredCase) -> str:
    """Formats a case as a line of text."""
    case, outcome = measured.case, measured.outcome
    times = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in outcome.medians.items())
    less = f" beyond {case.fixed_s} s" if case.fixed_s else ""
    ratios = "  ".join(f"{ratio:.2f} x {name}{less}" for name, ratio in measured.quotients.items())
    worker = measured.peaks[OURS].largest("worker") >> 20
    spent = "  ".join(f"{name} {statistics.median(s):.2f}" for name, s in measured.cpu.items() if s)
    spent = f"  CPU seconds: {spent}" if spent else ""
    memory = f"  worker {worker} MiB" if worker else ""
    goal = (
        f"{case.worker_bytes >> 20} MiB"
        if case.worker_bytes
        else f"{case.target or 0:.3g} {case.versus}"
    )
    verdict = {None: "", True: f"  (target {goal}: met)", False: f"  (target {goal}: MISSED)"}[
        measured.met
    ]
    return f"{case.name:32} {times}  {ratios}{spent}{memory}{verdict}  load {measured.load[0]:.1f} to {measured.load[1]:.1f}"


def as_json(
    measured: list[MeasuredCase], arguments: argparse.Namespace, peer: str | None
) -> dict[str, object]:
    """Returns all data for a comparison with another run."""
    import lance
    import pyspark

    return {
        "machine": describe_machine(),
        "versions": {"pyspark": pyspark.__version__, "pylance": lance.__version__, "geneva": peer},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "cases": [
            {
                "case": m.case.name,
                "note": m.case.note,
                "rows": m.case.rows,
                "seconds": m.outcome.seconds,
                "ratios": m.outcome.ratios,
                "fixed_s": m.case.fixed_s,
                "ratios_beyond_fixed": m.quotients,
                "rows_per_second_and_core": {name: round(rate) for name, rate in m.rates.items()},
                "cpu_seconds": m.cpu,
                "peak_memory": {name: peaks.as_json() for name, peaks in m.peaks.items()},
                "task_seconds": m.stages,
                "target": m.case.target,
                "target_worker_mib": None
                if m.case.worker_bytes is None
                else m.case.worker_bytes >> 20,
                "versus": m.case.versus,
                "met": m.met,
                "load": m.load,
            }
            for m in measured
        ],
    }


def plot(measured: list[MeasuredCase], path: Path) -> None:
    """Draws the seconds of each contestant."""
    medians = {m.case.name: m.outcome.medians for m in measured if len(m.case.contestants) > 1}
    plot_bars(medians, path, label="seconds, median", unit="s")


if __name__ == "__main__":
    main()
