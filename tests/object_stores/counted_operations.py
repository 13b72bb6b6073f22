"""The operations with a budget of requests, in the order of their runs on one table.

The test of budgets and `benchmarks/remote.py` run the operations. If pylance has the same operation, pylance runs it on
a twin of the table.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark import UDF, Connection, Table, udf
from lance_spark.staging.area import Staging

VERSIONS = 20
"""Number of versions between a snapshot and the operation, in operations with a history."""

JOBS = 20
"""Number of earlier jobs."""

DEAD_JOBS = 2

_numbers = itertools.count()


def rows_of(count: int, first: int = 0, *, text_bytes: int = 58) -> pa.Table:
    """Returns rows of three columns; the text is random."""
    ids = np.arange(first, first + count, dtype=np.int64)
    characters = np.random.default_rng(first).integers(33, 127, count * text_bytes, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(text_bytes)
    text = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(characters))
    return pa.table({"id": ids, "x": ids * 0.5, "text": text})


def make_letters() -> UDF:
    """Returns a nested UDF. Executors unpickle it without this module."""

    @udf(data_type=pa.int64(), version="1")
    def letters(text: pa.Array) -> pa.Array:
        return pc.cast(pc.utf8_length(text), "int64")

    return letters


def make_loud() -> UDF:
    @udf(data_type=pa.string(), version="1")
    def loud(text: pa.Array) -> pa.Array:
        return pc.utf8_upper(text)

    return loud


@dataclass(kw_only=True)
class RemoteTable:
    """A table in a store, with its twin for pylance.

    Attributes:
        spark: The session.
        root: Bucket of the store.
        storage: Options of the store.
        fragments: Number of fragments.
        rows: Number of rows per fragment.
        text_bytes: Size of the text of a row.
        snapshot: A DataFrame from before some versions.
    """

    spark: SparkSession
    root: str
    storage: dict[str, str]
    fragments: int
    rows: int = 100
    text_bytes: int = 58
    snapshot: DataFrame | None = None
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def folder(self) -> str:
        return f"{self.root}/counted-{self.number}"

    @property
    def uri(self) -> str:
        return f"{self.folder}/t.lance"

    @property
    def twin_uri(self) -> str:
        return f"{self.folder}/twin.lance"

    @property
    def options(self) -> dict[str, str]:
        return {f"storage.{name}": value for name, value in self.storage.items()}

    @cached_property
    def db(self) -> Connection:
        return lance_spark.connect(self.folder, self.spark, self.storage, progress=False)

    @cached_property
    def table(self) -> Table:
        return self.db.open_table("t")

    @cached_property
    def view(self) -> Table:
        return self.db.open_table("v")

    @cached_property
    def catalog(self) -> str:
        name = f"counted{self.number}"
        lance_spark.catalog(self.spark, name, self.folder, self.storage)
        return name

    def make(self) -> None:
        rows = rows_of(self.fragments * self.rows, text_bytes=self.text_bytes)
        for uri in (self.uri, self.twin_uri):
            self.write(rows, uri, "create")

    def write(self, rows: pa.Table, uri: str, mode: str) -> None:
        """Writes rows with pylance."""
        lance.write_dataset(
            rows,
            uri,
            mode=mode,
            max_rows_per_file=self.rows,
            storage_options=self.storage,
            enable_stable_row_ids=True,
        )

    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=self.storage)

    def twin(self) -> lance.LanceDataset:
        return lance.dataset(self.twin_uri, storage_options=self.storage)

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("lance").options(**self.options, **options).load(self.uri)

    def append(self, rows: DataFrame, **options: str) -> None:
        rows.write.format("lance").mode("append").options(**self.options, **options).save(self.uri)

    def sql(self, statement: str) -> Any:
        return self.spark.sql(statement.format(t=f"{self.catalog}.t")).collect()

    def backfill_dataframe(self, rows: DataFrame, column: str) -> None:
        self.append(rows.selectExpr("_rowaddr", f"length(text) AS {column}"), mode="backfill")

    def add_versions(self) -> None:
        """Adds versions without a change of rows."""
        dataset = self.dataset()
        for number in range(VERSIONS):
            dataset.update_config({"number": str(number)})

    def set_x(self, row: int) -> None:
        """Changes a row with pylance."""
        self.dataset().update({"x": "x + 100"}, where=f"id = {row}")


@dataclass(frozen=True, kw_only=True)
class CountedOperation:
    """An operation.

    Attributes:
        act: Runs the operation, counted.
        prepare: Runs before, uncounted.
        peer: Does the same with pylance on the twin.
        long: Whether the operation runs only in the long tests.
    """

    act: Callable[[RemoteTable], object]
    prepare: Callable[[RemoteTable], object] = lambda remote: None
    peer: Callable[[RemoteTable], object] | None = None
    long: bool = False


def append_of_two_tasks(remote: RemoteTable) -> None:
    remote.append(
        remote.spark.range(0, 20, 1, 2).selectExpr(
            "id + 1000000 AS id", "id * 0.5D AS x", "concat('t', id) AS text"
        )
    )


def add_column_with_pylance(remote: RemoteTable) -> None:
    name = f"n{next(_numbers)}"

    @lance.batch_udf(output_schema=pa.schema([(name, pa.int64())]))
    def letters(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pc.cast(pc.utf8_length(batch["text"]), "int64")], [name])

    remote.twin().add_columns(letters, read_columns=["text"])


def load_scores(remote: RemoteTable) -> None:
    """Loads a column for every third row."""
    ids = np.arange(0, remote.fragments * remote.rows, 3, dtype=np.int64)
    remote.table.load_columns(pa.table({"id": ids, "score": ids * 1.5}), pk="id", columns=["score"])


def make_view(remote: RemoteTable) -> None:
    query = (
        remote.table.search(None)
        .select({"id": "id", "y": "x * 2", "loud": make_loud()})
        .where("id % 2 = 0")
    )
    query.create_materialized_view(remote.db, "v")
    remote.view.refresh()


def merge(table: Any) -> Any:
    return table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()


def age_snapshot(remote: RemoteTable) -> None:
    remote.snapshot = remote.read(with_row_address="true")
    remote.add_versions()


def append_after_versions(remote: RemoteTable) -> None:
    remote.add_versions()
    remote.write(rows_of(remote.rows, 2_000_000), remote.uri, "append")


def change_before_versions(remote: RemoteTable) -> None:
    remote.set_x(20)
    remote.add_versions()


def leave_dead_jobs(remote: RemoteTable) -> None:
    """Leaves the files of jobs dead for ten days."""
    for number in range(DEAD_JOBS):
        started_at = int(time.time()) - 864_000 + number
        staging = Staging(
            uri=remote.uri,
            storage_options=tuple(sorted(remote.storage.items())),
            job_id=f"{number:032x}{started_at:08x}",
        )
        staging.open_job()
        file = staging.begin_attempt().open_data_file(pa.schema([("a", pa.int64())]), version="2.1")
        file.write_batch(pa.record_batch([pa.array([1, 2])], names=["a"]))
        file.close()


def run_jobs(remote: RemoteTable) -> None:
    for row in range(JOBS):
        remote.table.backfill("letters", where=f"id = {row}")


OPERATIONS: dict[str, CountedOperation] = {
    "load": CountedOperation(
        act=lambda remote: remote.read(), peer=lambda remote: remote.twin().schema
    ),
    "load again": CountedOperation(act=lambda remote: remote.read()),
    "count(*)": CountedOperation(
        act=lambda remote: remote.read().count(), peer=lambda remote: remote.twin().count_rows()
    ),
    "count(*) again": CountedOperation(act=lambda remote: remote.read().count()),
    "append of 2 tasks": CountedOperation(
        act=append_of_two_tasks,
        peer=lambda remote: remote.write(rows_of(20, 1_000_000), remote.twin_uri, "append"),
    ),
    "INSERT VALUES": CountedOperation(
        act=lambda remote: remote.sql("INSERT INTO {t} (id, x) VALUES (2000001, 1.0)"),
        peer=lambda remote: remote.write(rows_of(1, 2_000_001), remote.twin_uri, "append"),
    ),
    "DataFrame backfill": CountedOperation(
        act=lambda remote: remote.backfill_dataframe(remote.read(with_row_address="true"), "n1"),
        peer=add_column_with_pylance,
    ),
    "table_names": CountedOperation(act=lambda remote: remote.db.table_names()),
    "add_columns": CountedOperation(
        act=lambda remote: remote.table.add_columns({"letters": make_letters()})
    ),
    "plan_backfill": CountedOperation(act=lambda remote: remote.table.plan_backfill("letters")),
    "first backfill": CountedOperation(
        act=lambda remote: remote.table.backfill("letters"), peer=add_column_with_pylance
    ),
    "backfill, nothing to do": CountedOperation(
        act=lambda remote: remote.table.backfill("letters")
    ),
    'backfill where="1=1"': CountedOperation(
        act=lambda remote: remote.table.backfill("letters", where="1=1")
    ),
    "load_columns": CountedOperation(act=load_scores),
    "update of one row": CountedOperation(
        act=lambda remote: remote.table.update("id = 7", values_sql={"x": "x + 1"}),
        peer=lambda remote: remote.twin().update({"x": "x + 1"}, where="id = 7"),
    ),
    "merge_insert of one row": CountedOperation(
        act=lambda remote: merge(remote.table).execute([{"id": 9, "x": 1.5}]),
        peer=lambda remote: merge(remote.twin()).execute(rows_of(1, 9)),
    ),
    "MERGE of one row": CountedOperation(
        act=lambda remote: remote.sql(
            "MERGE INTO {t} t USING (SELECT 13L AS id, 2.5D AS x) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET x = s.x WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, s.x)"
        ),
    ),
    "refresh, nothing": CountedOperation(
        prepare=make_view, act=lambda remote: remote.view.refresh()
    ),
    "refresh, one row": CountedOperation(
        prepare=lambda remote: remote.set_x(20), act=lambda remote: remote.view.refresh()
    ),
    "refresh, one row of a UDF": CountedOperation(
        prepare=lambda remote: remote.dataset().update({"text": "'other'"}, where="id = 22"),
        act=lambda remote: remote.view.refresh(),
    ),
    f"refresh after {VERSIONS} versions": CountedOperation(
        prepare=change_before_versions, act=lambda remote: remote.view.refresh()
    ),
    f"backfill after {VERSIONS} versions": CountedOperation(
        prepare=append_after_versions, act=lambda remote: remote.table.backfill("letters")
    ),
    f"DataFrame backfill after {VERSIONS} versions": CountedOperation(
        prepare=age_snapshot, act=lambda remote: remote.backfill_dataframe(remote.snapshot, "n2")
    ),
    "option timestamp": CountedOperation(
        act=lambda remote: remote.read(timestamp=datetime.now(UTC).isoformat())
    ),
    "three newest versions": CountedOperation(
        act=lambda remote: remote.sql(
            "SELECT version, operation FROM {t}.versions ORDER BY version DESC LIMIT 3"
        )
    ),
    "count of versions": CountedOperation(
        act=lambda remote: remote.sql("SELECT count(*) FROM {t}.versions")
    ),
    "update of one row, indexed": CountedOperation(
        prepare=lambda remote: [
            dataset.create_scalar_index("id", "BTREE")
            for dataset in (remote.dataset(), remote.twin())
        ],
        act=lambda remote: remote.table.update("id = 35", values_sql={"x": "x + 1"}),
        peer=lambda remote: remote.twin().update({"x": "x + 1"}, where="id = 35"),
    ),
    "UPDATE of one row, indexed": CountedOperation(
        act=lambda remote: remote.sql("UPDATE {t} SET x = x + 1 WHERE id = 36")
    ),
    "point look-up, indexed": CountedOperation(
        act=lambda remote: remote.read().filter("id = 33").collect(),
        peer=lambda remote: remote.twin().to_table(filter="id = 33"),
    ),
    f"cleanup after {DEAD_JOBS} dead jobs": CountedOperation(
        prepare=leave_dead_jobs,
        act=lambda remote: lance_spark.cleanup(
            remote.uri, older_than=timedelta(days=7), storage_options=remote.storage
        ),
    ),
    f"backfill after {JOBS} jobs": CountedOperation(
        prepare=run_jobs,
        act=lambda remote: remote.table.backfill("letters", where="id = 50"),
        long=True,
    ),
    "compact_files": CountedOperation(
        act=lambda remote: remote.table.compact_files(),
        peer=lambda remote: remote.twin().optimize.compact_files(),
        long=True,
    ),
}


BIG_FILES: dict[str, CountedOperation] = {
    "scan": CountedOperation(
        act=lambda remote: remote.read().selectExpr("sum(length(text))").collect(),
        peer=lambda remote: remote.twin().to_table(columns=["text"]),
    ),
    "append": CountedOperation(
        act=lambda remote: remote.append(remote.read().filter("id >= 0")),
        peer=lambda remote: remote.write(remote.twin().to_table(), remote.twin_uri, "append"),
    ),
    "DataFrame backfill": OPERATIONS["DataFrame backfill"],
    "first backfill": CountedOperation(
        prepare=lambda remote: remote.table.add_columns({"letters": make_letters()}),
        act=lambda remote: remote.table.backfill("letters"),
        peer=add_column_with_pylance,
    ),
    "first backfill of a large column": CountedOperation(
        prepare=lambda remote: remote.table.add_columns({"loud": make_loud()}),
        act=lambda remote: remote.table.backfill("loud"),
    ),
    "update of one row": OPERATIONS["update of one row"],
}
"""The operations on files of 100 MB."""
