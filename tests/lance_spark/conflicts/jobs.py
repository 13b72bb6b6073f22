"""Backfills of the table API beside which somebody else does something, at a moment that a test names; every call of the UDF is counted."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.lance_spark.conflicts.others import (
    Act,
    assert_indexes_agree,
    column,
    make_table,
    unused_files,
    value,
    work_of_others,
)
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

When = Literal["before", "between", "staged", "slipped"]
"""When somebody else acts.

`before`: the job has computed some rows, and committed nothing. `between`: it has committed the first two of four fragments, and works on
the others. `staged`: it has finished the column files of the first three, and committed nothing. `slipped`: the committer has looked at the
head and is about to commit all fragments.
"""

BATCH = 5

SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": BATCH,
    "checkpoint_size": BATCH,
    "batch_checkpoint_flush_interval_seconds": 0,
    "refresh_status_secs": 0.05,
    "task_size": 10,
}
"""A task is a fragment of ten rows, and a checkpoint a half of it. The session has two slots: two fragments at once, in order."""

_HELD: dict[str, tuple[tuple[int, ...], int | None]] = {
    "before": ((6, 16), 1),
    "between": ((26, 36), 1),
    "staged": ((36,), None),
}
"""Rows at which the UDF waits while somebody else acts, and the granularity of commits."""

ALL = Counter(range(40))
"""One call for each row of the snapshot."""

MOMENTS = pytest.mark.parametrize(
    ("when", "stable", "indexed"),
    [
        ("before", True, True),
        pytest.param("before", False, False, marks=pytest.mark.long),
        pytest.param("between", True, False, marks=pytest.mark.long),
        ("between", False, True),
        ("slipped", True, True),
        pytest.param("slipped", False, False, marks=pytest.mark.long),
    ],
    ids=["before", "before-addresses", "between", "between-addresses", "slipped", "slipped-addresses"],
)
"""Each moment with stable row ids and without; half of them with an index on the target. One of each moment is quick."""

MOMENTS_IN_SHORT = pytest.mark.parametrize(
    ("when", "stable", "indexed"),
    [("before", False, True), ("between", True, True), ("slipped", True, False)],
    ids=["before-addresses", "between", "slipped"],
)


def counting_udf(folder: str, *, version: str = "1", factor: int = 10, name: str = "computed") -> UDF:
    """Returns the UDF. It appends each call to `folder/calls`, and waits where `folder/hold/<x>` is."""

    def computed(x: int) -> int | None:
        import os
        import time

        log = os.open(f"{folder}/calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{x}\n".encode())
        os.close(log)
        held = f"{folder}/hold/{x}"
        if os.path.exists(held):
            os.close(os.open(f"{folder}/waiting-{x}", os.O_WRONLY | os.O_CREAT))
            while os.path.exists(held):
                time.sleep(0.01)
        if os.path.exists(f"{folder}/bad/{x}"):
            raise ValueError(f"row {x} is bad")
        return None if x % 7 == 3 else x * factor

    return udf(data_type=pa.int64(), version=version, name=name)(computed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of a job beside which somebody did something.

    Attributes:
        result: What it said.
        theirs: Everything but the target, by id, right after somebody else acted.
    """

    result: lance_spark.BackfillJobResult
    theirs: Mapping[int, Mapping[str, Any]]

    def counted(self, *names: str) -> dict[str, int]:
        """Returns counters of the result."""
        return {name: getattr(self.result, name) for name in names}


@dataclass(kw_only=True)
class Lab:
    """Where one test works.

    Attributes:
        home: Folder of the table, and of what the UDF is told and tells.
        spark: The session.
    """

    home: Path
    spark: SparkSession
    connection: lance_spark.Connection = field(init=False)
    _looked: int = 0

    def __post_init__(self) -> None:
        (self.home / "hold").mkdir()
        (self.home / "bad").mkdir()
        self.connection = lance_spark.connect(str(self.home), self.spark, progress=False)

    @property
    def uri(self) -> str:
        return str(self.home / "t.lance")

    def table(self, *, stable: bool = True, indexed: bool = False) -> lance_spark.Table:
        """Makes the table, with the column `v`, which is to be `value(x)`."""
        make_table(self.uri, stable=stable)
        table = self.connection.open_table("t")
        table.add_columns({"v": counting_udf(str(self.home))})
        if indexed:
            lance.dataset(self.uri).create_scalar_index("v", "BTREE", name="of v")
        return table

    def run(self, column: str = "v", **more: Any) -> lance_spark.BackfillJobResult:
        """Runs a backfill to its end."""
        settings = {**SETTINGS, "timeout": timedelta(seconds=60), **more}
        return self.connection.open_table("t").backfill(column, **settings)

    def start(self, column: str = "v", **more: Any) -> lance_spark.Job:
        job = self.connection.open_table("t").backfill_async(column, **{**SETTINGS, **more})
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

    def calls(self) -> Counter[int]:
        """Returns the calls since the last look, by `x`."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        fresh, self._looked = lines[self._looked :], len(lines)
        return Counter(map(int, fresh))

    def run_while(self, act: Act, when: When, **more: Any) -> Seen:
        """Runs a backfill, and lets somebody else act meanwhile. Errors of the job are raised."""
        theirs: list[dict[int, dict[str, Any]]] = []

        def observed(uri: str) -> None:
            act(uri)
            theirs.append(work_of_others(uri) if Path(uri, "_versions").exists() else {})

        if when == "slipped":
            with slipping_in(self.uri, observed):
                result = self.run(**{"commit_granularity": None, **more})
            assert theirs, "nothing was committed"
        else:
            rows, granularity = _HELD[when]
            before = target_files(self.uri)
            with self.held(rows):
                job = self.start(**{"commit_granularity": granularity, **more})
                self.wait_for(rows, job)
                if when == "between":
                    eventually(lambda: written_since(self.uri, before) >= {0, 1})
                    assert written_since(self.uri, before) == {0, 1}
                if when == "staged":
                    eventually(lambda: len(finished(self.uri)) >= 3)
                observed(self.uri)
            result = job.result(60)
        return Seen(result=result, theirs=theirs[0])

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

    def check(
        self,
        seen: Seen,
        *,
        calls: Mapping[int, int] = ALL,
        values: Mapping[int, int | None] | None = None,
        again: Iterable[int] = (),
        column_name: str = "v",
    ) -> None:
        """Asserts what holds after every job, whatever others did meanwhile.

        Args:
            seen: What became of it.
            calls: How often the UDF was called, by `x`.
            values: Values, by id, that are not `value(x)`.
            again: The `x` of rows for which a second run calls the UDF: they are rightly NULL now.
            column_name: The target's name by now.
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
        self.run(column_name)
        assert self.calls() == Counter(again), "calls of a second run"
        given = {i: v for i, v in (values or {}).items() if v is not None}
        self._check_table(seen, given, column_name)
        assert unused_files(self.uri) == set()

    def _check_table(self, seen: Seen, values: Mapping[int, int | None], name: str) -> None:
        now = work_of_others(self.uri)
        assert now == seen.theirs, "the other writer's work is not as it was left"
        x = "x" if "x" in lance.dataset(self.uri).schema.names else "renamed_x"
        right = {i: values[i] if i in values else value(row[x]) for i, row in now.items()}
        assert column(self.uri, name) == right
        assert_indexes_agree(self.uri, name)


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
    """Lets others commit after the committer looked at the head, and before it commits column files: one act at each attempt.

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
