"""Statements that change rows without Spark: their tasks run one after the other in this process, by the code that executors run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.dataset import DatasetRef
from lance_spark.dml.answers import Answer, RowJobs, packed
from lance_spark.dml.assignments import Assignments
from lance_spark.dml.result import ChangeResult
from lance_spark.dml.statement import Statement

Units = tuple[tuple[int, ...], ...]


def over_fragments(
    self: RowJobs, fragments: list[tuple[int, int]], task: Callable[[Units], Callable[[Iterator[pa.RecordBatch]], Any]]
) -> list[Answer]:
    """Takes the place of a Spark job of two tasks."""
    if not fragments:
        return []
    units = packed(fragments, max(1, sum(work for _, work in fragments) // 2))
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(units)), pa.int64())], names=["id"])
    return [Answer.of(batch.column(0)[0].as_py()) for batch in task(units)(iter([numbers]))]


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Runs updates and deletions of this process without Spark."""
    with patch.object(RowJobs, "over_fragments", over_fragments):
        yield


def update(uri: str, where: str | None, values: dict[str, object] | None = None, **expressions: str) -> ChangeResult:
    """Sets columns of rows."""
    sets = Assignments(where=where, values=values or {}, expressions=expressions)
    return _run(uri, where, sets)


def delete(uri: str, where: str) -> ChangeResult:
    """Deletes rows."""
    return _run(uri, where, None)


def _run(uri: str, where: str | None, sets: Assignments | None) -> ChangeResult:
    spark = cast("SparkSession", None)
    with inline():
        return Statement(spark, DatasetRef.at(uri, {}), where=where, sets=sets, table_name="t").run()
