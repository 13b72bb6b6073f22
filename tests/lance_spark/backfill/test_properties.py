"""Random tables, filters, sizes and histories: the column equals the function of each row, and the function was called
for exactly the expected rows.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Table
from udf_runtime import UDF, Skip, udf

FILTERS: dict[str, Callable[[int, int | None], bool]] = {
    "id % 3 = 0": lambda i, v: i % 3 == 0,
    "v > 4": lambda i, v: v is not None and v > 4,
    "v IS NULL": lambda i, v: v is None,
    "v IS NOT NULL AND id < 20": lambda i, v: v is not None and i < 20,
    "x IS NULL AND id >= 5": lambda i, v: i >= 5,
    "id IN (0, 7, 21, 99)": lambda i, v: i in (0, 7, 21, 99),
    "1 = 1": lambda i, v: True,
    "id < 0": lambda i, v: False,
}


@dataclass(frozen=True)
class BackfillCase:
    """A table and the arguments of its backfill."""

    fragments: list[list[int | None]]
    deleted: frozenset[int]
    stable: bool
    where: str | None
    sizes: dict[str, Any]
    kind: str
    window: tuple[int, int | None]


sizes = st.fixed_dictionaries(
    {},
    optional={
        "task_size": st.sampled_from([1, 2, 3, 7, 1000]),
        "checkpoint_size": st.sampled_from([1, 2, 5]),
        "batch_checkpoint_flush_interval_seconds": st.just(0),
        "commit_granularity": st.sampled_from([1, 2, None]),
        "concurrency": st.sampled_from([1, 2, None]),
        "intra_applier_concurrency": st.sampled_from([2, 3]),
    },
)
values = st.lists(st.one_of(st.none(), st.integers(-3, 9)), max_size=9)
cases = st.builds(
    BackfillCase,
    fragments=st.lists(values, min_size=1, max_size=4),
    deleted=st.frozensets(st.integers(0, 30), max_size=12),
    stable=st.booleans(),
    where=st.one_of(st.none(), st.sampled_from(sorted(FILTERS))),
    sizes=sizes,
    kind=st.sampled_from(["scalar", "arrow"]),
    window=st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(1, 2))),
)
quickly = settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def function(v: int | None) -> int | None:
    """NULL for 3 and for NULL; otherwise a number derived from the value."""
    return None if v is None or v == 3 else v * 10


def make_udf(kind: str, log: str) -> UDF:
    def note(rows: list[tuple[int, int | None]]) -> None:
        import json
        import os

        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        os.close(file)

    def compute(v: int | None) -> int | None:
        return None if v is None or v == 3 else v * 10

    if kind == "scalar":

        @udf(data_type=pa.int64(), version="1", name="f")
        def by_row(id: int, v: int | None) -> int | None:
            note([(id, v)])
            return compute(v)

        return by_row

    @udf(data_type=pa.int64(), version="1", name="f")
    def by_batch(id: pa.Array, v: pa.Array) -> pa.Array:
        rows = list(zip(id.to_pylist(), v.to_pylist(), strict=True))
        note(rows)
        return pa.array([compute(v) for _, v in rows], pa.int64())

    return by_batch


def calls(log: str) -> list[tuple[int, int | None]]:
    """Returns the rows of UDF calls since the last look, sorted."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8") as file:
        rows = [tuple(json.loads(line)) for line in file]
    os.unlink(log)
    return sorted(rows, key=lambda row: row[0])


def make(db: lance_spark.Connection, case: BackfillCase) -> Table:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = db.create_table("t", schema=schema, enable_stable_row_ids=case.stable)
    first = 0
    for rows in case.fragments:
        if rows:
            ids = range(first, first + len(rows))
            table.add(
                pa.table([pa.array(ids, pa.int64()), pa.array(rows, pa.int64())], schema=schema)
            )
            first += len(rows)
    if case.deleted:
        table.to_lance().delete(f"id IN ({', '.join(map(str, sorted(case.deleted)))})")
    return table


def rows_of(table: Table) -> dict[int, tuple[int | None, int | None]]:
    return {row["id"]: (row["v"], row.get("x")) for row in table.to_arrow().to_pylist()}


def selects(where: str | None, i: int, v: int | None) -> bool:
    return where is None or FILTERS[where](i, v)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    return spark


def in_folder(check: Callable[[str], None]) -> None:
    """Runs a check in a folder of its own, because the examples of one test share its tmp_path."""
    folder = tempfile.mkdtemp(prefix="lance-spark-property-")
    try:
        check(folder)
    finally:
        shutil.rmtree(folder)


