"""Rows for a table: a Spark DataFrame, Arrow of any library, pandas, or Python values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.commit.changes import NO_NOTE, CommitNote, CommitResult
from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, SchemaMismatchError
from lance_spark.ingest.columns import columns_of
from lance_spark.ingest.streams import is_iterator, is_spark, open_stream, storable_field
from lance_spark.ingest.vectors import refuse_nan, refuse_other_lengths
from lance_spark.options.io_options import PROPERTY_PREFIX, WriteOptions
from lance_spark.session.sessions import active_in_thread
from lance_spark.staging.blobs import is_stored_as_blob
from lance_spark.types import WriteConverter
from lance_spark.write.arrow_rows import write_arrow_rows
from lance_spark.write.row_write import RowMode
from udf_runtime.errors import end_sentence

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow.dataset as ds
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame


class ArrowStream(Protocol):
    """Rows that another library exports as a stream of Arrow, such as a frame of Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """Rows that another library exports as an array of Arrow."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


class ArrowFrames(Protocol):
    """A query whose rows another library reads in parts, such as a lazy frame of Polars."""

    def collect_batches(self) -> Iterator[object]:
        """Reads the rows in parts."""


class Model(Protocol):
    """A row of a class with types, such as a model of pydantic."""

    def model_dump(self) -> dict[str, Any]:
        """Returns the values by field."""


Data: TypeAlias = Union[
    "DataFrame",
    "ConnectDataFrame",
    pa.Table,
    pa.RecordBatch,
    pa.RecordBatchReader,
    "ds.Dataset",
    "ds.Scanner",
    "pd.DataFrame",
    "np.ndarray",
    "Sequence[Mapping[str, Any]]",
    "Sequence[Model]",
    "Mapping[str, Sequence[object]]",
    Iterator[pa.RecordBatch],
    Iterator[ArrowStream],
    ArrowStream,
    ArrowArray,
    ArrowFrames,
]
"""Rows in the objects of any library. Arrow may come as a stream of batches."""


def write_rows(
    ref: DatasetRef,
    data: Data,
    *,
    mode: RowMode,
    schema: pa.Schema | None = None,
    enable_stable_row_ids: bool = True,
    data_storage_version: str | None = None,
    note: CommitNote = NO_NOTE,
) -> CommitResult | None:
    """Writes rows: creates a table, appends, or overwrites.

    Spark's tasks write a Spark DataFrame. This process writes all other data. Both make the same
    commit, with the same checks and retries.

    Args:
        ref: The table.
        data: The rows.
        mode: `create` fails if a table exists, `append` creates a missing table, `overwrite`
            replaces all rows.
        schema: Schema of a created or overwritten table; by default the data's.
        enable_stable_row_ids: Whether rows of a new table keep their ids.
        data_storage_version: Lance file format of a new table; by default Lance's stable one.
        note: Message and properties of the version.

    Returns:
        The commit. None for a Spark DataFrame, or without rows to append.

    Raises:
        SchemaMismatchError: The data does not fit the table. Nothing was written.
        TableExistsError: The mode is `create`, and the table exists, or a concurrent writer created
            the table first.
        UnsupportedOperationError: The location has other files and no table.
        CommitConflictError: A concurrent writer changed the columns of the table. Nothing was
            committed.
        CommitOutcomeUnknownError: The store did not answer.
    """
    if is_spark(data):
        options = ref.storage_settings
        options["enable_stable_row_ids"] = str(enable_stable_row_ids).lower()
        options["create_only"] = str(mode == "create").lower()
        if data_storage_version is not None:
            options["data_storage_version"] = data_storage_version
        options |= {f"{PROPERTY_PREFIX}{name}": value for name, value in note.properties}
        if note.message is not None:
            options["commit_message"] = note.message
        if ref.branch is not None:
            options["branch"] = ref.branch
        if note.transaction is not None:
            options |= {
                "txn_app_id": note.transaction.app_id,
                "txn_version": str(note.transaction.version),
            }
        with active_in_thread(data.sparkSession):  # type: ignore[union-attr, arg-type]
            spark_mode = "overwrite" if mode == "overwrite" else "append"
            writer = data.write.format("lance").mode(spark_mode)  # type: ignore[union-attr]
            writer.options(**options).save(ref.table_uri)
        return None

    def open_rows(table: pa.Schema | None) -> pa.RecordBatchReader:
        rows = to_reader(data, schema, table=table if schema is None else None)
        if not rows.schema.names:
            raise SchemaMismatchError(
                "The data of a new table has no columns. Nothing was written. Pass a schema."
            )
        if table is None and schema is None:
            rows = refuse_other_lengths(rows)
        return refuse_nan(rows, is_new=table is None)

    return write_arrow_rows(
        ref,
        open_rows,
        mode=mode,
        options=WriteOptions(
            enable_stable_row_ids=enable_stable_row_ids,
            data_storage_version=data_storage_version,
            commit_message=note.message,
            properties=note.properties,
            txn_app_id=None if note.transaction is None else note.transaction.app_id,
            txn_version=None if note.transaction is None else note.transaction.version,
        ),
    )


def to_reader(
    data: object, schema: pa.Schema | None, *, table: pa.Schema | None = None
) -> pa.RecordBatchReader:
    """Returns data as a stream of Arrow batches with buffers for Lance.

    A stream of Arrow is read batch by batch. Python, NumPy and pandas data is converted at once.

    Args:
        data: The forms of :data:`Data`, except Spark's DataFrames.
        schema: The target schema; by default the data's own.
        table: Schema of the target table: each column gets the type of the table's column. Columns
            of the table may be missing.

    Raises:
        SchemaMismatchError: The data has another form, or other columns or types.
        ValueConversionError: A value does not fit. A stream raises during the read, other data at
            once.
        SourceError: Another library raised an error during the read.
    """
    try:
        has_target = schema is not None or table is not None
        rows = open_stream(
            _read_parts(data, schema, table) if is_iterator(data) else data, has_target=has_target
        )
        if rows is None:
            columns = columns_of(data)
            target = _select_target(list(columns.values), schema, table)
            rows = columns.to_table(target)
        else:
            target = _select_target(rows.schema.names, schema, table)
        if isinstance(rows, pa.RecordBatchReader):
            return _convert(rows.schema, rows, target)
        converted = _convert(rows.schema, rows.to_batches(), target)
        return pa.Table.from_batches(list(converted), schema=converted.schema).to_reader()
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        if isinstance(error, LanceSparkError):
            raise
        columns_there = schema or table
        hint = (
            "values of one type."
            if columns_there is None
            else f"the type of the table's column:\n{columns_there}"
        )
        raise SchemaMismatchError(
            f"The data does not fit: {end_sentence(str(error))} Nothing was written. Give each column {hint}"
        ) from error


def _read_parts(data: Any, schema: pa.Schema | None, table: pa.Schema | None) -> Iterator[object]:  # noqa: ANN401
    """Yields the parts of an iterator as Arrow; parts of Python and pandas have the target's types.

    Without the target, each such part may have other inferred types.
    """
    for part in data:
        is_arrow = hasattr(part, "schema") or hasattr(part, "__arrow_c_array__")
        yield part if is_arrow else to_reader(part, schema, table=table)


@contextlib.contextmanager
def keep_errors(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatchReader]:
    """Yields the rows for a consumer of Lance. Errors of the rows keep their class.

    Lance turns every error of a stream into text.
    """
    errors: list[Exception] = []

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except Exception as error:
            errors.append(error)
            raise

    try:
        yield pa.RecordBatchReader.from_batches(rows.schema, read())
    except Exception:
        if errors:
            raise errors[0] from None
        raise


def _select_target(
    names: Sequence[str], schema: pa.Schema | None, table: pa.Schema | None
) -> pa.Schema | None:
    """Returns the target columns of data; None keeps the columns of the data.

    Raises:
        SchemaMismatchError: The data has other columns.
    """
    target = schema if table is None else table
    if target is None:
        return None
    _refuse_others(names, target)
    return target if table is None else pa.schema([field for field in table if field.name in names])


def _convert(
    source: pa.Schema, batches: Iterable[pa.RecordBatch], target: pa.Schema | None
) -> pa.RecordBatchReader:
    """Returns batches in the types of a target, else in their own types.

    Raises:
        SchemaMismatchError: A column is missing, or has a type without a conversion.
    """
    if target is None:
        metadata: Any = source.metadata
        target = pa.schema([storable_field(field) for field in source], metadata=metadata)
    else:
        target = pa.schema([_target_field(source, field) for field in target])
    converter = WriteConverter(source, target)
    return pa.RecordBatchReader.from_batches(target, map(converter.convert, batches))


def _target_field(source: pa.Schema, field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the target field of a column of data; Lance's blobs stay unchanged."""
    column = source.field(field.name) if field.name in source.names else field
    return column if is_stored_as_blob(column) else field


def _refuse_others(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses columns absent from the schema. Arrow would drop these columns silently."""
    unknown_columns = [name for name in names if name not in schema.names]
    if unknown_columns:
        raise SchemaMismatchError(
            f"The data has columns that the table lacks: {', '.join(map(repr, unknown_columns))}. Nothing was written. "
            f"The columns of the table are {', '.join(map(repr, schema.names))}."
        )
