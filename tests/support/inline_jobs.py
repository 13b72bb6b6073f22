"""Backfills without Spark: tasks run in turn in this process, with the code of executors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
from lance.file import LanceFileWriter

from lance_spark import Table
from lance_spark.backfill.driver import job
from lance_spark.backfill.driver.scheduler import InFlightRows
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.round_context import source_of, store_of
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome, Task
from lance_spark.dataset import DatasetRef
from udf_runtime import UDF, udf

ACTS: dict[str, dict[int, list[Callable[[], object]]]] = {}
"""Actions for calls of UDFs, by table and row. They are global, because a loaded UDF shares no state with the stored
UDF.
"""

WHOLE: dict[str, Any] = {
    "min_checkpoint_size": 5,
    "checkpoint_size": 5,
    "batch_checkpoint_flush_interval_seconds": 0,
    "task_size": 1000,
}
"""A checkpoint for every five rows; a fragment is a single range."""

CUT: dict[str, Any] = {**WHOLE, "task_size": 10}
"""The same, with ranges of ten rows."""


class Death(BaseException):
    """Stands for the end of the driver's process."""


def die(*_: object) -> None:
    raise Death


class InlineScheduler:
    """Takes the place of Spark."""

    is_unfinished = False

    def __init__(self, _spark: object, spec: BackfillSpec, **_: object) -> None:
        self._spec = spec
        self._added: list[FragmentWork] = []
        self.ended_files: set[str] = set()
        self.in_flight = InFlightRows(spec)

    def add(self, work: FragmentWork) -> None:
        self._added.append(work)

    def stop(self) -> None:
        """Nothing runs."""

    def end_early(self) -> None:
        self.is_unfinished = True

    def run(
        self, tasks: Sequence[Task], _refresh_s: float
    ) -> Generator[list[RangeOutcome], None, None]:
        for task in tasks:
            if self.is_unfinished:
                return
            for outcome in self._spec.value_source.run(self._spec, task):
                yield [outcome]
                for work in self._added:
                    yield [*self._spec.value_source.run(self._spec, Task(number=-1, work=(work,)))]
                self._added.clear()


class _Conf:
    def get(self, key: str, default: str | None = None) -> str | None:
        return {"spark.master": "local[2]"}.get(key, default)


class _Frame:
    """A range whose rows are mapped at once, in this process."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = iter

    def mapInArrow(  # noqa: N802 - Spark's names
        self,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        _: str,
        **_arguments: object,
    ) -> _Frame:
        self._work = work
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        batch = pa.RecordBatch.from_pydict({"id": range(self._rows)})
        return [
            tuple(row.values())
            for answer in self._work(iter([batch]))
            for row in answer.to_pylist()
        ]


_Session = type("SparkSession", (), {})
"""Arguments are checked by the names of Spark's classes, because Spark Connect has classes of its own."""


class NoSpark(_Session):  # type: ignore[misc, valid-type]
    """As much of a session as a job looks at, and for a test of the real cluster, as a Spark job needs."""

    conf = _Conf()

    def range(self, _start: int, stop: int, *_: int) -> _Frame:
        return _Frame(stop)

    def addTag(self, _: str) -> None:  # noqa: N802
        """Jobs are never interrupted."""

    removeTag = interruptTag = addTag  # noqa: N815


@contextlib.contextmanager
def inline_tasks() -> Iterator[None]:
    """Runs the tasks of jobs in this process."""
    with patch.object(job, "Scheduler", InlineScheduler):
        yield


@contextlib.contextmanager
def without_spark(folder: Path) -> Iterator[InlineLab]:
    """A folder for a table whose jobs need no Spark."""
    with inline_tasks():
        yield InlineLab(folder)


def open_table(uri: str) -> Table:
    """Opens a table whose jobs need no Spark."""
    session: Any = NoSpark()
    return Table(
        DatasetRef.at(uri), "t", lambda: session, query_spark=lambda: session, progress=False
    )


@contextlib.contextmanager
def acting(uri: str, row: int, *acts: Callable[[], object]) -> Iterator[None]:
    """Runs actions in calls of a UDF for a row: the first action in the first call, and so on.

    Errors of an action are raised here. The job would take them for errors of the UDF.
    """
    errors: list[BaseException] = []

    def noting(act: Callable[[], object]) -> Callable[[], object]:
        def recorded() -> None:
            try:
                act()
            except BaseException as error:
                errors.append(error)
                raise

        return recorded

    ACTS.setdefault(uri, {})[row] = [noting(act) for act in acts]
    try:
        yield
    finally:
        ACTS[uri].pop(row, None)
        if errors:
            raise errors[0]


def act_at(uri: str, row: int) -> None:
    """Runs the action for this call of a UDF."""
    acts = ACTS.get(uri, {}).get(row)
    if acts:
        acts.pop(0)()


