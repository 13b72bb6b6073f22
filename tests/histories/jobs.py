"""The backfills of a history: the table, the UDFs, and the call of each API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

import lance_spark
from tests.histories.operations import COLUMNS, INPUT, names_of, new_row
from tests.histories.processes import pass_gate, summary
from tests.lance_spark.write.backfills import Backfill
from udf_runtime import UDF, udf

CHECKPOINT = 3
"""Rows of a checkpoint: the most rows that a killed process loses per task."""

SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": CHECKPOINT,
    "checkpoint_size": CHECKPOINT,
    "batch_checkpoint_flush_interval_seconds": 0,
    "refresh_status_secs": 0.05,
    "concurrency": 1,
}

WHERE = {"all": "1=1", "some": "key % 2 = 0"}
"""Filters, by their names in steps."""


def value(x: int) -> int | None:
    """The result of a table API job; NULL for some inputs."""
    return None if x % 7 == 3 else x * 10


def written_value(x: int) -> int:
    """The result of a DataFrame write."""
    return x * 10 + 1


def is_selected(where: str, key: int) -> bool:
    return where == "all" or key % 2 == 0


def counting_udf(home: str, column: str) -> UDF:
    """Returns the UDF of a column. The UDF logs each call, and passes a gate at each row."""

    def computed(x: int) -> int | None:
        import os
        import time

        log = os.open(f"{home}/calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{column} {x}\n".encode())
        os.close(log)
        gate = f"call-{column}-{x // 1000}"
        try:
            os.rename(f"{home}/hold/{gate}", f"{home}/held/{gate}")
        except FileNotFoundError:
            pass
        else:
            while os.path.exists(f"{home}/held/{gate}"):
                time.sleep(0.004)
        return None if x % 7 == 3 else x * 10

    return udf(data_type=pa.int64(), version="1", name=f"computed_{column}")(computed)


def make_table(home: Path, spark: SparkSession, fragments: tuple[int, ...], *, stable: bool) -> str:
    """Makes the table, whose targets are all NULL, and returns its location."""
    for folder in ("hold", "held"):
        (home / folder).mkdir()
    uri, key = str(home / "t.lance"), 0
    for number, rows in enumerate(fragments):
        columns = ("a", "b", "other")
        data = [{"key": k, **new_row(k, columns)} for k in range(key, key + rows)]
        table = pa.Table.from_pylist(
            data, schema=pa.schema([(name, pa.int64()) for name in ("key", *columns)])
        )
        lance.write_dataset(
            table, uri, mode="append" if number else "create", enable_stable_row_ids=stable
        )
        key += rows
    connection = lance_spark.connect(str(home), spark, progress=False)
    table = connection.open_table("t")
    table.add_columns(
        {target: (counting_udf(str(home), target), [INPUT[target]]) for target in ("v", "w")}
    )
    fields = lance.dataset(uri).lance_schema.fields()
    assert [(field.id(), field.name()) for field in fields] == list(enumerate(COLUMNS))
    return uri


def calls(home: Path) -> list[tuple[str, int]]:
    """Returns the calls so far: column and input."""
    log = home / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(column, int(x)) for column, x in (line.split() for line in lines)]


def start(spark: SparkSession, home: str, job_id: str, settings: dict[str, Any]) -> lance_spark.Job:
    """Starts a backfill of the table API.

    Args:
        spark: The session.
        home: Folder of the history.
        job_id: Id of the job.
        settings: The column under its first name, the filter's name, and arguments of `backfill_async`.
    """
    more = dict(settings)
    column, where = more.pop("column"), more.pop("where")
    table = lance_spark.connect(home, spark, progress=False).open_table("t")
    job = table.backfill_async(
        names_of(lance.dataset(table.uri))[column],
        job_id=job_id,
        where=WHERE.get(where),
        **{**SETTINGS, **more},
    )
    assert isinstance(job, lance_spark.Job)
    return job


def prepare_write(uri: str, settings: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Writes the files of a DataFrame write as two tasks, without Spark, and returns the commit function."""
    head = lance.dataset(uri)
    names = names_of(head)
    column, where = settings["column"], settings["where"]
    table = head.scanner(columns=["key", names[INPUT[column]]], with_row_address=True).to_table()
    rows = [
        (row["_rowaddr"], written_value(row[names[INPUT[column]]]))
        for row in table.to_pylist()
        if where is None or is_selected(where, row["key"])
    ]
    options = {"input_columns": names[INPUT[column]], **settings["options"]}
    backfill = Backfill(
        uri, names.get(column, column), LongType(), options=options, version=head.version
    )
    half = len(rows) // 2
    messages = [
        backfill.task([backfill.batch([address for address, _ in part], [x for _, x in part])])
        for part in (rows[:half], rows[half:])
        if part
    ]
    return lambda: summary(backfill.commit(*messages))


def write(home: str, job: str, uri: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Writes a column as a DataFrame write does, and waits at a gate before the commit."""
    commit = prepare_write(uri, settings)
    pass_gate(home, f"written-{job}")
    return commit()
