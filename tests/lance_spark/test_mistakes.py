"""Mistakes of newcomers: the first line of the message describes the mistake and the remedy. Messages of Spark stand on
the page of errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark import Connection, Table, dataset, udf

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Shop:
    """Tables, and files that are none.

    Attributes:
        spark: The session.
        folder: A folder with two tables, Parquet files, a Delta table, and a file.
        db: The folder's connection.
        table: A table with the columns id, text, n.
    """

    spark: SparkSession
    folder: Path
    db: Connection
    table: Table

    def load(self, name: str, **options: object) -> DataFrame:
        return self.spark.read.format("lance").options(**options).load(str(self.folder / name))

    def save(self, rows: DataFrame, **options: object) -> None:
        rows.write.format("lance").mode("append").options(**options).save(self.table.uri)

    def addressed(self) -> DataFrame:
        return self.load("t.lance", with_row_address=True).selectExpr(
            "_rowaddr", "length(text) AS letters"
        )


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    db = lance_spark.connect(str(folder), spark)
    rows = [{"id": i, "text": f"text {i}", "n": i} for i in range(4)]
    table = db.create_table("t", rows)
    db.create_table("lists", [{"id": 1, "vec": [0.5, 0.5]}])
    for name in ("parquet", "delta/_delta_log"):
        (folder / name).mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "parquet" / "part-0.parquet")
    (folder / "file.txt").write_text("no table")
    return Shop(spark, folder, db, table)


class ArrowOnly:
    """A frame of another library, such as Polars: a stream of Arrow and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


@udf
def number(text: str) -> int:
    return int(text)


@udf
def wrong_type(text: str) -> int:
    return text  # type: ignore[return-value]


def plain(text: str) -> int:
    return len(text)


def backfilled(shop: Shop, function: Any) -> None:
    shop.db.create_table("failing", [{"text": "text 25"}], mode="overwrite").add_columns(
        {"x": function}
    )
    shop.db.open_table("failing").backfill("x")


def missing_bucket(reason: str) -> None:
    error = OSError(f"LanceError(IO): Generic S3 error: {reason}")
    raise dataset._explain(error, "s3://nobody/t.lance", None, None, ())


OURS: dict[str, tuple[Callable[[Shop], object], str]] = {
    "a folder of tables": (
        lambda shop: shop.load("."),
        r"The folder has the tables lists\.lance, t\.lance\. Name one of them",
    ),
    "a folder of Parquet files": (
        lambda shop: shop.load("parquet"),
        r"has Parquet files.*spark\.read\.parquet",
    ),
    "a Delta table": (lambda shop: shop.load("delta"), r"is a Delta table.*format\('delta'\)"),
    "a file": (
        lambda shop: shop.load("file.txt"),
        r"it is a file\. A table is a folder\. Give the path of the folder",
    ),
    "a backfill without the option": (
        lambda shop: shop.save(shop.addressed()),
        r"has the column _rowaddr of a backfill.*Add option\('mode', 'backfill'\)",
    ),
    "an append with a column more": (
        lambda shop: shop.save(shop.spark.range(1).selectExpr("id", "id AS more")),
        r"more: the table has no such column.*or add new columns with option\('mergeSchema', True\)",
    ),
    "addresses of no table": (
        lambda shop: shop.save(
            shop.spark.range(2).selectExpr("id AS _rowaddr", "id AS letters"), mode="backfill"
        ),
        r"was not read from a Lance table.*option\('with_row_address', True\)",
    ),
    "a function of Spark in a filter": (
        lambda shop: shop.load("t.lance", filter="regexp_extract(text, 'a', 0) = 'a'"),
        r"Use regexp_extract, a function of Spark, in df\.filter",
    ),
    "a name with the suffix": (
        lambda shop: shop.db.open_table("t.lance"),
        r"Leave out the suffix: open_table\('t'\)",
    ),
    "a path as a name": (
        lambda shop: shop.db.open_table(shop.table.uri),
        r"lance_spark\.open_table\(path\) opens a table by its path",
    ),
    "a table as a folder, opened": (
        lambda shop: lance_spark.connect(shop.table.uri, shop.spark).open_table("x"),
        r"is itself a table\. Connect to its folder",
    ),
    "a table as a folder, created": (
        lambda shop: lance_spark.connect(shop.table.uri, shop.spark).create_table("x", [{"a": 1}]),
        r"cannot lie in another table.*Connect to its folder",
    ),
    "no rows and no schema": (
        lambda shop: shop.db.create_table("none", []),
        r"has no columns.*Pass a schema",
    ),
    "mixed types": (
        lambda shop: shop.db.create_table("mixed", [{"a": 1}, {"a": "x"}]),
        r"expected a number, got str 'x'.*column 'a', row 1",
    ),
    "a plain function": (
        lambda shop: shop.table.add_columns({"x": plain}),
        r"'plain' is no UDF.*Decorate .* with @udf",
    ),
    "a lambda": (
        lambda shop: shop.table.add_columns({"x": lambda text: 1}),
        r"'<lambda>' is no UDF.*with @udf",
    ),
    "a UDF that raises": (
        lambda shop: backfilled(shop, number),
        r"UDF 'number' raised ValueError: invalid literal.*'text 25'.*on_error=skip_on_error\(\)",
    ),
    "a UDF with another type": (
        lambda shop: backfilled(shop, wrong_type),
        r"does not fit int64: expected a number, got str 'text 25'",
    ),
    "a search without vectors": (
        lambda shop: shop.db.open_table("lists").search([0.5, 0.5]).to_list(),
        r"Column 'vec' has list<.*table\.alter_columns\(\{'path': 'vec', 'data_type': pa\.list_\(pa\.float32\(\), 2\)\}\)",
    ),
    "a text search without an index": (
        lambda shop: shop.table.search("text").to_list(),
        r"name the columns, or call create_fts_index",
    ),
    "a bucket that does not exist": (
        lambda shop: missing_bucket(
            "<Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message>"
        ),
        r"Check the name of the bucket",
    ),
    "a bucket that does not exist, without a region": (
        lambda shop: missing_bucket("Failed to resolve region for bucket 'nobody'"),
        r"Check the name of the bucket",
    ),
    "dbfs with one slash": (
        lambda shop: lance_spark.connect("dbfs:/tables"),
        r"Accepted: /dbfs/tables",
    ),
    "Hadoop's scheme of S3": (
        lambda shop: lance_spark.connect("s3a://bucket/tables"),
        r"Accepted: s3://bucket/tables",
    ),
}
"""Mistakes, and a pattern that the first line of our message matches."""


