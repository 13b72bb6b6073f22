"""Drives the backfill writer without Spark: the same objects, batches and pickle round trips, in one process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, StructField, StructType

from lance_spark.commit import attempt, column_commit
from lance_spark.commit.changes import CommitResult
from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import STORAGE_PREFIX, ReadOptions, WriteOptions
from lance_spark.write.column_writer import ColumnsWritten, LanceBackfillWriter
from tests.lance_spark.types.oracle import demanded_schema

Rows = list[tuple[int | None, Any]]


class Backfill:
    """A backfill of one column `target`, computed from a snapshot."""

    def __init__(
        self,
        path: str,
        column: str,
        spark_type: DataType,
        *,
        address: str = "_rowaddr",
        options: dict[str, str] | None = None,
        spec: dict[str, Any] | None = None,
        version: int | None = None,
        metadata: dict[str, Any] | None = None,
        extra: Sequence[StructField] = (),
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        place = DatasetRef.at(path, storage or {})
        read = ReadOptions(
            path=path,
            version=None if version is None else str(version),
            storage=place.storage_options,
        )
        self.ref = DatasetRef.resolve(read)
        carried = {"lance.table": self.ref.snapshot_json()} if metadata is None else metadata
        self.schema = StructType(
            [
                StructField(address, LongType(), True, carried),
                StructField(column, spark_type),
                *extra,
            ]
        )
        stored = {f"{STORAGE_PREFIX}{key}": value for key, value in place.storage_options}
        parsed = WriteOptions.parse({"path": path, "mode": "backfill", **stored, **(options or {})})
        self.writer = LanceBackfillWriter.plan(place, self.schema, parsed, spec)
        self.writer.staging.open_job()

    def batch(self, addresses: Sequence[int | None], *columns: Iterable[Any]) -> pa.RecordBatch:
        schema = demanded_schema(self.schema)
        arrays = [
            pa.array(list(c), f.type) for c, f in zip([addresses, *columns], schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def task(self, batches: Iterable[pa.RecordBatch]) -> ColumnsWritten:
        """Runs one task like Spark: with a copy of the writer, and with a serialized message."""
        writer: LanceBackfillWriter = pickle.loads(pickle.dumps(self.writer))
        message = pickle.loads(pickle.dumps(writer.write(iter(batches))))
        return writer.read_answer(json.loads(json.dumps(message.to_json())))

    def commit(self, *messages: ColumnsWritten) -> CommitResult:
        return pickle.loads(pickle.dumps(self.writer)).commit_tasks(list(messages))

    def run(self, *tasks: Sequence[tuple[int | None, Any]]) -> CommitResult:
        """Runs a task per list of (address, value), and commits."""
        messages = [
            self.task([self.batch([a for a, _ in rows], [v for _, v in rows])]) for rows in tasks
        ]
        return self.commit(*messages)


def snapshot_rows(
    path: str,
    version: int | None = None,
    *,
    key: str = "id",
    by: str = "_rowaddr",
    storage: Mapping[str, str] | None = None,
) -> list[tuple[int, Any]]:
    """Returns (address, key) of every live row."""
    table = (
        lance.dataset(path, version=version, storage_options=_storage_options(storage))
        .scanner(columns=[key], with_row_address=by == "_rowaddr", with_row_id=by == "_rowid")
        .to_table()
    )
    return list(zip(table[by].to_pylist(), table[key].to_pylist(), strict=True))


def computed(
    rows: Iterable[tuple[int, Any]], function: Callable[[Any], Any] = lambda key: key * 10
) -> list[tuple[int, Any]]:
    return [(address, function(key)) for address, key in rows]


def column(
    path: str,
    name: str,
    *,
    key: str = "id",
    version: int | None = None,
    storage: Mapping[str, str] | None = None,
) -> dict[Any, Any]:
    """Returns the column's value by key."""
    table = lance.dataset(
        path, version=version, storage_options=_storage_options(storage)
    ).to_table(columns=[key, name])
    keys = table[key].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, table[name].to_pylist(), strict=True))


def orphans(path: str) -> set[str]:
    """Returns data files without a reference in any version, and leftovers of jobs in the staging folder."""
    dataset = lance.dataset(path)
    referenced_files = {
        file.path
        for version in dataset.versions()
        for fragment in lance.dataset(path, version=version["version"]).get_fragments()
        for file in fragment.metadata.files
    }
    data_files = {p.name for p in (Path(path) / "data").glob("*.lance")}
    staged = {str(p) for p in (Path(path) / "_lance_spark").rglob("*") if p.is_file()}
    return (data_files - referenced_files) | staged


def make_table(
    path: str,
    *,
    fragments: int = 3,
    rows: int = 10,
    stable: bool = True,
    storage: Mapping[str, str] | None = None,
    **columns: pa.DataType,
) -> lance.LanceDataset:
    """Makes a table of `id` 0, 1, ... and `text`, with NULL columns of the given types."""
    for i in range(fragments):
        ids = np.arange(rows, dtype=np.int64) + i * rows
        table = pa.table({"id": ids, "text": [f"t{k}" for k in ids], "other": ids * 2})
        lance.write_dataset(
            table,
            path,
            mode="append" if i else "create",
            enable_stable_row_ids=stable,
            storage_options=_storage_options(storage),
        )
    if columns:
        lance.dataset(path, storage_options=_storage_options(storage)).add_columns(
            pa.schema(list(columns.items()))
        )
    return lance.dataset(path, storage_options=_storage_options(storage))


def _storage_options(storage: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if storage is None else dict(storage)


def table_metadata(ref: DatasetRef, **changed: Any) -> dict[str, Any]:
    return {"lance.table": json.dumps({**json.loads(ref.snapshot_json()), **changed})}


def between_look_and_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Lets another writer commit between the committer's look at the head and its commit."""
    real = column_commit.attempt_commit
    acted: list[bool] = []

    def late(*args: Any, **kwargs: Any) -> Any:
        if not acted:
            acted.append(True)
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(column_commit, "attempt_commit", late)
    assert attempt.attempt_commit is real
