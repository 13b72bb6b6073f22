"""Writes Arrow batches of this process into a table, and commits like a DataFrame write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.errors import (
    SchemaMismatchError,
    TableExistsError,
    UnsupportedOperationError,
)
from lance_spark.options.io_options import WriteOptions
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import is_logical_blob, row_field
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.table_folder import check_new_table
from lance_spark.write.append_writer import pin_present, refuse_other_settings
from lance_spark.write.row_write import RowMode, RowWrite

if TYPE_CHECKING:
    import lance

Batches = Callable[[pa.Schema | None], pa.RecordBatchReader]
"""Opens the rows. The argument is the table's schema for an append, else None."""


def write_arrow_rows(
    ref: DatasetRef, batches: Batches, *, mode: RowMode, options: WriteOptions
) -> CommitResult | None:
    """Creates a table, or appends or replaces rows, as a single version.

    Returns the commit, or None for an append without rows.

    The rows are planned for the latest version when the write begins. Memory: one batch, and the
    pages not yet written by Lance.

    Raises:
        TableExistsError: The mode is `create`, and the table exists.
        SchemaMismatchError, ValueConversionError, UnsupportedTypeError: The rows do not fit the
            table. Nothing was written.
        OptionError: An option contradicts the table.
        UnsupportedOperationError: The location holds no table, but other files.
        CommitConflictError: After a concurrent change of the table, the rows no longer fit. Nothing
            was committed.
        CommitOutcomeUnknownError: The store did not answer.
    """
    policy = CommitPolicy.of(options.commit_max_retries, options.commit_timeout)
    present = ref.pin(None) if ref.branch is not None else pin_present(ref)
    if present is None:
        check_new_table(ref)
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    dataset = None
    if present is not None:
        ref = present
        if mode == "create":
            raise TableExistsError(
                ref.uri, hint="open it, or replace its rows with mode='overwrite'"
            )
        dataset = ref.open()
        refuse_other_settings(dataset, options, ref.uri)
    appended_to = dataset if mode == "append" else None
    reader = batches(
        None
        if appended_to is None
        else pa.schema([row_field(field) for field in appended_to.schema])
    )
    write = RowWrite(
        ref=ref,
        layout=_plan_layout(reader.schema, appended_to, dataset, options, ref.uri),
        mode=mode,
        options=options,
        staging=Staging.of_new_job(
            ref,
            table_files=None if dataset is None else count_data_files(dataset),
            pipelined=True,
            marked=False,
        ),
        policy=policy,
    )
    write.staging.open_job()
    try:
        rows_written = write.write_fragments(_reorder_columns(reader, write.layout.row_schema))
    except BaseException:
        write.abort([])
        raise
    return write.commit_tasks([rows_written])


def _plan_layout(
    rows: pa.Schema,
    appended_to: lance.LanceDataset | None,
    replaced: lance.LanceDataset | None,
    options: WriteOptions,
    uri: str,
) -> FileLayout:
    """Returns the file layout of the rows, and checks their columns against the table.

    Raises:
        SchemaMismatchError: A column is unknown, missing or doubled.
    """
    if len(set(rows.names)) < len(rows.names):
        raise SchemaMismatchError(
            f"Several columns of the data have the same name ({', '.join(rows.names)}). Nothing was written to {uri}. "
            "Rename or drop all but one."
        )
    if appended_to is not None:
        _refuse_other_columns(
            rows.names, pa.schema([row_field(field) for field in appended_to.schema]), uri
        )
        return FileLayout.of_table(appended_to, rows.names)
    version = (
        options.data_storage_version or "stable"
        if replaced is None
        else replaced.data_storage_version
    )
    fields = pa.schema([row_field(field) for field in rows])
    return FileLayout.of_new_table(
        fields.with_metadata(dict((rows.metadata or {}).items())), version
    )


def _refuse_other_columns(names: Sequence[str], table: pa.Schema, uri: str) -> None:
    unknown = [name for name in names if name not in table.names]
    absent_names = [field.name for field in table if field.name not in names and not field.nullable]
    problems = [
        *(f"column {name!r} is not in the table" for name in unknown),
        *(f"column {name!r} is missing, and may not be NULL" for name in absent_names),
    ]
    if problems:
        raise SchemaMismatchError(
            f"The data does not fit the table: {'; '.join(problems)}. Nothing was written to {uri}. Give the data the "
            f"columns and types of the table:\n{table.to_string(show_field_metadata=False)}"
        )


def _reorder_columns(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the batches with the columns of a schema, in the schema's order; blobs are bytes.

    Raises:
        UnsupportedOperationError: A blob refers to a file outside the table.
    """
    for batch in reader:
        if batch.num_rows:
            columns = (batch.column(name) for name in schema.names)
            arrays = [
                _read_blob_bytes(c, f.name)
                if isinstance(c, pa.ExtensionArray) and is_logical_blob(f)
                else c
                for c, f in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_blob_bytes(array: pa.Array[Any], column: str) -> pa.Array[Any]:
    assert isinstance(array, pa.ExtensionArray)
    values = array.storage
    assert isinstance(values, pa.StructArray)
    if values.field("uri").null_count < len(values):
        raise UnsupportedOperationError(
            f"Blobs of column {column!r} refer to files outside the table. Nothing was committed. Write the blobs with "
            "lance.write_dataset, or pass their bytes."
        )
    data: pa.Array[Any] = values.flatten()[values.type.get_field_index("data")]
    return data
