"""Partial aggregates follow Spark SQL: NULL, NaN, nothing at all."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from decimal import Decimal

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.read.aggregates import grouped
from lance_spark.read.aggregates.terms import Column
from lance_spark.read.planning.pushdown_request import AggregateCall, ScanSpec
from tests.lance_spark.read.conftest import MakeTable
from tests.lance_spark.read.scans import describe, make_reader, partitions, read, read_partitions

NAN = math.nan


def spec_for(column: str) -> ScanSpec:
    return ScanSpec(
        aggregate=(
            AggregateCall(fn="count_star", column=None, name="n"),
            AggregateCall(fn="count", column=column, name="c"),
            AggregateCall(fn="min", column=column, name="lo"),
            AggregateCall(fn="max", column=column, name="hi"),
        )
    )


def one_row(path: str, spec: ScanSpec, **options: object) -> dict[str, object]:
    (part,) = read_partitions(path, spec, **options)
    (row,) = part.to_pylist()
    return row


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (pa.array([3, None, -5, 7], pa.int8()), -5, 7),
        (pa.array(["b", None, "", "é", "\U0001f600"]), "", "\U0001f600"),
        (pa.array([b"\xff", b"\x7f\x00", None]), b"\x7f\x00", b"\xff"),
        (pa.array([None, None], pa.string()), None, None),
        (pa.array([], pa.int32()), None, None),
        (pa.array([1.5, NAN, None, -math.inf]), -math.inf, NAN),
        (pa.array([NAN, None, NAN], pa.float32()), NAN, NAN),
        (pa.array([True, None, False]), False, True),
        (
            pa.array([Decimal("1.10"), Decimal("-9.99")], pa.decimal128(10, 2)),
            Decimal("-9.99"),
            Decimal("1.10"),
        ),
        (
            pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
            dt.date(1, 1, 1),
            dt.date(9999, 12, 31),
        ),
        (pa.array([1 << 63, 0], pa.uint64()), Decimal(0), Decimal(1 << 63)),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else "",
)
def test_least_and_greatest_are_those_of_spark(
    table_path: str, values: pa.Array, low: object, high: object
):
    lance.write_dataset(pa.table({"v": values}), table_path, max_rows_per_file=2)
    row = one_row(table_path, spec_for("v"))
    assert (row["n"], row["c"]) == (len(values), len(values) - values.null_count)
    for got, expected in ((row["lo"], low), (row["hi"], high)):
        assert got == expected or (
            isinstance(expected, float) and math.isnan(expected) and math.isnan(got)
        )


def test_results_of_partitions_and_batches_add_up(make_table: MakeTable, table_path: str):
    dataset = make_table()
    live = dataset.to_table()["id"].to_pylist()
    parts = read_partitions(table_path, spec_for("id"), target_partition_bytes=2000, batch_size=16)
    rows = [part.to_pylist()[0] for part in parts]
    assert len(rows) > 3
    assert all(part.num_rows == 1 for part in parts)
    assert sum(r["n"] for r in rows) == sum(r["c"] for r in rows) == len(live)
    assert min(r["lo"] for r in rows) == min(live)
    assert max(r["hi"] for r in rows) == max(live)


COUNT = ScanSpec(aggregate=(AggregateCall(fn="count_star", column=None, name="n"),))


def test_a_count_comes_from_the_manifest(make_table: MakeTable, table_path: str, tmp_path):
    dataset = make_table()
    expected = dataset.count_rows()
    reader = make_reader(table_path, COUNT)
    (task,) = partitions(reader)
    assert task.fragments == ()
    assert next(reader.read(task)).to_pydict() == {"n": [expected]}
    assert one_row(table_path, COUNT, limit=17) == {"n": 17}
    assert one_row(table_path, COUNT, fragments="1") == {"n": dataset.get_fragment(1).count_rows()}


def test_a_count_with_a_filter_counts_what_passes(make_table: MakeTable, table_path: str):
    dataset = make_table()
    expected = dataset.count_rows("even")
    total = read(table_path, COUNT, filter="even", target_partition_bytes=2000)["n"].to_pylist()
    assert sum(total) == expected
    assert one_row(table_path, COUNT, filter="even", limit=5) == {"n": 5}
    pushed = dataclasses.replace(COUNT, filtered=True, filter_sql="even", exact=True)
    assert sum(read(table_path, pushed)["n"].to_pylist()) == expected


def test_an_aggregate_above_a_filter_that_lance_cannot_apply_is_refused(
    make_table: MakeTable, table_path: str
):
    make_table()
    with pytest.raises(ValueError, match="above a filter that Lance cannot apply"):
        read(table_path, dataclasses.replace(COUNT, filtered=True))
    with pytest.raises(ValueError, match="above a filter that Lance cannot apply"):
        read(table_path, dataclasses.replace(COUNT, filtered=True, filter_sql="even"))


def test_an_empty_table_gives_one_row(table_path: str):
    lance.write_dataset(pa.table({"v": pa.array([], pa.float64())}), table_path)
    assert one_row(table_path, COUNT) == {"n": 0}
    assert one_row(table_path, spec_for("v")) == {"n": 0, "c": 0, "lo": None, "hi": None}


def test_a_column_may_be_named_in_another_case(table_path: str):
    lance.write_dataset(pa.table({"Value": [3, 1, 2]}), table_path)
    assert one_row(table_path, spec_for("value")) == {"n": 3, "c": 3, "lo": 1, "hi": 3}
    assert "max(value)" in describe(table_path, spec_for("value"))["description"]


GROUPED = (
    AggregateCall(fn="group", column="k", name="k"),
    AggregateCall(fn="group", column="b", name="b"),
    AggregateCall(fn="count_star", column=None, name="n"),
    AggregateCall(fn="count", column="v", name="c"),
    AggregateCall(fn="sum", column=None, term=Column("v"), name="s"),
    AggregateCall(fn="min", column="v", name="lo"),
    AggregateCall(fn="max", column="v", name="hi"),
)
RESULT = pa.schema(
    [
        ("k", pa.string()), ("b", pa.bool_()), ("n", pa.int64()), ("c", pa.int64()), ("s", pa.int64()),
        ("lo", pa.int32()), ("hi", pa.int32()),
    ]
)  # fmt: skip


@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.sampled_from(["", "a", "b"]), st.text(max_size=2)),
            st.one_of(st.none(), st.booleans()),
            st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1)),
        ),
        max_size=40,
    ),
    batch_rows=st.integers(1, 7),
    grouped_rows=st.integers(1, 20),
)
def test_partial_results_of_groups_add_up(
    rows: list[tuple[str | None, bool | None, int | None]], batch_rows: int, grouped_rows: int
):
    expected: dict[tuple[str | None, bool | None], list[int | None]] = {}
    for key, flag, value in rows:
        expected.setdefault((key, flag), []).append(value)
    columns = [[row[i] for row in rows] for i in range(3)]
    table = pa.table(
        {
            "k": pa.array(columns[0], pa.string()),
            "b": pa.array(columns[1], pa.bool_()),
            "v": pa.array(columns[2], pa.int32()),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "_GROUPED_ROWS", (grouped_rows, 3 * grouped_rows))
        partial_results = list(grouped.grouped(table.to_batches(batch_rows), GROUPED, RESULT))
    partial: dict[tuple[str | None, bool | None], list[dict[str, int | None]]] = {}
    for batch in partial_results:
        assert batch.schema == RESULT
        for row in batch.to_pylist():
            partial.setdefault((row.pop("k"), row.pop("b")), []).append(row)
    assert partial.keys() == expected.keys()
    for key, values in expected.items():
        given_values = [value for value in values if value is not None]
        results = partial[key]
        assert sum(row["n"] or 0 for row in results) == len(values)
        assert sum(row["c"] or 0 for row in results) == len(given_values)
        for name, whole in (("s", sum), ("lo", min), ("hi", max)):
            parts = [row[name] for row in results if row[name] is not None]
            assert (whole(parts) if parts else None) == (
                whole(given_values) if given_values else None
            )


def test_as_many_groups_as_rows_are_not_grouped_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grouped, "_GROUPED_ROWS", (4, 8))
    calls = (
        AggregateCall(fn="group", column="k", name="k"),
        AggregateCall(fn="count_star", column=None, name="n"),
    )
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])

    def results(keys: list[int]) -> list[int]:
        batches = pa.table({"k": pa.array(keys, pa.int64())}).to_batches(2)
        return [batch.num_rows for batch in grouped.grouped(batches, calls, schema)]

    assert results([1, 2, 3, 4, 5, 5, 5, 5]) == [4, 2, 2]
    assert results([1, 1, 2, 2, 5, 5, 5, 5]) == [2, 1]
    assert results([1, 1, 2, 3, *[5] * 8, 6, 6]) == [3, 1, 1]
