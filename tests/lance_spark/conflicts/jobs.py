"""Backfills of the table API beside which a concurrent writer acts, at a moment that a test names;
every call of the UDF is counted.
"""

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
    Others,
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
"""A task is a fragment of ten rows, and a checkpoint a half of it."""

_GRANULARITY: dict[Moment, int | None] = {"before": 1, "between": 1, "staged": None, "slipped": None}

_AT: dict[Moment, int] = {"before": 6, "between": 26, "staged": 36}
"""The row in whose call a concurrent writer acts, where tasks run one after the other."""

CALLED: dict[Moment, int] = {"before": 10, "between": 30, "staged": 40, "slipped": 40}
"""Rows that are called for until the next commit, where it ends the job."""

_HELD: dict[Moment, tuple[int, ...]] = {"before": (6, 16), "between": (26, 36), "staged": (36,)}
"""The rows at which the UDF waits for a concurrent writer, where two tasks run at once, in order."""

ALL = Counter(range(40))
"""One call for each row of the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of a job beside a concurrent writer.

    Attributes:
        result: What it said.
        others: What the table had of others, right after the concurrent writer.
    """

    result: lance_spark.BackfillJobResult
    others: Others

    def counted(self, *names: str) -> dict[str, int]:
        """Returns counters of the result."""
        return {name: getattr(self.result, name) for name in names}


