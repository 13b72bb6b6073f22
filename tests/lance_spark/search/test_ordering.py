"""The order of the rows of queries, and their timeouts."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    ColumnOrdering,
    OptionError,
    QueryTimeoutError,
    RegistrationError,
)


@pytest.mark.long
@pytest.mark.parametrize("selects", [False, True])
def test_spark_and_this_process_order_rows_alike(
    selects: bool, tmp_path: Path, spark: SparkSession
) -> None:
    prices = [5, None, 9, 5, None, 1]
    vectors = pa.array([[float(i), 0.0] for i in range(6)], pa.list_(pa.float32(), 2))
    rows = pa.table({"id": range(6), "price": prices, "vector": vectors})
    table = lance_spark.connect(tmp_path, spark).create_table("t", rows)
    for ascending, nulls_first in ((True, True), (True, False), (False, True), (False, False)):
        ordering = [
            ColumnOrdering("price", ascending, nulls_first),
            ColumnOrdering("id", ascending=False),
        ]
        present = sorted((price for price in prices if price is not None), reverse=not ascending)
        expected = [None, None, *present] if nulls_first else [*present, None, None]
        for query, has_all in (
            (table.search(), True),
            (table.search().limit(3), True),
            (table.search([0.0, 0.0]).limit(4), False),
        ):
            ordered = query.order_by(ordering)
            chosen = ordered.select(["id"]) if selects else ordered
            ids = [row["id"] for row in chosen.to_list()]
            frame = chosen.to_spark()
            assert frame.columns == chosen.output_schema().names
            assert [row["id"] for row in frame.collect()] == ids
            if has_all:
                assert [prices[number] for number in ids] == expected[: query.most_rows]


def test_wrong_orders_are_refused(tmp_path: Path) -> None:
    query = lance_spark.connect(tmp_path).create_table("t", pa.table({"id": range(3)})).search()
    twice = [ColumnOrdering("id"), ColumnOrdering("id", ascending=False)]
    with pytest.raises(OptionError, match="different columns"):
        query.order_by(twice)
    with pytest.raises(RegistrationError, match="has no order"):
        query.order_by(twice[:1]).check_view()
    with pytest.raises(ColumnNotFoundError, match="price"):
        query.order_by([ColumnOrdering("price")]).to_list()


def test_a_timeout_ends_a_read_between_its_batches(tmp_path: Path) -> None:
    table = lance_spark.connect(tmp_path).create_table("t", pa.table({"id": range(10)}))
    table.add(pa.table({"id": range(10)}))
    reader = table.search().to_batches(2, timeout=timedelta(seconds=0.3))
    assert reader.read_next_batch().num_rows == 2
    threading.Event().wait(0.4)
    with pytest.raises(QueryTimeoutError, match=r"Query timeout after 0.3 s"):
        reader.read_all()
    assert len(table.search().to_arrow(timeout=timedelta.max)) == 20


def test_a_timeout_ends_a_wait_for_a_reranker(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": range(4),
            "vector": pa.array([[float(i), 0.0] for i in range(4)], pa.list_(pa.float32(), 2)),
        }
    )
    table = lance_spark.connect(tmp_path).create_table("t", rows)
    released = threading.Event()

    class Slow:
        def rerank_vector(self, query: str, rows: pa.Table) -> pa.Table:
            released.wait(60)
            return rows

    search = table.search([1.0, 0.0]).rerank(Slow(), query_string="slow")
    try:
        with pytest.raises(QueryTimeoutError, match=r"Query timeout after 0.3 s"):
            search.to_list(timeout=timedelta(seconds=0.3))
    finally:
        released.set()


def test_a_negative_timeout_is_refused(tmp_path: Path) -> None:
    table = lance_spark.connect(tmp_path).create_table("t", pa.table({"id": range(3)}))
    with pytest.raises(OptionError, match="timeout"):
        table.search().to_list(timeout=timedelta(seconds=-1))
