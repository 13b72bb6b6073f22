"""Refreshes that stop at points. Each refresh has a thread, and runs only between commands, so at most one thread acts
at any moment.

The points of a refresh, in order: `begin` (the version to show is chosen), `place` (after the look at the view), `task`
(before each task), `move` (the tasks have written the new rows), `look` (after the tasks), `commit` (after the look at
the head, before the commit of rows), `landed` (after the commit, before its reply), `note` (before the version goes
into the view's configuration), `noting` (after the look at the head for that), `fill`, `call` (of the UDF), `fill
commit` and `fill landed` (as for rows), `end`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

from lance_spark.backfill.request import BackfillRequest
from lance_spark.jobs.progress import Progress
from lance_spark.staging import processes
from lance_spark.storage.objects import LanceObjects
from lance_spark.views import refresh
from lance_spark.views.placement import RowIdSpill
from lance_spark.views.refresh import RefreshJob, RefreshRequest
from lance_spark.views.row_tasks import RowTasks
from tests.histories.jobs import SETTINGS
from tests.histories.processes import Caught
from tests.support.inline_jobs import Death, NoSpark, inline_tasks

POINTS = (
    "begin", "place", "task", "move", "look", "commit", "landed", "note", "noting", "fill", "call", "fill commit", "fill landed",
)  # fmt: skip

FAULTS = ("lost", "refused", "unknown", "unanswered")
"""Faults of a commit: a concurrent writer took its slot, Lance finds a conflict, or the store fails before or after the
commit.
"""

WAIT_S = 60
_FIRST_PID = 1 << 23
"""Above every real process id. A refresh reports it as its process."""

_FILL = {name: number for name, number in SETTINGS.items() if name != "concurrency"} | {
    "task_size": 5
}


@dataclass(slots=True)
class _Current:
    """The present moment.

    Attributes:
        refresh: The acting refresh; None while the test acts.
        all: Every refresh of the history.
        calls: Calls so far: column and input.
    """

    refresh: Refresh | None = None
    all: list[Refresh] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)


CURRENT = _Current()


def called(name: str, x: int) -> None:
    """Notes a call of a UDF."""
    _pass("call")
    CURRENT.calls.append((name, x))


def _pass(point: str) -> None:
    if CURRENT.refresh is not None:
        CURRENT.refresh.pass_point(point)


class Refresh:
    """A refresh in its own thread, which waits for commands."""

    def __init__(self, make: Callable[[], RefreshJob]) -> None:
        self.at = ""
        self.outcome: Any = None
        self.killed = False
        self.starts: list[Any] = []
        """The start of each attempt to commit rows."""
        self.landed: dict[int, Any] = {}
        """The starts of committed attempts, by version."""
        self.bases: dict[int, int] = {}
        """The versions on which these attempts were based."""
        self.passed: list[str] = []
        self.fault: str | None = None
        self._make = make
        self._until, self._times = "", 1
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        CURRENT.all.append(self)
        self.pid = _FIRST_PID + len(CURRENT.all)

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    def go(self, until: str, fault: str | None = None) -> None:
        """Lets the refresh run to a point, optionally to its n-th pass of the point, or to its end."""
        what, _, times = until.rpartition(" ") if until[-1].isdecimal() else (until, "", "1")
        self._until, self._times = what, int(times)
        self.fault = fault or self.fault
        self._switch()

    def kill(self) -> None:
        """Ends a waiting refresh like a killed process: without any further action."""
        self.killed = True
        if not self.ended:
            self._switch()

    def _switch(self) -> None:
        CURRENT.refresh = self
        try:
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._go.release()
            assert self._stopped.acquire(timeout=WAIT_S), (
                f"it neither ended nor came to {self._until!r}: {self.passed}"
            )
        finally:
            CURRENT.refresh = None

    def _run(self) -> None:
        try:
            job = self._make()
            self.pass_point("begin")
            self.outcome = job.run()
        except BaseException as error:  # noqa: BLE001 - it is judged
            self.outcome = Caught(error)
        self.at = "end"
        self._stopped.release()

    def pass_point(self, point: str) -> None:
        if self.killed:
            raise Death
        self.passed.append(point)
        if point != self._until:
            return
        self._times -= 1
        if self._times > 0:
            return
        self.at, self._until = point, ""
        self._stopped.release()
        self._go.acquire()
        if self.killed:
            raise Death

    def commit(self, real: Callable[[], Any], base: int, before: str, after: str) -> Any:
        """Commits to a version, or injects the fault of this commit."""
        self.pass_point(before)
        fault, self.fault = self.fault, None
        if fault == "lost":
            raise CommitConflictError("Failed to commit the transaction after 0 retries.")
        if fault == "refused":
            raise CommitConflictError("Retryable commit conflict: other rows were changed")
        if fault == "unknown":
            raise OSError("the store is gone")
        landed = real()
        if after == "landed":
            self.landed[landed.version] = self.starts[-1]
            self.bases[landed.version] = base
        self.pass_point(after)
        if fault == "unanswered":
            raise OSError("the store did not answer")
        return landed


def start(table: Any, spark: Any, version: int | None, rows: int) -> Refresh:
    """Returns a refresh of a view before its begin."""

    def make() -> RefreshJob:
        return RefreshJob(
            spark,
            table._ref,
            RefreshRequest(src_version=version, max_rows_per_fragment=rows),
            table_name=table.name,
            checkpoints=None,
            progress=lambda title: Progress(title=title, enabled=False),
        )

    return Refresh(make)


# Without Spark


class _RefreshFrame:
    """A range whose partitions are mapped one after the other, in this process."""

    def __init__(self, stop: int, partitions: int) -> None:
        self._stop, self._partitions = stop, partitions
        self._work: Any = iter

    def mapInArrow(self, work: Any, _schema: str) -> _RefreshFrame:  # noqa: N802 - Spark's names
        self._work = work
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        rows = []
        bounds = [self._stop * number // self._partitions for number in range(self._partitions + 1)]
        for first, last in itertools.pairwise(bounds):
            _pass("task")
            batch = pa.RecordBatch.from_pydict({"id": range(first, last)})
            rows += [
                tuple(row.values())
                for answer in self._work(iter([batch]))
                for row in answer.to_pylist()
            ]
        return rows


class InlineSession(NoSpark):
    """The part of a session that a refresh needs. Tasks run in this process."""

    def range(self, _start: int, stop: int, _step: int, partitions: int) -> _RefreshFrame:  # type: ignore[override]
        return _RefreshFrame(stop, partitions)


# The points


@contextlib.contextmanager
def points(*, spark: bool = False) -> Iterator[None]:
    """Puts the points into the product; runs tasks of UDFs in this process, except with Spark."""
    with contextlib.ExitStack() as stack:
        for replaced in (
            patch.object(RefreshJob, "_replace_rows", _noting_start(RefreshJob._replace_rows)),
            patch.object(RowTasks, "rewrite", _at("move", RowTasks.rewrite)),
            patch.object(RefreshJob, "_commit", _at("look", RefreshJob._commit)),
            patch.object(RefreshJob, "_note", _at("note", RefreshJob._note)),
            patch.object(RefreshJob, "_fill", _at("fill", RefreshJob._fill)),
            patch.object(RowIdSpill, "_FEW", 2),  # some row ids go to files
            patch.object(refresh, "change_schema", _noting(refresh.change_schema)),
            patch.object(refresh, "BackfillRequest", functools.partial(BackfillRequest, **_FILL)),
            patch.object(lance.LanceDataset, "commit", _committing(lance.LanceDataset.commit)),
            *(
                patch.object(LanceObjects, name, _alive(getattr(LanceObjects, name)))
                for name in _WRITES
            ),
            patch("os.getpid", _own_pid(processes.os.getpid)),
            patch.object(processes, "is_running", _is_running(processes.is_running)),
        ):
            stack.enter_context(replaced)
        if not spark:
            stack.enter_context(inline_tasks())
        yield


_WRITES = ("put", "delete", "delete_folder")


def _at(point: str, real: Any) -> Any:
    @functools.wraps(real)
    def passing(*arguments: Any, **more: Any) -> Any:
        _pass(point)
        return real(*arguments, **more)

    return passing


def _noting_start(real: Any) -> Any:
    def replace_rows(job: RefreshJob, start: Any) -> None:
        if CURRENT.refresh is not None:
            CURRENT.refresh.starts.append(start)
        _pass("place")
        real(job, start)

    return replace_rows


def _noting(real: Any) -> Any:
    def change_schema(ref: Any, change: Any) -> Any:
        def changed(head: lance.LanceDataset) -> Any:
            _pass("noting")
            return change(head)

        return real(ref, changed)

    return change_schema


def _committing(real: Any) -> Any:
    @functools.wraps(real)
    def commit(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
        what = type(getattr(operation, "operation", operation)).__name__
        before = {"Update": "commit", "DataReplacement": "fill commit"}.get(what)
        acting = CURRENT.refresh
        # Commits to the tables of jobs and records, next to the rows, are no step of a refresh.
        is_beside = "_lance_spark" in str(getattr(base, "uri", base))
        if acting is None or before is None or is_beside:
            return real(base, operation, *arguments, **more)
        after = before.replace("commit", "landed")
        return acting.commit(
            lambda: real(base, operation, *arguments, **more), base.version, before, after
        )

    return commit


def _alive(real: Any) -> Any:
    """Stops the writes of a killed refresh."""

    @functools.wraps(real)
    def write(*arguments: Any) -> Any:
        if CURRENT.refresh is not None and CURRENT.refresh.killed:
            raise Death
        return real(*arguments)

    return write


def _own_pid(real: Any) -> Any:
    return lambda: real() if CURRENT.refresh is None else CURRENT.refresh.pid


def _is_running(real: Any) -> Any:
    def is_running(pid: int) -> bool:
        is_alive = {refresh.pid: not (refresh.killed or refresh.ended) for refresh in CURRENT.all}
        return is_alive[pid] if pid in is_alive else real(pid)

    return is_running
