"""Lance tables inside a table's directory: the history of its jobs, and the errors of their rows.

Read them with `spark.read.format("lance").load(f"{uri}/_lance_spark/jobs.lance")`. Rows never
change, so any number of drivers and executors can append concurrently.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.schema_change import change_schema, open_or_create, set_config
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import (
    CommitError,
    DamagedFileError,
    LanceSparkError,
    TableNotFoundError,
    TableUnreadableError,
    TableUnwritableError,
    refusals_as_errors,
)
from lance_spark.jobs.merging_append import MergingAppend, fit_columns
from lance_spark.jobs.reader_process import (
    ReaderEndedError,
    RefusedError,
    change_in_child,
    read_in_child,
)
from lance_spark.jobs.table_files import KEPT_VERSIONS, DamagedFile, paths_of
from lance_spark.locations import is_local
from lance_spark.storage.objects import LanceObjects

if TYPE_CHECKING:
    import lance

logger = logging.getLogger(__name__)

_POLICY = CommitPolicy(timeout_s=300.0, max_retries=1000, allow_unsafe=True)
"""Appends yield to every other writer. The commit of the table's own rows has checked the store."""


@dataclass(frozen=True, slots=True)
class SystemTable:
    """A table next to the data.

    Attributes:
        name: Path inside the table's directory.
        schema: Columns of the table.
    """

    name: str
    schema: pa.Schema


_MOMENT = pa.timestamp("us", tz="UTC")
_TEXT, _COUNT = pa.string(), pa.int64()
_TEXTS, _COUNTS = pa.list_(_TEXT), pa.list_(_COUNT)

_ERROR_FIELDS: dict[str, pa.DataType] = {
    "error_id": _TEXT,
    "job_id": _TEXT,
    "table_uri": _TEXT,
    "table_version": _COUNT,
    "columns": _TEXTS,
    "udf_name": _TEXT,
    "udf_version": _TEXT,
    "input_columns": _TEXTS,
    "fragment_id": _COUNT,
    "row_address": _COUNT,
    "outcome": _TEXT,
    "error_type": _TEXT,
    "error_message": _TEXT,
    "error_trace": _TEXT,
    "attempt": _COUNT,
    "max_attempts": _COUNT,
    "bisect_depth": _COUNT,
    "timestamp": _MOMENT,
}

ERRORS = SystemTable(f"{FOLDER}/errors.lance", pa.schema(_ERROR_FIELDS))

_JOB_FIELDS: dict[str, pa.DataType] = {
    "job_id": _TEXT,
    "job_type": _TEXT,
    "status": _TEXT,
    "columns": _TEXTS,
    "udf_name": _TEXT,
    "udf_version": _TEXT,
    "input_columns": _TEXTS,
    "key": _TEXT,
    "where": _TEXT,
    "read_version": _COUNT,
    "staging_id": _TEXT,
    "launched_at": _MOMENT,
    "updated_at": _MOMENT,
    "completed_at": _MOMENT,
    "launched_by": _TEXT,
    "process": _TEXT,
    "rows_selected": _COUNT,
    "rows_computed": _COUNT,
    "rows_from_checkpoint": _COUNT,
    "rows_skipped": _COUNT,
    "rows_failed": _COUNT,
    "fragments_total": _COUNT,
    "fragments_done": _COUNT,
    "versions": _COUNTS,
    "retries": _COUNT,
    "seconds": _TEXT,
    "message": _TEXT,
    "rows_deduplicated": _COUNT,
    "batch_rows": _COUNT,
    "rows_remaining": _COUNT,
    "cost": pa.float64(),
    "rows_carried": _COUNT,
    "rows_recomputed": _COUNT,
    "rows_nulled": _COUNT,
}

JOBS = SystemTable(f"{FOLDER}/jobs.lance", pa.schema(_JOB_FIELDS))


def table_ref(ref: DatasetRef, table: SystemTable) -> DatasetRef:
    """Returns the reference of a table next to the data."""
    return DatasetRef(uri=f"{ref.uri}/{table.name}", storage_options=ref.storage_options)


