"""A client of Spark Connect for tables of a Lance namespace: `python -m tests.connect.namespace_client URL FOLDER`.

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lance.namespace import RestAdapter
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table, chunker, udf

SECRET = "open-sesame-4711"
Report = dict[str, object]


class NoteWord(NamedTuple):
    word: str


@chunker
def split(text: str) -> Iterator[NoteWord]:
    yield from map(NoteWord, text.split())


@udf(version="1")
def double(id: int) -> int:
    return 2 * id


def main(url: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    root = Path(folder, "catalog")
    root.mkdir()
    with RestAdapter(
        "dir", {"root": str(root), "table_version_tracking_enabled": "true"}, port=0
    ) as server:
        properties = {"uri": f"http://127.0.0.1:{server.port}", "headers.x-api-key": SECRET}
        db = lance_spark.connect(
            namespace_client_impl="rest",
            namespace_client_properties=properties,
            spark=spark,
            progress=False,
        )
        db.create_namespace(["sales"])
        rows = spark.range(20).selectExpr("id", "concat('a ', id) AS text")
        table = db.create_table("orders", rows, namespace=["sales"])
        report: Report = {}
        reading(table, spark, report)
        writing(table, spark, report)
        views(db, table, report)
        refusing(table, spark, report)
    spark.stop()
    print(json.dumps(report))


def reading(table: Table, spark: SparkSession, report: Report) -> None:
    frame = table.to_spark(["id"], "id >= 15")
    table.add(spark.range(20, 24).selectExpr("id", "concat('a ', id) AS text"))
    report["rows"] = [
        frame.count(),
        table.to_spark().count(),
        table.search().where("id < 5").to_spark().count(),
    ]
    latest: Any = table.to_spark()
    report["secret in plan"] = SECRET in latest._explain_string(mode="extended")


def writing(table: Table, spark: SparkSession, report: Report) -> None:
    table.add_columns({"double": double})
    report["backfill"] = [
        table.backfill("double").rows_computed,
        table.count_rows("double = 2 * id"),
    ]
    report["update"] = table.update("id = 3", {"text": "new"}).rows_updated
    report["delete"] = table.delete("id = 4").rows_deleted
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    report["merge"] = merge.execute(
        spark.range(23, 25).selectExpr("id", "'merged' AS text", "0L AS double")
    ).num_rows
    report["jobs"] = [job.status for job in table.list_jobs()]


def views(db: Connection, table: Table, report: Report) -> None:
    view = db.create_udtf_view(
        "words", table.search(None).select(["text"]), split, namespace=["sales"]
    )
    view.refresh()
    report["words"] = view.count_rows()


def refusing(table: Table, spark: SparkSession, report: Report) -> None:
    """Reads through a class that no administrator registered."""
    reference = {
        "implementation": "tests.connect.namespace_client.Nothing",
        "properties": {},
        "table_id": ["t"],
    }
    reader = spark.read.format("lance").option(
        "storage.lance_spark_namespace_secret", json.dumps(reference)
    )
    try:
        reader.load(table.uri).count()
    except PySparkException as error:
        report["unregistered class"] = "is not registered" in str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
