"""A DataFrame write of rows: appends, creates, overwrites. Planned on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.schema_change import change_schema
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.errors import (
    OptionError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from lance_spark.options.io_options import WriteOptions
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import is_logical_blob, row_field
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.table_folder import check_new_table
from lance_spark.types import WriteConverter, check_storable, check_writable, to_lance_schema
from lance_spark.types.schemas import has_option
from lance_spark.write.row_write import RowsWritten, RowWrite

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, kw_only=True)
class LanceAppendWriter(RowWrite, DataSourceArrowWriter):
    """Writes rows as new fragments and commits them as a single version. A picklable value.

    Attributes:
        source: Spark's schema of the rows.
    """

    source: StructType

    @staticmethod
    def plan(
        ref: DatasetRef,
        schema: StructType,
        options: WriteOptions,
        *,
        overwrite: bool,
        family: str | None = None,
        loaded: DatasetRef | None = None,
    ) -> LanceAppendWriter:
        """Plans the write, with all checks that need no rows.

        Runs on the driver. Writes nothing except the new columns of the option `mergeSchema`. The
        id of the job begins with `family`. `loaded` is the latest version, if the catalog has just
        loaded the table.

        Raises:
            SchemaMismatchError: The columns do not fit the table.
            UnsupportedTypeError: The table's file format cannot hold a column.
            OptionError: An option contradicts the table, or belongs to a backfill.
            TableExistsError: The option `create_only` is set, and the table exists.
            TableUnreadableError: The location holds an unreadable table.
            UnsupportedOperationError: The location holds no table, but other files.
        """
        _refuse_backfill_options(options)
        _refuse_doubled_columns(schema)
        # Read here, because the environment variables of the driver count.
        policy = CommitPolicy.of(
            options.commit_max_retries,
            options.commit_timeout,
            allow_unsafe=options.allow_unsafe_commits,
        )
        present = loaded or pin_present(ref)
        if present is None:
            check_new_table(ref)
        refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
        dataset = None
        if present is not None:
            ref = present
            if options.create_only:
                raise TableExistsError(
                    ref.uri, hint="leave the option create_only out, or drop the table first"
                )
            dataset = ref.open()
            refuse_other_settings(dataset, options, ref.uri)
            if options.mergeschema and not overwrite:
                ref = _with_new_columns(ref, schema, options, policy)
                dataset = ref.open()
        return LanceAppendWriter(
            ref=ref,
            source=schema,
            layout=_plan_new_table(dataset, schema, options)
            if dataset is None or overwrite
            else _plan_append(dataset, schema, options),
            mode="overwrite" if overwrite else "create" if options.create_only else "append",
            options=options,
            staging=Staging.of_new_job(
                ref,
                table_files=None if dataset is None else count_data_files(dataset),
                pipelined=True,
                marked=False,
                family=family,
            ),
            policy=policy,
        )

    # mypy compares with the row-wise base class. pyspark's Arrow writer overrides that class in the
    # same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:  # type: ignore[override]
        """Writes a task's rows. Runs on an executor; memory does not grow with the rows.

        Raises:
            ValueConversionError: A value does not fit its column. The error names column and row.
            UnsupportedTypeError: The table's file format cannot hold a value.
        """
        converter = WriteConverter(self.source, self.layout.row_schema)
        return self.write_fragments(
            converter.convert(batch) for batch in iterator if batch.num_rows
        )


def pin_present(ref: DatasetRef) -> DatasetRef | None:
    """Returns a table at its latest version, or None without a table."""
    try:
        return ref.pin(None)
    except TableNotFoundError:
        return None


def _plan_new_table(
    dataset: lance.LanceDataset | None, schema: StructType, options: WriteOptions
) -> FileLayout:
    """Returns the layout of a created table, or of an overwritten table in its present format."""
    column_options = {column: dict(values) for column, values in options.column_options}
    rows = pa.schema([row_field(field) for field in to_lance_schema(schema, column_options)])
    check_writable(schema, rows)
    version = (
        options.data_storage_version or "stable"
        if dataset is None
        else dataset.data_storage_version
    )
    return FileLayout.of_new_table(rows, version)


def _with_new_columns(
    ref: DatasetRef, schema: StructType, options: WriteOptions, policy: CommitPolicy
) -> DatasetRef:
    """Adds the missing columns to a table, all NULL, and returns the resulting version."""
    rows = [row_field(field) for field in ref.open().schema]
    present = {field.name.lower() for field in rows}
    missing_columns = StructType(
        [field for field in schema.fields if field.name.lower() not in present]
    )
    if not missing_columns.fields:
        return ref
    column_options = {
        column: dict(values)
        for column, values in options.column_options
        if column.partition(".")[0] not in present
    }
    new = pa.schema(
        [field.with_nullable(True) for field in to_lance_schema(missing_columns, column_options)]
    )
    check_writable(schema, pa.schema([*rows, *map(row_field, new)]), uri=ref.uri)

    def add(head: lance.LanceDataset) -> None:
        check_storable(new, head.data_storage_version)
        # Columns added by a concurrent writer get the same checks as all columns.
        present_names = frozenset(head.schema.names)
        unadded = [field for field in new if field.name not in present_names]
        if unadded:
            head.add_columns(pa.schema(unadded))

    change_schema(ref, add, policy)
    return ref.pin(None)


def _plan_append(
    dataset: lance.LanceDataset, schema: StructType, options: WriteOptions
) -> FileLayout:
    rows = pa.schema([row_field(field) for field in dataset.schema])
    _refuse_row_addresses(schema, rows, dataset.uri)
    check_writable(schema, rows, uri=dataset.uri, takes_new_columns=True)
    _refuse_other_column_options(rows, options)
    # Files omit the columns missing from the DataFrame, as Lance does; these columns read as NULL.
    source_names = {name.lower() for name in schema.names}
    return FileLayout.of_table(
        dataset, [name for name in rows.names if name.lower() in source_names]
    )


def _refuse_row_addresses(schema: StructType, table: pa.Schema, uri: str) -> None:
    addresses = [
        name for name in ("_rowaddr", "_rowid") if name in schema.names and name not in table.names
    ]
    if addresses:
        raise SchemaMismatchError(
            f"The DataFrame has the column {addresses[0]} of a backfill, and this write appends rows. Nothing was "
            f"written to {uri}. Add option('mode', 'backfill') to fill columns of existing rows, or drop the column."
        )


def _refuse_backfill_options(options: WriteOptions) -> None:
    for name in ("version", "input_columns", "verify_columns"):
        value = getattr(options, name)
        if value is not None:
            accepted = "only together with option('mode', 'backfill')"
            raise OptionError(name, value, accepted, problem="does not apply to a write of rows")


def _refuse_doubled_columns(schema: StructType) -> None:
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise SchemaMismatchError(
            f"The DataFrame has several columns named {', '.join(map(repr, doubled))}. Nothing was written. Rename or "
            "drop all but one."
        )


def refuse_other_settings(dataset: lance.LanceDataset, options: WriteOptions, uri: str) -> None:
    """Refuses new-table settings that differ from the table's: Lance would ignore the settings."""
    from lance.file import stable_version

    stored_version = dataset.data_storage_version
    requested = options.data_storage_version
    if requested is not None and stored_version != (
        stable_version() if requested == "stable" else requested
    ):
        raise _mismatch_error(
            "data_storage_version",
            requested,
            f"{stored_version}, which the table at {uri} has and keeps",
        )
    if dataset.has_stable_row_ids and not options.enable_stable_row_ids:
        raise _mismatch_error(
            "enable_stable_row_ids", "false", f"true, which the table at {uri} has and keeps"
        )


def _refuse_other_column_options(rows: pa.Schema, options: WriteOptions) -> None:
    for column, values in options.column_options:
        field = _find_column(list(rows), column)
        for name, value in values:
            if field is None or not _has_column_option(field, name, value):
                stored_type = "no such column" if field is None else field.type
                raise _mismatch_error(
                    f"{column}.{name}", value, f"what the table has ({stored_type})"
                )


def _mismatch_error(option: str, value: str, accepted: str) -> OptionError:
    return OptionError(
        option, value, f"{accepted}, or no such option", problem="is not the table's"
    )


def _has_column_option(field: pa.Field[Any], option: str, value: str) -> bool:
    if option == "lance.encoding":
        return is_logical_blob(field)
    return has_option(field, option, value)


def _find_column(fields: Sequence[pa.Field[Any]], path: str) -> pa.Field[Any] | None:
    """Returns a column by its dotted path; options come in lower case from Spark."""
    first, _, rest = path.partition(".")
    column = next((field for field in fields if field.name.lower() == first.lower()), None)
    if column is None or not rest:
        return column
    children = (
        [column.type.field(i) for i in range(column.type.num_fields)]
        if pa.types.is_struct(column.type)
        else []
    )
    return _find_column(children, rest)