def refuse_links(at: DatasetRef) -> None:
    """Refuses a table next to the data that is behind a symbolic link, or holds a link.

    Any writer of a table's folder may plant a link. Lance would follow the link, and would change
    and delete foreign files.

    Raises:
        TableUnwritableError: A link is in the way. Nothing was changed.
    """
    link = LanceObjects(at.uri, at.storage_options).find_link()
    if link is not None:
        uri = at.uri.rpartition(f"/{FOLDER}/")[0]
        raise TableUnwritableError(
            at.uri,
            f"{link} is a link, and no link is followed. Run `lance-spark check {uri} --repair` to remove the link",
        )


def append_rows(
    ref: DatasetRef,
    table: SystemTable,
    rows: pa.Table,
    *,
    recent: lance.LanceDataset | None = None,
) -> lance.LanceDataset:
    """Appends rows, creates a missing table, and returns its new version. Runs in any process.

    Waits up to five minutes for concurrent writers and lost replies of the store.

    Args:
        ref: The table of the data.
        table: The table next to the data.
        rows: The rows.
        recent: A version of the last minutes, younger than any removed version. The first attempt
            then opens no version and merges no rows, and Lance compares the later transactions.

    Raises:
        TableUnwritableError: The store refused, a link is in the way, or concurrent writers left no
            version for five minutes. The rows may exist.
        TableUnreadableError: The table is damaged, or has other columns.
    """
    at = table_ref(ref, table)
    refuse_links(at)
    with _commit_errors_as_unwritable(at.uri):
        append = MergingAppend(at, rows, merges=recent is None)
        landed = change_schema(
            at,
            append.operation,
            _POLICY,
            discard=append.discard,
            head=recent,
            create=append.creation,
        )
    if landed.version % KEPT_VERSIONS == 0:
        _change(at, "compact")
    return landed


