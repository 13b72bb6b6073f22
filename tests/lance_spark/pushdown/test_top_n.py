"""The first rows of a sort: a scan returns the candidates, and the result equals Spark's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lance_spark.read.planning.pushdown_request import TopN
from lance_spark.read.top_n import first_rows

ROWS = 12_000

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-3, 3)),
    "float": (pa.float64(), st.sampled_from([-0.0, 0.0, 1.5, -math.inf, math.inf, math.nan])),
    "string": (pa.string(), st.text("aé\U0001f600", max_size=2)),
    "decimal": (pa.decimal128(5, 2), st.decimals(-2, 2, places=2)),
    "date": (pa.date32(), st.dates(date(2020, 1, 1), date(2020, 1, 4))),
    "binary": (pa.binary(), st.binary(max_size=1)),
}


def expected(values: Sequence[Any], top: TopN) -> list[int] | None:
    """Returns the rows that sort no later than the last of the first rows."""
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return None

    def order(value: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    sorted_values = sorted(
        (order(value) for value in values if value is not None), reverse=not top.ascending
    )
    if len(sorted_values) < top.n:
        return None
    last = sorted_values[top.n - 1]

    def serves(value: Any) -> bool:
        if value is None:
            return top.nulls_first
        return bool(order(value) <= last if top.ascending else order(value) >= last)

    return [row for row, value in enumerate(values) if serves(value)]


@settings(max_examples=120, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(KEYS)))
def test_the_rows_that_may_be_first(data: st.DataObject, name: str):
    kind, values = KEYS[name]
    parts = data.draw(st.lists(st.lists(st.none() | values, max_size=12), max_size=4))
    top = TopN(
        column="k",
        n=data.draw(st.integers(1, 8)),
        ascending=data.draw(st.booleans()),
        nulls_first=data.draw(st.booleans()),
    )
    first, batches = 0, []
    for part in parts:
        rows = pa.array(range(first, first + len(part)), pa.uint64())
        batches.append(pa.record_batch([pa.array(part, kind), rows], names=["k", "a"]))
        first += len(part)
    rows_found = first_rows(batches, top)
    assert (None if rows_found is None else rows_found.tolist()) == expected(
        [value for part in parts for value in part], top
    )


def test_memory_is_bounded_and_ties_end_it():
    def batches(keys: Any) -> list[pa.RecordBatch]:
        step = 8192
        rows = pa.array(np.arange(len(keys), dtype="uint64"))
        return pa.table({"k": pa.array(keys), "a": rows}).to_batches(max_chunksize=step)

    rising = np.arange(200_000)
    top = TopN(column="k", n=3, ascending=False, nulls_first=False)
    assert first_rows(batches(rising), top).tolist() == [199_997, 199_998, 199_999]  # type: ignore[union-attr]
    batches_read = 0

    def counted_batches() -> Any:
        nonlocal batches_read
        for batch in batches(rising % 2):
            batches_read += 1
            yield batch

    assert first_rows(counted_batches(), top) is None and batches_read < 10


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = str(tmp_path_factory.mktemp("top") / "t.lance")
    draw = np.random.default_rng(7)
    n = draw.integers(0, 1000, ROWS)
    score = np.where(draw.random(ROWS) < 0.1, None, np.round(draw.random(ROWS), 3))
    table = pa.table(
        {
            "id": pa.array(draw.permutation(ROWS)),
            "n": pa.array([None if i % 10 == 4 else int(v) for i, v in enumerate(n)], pa.int32()),
            "score": pa.array(score.tolist(), pa.float64()),
            "odd": pa.array([math.nan if i % 500 == 7 else float(v) for i, v in enumerate(n)]),
            "few": pa.array((n % 2).tolist(), pa.int8()),
            "s": pa.array([f"é{v}" for v in n]),
            "at": pa.array(
                [datetime.fromisoformat("2024-01-01") + timedelta(minutes=int(v)) for v in n],
                pa.timestamp("us"),
            ),
            "fine": pa.array(n * 1000, pa.int64()).cast(pa.timestamp("ns")),
            "price": pa.array([Decimal(int(v)) / 100 for v in n], pa.decimal128(9, 2)),
            "v": pa.FixedSizeListArray.from_arrays(
                pa.array(draw.random(ROWS * 4), pa.float32()), 4
            ),
        }
    )
    lance.write_dataset(table, target, max_rows_per_file=5000, enable_stable_row_ids=True)
    dataset = lance.dataset(target)
    dataset.delete("id % 7 = 3")
    dataset.create_scalar_index("n", "BTREE")
    return target


QUERIES = {
    "SELECT * FROM {t} ORDER BY score DESC, id LIMIT 10": True,
    "SELECT * FROM {t} ORDER BY score, id LIMIT 10": True,  # rows without a score come first
    "SELECT * FROM {t} ORDER BY score NULLS LAST, id DESC LIMIT 5 OFFSET 20": True,
    "SELECT s, v[1], score + 1 FROM {t} ORDER BY n DESC NULLS LAST, id LIMIT 7": True,
    "SELECT id, k FROM (SELECT id, n AS k, s AS n FROM {t}) ORDER BY k DESC, id LIMIT 7": True,
    "SELECT id FROM {t} WHERE n BETWEEN 5 AND 900 AND s != 'é7' ORDER BY n, id LIMIT 30": True,
    "SELECT ID, S FROM {t} WHERE N = 77 ORDER BY id LIMIT 3": True,
    "SELECT * FROM {t} WHERE score > 0.2 ORDER BY at DESC, price, id LIMIT 12": True,
    "SELECT * FROM {t} ORDER BY price, at DESC, id LIMIT 4": True,
    "SELECT id, S FROM {t} ORDER BY S, id LIMIT 40": True,
    "SELECT id FROM {t} ORDER BY few DESC, id LIMIT 5": True,
    "SELECT id, odd FROM {t} ORDER BY odd DESC, id LIMIT 30": True,  # NaN is the greatest
    "SELECT id FROM {t} WHERE id < 0 ORDER BY n LIMIT 3": True,
    "SELECT id FROM {t} ORDER BY fine, id LIMIT 5": False,
    "SELECT id FROM {t} WHERE length(s) % 3 = 1 ORDER BY n, id LIMIT 5": False,  # Spark filters
    "SELECT id FROM {t} WHERE id > rand() - 1 ORDER BY n, id LIMIT 5": False,
    "SELECT id FROM {t} ORDER BY n + 1, id LIMIT 5": False,
    "SELECT id FROM {t} ORDER BY s COLLATE UNICODE_CI, id LIMIT 5": False,
    "SELECT id FROM {t} ORDER BY n, id LIMIT 20000": False,
    "SELECT max(id) FROM (SELECT id FROM {t} ORDER BY n DESC, id LIMIT 9) JOIN (SELECT 1) ON true": True,
}


@pytest.mark.classic
@pytest.mark.sample(6)
@pytest.mark.parametrize("query", QUERIES)
def test_the_result_is_that_without_the_rule(
    query: str, path: str, spark: SparkSession, plain_spark: SparkSession
):
    frames: dict[SparkSession, DataFrame] = {}
    for session in (spark, plain_spark):
        session.read.format("lance").load(path).createOrReplaceTempView("top")
        frames[session] = session.sql(query.replace("{t}", "top"))
    assert ("first: " in planned(frames[spark])) == QUERIES[query]
    assert list(map(str, frames[spark].collect())) == list(map(str, frames[plain_spark].collect()))


def planned(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


@pytest.mark.classic
def test_few_rows_cross_the_border(spark: SparkSession, path: str):
    df = spark.read.format("lance").load(path)
    assert 10 <= crossed(df.orderBy("id").limit(10)) <= 60
    assert crossed(df.orderBy("few").limit(10)) > ROWS // 3  # all equal rows
    limited = spark.read.format("lance").option("limit", 100).load(path).orderBy("id").limit(3)
    assert "first: " not in planned(limited) and crossed(limited) == 100


@pytest.mark.classic
def test_a_table_of_the_first_format(spark: SparkSession, tmp_path: Path):
    lance.write_dataset(
        pa.table({"k": range(1000)}),
        tmp_path / "t",
        data_storage_version="legacy",
        max_rows_per_file=300,
    )
    df = spark.read.format("lance").load(str(tmp_path / "t")).orderBy("k").limit(2)
    assert df.collect() == [(0,), (1,)] and "first: " not in planned(df)


@pytest.mark.classic
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_blobs_are_sorted_by_what_the_scan_gives(
    version: str, spark: SparkSession, plain_spark: SparkSession, tmp_path: Path
):
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table(
        {"b": [bytes([i % 7]) * (i % 5) for i in range(60)], "id": range(60)},
        pa.schema([blob, ("id", pa.int64())]),
    )
    lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    column_types = []
    for session in (spark, plain_spark):
        df = session.read.format("lance").load(str(tmp_path / "t")).orderBy("b", "id").limit(4)
        assert "first: " not in planned(df)
        column_types.append(df.collect())
    assert column_types[0] == column_types[1]


def crossed(df: DataFrame) -> int:
    """Returns how many rows the scan of a query gave."""
    plan = df._jdf.queryExecution().executedPlan()
    plan.executeCollect()
    while plan.children().size():
        plan = plan.children().apply(0)
    return int(plan.metrics().apply("numOutputRows").value())
