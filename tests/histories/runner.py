"""Runs histories step by step in real processes, each held at gates while another process acts, and checks their
outcome.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.storage.objects import checkpoint_store
from tests.histories import jobs
from tests.histories.accounts import is_excused, unaccounted_calls, wrong_counters
from tests.histories.administration import Restore, Ruin
from tests.histories.checking import (
    WrongError,
    check_indexes,
    check_values,
    differences,
    look,
    world_of,
)
from tests.histories.model import (
    Act,
    BackfillHistory,
    BackfillRun,
    KillBackfill,
    RecordedVersion,
    ResumeBackfill,
    StartBackfill,
    Step,
    Story,
)
from tests.histories.operations import Operation, read
from tests.histories.processes import (
    Caught,
    HistoryProcesses,
    Process,
    gates_at_commits,
    is_held,
    open_gate,
    shut,
)
from tests.histories.provenance import wrong_count, wrong_stale_count
from tests.lance_spark.conflicts.others import unused_files

WAIT_S = 60
QUIET_S = 0.15
"""Time without calls or commits after which a backfill counts as waiting."""

_OURS = re.compile(r"[0-9a-f]{40}-\d+")
_NUMBERS = itertools.count()

_THREADS: dict[str, tuple[str, str]] = {}
"""Folder and backfill of each thread of this process that runs a job of a history."""


@dataclass(slots=True, kw_only=True)
class HistoryTally:
    """Counts over histories.

    Attributes:
        histories: Number of histories.
        crossed: Histories with a foreign commit between a backfill's snapshot and its last commit.
        hits: Changes by other writers during a backfill, by kind and moment.
    """

    histories: int = 0
    crossed: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def table(self) -> str:
        """Returns the counts as a table."""
        moments = ("before", "between", "slipped", "landed")
        kinds = sorted({kind for kind, _ in self.hits})
        lines = [f"{'':28}" + "".join(f"{moment:>9}" for moment in (*moments, "all"))]
        for kind in kinds:
            counts = [self.hits[kind, moment] for moment in moments]
            total = sum(count for (name, _), count in self.hits.items() if name == kind)
            lines.append(f"{kind:28}" + "".join(f"{count:9}" for count in (*counts, total)))
        share = 100 * self.crossed / max(self.histories, 1)
        lines.append(
            f"{self.histories} histories, with a foreign commit between snapshot and commit in {share:.0f} %"
        )
        return "\n".join(lines)


@dataclass(slots=True, kw_only=True)
class _Running:
    """A running backfill.

    Attributes:
        gates: Gates in its way.
        at: The gate of its last step.
        ended: Tells whether the backfill has ended.
        outcome: Returns the counters of its result, or its error.
        process: Its own process.
        job: Its handle in this process.
    """

    ended: Callable[[], bool]
    outcome: Callable[[], dict[str, Any] | Caught]
    gates: list[str] = field(default_factory=list)
    at: str = ""
    process: Process | None = None
    job: lance_spark.Job | None = None


@contextlib.contextmanager
def threads_at_gates() -> Iterator[None]:
    """Puts gates at the commits of this process's jobs."""
    import threading

    with gates_at_commits(lambda: _THREADS.get(threading.current_thread().name)):
        yield


