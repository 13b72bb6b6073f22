"""Runs this package's row changes as SQL statements in a writer process, in place of the functions without Spark."""

from __future__ import annotations

import tempfile
from unittest.mock import patch

import pyarrow as pa

import lance_spark
from tests.support import inline_rows
from tests.support.driver import session


def use() -> None:
    """Starts Spark, and has `inline_rows` of this process run statements from now on."""
    spark = session("local[2]")
    lance_spark.catalog(spark, "c", tempfile.mkdtemp())

    def run(statement: str) -> None:
        spark.sql(statement).collect()

    def update(uri: str, where: str, **expressions: str) -> None:
        values = ", ".join(f"`{name}` = {text}" for name, text in expressions.items())
        run(f"UPDATE c.`{uri}` SET {values} WHERE {where}")

    def merge(uri: str, key: str, data: pa.Table) -> None:
        spark.createDataFrame(data).createOrReplaceTempView("given")
        run(
            f"MERGE INTO c.`{uri}` t USING given s ON t.{key} = s.{key} WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    for name, function in {
        "delete": lambda uri, where: run(f"DELETE FROM c.`{uri}` WHERE {where}"),
        "update": update,
        "merge": merge,
    }.items():
        patch.object(inline_rows, name, function).start()
