"""Accesses tables without Spark, in a process that reads requests as lines of JSON: `python -m
tests.malformed.permissions`.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import LanceSparkError
from tests.malformed.conftest import read


def write(path: str, kind: str) -> None:
    """Acts like Spark for one task: write, then commit, or abort after a failure."""
    if kind == "backfill":
        source = LanceDataSource({"path": path, "with_row_address": "true"})
        address = source.schema()["_rowaddr"]
        schema = StructType([address, StructField("label", StringType())])
        batch = pa.record_batch({"_rowaddr": pa.array([0], pa.int64()), "label": pa.array(["x"])})
    else:
        schema = StructType(
            [StructField("id", LongType(), False), StructField("text", StringType())]
        )
        batch = pa.record_batch({"id": pa.array([1], pa.int64()), "text": pa.array(["x"])})
    options = {"path": path, "mode": "backfill" if kind == "backfill" else "rows"}
    writer = LanceDataSource(options).writer(schema, kind == "overwrite")
    messages = []
    try:
        messages.append(writer.write(iter([batch])))
        writer.commit(messages)
    except LanceSparkError:
        writer.abort(messages)
        raise


def attempt(kind: str, path: str) -> str:
    """Returns name and message of the typed error of a request."""
    try:
        if kind == "read":
            read({"path": path})
        else:
            write(path, kind)
    except LanceSparkError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing failed"


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(attempt(*json.loads(line))), flush=True)