class BackfillPlayer:
    """Runs one history."""

    def __init__(
        self,
        history: BackfillHistory,
        *,
        spark: SparkSession,
        pool: HistoryProcesses,
        home: Path,
        tally: HistoryTally,
    ) -> None:
        self._history = history
        self._spark = spark
        self._pool = pool
        self._home = home
        self._tally = tally
        self._hits: Counter[tuple[str, str]] = Counter()
        self._uri = jobs.make_table(home, spark, history.fragments, stable=history.stable)
        if history.indexed:
            lance.dataset(self._uri).create_scalar_index("v", "BTREE", name="of v")
        self.story = Story(stable=history.stable, first=lance.dataset(self._uri).version)
        rows, places = read(lance.dataset(self._uri))
        self.story.versions[self.story.first] = RecordedVersion(
            number=self.story.first, by="nobody", rows=rows, places=places
        )
        self._running: dict[str, _Running] = {}
        self._writers = [pool.take(pool.writer) for _ in range(2)]
        self._ruin: Ruin | None = None

    def run(self) -> Story:
        """Runs the steps, then lets running backfills end, and checks the outcome.

        Raises:
            WrongError: The table or a result differs from the rules.
        """
        try:
            for step in self._history.steps:
                if self._ruin is None:
                    self._do(step)
            for name in [*self._running]:
                self._go_on(name, "end")
            if self._ruin is None:
                self._settle()
            self._check_end()
        finally:
            self._give_up()
        self._tally.histories += 1
        self._tally.crossed += any(self.story.is_crossed(run) for run in self.story.runs.values())
        self._tally.hits.update(self._hits)
        return self.story

    def _do(self, step: Step) -> None:
        if (
            isinstance(step, StartBackfill)
            and step.run not in self.story.runs
            and len(self._running) < 2
        ):
            self._start(step)
        elif isinstance(step, ResumeBackfill) and step.run in self._running:
            self._go_on(step.run, step.until)
        elif isinstance(step, KillBackfill) and step.run in self._running:
            self._kill(step.run)
        elif isinstance(step, Act):
            self._act(step.operation)

    # Other writers

    def _act(self, operation: Operation) -> None:
        story, head, world = self.story, self.story.head, world_of(self.story, self._uri)
        fitted = None if head.number in story.broken else operation.fitted(world)
        if fitted is None:
            return
        if (
            isinstance(fitted, Ruin)
            and fitted.how == "table"
            and any(r.at == "commit" for r in self._running.values())
        ):
            # Lance recreates a deleted folder when it commits.
            return
        self._writers.reverse()
        self._writers[0].ask("act", self._uri, fitted)
        moment = {name: self._moment(name) for name in self._running}
        self._note(fitted.name, *moment.values())
        if isinstance(fitted, Ruin):
            self._ruin = fitted
            self._look(fitted)
            return
        expected = fitted.change(deepcopy(head.rows), world)
        self._look(fitted)
        story.acts.append((story.head.number, fitted))
        if story.head.rows != expected:
            raise WrongError(f"{fitted} made of the rows {differences(expected, story.head.rows)}")

    def _moment(self, name: str) -> str:
        at = self._running[name].at
        if at in ("commit", "landed"):
            return {"commit": "slipped"}.get(at, at)
        return "between" if self.story.commits(self.story.runs[name]) else "before"

    def _note(self, kind: str, *moments: str) -> None:
        self._hits.update((kind, moment) for moment in moments)

    def _look(self, by: str | Operation) -> None:
        """Reads the new versions."""
        if self._ruin is None or self._ruin.how != "table":
            look(self.story, self._uri, by)

    # Backfills

    def _start(self, step: StartBackfill) -> None:
        if (
            step.door != "write"
            and step.column not in self.story.head.rows[min(self.story.head.rows)]
        ):
            return
        story = self.story
        run = story.begin(step)
        settings: dict[str, Any] = {"column": step.column, "where": step.where}
        if step.door == "write":
            settings["options"] = {} if step.on_stale is None else {"on_stale": step.on_stale}
        else:
            settings |= {"commit_granularity": step.granularity, "task_size": step.task_size}
            settings |= {} if step.on_stale is None else {"on_stale": step.on_stale}
            settings |= {"stale": True} if step.stale else {}
        for other_name in self._running:
            same = story.runs[other_name].start.column == step.column
            self._note(
                "two of one column" if same else "two of two columns", self._moment(other_name)
            )
        self._running[step.run] = self._open(run, settings)
        self._go_on(step.run, step.until)

    def _open(self, run: BackfillRun, settings: dict[str, Any]) -> _Running:
        home, name = str(self._home), run.name
        gates = self._gates(run, run.start.until)
        for gate in gates:
            shut(self._home, gate)
        if run.start.door == "job":
            job_id = f"{name}-{next(_NUMBERS)}"
            _THREADS[f"lance-spark-{job_id}"] = (home, name)
            job = jobs.start(self._spark, home, job_id, settings)
            return _Running(ended=job.done, outcome=lambda: _outcome(job), gates=gates, job=job)
        process = self._pool.take(self._pool.driver if run.start.door == "driver" else "writer")
        if run.start.door == "driver":
            process.tell("run", home, name, settings)
        else:
            process.tell("write", home, name, self._uri, settings)
        return _Running(
            ended=process.answered, outcome=process.answer, gates=gates, process=process
        )

    def _gates(self, run: BackfillRun, until: str) -> list[str]:
        what, _, key = until.partition(" ")
        commit = f"commit-{run.name}"
        if what == "end":
            return []
        if what == "call":
            # While others act, results of the rows before must stay uncommitted.
            return [commit] if run.is_write else [f"call-{run.start.column}-{key}", commit]
        if what == "written" and not run.is_write:
            return [commit]
        return [f"{what}-{run.name}"]

    def _go_on(self, name: str, until: str) -> None:
        """Lets a backfill run until it waits at a gate, or has ended."""
        running, run = self._running[name], self.story.runs[name]
        if running.at:
            before, running.gates = running.gates, self._gates(run, until)
            for gate in before:
                open_gate(self._home, gate)
            for gate in running.gates:
                shut(self._home, gate)
        running.at = until
        self._wait(running)
        self._look(name)
        for gate in running.gates:
            # A backfill must not wait for a row that it has passed.
            if (
                gate.startswith("call")
                and not is_held(self._home, gate)
                and is_held(self._home, f"commit-{name}")
            ):
                open_gate(self._home, gate)
                running.at = "commit"
        if not any(is_held(self._home, gate) for gate in running.gates):
            self._end(name)

    def _wait(self, running: _Running) -> None:
        deadline, quiet, last_count = time.monotonic() + WAIT_S, time.monotonic(), -1
        while True:
            if running.ended():
                return
            moment, states = time.monotonic(), [is_held(self._home, gate) for gate in running.gates]
            called = len(jobs.calls(self._home)) + sum(states)
            if called != last_count:
                last_count, quiet = called, moment
            if states and (all(states) or (any(states) and moment - quiet > QUIET_S)):
                return
            if moment > deadline:
                raise WrongError(
                    f"a backfill neither ended nor came to {running.at!r}: {running.gates}"
                )
            time.sleep(0.01)

    def _end(self, name: str) -> None:
        running, run = self._running.pop(name), self.story.runs[name]
        for gate in running.gates:
            open_gate(self._home, gate)
        run.outcome = running.outcome()
        self.story.end(run)
        if running.process is not None:
            self._pool.give_back(running.process)
        if run.end in self.story.broken:
            self._restore(run)
        self.story.calls = jobs.calls(self._home)
        self._check_run(run)

    def _restore(self, run: BackfillRun) -> None:
        """Follows the advice in the error of a backfill whose files were deleted at the moment of its commit."""
        error = run.outcome
        if not isinstance(error, Caught) or error.kind != "CommitOutcomeUnknownError":
            raise WrongError(
                f"after {run.name} nobody can read version {run.end}, because files of it are missing: {error}"
            )
        advice = re.search(r"[Rr]estore version (\d+)", error.trace)
        if advice is None:
            raise WrongError(f"{run.name} does not say which version to restore: {error.trace}")
        restore = Restore(version=int(advice[1]))
        restore.act(self._uri)
        self._look(restore)
        self.story.acts.append((self.story.head.number, restore))

    def _kill(self, name: str) -> None:
        running, run = self._running[name], self.story.runs[name]
        if running.process is None:
            return
        running.process.kill()
        if run.start.door == "driver":
            self._pool.prepare(self._pool.driver)
        del self._running[name]
        for gate in running.gates:
            open_gate(self._home, gate)
        self._look(name)
        self.story.end(run)
        run.killed = True
        self._note("kill -9", run.start.door)

    def _give_up(self) -> None:
        """Ends the backfills of a failed history."""
        for name, running in [*self._running.items()]:
            if running.process is not None:
                running.process.kill()
                if running.process.kind == self._pool.driver:
                    self._pool.prepare(self._pool.driver)
            for gate in running.gates:
                open_gate(self._home, gate)
            if running.job is not None:
                running.job.cancel()
                running.job.done(WAIT_S)
            del self._running[name]
        for writer in self._writers:
            self._pool.give_back(writer)

    # Checks

    def _check_run(self, run: BackfillRun) -> None:
        """Checks the effects of a backfill on the table."""
        check_values(self.story, run)
        wrong_values = wrong_counters(self.story, run)
        if wrong_values:
            raise WrongError(f"{run.name}: {'; '.join(wrong_values)}: {run.outcome}")
        if isinstance(run.outcome, Caught):
            if not is_excused(
                self.story, run, run.outcome, None if self._ruin is None else self._ruin.targets
            ):
                raise WrongError(f"{run.name} failed: {run.outcome.trace}")
            return
        assert run.outcome is not None
        if (
            self._ruin is not None
            and run.start.column in self._ruin.targets
            and not self.story.commits(run)
        ):
            raise WrongError(f"{run.name} did not notice {self._ruin}: {run.outcome}")
        if run.is_write:
            return
        if run.outcome["status"] != "DONE":
            raise WrongError(f"{run.name} ended {run.outcome}")
        if self._ruin is None and (wrong := wrong_stale_count(self.story, run)):
            raise WrongError(f"{run.name}: {'; '.join(wrong)}: {run.outcome}")

    def _check_plan(self, column: str) -> None:
        """Checks the counts of outdated values in a plan."""
        table = lance_spark.connect(str(self._home), self._spark, progress=False).open_table("t")
        plan = table.plan_backfill(jobs.names_of(table.to_lance())[column])
        assert isinstance(plan, lance_spark.BackfillPlan)
        counts = plan.rows_stale, plan.rows_unverified
        wrong = wrong_count(self.story, column, self.story.head.number, *counts, with_nulls=True)
        if wrong is not None:
            raise WrongError(f"the plan of {column}: {wrong}")

    def _settle(self) -> None:
        """Fills all empty rows twice, where the second run computes no row. Then optionally fills all outdated rows."""
        for number, column in itertools.product((1, 2), ("v", "w")):
            before = len(self.story.calls)
            self._start(StartBackfill(f"settle {column} {number}", "job", column))
            if number == 2 and len(self.story.calls) != before:
                raise WrongError(
                    f"a second run of {column} called the UDF again: {self.story.calls[before:]}"
                )
            if number == 2:
                self._check_plan(column)
        if not self._history.fresh:
            return
        for number in (1, 2):
            before = len(self.story.calls)
            self._start(StartBackfill(f"fresh {number}", "job", "v", stale=True))
            if number == 2 and len(self.story.calls) != before:
                raise WrongError(
                    f"a second run of what is out of date called the UDF again: {self.story.calls[before:]}"
                )

    def _check_end(self) -> None:
        story = self.story
        unexplained = unaccounted_calls(story)
        if unexplained:
            raise WrongError("; ".join(unexplained))
        if not any(run.killed for run in story.runs.values()):
            reported_calls = sum(
                run.outcome.get("rows_computed", 0)
                for run in story.runs.values()
                if isinstance(run.outcome, dict)
            )
            errors = any(isinstance(run.outcome, Caught) for run in story.runs.values())
            if reported_calls != len(story.calls) and not errors:
                raise WrongError(
                    f"results tell of {reported_calls} calls, and there were {len(story.calls)}"
                )
        if self._ruin is not None:
            self._check_ruin(self._ruin)
            return
        head = lance.dataset(self._uri)
        for found_version in head.versions():
            number = found_version["version"]
            is_readable = number >= story.first and number not in story.broken
            rows = read(head.checkout_version(number))[0] if is_readable else None
            if rows is not None and rows != story.versions[number].rows:
                raise WrongError(
                    f"version {number} is not what it was: {differences(story.versions[number].rows, rows)}"
                )
        check_indexes(self.story, head)
        if any(run.killed for run in story.runs.values()):
            lance_spark.cleanup(self._uri, older_than=timedelta(0))
        unnamed_files = {name for name in unused_files(self._uri) if _OURS.search(name)}
        if (
            any(run.killed for run in story.runs.values())
            and checkpoint_store(self._uri, {}, None).column_files()
        ):
            unnamed_files = set()  # files of a killed process may serve another job while a checkpoint names any of them
        if unnamed_files:
            raise WrongError(f"files are left that no version names: {sorted(unnamed_files)}")

    def _check_ruin(self, ruin: Ruin) -> None:
        """Checks that no backfill wrote into the successor of a destroyed target."""
        before = [version for version in self.story.versions.values() if version.by is ruin][-1:]
        if not before:
            return
        filled = {run.start.column for run in self.story.runs.values()} - ruin.targets
        if ruin.how == "past":
            filled.add("d")  # a new column, for the returned rows
        expected = {
            key: {n: x for n, x in row.items() if n not in filled}
            for key, row in before[0].rows.items()
        }
        actual = {
            key: {n: x for n, x in row.items() if n not in filled}
            for key, row in self.story.head.rows.items()
        }
        if expected != actual:
            raise WrongError(f"after {ruin}, a backfill wrote: {differences(expected, actual)}")


def _outcome(job: lance_spark.Job) -> dict[str, Any] | Caught:
    from tests.histories.processes import summary

    try:
        return summary(job.result(0))
    except Exception as error:  # noqa: BLE001 - it is judged
        return Caught(error)