@pytest.mark.long
@quickly
@given(case=cases)
def test_the_column_is_the_function_of_each_selected_row_and_each_was_called_once(
    session: SparkSession, case: BackfillCase
):
    def check(folder: str) -> None:
        log = f"{folder}/log"
        table = make(lance_spark.connect(f"{folder}/db", session, progress=False), case)
        table.add_columns({"x": make_udf(case.kind, log)})
        before = rows_of(table)
        skip, number = case.window
        handles = sorted(
            table.to_lance().get_fragments(), key=lambda fragment: fragment.fragment_id
        )
        stop = None if number is None else skip + number
        inside = {
            i
            for handle in handles[skip:stop]
            for i in handle.to_table(columns=["id"])["id"].to_pylist()
        }
        expected_calls = {
            i for i, (v, _) in before.items() if i in inside and selects(case.where, i, v)
        }

        plan = table.plan_backfill("x", where=case.where, skip_frags=skip, num_frags=number)
        assert plan.total_rows_pending == len(expected_calls) == plan.rows_to_compute
        result = table.backfill(
            "x", where=case.where, skip_frags=skip, num_frags=number, **case.sizes
        )
        assert (
            result.rows_computed == result.rows_selected == len(expected_calls)
            and result.status == "DONE"
        )
        assert calls(log) == sorted((i, before[i][0]) for i in expected_calls)
        expected = {
            i: (v, function(v) if i in expected_calls else None) for i, (v, _) in before.items()
        }
        assert rows_of(table) == expected

        # The remaining rows, each once: rows computed as NULL are known.
        table.backfill("x", **case.sizes)
        assert [i for i, _ in calls(log)] == sorted(set(before) - expected_calls)
        assert rows_of(table) == {i: (v, function(v)) for i, (v, _) in before.items()}
        version = table.version
        assert (
            table.backfill("x", **case.sizes).rows_computed == 0
            and calls(log) == []
            and table.version == version
        )

    in_folder(check)


actions = st.lists(
    st.sampled_from(
        ["append", "delete", "compact", "fill one", "fill", "fill where", "rename", "new udf"]
    ),
    min_size=2,
    max_size=6,
)


@quickly
@given(case=cases, history=actions)
def test_after_any_history_a_backfill_calls_just_the_rows_that_have_no_value_of_the_present_udf(
    session: SparkSession, case: BackfillCase, history: list[str]
):
    def check(folder: str) -> None:
        log = f"{folder}/log"
        table = make(lance_spark.connect(f"{folder}/db", session, progress=False), case)
        table.add_columns({"x": make_udf("scalar", log)})
        state = _State(table, log)
        for action in history:
            state.do(action, case.sizes)
        state.do("fill", case.sizes)
        assert rows_of_named(table, state.name) == {
            i: function(v) for i, v in state.alive.items()
        }, history
        table.backfill(state.name)
        assert calls(log) == [], history

    in_folder(check)


def rows_of_named(table: Table, name: str) -> dict[int, int | None]:
    return {row["id"]: row[name] for row in table.to_arrow().to_pylist()}


class _State:
    """The expected state: the rows, and the subset computed by the present UDF."""

    def __init__(self, table: Table, log: str) -> None:
        self.table, self.log, self.name = table, log, "x"
        self.alive = {i: v for i, (v, _) in rows_of(table).items()}
        self.done: set[int] = set()
        self.next = max(self.alive, default=-1) + 100

    def do(self, action: str, sizes: dict[str, Any]) -> None:
        table = self.table
        if action == "append":
            added = {self.next + n: n for n in range(4)}
            table.add([{"id": i, "v": v} for i, v in added.items()])
            self.alive |= added
            self.next += 10
        elif action == "delete":
            deleted = {i for i in self.alive if i % 4 == 1}
            table.to_lance().delete("id % 4 = 1")
            self.alive = {i: v for i, v in self.alive.items() if i not in deleted}
        elif action == "compact":
            table.to_lance().optimize.compact_files()
        elif action == "rename":
            name = "y" if self.name == "x" else "x"
            table.alter_columns({"path": self.name, "name": name})
            self.name = name
        elif action == "new udf":
            table.alter_columns({"path": self.name, "udf": make_udf("scalar", self.log)})
        else:
            self._fill(action, sizes)

    def _fill(self, action: str, sizes: dict[str, Any]) -> None:
        options: dict[str, Any] = {
            "fill one": {"num_frags": 1},
            "fill where": {"where": "id % 3 = 0"},
        }.get(action, {})
        self.table.backfill(self.name, **options, **sizes)
        called = [i for i, _ in calls(self.log)]
        assert len(called) == len(set(called)), "a row was called twice by one job"
        if action == "fill":
            self._check_called(called, set(self.alive) - self.done)
            self.done = set(self.alive)
        elif action == "fill where":
            # An explicit filter recomputes rows with a value.
            assert set(called) <= {i for i in self.alive if i % 3 == 0}
            self.done |= {i for i in self.alive if i % 3 == 0}
        else:
            assert not set(called) & self.done, "a row that had its value was called"
            self.done |= set(called)

    def _check_called(self, called: list[int], uncomputed: set[int]) -> None:
        assert set(called) == uncomputed & set(self.alive)


@pytest.mark.long
@quickly
@given(case=cases, bad=st.frozensets(st.integers(0, 30), max_size=6))
def test_skipped_rows_are_null_and_called_again_and_all_others_are_not(
    session: SparkSession, case: BackfillCase, bad: frozenset[int]
):
    def check(folder: str) -> None:
        log = f"{folder}/log"
        table = make(lance_spark.connect(f"{folder}/db", session, progress=False), case)
        note = make_udf("scalar", log).load()

        @udf(data_type=pa.int64(), on_error=Skip(ValueError), version="1")
        def picky(id: int, v: int | None) -> int | None:
            number = note(id, v)
            if id in bad:
                raise ValueError("bad")
            return number

        table.add_columns({"x": picky})
        before = rows_of(table)
        result = table.backfill("x", **case.sizes)
        assert result.rows_skipped == len(bad & set(before)) and result.status == "DONE"
        assert [i for i, _ in calls(log)] == sorted(before)
        assert rows_of(table) == {
            i: (v, None if i in bad else function(v)) for i, (v, _) in before.items()
        }
        again = table.backfill("x", **case.sizes)
        assert [i for i, _ in calls(log)] == sorted(
            bad & set(before)
        ) and again.rows_skipped == len(bad & set(before))

    in_folder(check)