@pytest.mark.parametrize("name", OURS)
def test_the_first_line_says_what_to_do(name: str, shop: Shop):
    mistake, pattern = OURS[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the classes have tests of their own
        mistake(shop)
    first_line = str(caught.value).splitlines()[0]
    assert re.search(pattern, first_line), first_line


def test_frames_of_other_libraries_are_rows(shop: Shop):
    frame = ArrowOnly(pa.table({"a": [1, 2], "s": pa.array(["x", "y"], pa.string_view())}))
    table = shop.db.create_table("frame", frame)  # type: ignore[arg-type]
    table.add(frame)  # type: ignore[arg-type]
    assert table.to_arrow().to_pydict() == {"a": [1, 2, 1, 2], "s": ["x", "y", "x", "y"]}


SPARKS: dict[str, tuple[Callable[[Shop], object], str]] = {
    "the mode backfill": (
        lambda shop: shop.addressed().write.format("lance").mode("backfill").save(shop.table.uri),
        "[INVALID_SAVE_MODE]",
    ),
    "no mode": (
        lambda shop: shop.addressed().write.format("lance").save(shop.table.uri),
        "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]",
    ),
    "no address": (
        lambda shop: shop.load("t.lance").select("_rowaddr"),
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `_rowaddr` cannot be resolved",
    ),
    "partitions": (
        lambda shop: (
            shop.addressed()
            .write.format("lance")
            .mode("append")
            .partitionBy("letters")
            .save(f"{shop.folder}/p.lance")
        ),
        "requirement failed: The provided partitioning or clustering columns do not match the existing table's",
    ),
    "a table as Parquet": (
        lambda shop: shop.spark.read.parquet(shop.table.uri),
        "[UNABLE_TO_INFER_SCHEMA]",
    ),
    "a path in SQL": (
        lambda shop: shop.spark.sql(f"SELECT * FROM lance.`{shop.table.uri}`"),
        "[UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY]",
    ),
    "a wrong folder of a catalog": (
        lambda shop: shop.spark.sql("SELECT * FROM nowhere.t"),
        "[TABLE_OR_VIEW_NOT_FOUND]",
    ),
    "an unknown attribute": (lambda shop: shop.table.show(), "'Table' object has no attribute"),  # type: ignore[attr-defined]
}
"""Mistakes whose messages are those of Spark or Python, and the texts that a reader searches for."""


@pytest.mark.parametrize("name", SPARKS)
def test_the_page_of_errors_has_the_message(name: str, shop: Shop):
    mistake, text = SPARKS[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the classes are Spark's and Python's
        mistake(shop)
    assert text in str(caught.value)
    assert text in PAGE


@pytest.mark.parametrize(
    "text",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: lance",
        "[UNSUPPORTED_FEATURE.TABLE_OPERATION]",
        "[PARSE_SYNTAX_ERROR]",
        "[JAVA_GATEWAY_EXITED]",
    ],
)
def test_the_page_of_errors_has_messages_of_other_sessions(text: str):
    """An environment that is not activated, a table of Spark's own catalog, a session without the extension, no Java."""
    assert text in PAGE