class InlineLab:
    """A folder with one table and the log of a UDF."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "t.lance")
        self.log = folder / "log"
        self.switch = folder / "switch"

    def make(self, data: pa.Table, *, rows_per_file: int = 1000) -> Table:
        lance.write_dataset(
            data, self.uri, max_rows_per_file=rows_per_file, enable_stable_row_ids=True
        )
        return self.table()

    def table(self) -> Table:
        return open_table(self.uri)

    def at(self, row: int, *acts: Callable[[], object]) -> None:
        """Lets something happen in calls of the UDF for a row: the first act in the first call, and so on."""
        ACTS.setdefault(self.uri, {})[row] = list(acts)

    def udf(self, *, bad: frozenset[int] = frozenset(), on_error: Any = None) -> UDF:
        """A UDF that logs its rows, fails for some rows while the switch is off, and adds the switch's number."""
        called, switch = self.called(), self.switch

        def f(id: int) -> int:
            called(id)
            on = switch.exists()
            if id in bad and not on:
                raise ValueError(f"row {id}")
            return id + (int(switch.read_text()) if on else 0)

        return udf(f, data_type=pa.int64(), version="1", name="f", on_error=on_error)

    def times_ten(self) -> UDF:
        """A UDF of `x` that logs its values, and returns ten times the value."""
        called = self.called()

        def times_ten(x: int) -> int:
            called(x)
            return x * 10

        return udf(times_ten, data_type=pa.int64(), version="1")

    def called(self) -> Callable[[int], None]:
        """A function for UDFs: logs a call, and runs its action."""
        log, uri = str(self.log), self.uri

        def called(row: int) -> None:
            from tests.support.inline_jobs import act_at

            with open(log, "a") as file:
                file.write(f"{row}\n")
            act_at(uri, row)

        return called

    def calls(self) -> list[int]:
        """The rows of UDF calls since the last look, ascending."""
        rows = sorted(map(int, self.log.read_text().split())) if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return rows

    @contextlib.contextmanager
    def dying_at_commit(self) -> Iterator[None]:
        """Ends the driver's process whenever a job is about to commit values."""
        with self._commits(die, after=False):
            try:
                yield
            except Death:
                return
        raise AssertionError("nothing was committed")

    def after_commits(
        self, act: Callable[[int], object]
    ) -> contextlib.AbstractContextManager[list[int]]:
        """Lets something happen after each commit of values; the act gets its number, from 1 on. Yields the versions."""
        return self._commits(act, after=True)

    @contextlib.contextmanager
    def _commits(self, act: Callable[[int], object], *, after: bool) -> Iterator[list[int]]:
        real, versions = lance.LanceDataset.commit, list[int]()

        def commit(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
            what = getattr(operation, "operation", operation)
            if acting or not isinstance(what, lance.LanceOperation.DataReplacement):
                return real(base, operation, *arguments, **more)
            acting.append(True)
            try:
                if not after:
                    act(0)
                committed = real(base, operation, *arguments, **more)
                versions.append(committed.version)
                if after:
                    act(len(versions))
                return committed
            finally:
                acting.clear()

        acting = list[bool]()
        with patch.object(lance.LanceDataset, "commit", commit):
            yield versions

    def rewrite(self, column: str, values: pa.Array[Any]) -> None:
        """Rewrites a column of the first fragment in place, as another writer may."""
        logging.getLogger("lance").setLevel(logging.ERROR)
        dataset = lance.dataset(self.uri)
        schema = pa.schema([dataset.schema.field(column)])
        name = f"other-{column}-{dataset.version}.lance"
        writer = LanceFileWriter(
            f"{self.uri}/data/{name}", schema=schema, version=dataset.data_storage_version
        )
        writer.write_batch(pa.record_batch([values], schema=schema))
        writer.close()
        file = lance.fragment.DataFile.create(dataset, name)
        group = lance.LanceOperation.DataReplacementGroup(
            dataset.get_fragments()[0].fragment_id, file
        )
        operation = lance.LanceOperation.DataReplacement([group])
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def opposite(kind: pa.DataType) -> UDF:
    """Another UDF of `id` with any declared return type."""

    def g(id: int) -> int:
        return -id

    return udf(g, data_type=kind, version="2", name="g")


def values(table: Table, *columns: str) -> dict[int, tuple[object, ...]]:
    """The values of columns by id."""
    rows = table.to_arrow(["id", *columns]).to_pylist()
    return {row["id"]: tuple(row[column] for column in columns) for row in rows}


def no_version_names(uri: str) -> list[Path]:
    """Data files without a reference in the latest version."""
    referenced_files = {
        file.path
        for fragment in lance.dataset(uri).get_fragments()
        for file in fragment.metadata.files
    }
    return [path for path in Path(uri, "data").iterdir() if path.name not in referenced_files]


def leave_checkpoints(lab: InlineLab, *parts: range) -> list[Callable[[], object]]:
    """Puts checkpoints of `id` into the first fragment like another job, and returns actions to remove them."""
    prepared = prepare(DatasetRef.at(lab.uri), BackfillRequest(columns=("v",)), checkpoints=None)
    store, spec = store_of(prepared.spec), prepared.spec
    source = source_of(spec, prepared.dataset.get_fragments()[0].metadata)
    entries = [
        store.write(spec.key, source, job_id="other", offsets=pa.array(rows), values=pa.array(rows))
        for rows in parts
    ]
    return [lambda entry=entry: store.delete(entry) for entry in entries]  # type: ignore[misc]
