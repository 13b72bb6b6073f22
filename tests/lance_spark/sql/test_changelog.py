"""The change feed of a catalog's tables, with Spark's own clause and methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from lance_spark import Connection, Table
from tests.lance_spark.sql.conftest import Sql

pytestmark = [
    pytest.mark.classic,
    pytest.mark.skipif(
        not hasattr(DataFrameReader, "changes"), reason="Spark 4.2 has the clause CHANGES"
    ),
]

COLUMNS = "id, a, _change_type, _commit_version"


@pytest.fixture
def table(sql: Sql, db: Connection) -> Table:
    """Three rows in version 1, an update in version 2, a delete in version 3, and an update back in version 4."""
    table = db.create_table("t", [{"id": i, "a": 10 * i} for i in range(3)])
    table.update("id = 1", values={"a": 0})
    table.delete("id = 2")
    table.update("id = 1", values={"a": 10})
    return table


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Returns the rows by version and type."""
    return [
        tuple(row)
        for row in frame.selectExpr(COLUMNS.split(", "))
        .orderBy(*COLUMNS.split(", ")[:1:-1])
        .collect()
    ]


def test_the_clause_changes_reads_the_feed_of_the_table(sql: Sql, table: Table) -> None:
    feed = f"SELECT {COLUMNS} FROM {{c}}.t CHANGES FROM VERSION 2 TO VERSION 3"
    order = "ORDER BY _commit_version, _change_type"
    # By default, Spark asks for deletes and inserts.
    expected = [(1, 10, "delete", 2), (1, 0, "insert", 2), (2, 20, "delete", 3)]
    assert sql(f"{feed} {order}") == expected


@pytest.mark.long
def test_all_options_of_the_clause_have_their_meaning(
    sql: Sql, spark: SparkSession, table: Table
) -> None:
    feed = f"SELECT {COLUMNS} FROM {{c}}.t CHANGES FROM VERSION 2 TO VERSION 3 WITH (computeUpdates = 'true')"
    assert sql(f"{feed} ORDER BY _commit_version, _change_type") == rows_of(table.changes(2, 3))

    def read(**options: str | bool) -> list[tuple[Any, ...]]:
        reader = spark.read.option("startingVersion", 2).option("computeUpdates", True)
        return rows_of(reader.options(**options).changes("lance.t"))

    assert read() == rows_of(table.changes(2))
    assert read(startingBoundInclusive=False) == rows_of(table.changes(3))
    assert read(deduplicationMode="netChanges") == rows_of(table.changes(2, net=True))
    moment = table.list_versions()[1]["timestamp"].isoformat()
    by_time = sql(
        f"SELECT count(*) FROM {{c}}.t CHANGES FROM TIMESTAMP '{moment}' WITH (computeUpdates = 'true')"
    )
    assert by_time == [(5,)]


@pytest.mark.long
def test_options_of_the_feed_apply_and_others_are_refused(
    spark: SparkSession, table: Table
) -> None:
    def read(name: str = "lance.t", **options: str | bool) -> DataFrame:
        return (
            spark.read.option("startingVersion", 1)
            .option("endingVersion", 1)
            .options(**options)
            .changes(name)
        )

    narrow = read(columns="id", filter="a >= 10")
    assert narrow.columns == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    joined = narrow.join(read(), "id")
    assert sorted(row.id for row in joined.collect()) == [1, 2]
    for option, value in {
        "columns": "nothing",
        "max_bytes": "1",
        "storage.access_key_id": "x",
    }.items():
        with pytest.raises(PySparkException, match=option.partition(".")[0]):
            read(**{option: value}).collect()
    with pytest.raises(PySparkException, match="first version of the feed"):
        spark.read.changes("lance.t").collect()
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        read("lance.missing")


@pytest.mark.long
def test_a_stream_of_changes_continues_at_its_checkpoint(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    def run() -> list[tuple[Any, ...]]:
        stream = spark.readStream.option("startingVersion", 2).option("computeUpdates", True)
        writer = (
            stream.option("maxVersionsPerTrigger", 1)
            .changes("lance.t")
            .writeStream.format("parquet")
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(
            availableNow=True
        )
        query = writer.start(str(tmp_path / "copy"))
        assert query.awaitTermination(120)
        batches.append(len([p for p in query.recentProgress if p["numInputRows"]]))
        return rows_of(spark.read.parquet(str(tmp_path / "copy")))

    batches: list[int] = []
    assert run() == rows_of(table.changes(2))
    table.delete("id = 0")
    assert run() == rows_of(table.changes(2))
    assert batches == [3, 1]
    branch = table.branches.create("b")
    branch.add([{"id": 9, "a": 9}])
    reader = spark.read.option("branch", "b").option("startingVersion", branch.version)
    assert rows_of(reader.changes("lance.t")) == [(9, 9, "insert", branch.version)]
