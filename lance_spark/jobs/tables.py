"""Lance tables that lie inside a table's directory: the history of its jobs, and the errors of their rows.

`spark.read.format("lance").load(f"{uri}/_lance_spark/jobs.lance")` reads them like any other. Rows are only appended, so any number of
drivers and executors write at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.attempt import attempt_commit
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import TableNotFoundError

if TYPE_CHECKING:
    import lance

_KEPT_VERSIONS = 64
"""Versions after which old ones are removed: each append makes one, and nobody reads an old one."""


@dataclass(frozen=True, slots=True)
class SystemTable:
    """A table beside the data.

    Attributes:
        name: Its path inside the table's directory.
        schema: Its columns.
    """

    name: str
    schema: pa.Schema


_MOMENT = pa.timestamp("us", tz="UTC")

_ERROR_FIELDS: list[pa.Field[Any]] = [
    pa.field("error_id", pa.string()),
    pa.field("job_id", pa.string()),
    pa.field("table_uri", pa.string()),
    pa.field("table_version", pa.int64()),
    pa.field("columns", pa.list_(pa.string())),
    pa.field("udf_name", pa.string()),
    pa.field("udf_version", pa.string()),
    pa.field("input_columns", pa.list_(pa.string())),
    pa.field("fragment_id", pa.int64()),
    pa.field("row_address", pa.int64()),
    pa.field("outcome", pa.string()),
    pa.field("error_type", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("error_trace", pa.string()),
    pa.field("attempt", pa.int64()),
    pa.field("max_attempts", pa.int64()),
    pa.field("bisect_depth", pa.int64()),
    pa.field("timestamp", _MOMENT),
]

ERRORS = SystemTable("_lance_spark/errors.lance", pa.schema(_ERROR_FIELDS))

_JOB_FIELDS: list[pa.Field[Any]] = [
    pa.field("job_id", pa.string()),
    pa.field("job_type", pa.string()),
    pa.field("status", pa.string()),
    pa.field("columns", pa.list_(pa.string())),
    pa.field("udf_name", pa.string()),
    pa.field("udf_version", pa.string()),
    pa.field("input_columns", pa.list_(pa.string())),
    pa.field("key", pa.string()),
    pa.field("where", pa.string()),
    pa.field("read_version", pa.int64()),
    pa.field("staging_id", pa.string()),
    pa.field("launched_at", _MOMENT),
    pa.field("updated_at", _MOMENT),
    pa.field("completed_at", _MOMENT),
    pa.field("launched_by", pa.string()),
    pa.field("process", pa.string()),
    pa.field("rows_selected", pa.int64()),
    pa.field("rows_computed", pa.int64()),
    pa.field("rows_from_checkpoint", pa.int64()),
    pa.field("rows_skipped", pa.int64()),
    pa.field("rows_failed", pa.int64()),
    pa.field("fragments_total", pa.int64()),
    pa.field("fragments_done", pa.int64()),
    pa.field("versions", pa.list_(pa.int64())),
    pa.field("retries", pa.int64()),
    pa.field("seconds", pa.string()),
    pa.field("message", pa.string()),
]

JOBS = SystemTable("_lance_spark/jobs.lance", pa.schema(_JOB_FIELDS))


def table_ref(ref: DatasetRef, table: SystemTable) -> DatasetRef:
    """Returns the reference of a table beside the data."""
    return DatasetRef(uri=f"{ref.uri}/{table.name}", storage_options=ref.storage_options)


def append_rows(ref: DatasetRef, table: SystemTable, rows: pa.Table, *, retry_s: float | None = None) -> None:
    """Appends rows, and makes the table where it is not there yet. Runs anywhere.

    Args:
        ref: The table that it lies beside.
        table: Which one.
        rows: The rows.
        retry_s: Until when to try again after another writer came first, by the monotonic clock; by default for a minute.

    Raises:
        OSError: The store refused.
    """
    import lance

    at = table_ref(ref, table)
    until = time.monotonic() + 60 if retry_s is None else retry_s
    rounds = Rounds(policy=CommitPolicy(max_retries=1000))
    while True:
        rounds.begin()
        try:
            if not table_exists(at.uri, at.storage):
                _make(at, table)
            written = lance.write_dataset(rows, at.uri, mode="append", storage_options=at.storage or None)
        except OSError:
            if time.monotonic() > until or not rounds.again(race=True):
                raise
        else:
            _forget_old_versions(written)
            return


def _make(at: DatasetRef, table: SystemTable) -> None:
    """Makes the empty table, unless somebody else has.

    Not by the first append, nor by `mode="create"`: of two that come at once pylance makes one an overwrite, which drops the rows that the
    other has appended since (measured). A creation at read version 0 is refused then.
    """
    import lance

    nothing = lance.LanceOperation.Overwrite(table.schema, [])
    attempt_commit(at.uri, nothing, read_version=0, properties={}, storage_options=at.storage)


def read_rows(ref: DatasetRef, table: SystemTable, filter: str | None = None) -> pa.Table:
    """Returns the rows that match a filter; none where the table is not there yet."""
    try:
        dataset = table_ref(ref, table).open_latest()
    except TableNotFoundError:
        return table.schema.empty_table()
    found = dataset.to_table(filter=filter)
    # Columns that a later release added are NULL in older tables.
    arrays = [
        found.column(field.name) if field.name in found.column_names else pa.nulls(found.num_rows, field.type)
        for field in table.schema
    ]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _forget_old_versions(dataset: lance.LanceDataset) -> None:
    """Compacts and cleans up once in a while: a table of one small fragment per row becomes slow to read."""
    if dataset.version % _KEPT_VERSIONS:
        return
    try:
        dataset.optimize.compact_files()
        dataset.cleanup_old_versions(older_than=timedelta(hours=1))
    except OSError:
        # Another writer does the same.
        return


def quoted(text: str) -> str:
    """Returns a text as a literal of Lance SQL."""
    return "'" + text.replace("'", "''") + "'"
