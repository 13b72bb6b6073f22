"""Lance tables inside a table's directory: the history of its jobs, and the errors of their rows.

`spark.read.format("lance").load(f"{uri}/_lance_spark/jobs.lance")` reads them like any other. Rows
are only appended, so any number of drivers and executors write at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import (
    TableNotFoundError,
    TableUnreadableError,
    TableUnwritableError,
    panics_as_errors,
    refusals_as_errors,
)
from lance_spark.objects import LanceObjects

if TYPE_CHECKING:
    import lance

logger = logging.getLogger(__name__)

_KEPT_VERSIONS = 64
"""Versions after which small fragments are put together and old versions removed: each append makes
one of each."""

_READERS_TAKE = timedelta(minutes=10)
"""Age from which versions are removed: a reader that has opened one has read it by then."""

_FRAGMENT_ROWS = 1 << 17
"""Rows of a fragment that compaction leaves alone from then on, so that each row is written again
only a few times."""

_PATIENCE_S = 60.0
"""How long an append waits for concurrent writers."""

_UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
"""What pylance raises at damaged files, and pyarrow at columns of other types."""


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

ERRORS = SystemTable(f"{FOLDER}/errors.lance", pa.schema(_ERROR_FIELDS))

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

JOBS = SystemTable(f"{FOLDER}/jobs.lance", pa.schema(_JOB_FIELDS))


def table_ref(ref: DatasetRef, table: SystemTable) -> DatasetRef:
    """Returns the reference of a table beside the data."""
    return DatasetRef(uri=f"{ref.uri}/{table.name}", storage_options=ref.storage_options)


def append_rows(ref: DatasetRef, table: SystemTable, rows: pa.Table) -> None:
    """Appends rows, and makes the table where it is not there yet. Runs anywhere.

    It waits for concurrent writers for a minute; whatever else the store says is an error at once.

    Args:
        ref: The table that it lies beside.
        table: Which one.
        rows: The rows.

    Raises:
        TableUnwritableError: The store refused, or concurrent writers left no version for a minute.
            The rows may be there.
        TableUnreadableError: What is there is damaged, or another table.
    """
    import lance
    from lance.fragment import write_fragments

    at = table_ref(ref, table)
    dataset = _open_or_make(at, table)
    if not dataset.schema.equals(table.schema):
        raise TableUnreadableError(at.uri, "it has other columns", hint="move away what is there")
    with refusals_as_errors(at.uri):
        fragments = write_fragments(rows, dataset, mode="append", storage_options=at.storage or None)
    rounds = Rounds(policy=CommitPolicy(timeout_s=_PATIENCE_S))
    while True:
        rounds.begin()
        outcome = _attempt(dataset, lance.LanceOperation.Append(fragments), at, dataset.version)
        if isinstance(outcome, Landed):
            break
        if not rounds.again(race=True):
            raise TableUnwritableError(at.uri, str(outcome.error)) from outcome.error
        dataset = _open_or_make(at, table)
    if outcome.dataset.version % _KEPT_VERSIONS == 0:
        _compact(outcome.dataset)


def read_rows(ref: DatasetRef, table: SystemTable, filter: str | None = None) -> pa.Table:
    """Returns the rows that match a filter; none where the table is not there yet.

    What is damaged, or was made by something else, is left out with a warning.

    Raises:
        TableUnreadableError: The store refused, so nothing is known.
    """
    at = table_ref(ref, table)
    empty = table.schema.empty_table()
    try:
        dataset = at.open_latest()
    except TableNotFoundError:
        return empty
    except TableUnreadableError as error:
        # The latest version has the first name.
        _warn_of_damage(at, LanceObjects(at.uri, at.storage_options).list("_versions")[:1], error)
        return empty
    try:
        return _read(dataset, table, filter)
    except _UNREADABLE:
        pass
    parts = [empty]
    for fragment in dataset.get_fragments():
        try:
            parts.append(_read(fragment, table, filter))
        except _UNREADABLE as error:
            _warn_of_damage(at, [f"data/{file.path}" for file in fragment.data_files()], error)
    return pa.concat_tables(parts)


def delete_rows(ref: DatasetRef, table: SystemTable, filter: str) -> None:
    """Deletes the rows that match a filter from a table that is there, and compacts it.

    A damaged table stays as it is.

    Raises:
        TableUnreadableError: It cannot be opened.
    """
    dataset = table_ref(ref, table).open_latest()
    try:
        # Where a concurrent commit came first pylance applies the filter to the latest version.
        dataset.delete(filter)
    except OSError as error:
        logger.warning("rows that are not needed any more stay in %s: %s", dataset.uri, error)
    else:
        _compact(dataset)


def _open_or_make(at: DatasetRef, table: SystemTable) -> lance.LanceDataset:
    """Opens the latest version, of an empty table where there was none.

    It is not made by the first append, nor by `mode="create"`: of two that come at once pylance
    makes one an overwrite, which drops the rows that the other has appended since (measured). A
    creation at read version 0 is refused then.
    """
    import lance

    with contextlib.suppress(TableNotFoundError):
        return at.open_latest()
    _attempt(at.uri, lance.LanceOperation.Overwrite(table.schema, []), at, 0)
    return at.open_latest()


def _attempt(
    base: lance.LanceDataset | str, operation: lance.LanceOperation.BaseOperation, at: DatasetRef, version: int
) -> Landed | Lost:
    outcome = attempt_commit(base, operation, read_version=version, properties={}, storage_options=at.storage)
    if isinstance(outcome, Unknown):
        raise TableUnwritableError(at.uri, str(outcome.error)) from outcome.error
    return outcome


def _read(source: lance.LanceDataset | lance.LanceFragment, table: SystemTable, filter: str | None) -> pa.Table:
    with panics_as_errors():
        rows = source.to_table(filter=filter)
    # Columns that a later release added are NULL in older tables.
    arrays = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in table.schema
    ]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _warn_of_damage(at: DatasetRef, paths: Sequence[str], error: Exception) -> None:
    """Warns that a table is damaged, unless the store is at fault.

    The files of a damaged one can be fetched, or are gone.

    Raises:
        TableUnreadableError: The store refused.
    """
    try:
        for path in paths:
            LanceObjects(at.uri, at.storage_options).get(path)
    except OSError as refused:
        hint = "check permissions there and the storage.* options"
        raise TableUnreadableError(at.uri, str(refused), hint=hint) from refused
    logger.warning("rows in %s of %s are left out, since they are damaged: %s", ", ".join(paths), at.uri, error)


def _compact(dataset: lance.LanceDataset) -> None:
    """Puts small fragments together and removes old versions: of each there is one per append."""
    try:
        dataset.optimize.compact_files(target_rows_per_fragment=_FRAGMENT_ROWS)
        dataset.cleanup_old_versions(older_than=_READERS_TAKE)
    except OSError as error:
        # Another writer does the same, or something is damaged, of which readers are warned.
        logger.info("%s is not compacted: %s", dataset.uri, error)


def quoted(text: str) -> str:
    """Returns a text as a literal of Lance SQL."""
    return "'" + text.replace("'", "''") + "'"
