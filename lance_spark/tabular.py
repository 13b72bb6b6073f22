"""Rows for a table, in any tabular form: a Spark DataFrame, Arrow, pandas, or Python values."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, Union

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.commit.changes import NO_NOTE, CommitNote, CommitResult
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNameError, LanceSparkError, SchemaMismatchError
from lance_spark.options import PROPERTY_PREFIX, WriteOptions
from lance_spark.session.sessions import active_in_thread
from lance_spark.staging.blobs import is_stored_as_blob
from lance_spark.tabular_vectors import refuse_nan
from lance_spark.types import WriteConverter
from lance_spark.types.fields import UNSTORABLE, check_column_names
from lance_spark.types.python_values import inferred_type, python_array, python_field, refuse_mixed_moments
from lance_spark.write.arrow_rows import write_arrow_rows
from lance_spark.write.row_write import RowMode
from udf_runtime.errors import end_sentence

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame


class ArrowStream(Protocol):
    """Rows that another library exports as a stream of Arrow, such as a frame of Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Data: TypeAlias = Union[
    "DataFrame",
    "ConnectDataFrame",
    pa.Table,
    pa.RecordBatch,
    pa.RecordBatchReader,
    "pd.DataFrame",
    "list[dict[str, object]]",
    "Mapping[str, Sequence[object]]",
    Iterator[pa.RecordBatch],
    ArrowStream,
]
"""Rows: of Python values a list of rows or a dict of columns, of Arrow a stream of batches, too."""


def is_spark(data: object) -> bool:
    """Tells whether data is a Spark DataFrame, classic or of Connect."""
    return isinstance(data, DataFrame) or type(data).__module__.startswith("pyspark.sql.connect")


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
        with active_in_thread(data.sparkSession):  # type: ignore[union-attr, arg-type]
            writer = data.write.format("lance").mode("overwrite" if mode == "overwrite" else "append")  # type: ignore[union-attr]
            writer.options(**options).save(ref.table_uri)
        return None

    def open_rows(table: pa.Schema | None) -> pa.RecordBatchReader:
        rows = to_reader(data, schema, table=table if schema is None else None)
        if not rows.schema.names:
            raise SchemaMismatchError("The data of a new table has no columns. Nothing was written. Pass a schema.")
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
        ),
    )


def to_reader(data: object, schema: pa.Schema | None, *, table: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Returns data as a stream of Arrow batches with buffers for Lance.

    Args:
        data: Arrow, also of other libraries such as Polars and DuckDB, pandas, a list of dicts, a
            dict of lists, or an iterator over record batches.
        schema: The target schema; by default the data's own.
        table: Schema of the target table: each column gets the type of the table's column. Columns
            of the table may be missing.

    Raises:
        SchemaMismatchError: The data has another form, or other columns or types.
        ValueConversionError: A value does not fit. A stream raises during the read, other data at
            once.
    """
    try:
        if isinstance(data, Iterator) and not isinstance(data, pa.RecordBatchReader):
            data = _stream_of(data)
        elif _is_foreign_arrow(data):
            data = pa.RecordBatchReader.from_stream(data)
        target = _target_of(data, schema, table)
        if isinstance(data, pa.RecordBatchReader):
            stream = _converted(data.schema, data, target)
        else:
            rows = _table_of(data, target)
            converted = _converted(rows.schema, rows.to_batches(), target)
            stream = pa.Table.from_batches(list(converted), schema=converted.schema).to_reader()
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        if isinstance(error, LanceSparkError):
            raise
        columns = schema or table
        hint = "values of one type." if columns is None else f"the type of the table's column:\n{columns}"
        raise SchemaMismatchError(
            f"The data does not fit: {end_sentence(str(error))} Nothing was written. Give each column {hint}"
        ) from error
    return stream


def _target_of(data: object, schema: pa.Schema | None, table: pa.Schema | None) -> pa.Schema | None:
    """Returns the target columns of data; None keeps the columns of the data.

    Raises:
        SchemaMismatchError: The data has other columns.
    """
    target = schema if table is None else table
    if target is None:
        return None
    names = _names(data)
    _refuse_others(names, target)
    return target if table is None else pa.schema([field for field in table if field.name in names])


def _converted(source: pa.Schema, batches: Iterable[pa.RecordBatch], target: pa.Schema | None) -> pa.RecordBatchReader:
    """Returns batches in the types of a target, else unchanged.

    Raises:
        SchemaMismatchError: A column is missing, or has a type without a conversion.
    """
    target = source if target is None else pa.schema([_target_field(source, field) for field in target])
    converter = WriteConverter(source, target)
    return pa.RecordBatchReader.from_batches(target, map(converter.convert, batches))


def _target_field(source: pa.Schema, field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the target field of a column of data; Lance's blobs stay unchanged."""
    column = source.field(field.name) if field.name in source.names else field
    return column if is_stored_as_blob(column) else field


def _table_of(data: object, target: pa.Schema | None) -> pa.Table:
    """Returns data as Arrow, Python and pandas values with the types of the target."""
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data
    if _is_pandas(data):
        return _table_of_pandas(data, target)
    if _is_rows(data):
        return _table_of_columns({name: [row.get(name) for row in data] for name in _names(data)}, target)  # type: ignore[attr-defined]
    if isinstance(data, Mapping) and all(map(_is_column, data.values())):
        return _table_of_columns(data, target)
    raise _no_rows(data)


def _is_column(values: object) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str)