@dataclass(kw_only=True)
class Lab:
    """Where one test works: a folder with a table `t`, whose jobs run in this process, one task
    after the other.

    Attributes:
        home: Folder of the table, and of what the UDF and the tests tell each other.
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
        """Makes the table, with the column `v`, which is to be `value(x)`."""
        make_table(self.uri, stable=stable)
        table = self.open()
        table.add_columns({"v": self.udf()})
        if indexed:
            lance.dataset(self.uri).create_scalar_index("v", "BTREE", name="of v")
        return table

    def udf(self, *, version: str = "1", factor: int = 10, name: str = "computed", log: str = "calls") -> UDF:
        """Returns the UDF of the column.

        It logs each call, and waits or acts where a test wants that.
        """
        return counting_udf(str(self.home), self.uri, version=version, factor=factor, name=name, log=log)

    def run(self, column: str = "v", **more: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill to its end."""
        settings = {**SETTINGS, "timeout": timedelta(seconds=60), **more}
        return self.open().backfill(column, **settings)

    def start(self, column: str = "v", **more: Any) -> lance_spark.Job:
        job = self.open().backfill_async(column, **{**SETTINGS, **more})
        assert isinstance(job, lance_spark.Job)
        return job

    def run_and_fail(self, *bad: int, **more: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill whose UDF fails for rows, and returns what it did."""
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

    def run_while(self, act: Act, moment: Moment, **more: Any) -> Seen:
        """Runs a backfill, and lets a concurrent writer act meanwhile.

        Errors of the job are raised.
        """
        others: list[Others] = []
        before = target_files(self.uri)

        def observed() -> None:
            if moment == "between":
                assert written_since(self.uri, before) == {0, 1}
            if moment == "staged":
                assert len(finished(self.uri)) >= 3
            act(self.uri)
            others.append(Others.at(self.uri))

        settings = {"commit_granularity": _GRANULARITY[moment], **more}
        if moment == "slipped":
            with slipping_in(self.uri, lambda _: observed()):
                result = self.run(**settings)
        else:
            result = self._run_acting(observed, moment, **settings)
        assert others, "the concurrent writer did not act"
        return Seen(result=result, others=others[0])

    def _run_acting(self, act: Callable[[], object], moment: Moment, **settings: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill, in one of whose calls a concurrent writer acts."""
        with inline_jobs.acting(self.uri, _AT[moment], act):
            return self.run(**settings)

    def check(
        self,
        seen: Seen,
        *,
        calls: Mapping[int, int] = ALL,
        values: Mapping[int, int | None] | None = None,
        again: Iterable[int] | None = None,
        column_name: str = "v",
        next_error: str = "",
    ) -> None:
        """Asserts what holds after every job, whatever others did meanwhile.

        Args:
            seen: What became of it.
            calls: How often the UDF was called, by `x`.
            values: Values, by id, that are not `value(x)`.
            again: The `x` of rows for which a second run calls the UDF; by default those without a
                value among `values`.
            column_name: The target's name by now.
            next_error: What a second run is refused with, as a regular expression; empty where it
                is not.
        """
        assert self.calls() == Counter(calls)
        assert seen.result.status == "DONE"
        if calls:
            assert seen.result.rows_computed == sum(calls.values()), "each call is counted"
        self._check_table(seen, values or {}, column_name)
        assert unused_files(self.uri) == set()
        head = lance.dataset(self.uri)
        kept = {version["version"] for version in head.versions()} & set(seen.result.versions)
        made = [head.read_transaction(version).operation for version in kept]
        assert all(isinstance(operation, lance.LanceOperation.DataReplacement) for operation in made), (
            "not its versions"
        )
        if next_error:
            with pytest.raises(lance_spark.LanceSparkError, match=next_error):
                self.run(column_name)
            return
        self.run(column_name)
        if again is None:
            again = [seen.others.x(i) for i, v in (values or {}).items() if v is None]
        assert self.calls() == Counter(again), "calls of a second run"
        given = {i: v for i, v in (values or {}).items() if v is not None}
        self._check_table(seen, given, column_name)
        assert unused_files(self.uri) == set()

    def _check_table(self, seen: Seen, values: Mapping[int, int | None], name: str) -> None:
        now = Others.at(self.uri)
        assert now == seen.others, "the other writer's work is not as it was left"
        assert column(self.uri, name) == {i: values[i] if i in values else value(now.x(i)) for i in now.rows}
        assert_indexes_agree(self.uri, name)

    def check_case(self, case: Case, moment: Moment, *, stable: bool, indexed: bool) -> None:
        """Runs a job beside a row of the table of conflicts, and asserts what the row says."""
        self.table(stable=stable, indexed=indexed)
        if isinstance(case.expected, Refused):
            self._check_refused(case, case.expected, moment)
            return
        done = case.expected
        seen = self.run_while(case.act, moment, **case.options)
        assert seen.counted(*done.counters) == done.counters
        values = {**dict.fromkeys(done.null), **done.given}
        calls = ALL + Counter(done.calls) - Counter(done.uncalled)
        self.check(seen, calls=calls, values=values, column_name=done.column, next_error=done.next)

    def _check_refused(self, case: Case, refused: Refused, moment: Moment) -> None:
        """Asserts that a job says what happened, at which version and when, and leaves the table as
        it is.
        """
        before: list[int] = []

        def noted(uri: str) -> None:
            before.append(lance.dataset(uri).version)
            case.act(uri)
            before.append(lance.dataset(uri).version)

        with pytest.raises(refused.error, match=refused.said) as caught:
            self.run_while(noted, moment, **case.options)
        assert_says_what_happened(str(caught.value), self.uri, range(before[0] + 1, before[1] + 1))
        assert lance.dataset(self.uri).version == before[1], "something was committed"
        assert not caught.value.retryable
        assert finished(self.uri) == set(), "files that can never serve stay"
        assert self.calls() == Counter(range(CALLED[moment]))


@dataclass(kw_only=True)
class SparkLab(Lab):
    """The same with jobs that run on Spark, two tasks at once.

    Attributes:
        spark: The session.
    """

    spark: SparkSession
    connection: lance_spark.Connection = field(init=False)

    def __post_init__(self) -> None:
        Lab.__post_init__(self)
        self.connection = lance_spark.connect(str(self.home), self.spark, progress=False)

    def open(self) -> lance_spark.Table:
        return self.connection.open_table("t")

    def udf(self, *, version: str = "1", factor: int = 10, name: str = "computed", log: str = "calls") -> UDF:
        return counting_udf(str(self.home), None, version=version, factor=factor, name=name, log=log)

    def _run_acting(self, act: Callable[[], object], moment: Moment, **settings: Any) -> lance_spark.BackfillJobResult:
        before = target_files(self.uri)
        with self.held(_HELD[moment]):
            job = self.start(**settings)
            self.wait_for(_HELD[moment], job)
            if moment == "between":
                eventually(lambda: written_since(self.uri, before) >= {0, 1})
            if moment == "staged":
                eventually(lambda: len(finished(self.uri)) >= 3)
            act()
        return job.result(60)

    @contextlib.contextmanager
    def held(self, rows: Iterable[int]) -> Iterator[None]:
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
        """Tells whether the UDF has got to rows at which it is to wait."""
        return all((self.home / f"waiting-{x}").exists() for x in rows)

    def wait_for(self, rows: Iterable[int], job: lance_spark.Job) -> None:
        """Waits until the UDF waits at all of the rows."""
        rows = tuple(rows)
        eventually(lambda: job.done() or self.waits_at(*rows), 60)
        assert not job.done(), job.result(0)


def counting_udf(folder: str, inline: str | None, *, version: str, factor: int, name: str, log: str) -> UDF:
    """Returns a UDF that logs each call in a folder.

    Where its calls are made in this process, for the table at `inline`, it lets a concurrent writer
    act; else it waits where `hold/<x>` is in the folder.
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
        held = f"{folder}/hold/{x}"
        if os.path.exists(held):
            os.close(os.open(f"{folder}/waiting-{x}", os.O_WRONLY | os.O_CREAT))
            while os.path.exists(held):
                time.sleep(0.01)
        if os.path.exists(f"{folder}/bad/{x}"):
            raise ValueError(f"row {x} is bad")
        return None if x % 7 == 3 else x * factor

    return udf(data_type=pa.int64(), version=version, name=name)(computed)


def filled(uri: str, name: str = "v") -> set[int]:
    """Returns the fragments that have a value of a column."""
    table = lance.dataset(uri).scanner(columns=[], filter=f"{name} IS NOT NULL", with_row_address=True).to_table()
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
    """Returns the fragments that have another file of the column `v`."""
    return {fragment for fragment, file in target_files(uri).items() if before.get(fragment) != file}


def finished(uri: str) -> set[str]:
    """Returns column files that were written and that no version names."""
    return {name for name in unused_files(uri) if name.endswith(".lance")}


@contextlib.contextmanager
def slipping_in(uri: str, *acts: Act) -> Iterator[list[Act]]:
    """Lets others commit after the committer looked at the head, and before it commits column
    files: one act at each attempt.

    Yields the acts that are still to come.
    """
    real: Callable[..., Any] = lance.LanceDataset.commit
    left, acting = [*acts], [False]

    def late(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
        what = getattr(operation, "operation", operation)
        where = base if isinstance(base, str) else base.uri
        ours = isinstance(what, lance.LanceOperation.DataReplacement) and where.rstrip("/") == uri
        if ours and left and not acting[0]:
            acting[0] = True
            left.pop(0)(uri)
            acting[0] = False
        return real(base, operation, *arguments, **more)

    with patch.object(lance.LanceDataset, "commit", late):
        yield left