def change_config(
    ref: DatasetRef,
    table: SystemTable,
    change: Callable[[lance.LanceDataset], Mapping[str, str] | None],
) -> None:
    """Sets keys in the configuration of a table, and creates a missing table. Runs in any process.

    Args:
        ref: The table of the data.
        table: The table next to the data.
        change: Returns the keys for the latest version, or None. Every round calls it again.

    Raises:
        TableUnwritableError: The store refused, or a link is in the way.
    """
    at = table_ref(ref, table)
    refuse_links(at)

    def operation(head: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
        values = change(head)
        return None if values is None else set_config(values)

    with _commit_errors_as_unwritable(at.uri):
        dataset = open_or_create(at, table.schema, _POLICY)
        landed = change_schema(at, operation, _POLICY, head=dataset)
    if landed.version > dataset.version and landed.version % KEPT_VERSIONS == 0:
        _change(at, "compact")


def read_rows(
    ref: DatasetRef, table: SystemTable, filter: str | None = None, *, most: int | None = None
) -> pa.Table:
    """Returns the rows that match a filter; no rows before the first append. Runs in any process.

    `most` is a maximum number of rows; None returns all rows.

    A child process decodes the files: a damaged or forged file ends only the child.

    Raises:
        TableNotFoundError: The table of the data does not exist.
        DamagedFileError: A file of the table is damaged, and rows may be missing.
        TableUnreadableError: The store refused.
    """
    rows, damaged = read_intact_rows(ref, table, filter, most=most)
    if damaged:
        files = [os.path.normpath(f"{table.name}/{file.path}") for file in damaged]
        raise DamagedFileError(ref.uri, files, damaged[0].reason)
    if not rows.num_rows:
        ref.open_latest()
    return rows


def read_intact_rows(
    ref: DatasetRef, table: SystemTable, filter: str | None = None, *, most: int | None = None
) -> tuple[pa.Table, list[DamagedFile]]:
    """Returns the rows of readable files, and the damaged files. Runs in any process.

    Raises:
        TableUnreadableError: The store refused.
    """
    at = table_ref(ref, table)
    empty = table.schema.empty_table()
    if is_local(at.uri) and not os.path.lexists(at.uri):
        return empty, []
    link = LanceObjects(at.uri, at.storage_options).find_link()
    if link is not None:
        return empty, [DamagedFile(os.path.relpath(link, at.uri), "a link is not followed")]
    try:
        rows, damaged = _decode(at, table, filter, most)
    except TableNotFoundError:
        return empty, []
    except TableUnreadableError as error:
        # The first name belongs to the latest version.
        manifests = LanceObjects(at.uri, at.storage_options).list("_versions")[:1]
        rows, damaged = (
            empty,
            [DamagedFile(path, str(error)) for path in manifests or ["_versions"]],
        )
    _refuse_unless_fetched(at, damaged)
    return rows, damaged


def _decode(
    at: DatasetRef, table: SystemTable, filter: str | None, most: int | None
) -> tuple[pa.Table, list[DamagedFile]]:
    try:
        return read_in_child(at, table.schema, filter, most=most)
    except ReaderEndedError:
        pass
    parts, damaged = [table.schema.empty_table()], []
    for fragment in at.open_latest().get_fragments():
        try:
            rows, unreadable = read_in_child(
                at, table.schema, filter, [fragment.fragment_id], most=most
            )
        except ReaderEndedError as error:
            damaged += [DamagedFile(path, str(error)) for path in paths_of(fragment)]
        else:
            parts.append(rows)
            damaged += unreadable
    return pa.concat_tables(parts)[:most], damaged


def replace_rows(ref: DatasetRef, table: SystemTable, rows: pa.Table) -> None:
    """Replaces all rows of an existing table in one commit. Runs on the driver.

    Raises:
        TableUnwritableError: The store refused, a link is in the way, or a concurrent writer
            committed first.
        TableUnreadableError: The table has other columns, maybe of a newer release.
    """
    import lance
    from lance.fragment import write_fragments

    at = table_ref(ref, table)
    refuse_links(at)
    dataset = at.open_latest()
    rows = fit_columns(rows, dataset, at)
    with refusals_as_errors(at.uri):
        fragments = write_fragments(rows, at.uri, mode="append", storage_options=at.lance_options)

    def replace(head: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
        if head.version != dataset.version:
            raise TableUnwritableError(
                at.uri, f"a concurrent writer committed version {head.version}"
            )
        return lance.LanceOperation.Overwrite(rows.schema, fragments)

    with _commit_errors_as_unwritable(at.uri):
        change_schema(at, replace, _POLICY, head=dataset)


def delete_rows(ref: DatasetRef, table: SystemTable, filter: str) -> None:
    """Deletes the rows that match a filter from an existing table, and compacts the table.

    A damaged table keeps its rows.
    """
    _change(table_ref(ref, table), "delete", filter=filter)


@contextlib.contextmanager
def _commit_errors_as_unwritable(uri: str) -> Iterator[None]:
    try:
        yield
    except CommitError as error:
        raise TableUnwritableError(uri, str(error)) from error


def _refuse_unless_fetched(at: DatasetRef, damaged: Sequence[DamagedFile]) -> None:
    """Separates damage from a refusal of the store: a damaged file can be fetched, or is missing.

    Raises:
        TableUnreadableError: The store refused.
    """
    for file in damaged:
        try:
            LanceObjects(at.uri, at.storage_options).get(file.path)
        except IsADirectoryError:
            continue
        except OSError as refused:
            hint = "check permissions there and the storage.* options"
            raise TableUnreadableError(at.uri, str(refused), hint=hint) from refused


def _change(at: DatasetRef, operation: str, **arguments: str) -> None:
    try:
        refuse_links(at)
        change_in_child(at, operation, **arguments)
    except (ReaderEndedError, RefusedError, LanceSparkError) as error:
        # A concurrent writer does the same, or a file is damaged; readers report the damage.
        logger.info("The operation %s of %s failed: %s", operation, at.uri, error)


def is_one_of(column: str, texts: Iterable[str]) -> str:
    """Returns the filter of the rows with one of some texts in a column."""
    return f"{column} IN ({', '.join(map(quote_text, sorted(texts)))})"


def quote_text(text: str) -> str:
    """Returns a text as a literal of Lance SQL."""
    return "'" + text.replace("'", "''") + "'"