def _table_of_pandas(data: pd.DataFrame, target: pa.Schema | None) -> pa.Table:
    if not data.columns.is_unique:
        raise SchemaMismatchError(
            f"Two columns of the data have one name: {', '.join(_names(data))}. Nothing was written. Rename a column."
        )
    if target is None:
        for name in data.columns:
            if data[name].dtype == object:
                refuse_mixed_moments(data[name])
        target = pa.Schema.from_pandas(data, preserve_index=False)
    return _table_of_columns(dict(data.items()), target, nan_is_null=True)


def _table_of_columns(data: Mapping[Any, Any], target: pa.Schema | None, *, nan_is_null: bool = False) -> pa.Table:
    columns = {str(name): column for name, column in data.items()}
    if target is None:
        check_column_names(list(columns))
        target = pa.schema([(name, _inferred_type(name, column)) for name, column in columns.items()])
    fields = [python_field(field) for field in target if field.name in columns]
    arrays = [python_array(field, columns[field.name], nan_is_null=nan_is_null) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields)).replace_schema_metadata(target.metadata)


def _inferred_type(name: str, column: Any) -> pa.DataType:  # noqa: ANN401
    try:
        return inferred_type(column)
    except UnicodeEncodeError as error:
        # Only the names of fields are encoded here.
        raise ColumnNameError(f"{name}.{error.object}", UNSTORABLE, "the table") from error


def _stream_of(batches: Iterator[object]) -> pa.RecordBatchReader:
    """Returns record batches or tables as a stream. Reads the first batch."""

    def all_of(some: Iterator[object]) -> Iterator[pa.RecordBatch]:
        for part in some:
            if isinstance(part, pa.RecordBatch):
                yield part
            elif isinstance(part, pa.Table):
                yield from part.to_batches()
            else:
                raise _no_rows(part)

    stream = all_of(batches)
    first = next(stream, None)
    if first is None:
        raise SchemaMismatchError(
            "The iterator yields no batches, so the data has no columns. Nothing was written. Yield at least one batch."
        )

    def alike(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(first.schema):
            return batch
        raise SchemaMismatchError(
            f"A batch of the data has the columns {_describe(batch.schema)}, and the first batch has "
            f"{_describe(first.schema)}. Nothing was written. Give all batches the same columns and types."
        )

    return pa.RecordBatchReader.from_batches(first.schema, map(alike, itertools.chain([first], stream)))


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _no_rows(data: object) -> SchemaMismatchError:
    sample = data[0] if isinstance(data, (list, tuple)) and data else data
    if hasattr(sample, "model_dump"):
        text, hint = "Pydantic models are", "[model.model_dump() for model in models]"
    else:
        text = f"{type(data).__name__} is"
        hint = "a Spark or pandas DataFrame, Arrow, a list of dicts, a dict of lists, or an iterator over batches"
    return SchemaMismatchError(f"{text} no data for a table. Nothing was written. Give {hint}.")


def _is_pandas(data: object) -> TypeGuard[pd.DataFrame]:
    # A data frame exists only after an import of pandas, and this import would cost a second.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _is_foreign_arrow(data: object) -> TypeGuard[Any]:
    """Tells whether another library exports the data as Arrow, as Polars and DuckDB do."""
    return hasattr(data, "__arrow_c_stream__") and not (
        isinstance(data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader, pa.ChunkedArray)) or _is_pandas(data)
    )


def _is_rows(data: object) -> bool:
    return isinstance(data, (list, tuple)) and all(issubclass(cls, Mapping) for cls in set(map(type, data)))


def _names(data: object) -> list[str]:
    """Returns the columns of data, if its form has columns."""
    if _is_pandas(data):
        return [str(name) for name in data.columns]
    if isinstance(data, Mapping):
        return [str(name) for name in data]
    if isinstance(data, (list, tuple)):
        rows = data if _is_rows(data) else [row for row in data if isinstance(row, Mapping)]
        return list(dict.fromkeys(map(str, dict.fromkeys(itertools.chain.from_iterable(rows)))))
    return list(getattr(getattr(data, "schema", None), "names", ()))


def _refuse_others(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses columns absent from the schema. Arrow would drop these columns silently."""
    unknown_columns = [name for name in names if name not in schema.names]
    if unknown_columns:
        raise SchemaMismatchError(
            f"The data has columns that the table lacks: {', '.join(map(repr, unknown_columns))}. Nothing was written. "
            f"The columns of the table are {', '.join(map(repr, schema.names))}."
        )
