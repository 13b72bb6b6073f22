"""Backfills of the table API with a concurrent writer at a chosen moment. The tests count every call of the UDF."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.lance_spark.conflicts.cases import Case, Moment, Refused
from tests.lance_spark.conflicts.others import (
    Act,
    ForeignState,
    assert_indexes_agree,
    assert_says_what_happened,
    column,
    make_table,
    unused_files,
    value,
)
from tests.support import inline_jobs
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

BATCH = 5

SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": BATCH,
    "checkpoint_size": BATCH,
    "batch_checkpoint_flush_interval_seconds": 0,
    "refresh_status_secs": 0.05,
    "task_size": 10,
}
"""A task is a fragment of ten rows, and a checkpoint is half of a fragment."""

_GRANULARITY: dict[Moment, int | None] = {
    "before": 1,
    "between": 1,
    "staged": None,
    "slipped": None,
}

_AT: dict[Moment, int] = {"before": 6, "between": 26, "staged": 36}
"""The row in whose call a concurrent writer acts, for tasks that run in turn."""

CALLED: dict[Moment, int] = {"before": 10, "between": 30, "staged": 40, "slipped": 40}
"""Rows called before the next commit, for a job that fails in this commit."""

_WAITING_ROWS: dict[Moment, tuple[int, ...]] = {
    "before": (6, 16),
    "between": (26, 36),
    "staged": (36,),
}
"""Rows at which the UDF waits for a concurrent writer, in order, for two concurrent tasks."""

ALL = Counter(range(40))
"""One call for each row of the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job with a concurrent writer.

    Attributes:
        result: The job's result.
        others: The foreign state of the table right after the concurrent writer's change.
    """

    result: lance_spark.BackfillJobResult
    others: ForeignState

    def counters(self, *names: str) -> dict[str, int]:
        """Returns counters of the result."""
        return {name: getattr(self.result, name) for name in names}


@dataclass(kw_only=True)
class ConflictLab:
    """The folder of a test, with a table `t` whose jobs run in this process, one task after the other.

    Attributes:
        home: Folder of the table, and of files between the UDF and the tests.
    """

    home: Path
    _looked: int = 0

    def __post_init__(self) -> None:
        (self.home / "hold").mkdir()
        (self.home / "bad").mkdir()

    @property
    def uri(self) -> str:
        return str(self.home / "t.lance")

    def open(self) -> lance_spark.Table:
        """Opens the table at its latest version."""
        return inline_jobs.open_table(self.uri)

    def table(self, *, stable: bool = True, indexed: bool = False) -> lance_spark.Table:
        """Makes the table with the computed column `v`, whose right values are `value(x)`."""
        make_table(self.uri, stable=stable)
        table = self.open()
        table.add_columns({"v": self.udf()})
        if indexed:
            lance.dataset(self.uri).create_scalar_index("v", "BTREE", name="of v")
        return table

    def udf(
        self, *, version: str = "1", factor: int = 10, name: str = "computed", log: str = "calls"
    ) -> UDF:
        """Returns the UDF of the column.

        The UDF logs each call, and waits or acts where a test demands it.
        """
        return counting_udf(
            str(self.home), self.uri, version=version, factor=factor, name=name, log=log
        )

    def run(self, column: str = "v", **more: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill to its end."""
        settings = {**SETTINGS, "timeout": timedelta(seconds=60), **more}
        return self.open().backfill(column, **settings)

    def start(self, column: str = "v", **more: Any) -> lance_spark.Job:
        job = self.open().backfill_async(column, **{**SETTINGS, **more})
        assert isinstance(job, lance_spark.Job)
        return job

    def run_and_fail(self, *bad: int, **more: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill whose UDF fails for rows, and returns its partial result."""
        for x in bad:
            (self.home / "bad" / str(x)).touch()
        with pytest.raises(lance_spark.BackfillIncompleteError) as caught:
            self.run(**more)
        for x in bad:
            (self.home / "bad" / str(x)).unlink()
        result = caught.value.result
        assert isinstance(result, lance_spark.BackfillJobResult)
        return result

    def calls(self, log: str = "calls") -> Counter[int]:
        """Returns the calls since the last look, by `x`."""
        path = self.home / log
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return Counter(map(int, lines))

    def run_while(self, act: Act, moment: Moment, **more: Any) -> JobOutcome:
        """Runs a backfill with a concurrent change by another writer.

        Errors of the job are raised.
        """
        states: list[ForeignState] = []
        before = target_files(self.uri)

        def observed() -> None:
            if moment == "between":
                assert written_since(self.uri, before) == {0, 1}
            if moment == "staged":
                assert len(finished(self.uri)) >= 3
            act(self.uri)
            states.append(ForeignState.at(self.uri))

        settings = {"commit_granularity": _GRANULARITY[moment], **more}
        if moment == "slipped":
            with slipping_in(self.uri, lambda _: observed()):
                result = self.run(**settings)
        else:
            result = self._run_acting(observed, moment, **settings)
        assert states, "the concurrent writer did not act"
        return JobOutcome(result=result, others=states[0])

    def _run_acting(
        self, act: Callable[[], object], moment: Moment, **settings: Any
    ) -> lance_spark.BackfillJobResult:
        """Runs a backfill; a concurrent writer acts in one of its calls."""
        with inline_jobs.acting(self.uri, _AT[moment], act):
            return self.run(**settings)

    def check(
        self,
        outcome: JobOutcome,
        *,
        calls: Mapping[int, int] = ALL,
        values: Mapping[int, int | None] | None = None,
        again: Iterable[int] | None = None,
        column_name: str = "v",
        next_error: str = "",
    ) -> None:
        """Asserts the state after any job, regardless of concurrent changes.

        Args:
            outcome: The outcome of the job.
            calls: Calls of the UDF, by `x`.
            values: Values other than `value(x)`, by id.
            again: The `x` of rows called in a second run; by default rows without a value among `values`.
            column_name: The target's present name.
            next_error: Regular expression for the error of a second run; empty for success.
        """
        assert self.calls() == Counter(calls)
        assert outcome.result.status == "DONE"
        if calls:
            assert outcome.result.rows_computed == sum(calls.values()), "each call is counted"
        self._check_table(outcome, values or {}, column_name)
        assert unused_files(self.uri) == set()
        head = lance.dataset(self.uri)
        own_versions = {version["version"] for version in head.versions()} & set(
            outcome.result.versions
        )
        operations = [head.read_transaction(version).operation for version in own_versions]
        assert all(
            isinstance(operation, lance.LanceOperation.DataReplacement) for operation in operations
        ), "not its versions"
        if next_error:
            with pytest.raises(lance_spark.LanceSparkError, match=next_error):
                self.run(column_name)
            return
        self.run(column_name)
        if again is None:
            again = [outcome.others.x(i) for i, v in (values or {}).items() if v is None]
        assert self.calls() == Counter(again), "calls of a second run"
        values_set = {i: v for i, v in (values or {}).items() if v is not None}
        self._check_table(outcome, values_set, column_name)
        assert unused_files(self.uri) == set()

    def _check_table(self, seen: JobOutcome, values: Mapping[int, int | None], name: str) -> None:
        current = ForeignState.at(self.uri)
        assert current == seen.others, "the other writer's work is not as it was left"
        assert column(self.uri, name) == {
            i: values[i] if i in values else value(current.x(i)) for i in current.rows
        }
        assert_indexes_agree(self.uri, name)

    def check_case(self, case: Case, moment: Moment, *, stable: bool, indexed: bool) -> None:
        """Runs a job with the concurrent change of a row of the table of conflicts, and asserts the expected
        outcome.
        """
        self.table(stable=stable, indexed=indexed)
        if isinstance(case.expected, Refused):
            self._check_refused(case, case.expected, moment)
            return
        expected = case.expected
        outcome = self.run_while(case.act, moment, **case.options)
        assert outcome.counters(*expected.counters) == expected.counters
        values = {**dict.fromkeys(expected.null), **expected.foreign}
        calls = ALL + Counter(expected.calls) - Counter(expected.uncalled)
        self.check(
            outcome,
            calls=calls,
            values=values,
            column_name=expected.column,
            next_error=expected.next,
        )

    def _check_refused(self, case: Case, refused: Refused, moment: Moment) -> None:
        """Asserts that the error of a job names the change, its version and its time, and that the job leaves the table
        unchanged.
        """
        before: list[int] = []

        def observed(uri: str) -> None:
            before.append(lance.dataset(uri).version)
            case.act(uri)
            before.append(lance.dataset(uri).version)

        with pytest.raises(refused.error, match=refused.message) as caught:
            self.run_while(observed, moment, **case.options)
        assert_says_what_happened(str(caught.value), self.uri, range(before[0] + 1, before[1] + 1))
        assert lance.dataset(self.uri).version == before[1], "something was committed"
        assert not caught.value.retryable
        assert finished(self.uri) == set(), "files that can never serve stay"
        assert self.calls() == Counter(range(CALLED[moment]))


@dataclass(kw_only=True)
class SparkLab(ConflictLab):
    """The same with jobs on Spark, with two concurrent tasks.

    Attributes:
        spark: The session.
    """

    spark: SparkSession
    connection: lance_spark.Connection = field(init=False)

    def __post_init__(self) -> None:
        ConflictLab.__post_init__(self)
        self.connection = lance_spark.connect(str(self.home), self.spark, progress=False)

    def open(self) -> lance_spark.Table:
        return self.connection.open_table("t")

    def udf(
        self, *, version: str = "1", factor: int = 10, name: str = "computed", log: str = "calls"
    ) -> UDF:
        return counting_udf(
            str(self.home), None, version=version, factor=factor, name=name, log=log
        )

    def _run_acting(
        self, act: Callable[[], object], moment: Moment, **settings: Any
    ) -> lance_spark.BackfillJobResult:
        before = target_files(self.uri)
        with self.hold_calls(_WAITING_ROWS[moment]):
            job = self.start(**settings)
            self.wait_for(_WAITING_ROWS[moment], job)
            if moment == "between":
                eventually(lambda: written_since(self.uri, before) >= {0, 1})
            if moment == "staged":
                eventually(lambda: len(finished(self.uri)) >= 3)
            act()
        return job.result(60)

    @contextlib.contextmanager
    def hold_calls(self, rows: Iterable[int]) -> Iterator[None]:
        """Makes the UDF wait at rows."""
        paths = [self.home / "hold" / str(x) for x in rows]
        for path in paths:
            path.touch()
        try:
            yield
        finally:
            for path in paths:
                path.unlink()

    def waits_at(self, *rows: int) -> bool:
        """Tells whether the UDF waits at all of the rows."""
        return all((self.home / f"waiting-{x}").exists() for x in rows)

    def wait_for(self, rows: Iterable[int], job: lance_spark.Job) -> None:
        """Waits until the UDF waits at all of the rows."""
        rows = tuple(rows)
        eventually(lambda: job.done() or self.waits_at(*rows), 60)
        assert not job.done(), job.result(0)


def counting_udf(
    folder: str, inline: str | None, *, version: str, factor: int, name: str, log: str
) -> UDF:
    """Returns a UDF that logs each call in a folder.

    With `inline`, its calls run in this process for the table at `inline`, and let a concurrent writer act. Otherwise a
    call waits while the file `hold/<x>` exists in the folder.
    """

    def computed(x: int) -> int | None:
        import os
        import time

        file = os.open(f"{folder}/{log}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{x}\n".encode())
        os.close(file)
        if inline is not None:
            from tests.support.inline_jobs import act_at

            act_at(inline, x)
        hold_file = f"{folder}/hold/{x}"
        if os.path.exists(hold_file):
            os.close(os.open(f"{folder}/waiting-{x}", os.O_WRONLY | os.O_CREAT))
            while os.path.exists(hold_file):
                time.sleep(0.01)
        if os.path.exists(f"{folder}/bad/{x}"):
            raise ValueError(f"row {x} is bad")
        return None if x % 7 == 3 else x * factor

    return udf(data_type=pa.int64(), version=version, name=name)(computed)


def filled(uri: str, name: str = "v") -> set[int]:
    """Returns the fragments with values of a column."""
    table = (
        lance.dataset(uri)
        .scanner(columns=[], filter=f"{name} IS NOT NULL", with_row_address=True)
        .to_table()
    )
    return {address >> 32 for address in table["_rowaddr"].to_pylist()}


def target_files(uri: str) -> dict[int, str]:
    """Returns the file of the column `v`, by fragment."""
    head = lance.dataset(uri)
    (number,) = (field.id() for field in head.lance_schema.fields() if field.name() == "v")
    return {
        fragment.fragment_id: file.path
        for fragment in head.get_fragments()
        for file in fragment.metadata.files
        if number in file.fields
    }


def written_since(uri: str, before: Mapping[int, str]) -> set[int]:
    """Returns the fragments with a new file of the column `v`."""
    return {
        fragment for fragment, file in target_files(uri).items() if before.get(fragment) != file
    }


def finished(uri: str) -> set[str]:
    """Returns written column files without a reference in any version."""
    return {name for name in unused_files(uri) if name.endswith(".lance")}


@contextlib.contextmanager
def slipping_in(uri: str, *acts: Act) -> Iterator[list[Act]]:
    """Lets other writers commit between the committer's look at the head and its commit of column files: one act at
    each attempt.

    Yields the remaining acts.
    """
    real: Callable[..., Any] = lance.LanceDataset.commit
    remaining, acting = [*acts], [False]

    def late(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
        what = getattr(operation, "operation", operation)
        where = base if isinstance(base, str) else base.uri
        ours = isinstance(what, lance.LanceOperation.DataReplacement) and where.rstrip("/") == uri
        if ours and remaining and not acting[0]:
            acting[0] = True
            remaining.pop(0)(uri)
            acting[0] = False
        return real(base, operation, *arguments, **more)

    with patch.object(lance.LanceDataset, "commit", late):
        yield remaining
