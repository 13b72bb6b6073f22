"""Micro-batches as Spark runs them: a source plans and writes, and the copy of another process commits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.datasource import LanceDataSource

SCHEMA = StructType([StructField("id", LongType())])


@dataclass(frozen=True, kw_only=True)
class MicroBatchQuery:
    """A streaming query with one task. Its batch n has the rows 10 n to 10 n + 9."""

    table: str
    name: str = "orders"
    overwrite: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def write(self, batch_id: int, rows: Sequence[int] | None = None) -> Callable[[], None]:
        """Writes the rows of a batch, and returns the commit."""
        options = {"path": self.table, **dict(self.options)}
        if self.name:
            options.setdefault("streaming_query_id", self.name)
        writer = LanceDataSource(options).streamWriter(SCHEMA, self.overwrite)
        numbers = pa.array(rows_of(batch_id) if rows is None else rows, pa.int64())
        answer = pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"id": numbers})]))

        def commit() -> None:
            copy = pickle.loads(pickle.dumps(LanceDataSource(options)))
            copy.streamWriter(SCHEMA, self.overwrite).commit([answer], batch_id)

        return commit

    def run(self, *batch_ids: int) -> None:
        """Writes and commits batches."""
        for batch_id in batch_ids:
            self.write(batch_id)()

    def ids(self) -> list[int]:
        """Returns the values of the table, sorted."""
        ids: list[Any] = lance.dataset(self.table).to_table()["id"].to_pylist()
        return sorted(ids)

    def version(self) -> int:
        return int(lance.dataset(self.table).version)


def rows_of(*batch_ids: int) -> list[int]:
    return [10 * batch_id + row for batch_id in batch_ids for row in range(10)]
