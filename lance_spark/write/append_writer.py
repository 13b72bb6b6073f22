"""A DataFrame write of rows: appends, creates, overwrites.

Planned on the driver; tasks make fragments that belong to no version; the commit, in a process of
its own, makes one version of all of them, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lance_spark.commit.attempt import this_user
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.commit_loop import properties_of
from lance_spark.commit.conflicts.history import USER_KEY
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.commit.schema_change import change_schema
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import CommitConflictError, OptionError, SchemaMismatchError
from lance_spark.options import WriteOptions
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.blobs import is_logical_blob, row_field
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.folders import first_missing_folder
from lance_spark.staging.fragment_writer import FragmentSink
from lance_spark.staging.job_end import abort, commit_or_give_up, find_commit, finish
from lance_spark.staging.table_folder import check_new_table
from lance_spark.types import WriteConverter, check_storable, check_writable, to_lance_schema
from lance_spark.types.schemas import has_option

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten(WriterCommitMessage):
    """The fragments that a task wrote, in the order of its rows; they belong to no version yet."""

    fragments: tuple[FragmentMetadata, ...]

    @property
    def rows(self) -> int:
        """Number of rows in them."""
        return sum(fragment.physical_rows for fragment in self.fragments)

    @property
    def file_names(self) -> list[str]:
        """Names in `data/` of the data files."""
        return [str(file.path) for fragment in self.fragments for file in fragment.files]


@dataclass(frozen=True, kw_only=True)
class LanceAppendWriter(DataSourceArrowWriter):
    """Writes rows as new fragments and commits them as one version. A picklable value.

    Attributes:
        ref: The table; pinned at the version that the write was planned on, where there is a table.
        source: Spark's schema of the rows.
        mode: `append` (which creates a table that is not there) or `overwrite`.
    """

    ref: DatasetRef
    source: StructType
    layout: FileLayout
    mode: Literal["append", "overwrite"]
    options: WriteOptions
    staging: Staging
    policy: CommitPolicy

    @staticmethod
    def plan(ref: DatasetRef, schema: StructType, options: WriteOptions, *, overwrite: bool) -> LanceAppendWriter:
        """Decides what the write does, and checks all that can be checked without rows.

        Runs on the driver; writes nothing, but for the columns that the option `mergeSchema` adds.

        Raises:
            SchemaMismatchError: The columns do not fit the table.
            UnsupportedTypeError: The table's file format cannot hold a column.
            OptionError: An option contradicts the table, or belongs to a backfill.
            TableUnreadableError: There is something, but it cannot be read.
            UnsupportedOperationError: There is no table, and the location holds other files.
        """
        _refuse_backfill_options(options)
        _refuse_doubled_columns(schema)
        # Read here: environment variables of the driver count, not those of another process.
        policy = CommitPolicy.of(
            options.commit_max_retries, options.commit_timeout, allow_unsafe=options.allow_unsafe_commits
        )
        exists = table_exists(ref.uri, ref.storage)
        if not exists:
            check_new_table(ref)
        refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
        dataset = None
        if exists:
            ref = ref.pin(None)
            dataset = ref.open()
            _refuse_other_settings(dataset, options, ref.uri)
            if options.mergeschema and not overwrite:
                ref = _with_new_columns(ref, schema, options, policy)
                dataset = ref.open()
        staging = Staging(
            uri=ref.uri, storage_options=ref.storage_options, job_id=new_id(), made_folder=first_missing_folder(ref.uri)
        )
        return LanceAppendWriter(
            ref=ref,
            source=schema,
            layout=_layout_of_new_table(dataset, schema, options)
            if dataset is None or overwrite
            else _layout_for_append(dataset, schema, options),
            mode="overwrite" if overwrite else "append",
            options=options,
            staging=staging,
            policy=policy,
        )

    # mypy compares with the row-wise base class, which pyspark's Arrow writer overrides in the same
    # way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:  # type: ignore[override]
        """Writes a task's rows. Runs on an executor; memory does not grow with the rows.

        Raises:
            ValueConversionError: A value does not fit its column. It names column and row.
            UnsupportedTypeError: The table's file format cannot hold a value.
        """
        converter = WriteConverter(self.source, self.layout.row_schema)
        options = self.options
        sink = FragmentSink(
            self.staging, self.layout, max_rows=options.max_rows_per_file, max_bytes=options.max_bytes_per_file
        )
        try:
            for batch in iterator:
                if batch.num_rows:
                    sink.write(converter.convert(batch))
            return RowsWritten(fragments=sink.finish())
        except BaseException:
            # Also on Lance's panics, which are no Exception: the open file would otherwise stay as
            # long as the worker lives.
            sink.abandon()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes one version of all fragments, and deletes what other attempts left.

        Runs on the driver, in a process of its own.

        Raises:
            CommitConflictError: A concurrent writer changed the table so that the rows do not fit
                it any more. Nothing is left behind.
            CommitOutcomeUnknownError: The store did not answer. The files are kept.
            CommitError: The commit did not happen. Nothing is left behind.
        """
        written = [message for message in messages if isinstance(message, RowsWritten)]
        if find_commit(self.staging, self.ref) is None:
            commit_or_give_up(self.staging, self.ref, lambda: self._commit(written))
        finish(self.staging, self.ref, [name for message in written for name in message.file_names])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes what the job wrote, if it has not committed and cannot any more."""
        del messages
        abort(self.staging, self.ref)

    def _commit(self, written: Sequence[RowsWritten]) -> CommitResult | None:
        rows = sum(message.rows for message in written)
        if rows == 0 and self.mode == "append" and self._exists():
            logger.info(
                "no rows were written, so no version was made - at %s (job %s)", self.ref.uri, self.staging.job_id
            )
            return None
        if rows == 0 and self._has_created_empty_table():
            return None
        self.staging.begin_commit()
        self.staging.refuse_missing([name for message in written for name in message.file_names])
        if self.mode == "append" and self.ref.version is not None and not self._exists():
            raise CommitConflictError(
                f"the table was deleted while rows for it were written - at {self.ref.uri} - nothing was committed; "
                "write again",
                uri=self.ref.uri,
            )
        change = RowsToCommit(
            mode=self.mode,
            schema=self.layout.table_schema,
            fields=self.layout.fields,
            fragments=tuple(fragment for message in written for fragment in message.fragments),
            rows=rows,
            read_version=self.ref.version,
            enable_stable_row_ids=self.options.enable_stable_row_ids,
            commit_message=self.options.commit_message,
            properties=self.options.properties,
        )
        return commit_rows(self.ref, change, job_id=self.staging.job_id, policy=self.policy)

    def _has_created_empty_table(self) -> bool:
        """Creates an empty table whose format is not the default; commits take it from a file."""
        import lance
        from lance.file import stable_version

        if self._exists() or self.layout.version == stable_version():
            return False
        uri, job_id = self.ref.uri, self.staging.job_id
        result = CommitResult(
            uri=uri, operation="create", job_id=job_id, version=0, read_version=None, rows=0, fragments=0
        )
        try:
            lance.write_dataset(
                self.layout.table_schema.empty_table(),
                uri,
                mode="create",
                data_storage_version=cast("Literal['2.0', '2.1', '2.3']", self.layout.version),
                enable_stable_row_ids=self.options.enable_stable_row_ids,
                storage_options=self.ref.storage or None,
                transaction_properties={
                    USER_KEY: this_user(),
                    **properties_of(result, self.options.commit_message, self.options.properties),
                },
            )
        except OSError:
            # A concurrent writer may have created it; if not, the committer says what is wrong.
            return False
        return True

    def _exists(self) -> bool:
        return table_exists(self.ref.uri, self.ref.storage)


def _layout_of_new_table(dataset: lance.LanceDataset | None, schema: StructType, options: WriteOptions) -> FileLayout:
    """Returns the layout of a table that is created, or overwritten in the format that it has."""
    column_options = {column: dict(values) for column, values in options.column_options}
    rows = pa.schema([row_field(field) for field in to_lance_schema(schema, column_options)])
    check_writable(schema, rows)
    version = options.data_storage_version or "stable" if dataset is None else dataset.data_storage_version
    return FileLayout.of_new_table(rows, version)


def _with_new_columns(ref: DatasetRef, schema: StructType, options: WriteOptions, policy: CommitPolicy) -> DatasetRef:
    """Adds the columns that a table lacks, all NULL, and returns the version that has them."""
    rows = [row_field(field) for field in ref.open().schema]
    known = {field.name.lower() for field in rows}
    lacking = StructType([field for field in schema.fields if field.name.lower() not in known])
    if not lacking.fields:
        return ref
    column_options = {
        column: dict(values) for column, values in options.column_options if column.partition(".")[0] not in known
    }
    new = pa.schema([field.with_nullable(True) for field in to_lance_schema(lacking, column_options)])
    check_writable(schema, pa.schema([*rows, *map(row_field, new)]))

    def add(head: lance.LanceDataset) -> None:
        check_storable(new, head.data_storage_version)
        # What a concurrent writer has added is checked as all columns are.
        wanted = [field for field in new if field.name not in head.schema.names]
        if wanted:
            head.add_columns(pa.schema(wanted))

    change_schema(ref, add, policy)
    return ref.pin(None)


def _layout_for_append(dataset: lance.LanceDataset, schema: StructType, options: WriteOptions) -> FileLayout:
    rows = pa.schema([row_field(field) for field in dataset.schema])
    check_writable(schema, rows)
    _refuse_other_column_options(rows, options)
    # Columns that the DataFrame lacks are left out of the files, as Lance does; they read as NULL.
    given = {name.lower() for name in schema.names}
    return FileLayout.of_table(dataset, [name for name in rows.names if name.lower() in given])


def _refuse_backfill_options(options: WriteOptions) -> None:
    for name in ("version", "input_columns", "verify_columns"):
        value = getattr(options, name)
        if value is not None:
            accepted = "only together with option('mode', 'backfill')"
            raise OptionError(name, str(value), accepted, problem="does not apply to a write of rows")


def _refuse_doubled_columns(schema: StructType) -> None:
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise SchemaMismatchError(
            f"the DataFrame has several columns named {', '.join(map(repr, doubled))} - nothing was written - rename "
            "or drop all but one"
        )


def _refuse_other_settings(dataset: lance.LanceDataset, options: WriteOptions, uri: str) -> None:
    """Refuses settings of new tables that differ from the table's: Lance would ignore them."""
    from lance.file import stable_version

    has = dataset.data_storage_version
    wanted = options.data_storage_version
    if wanted is not None and has != (stable_version() if wanted == "stable" else wanted):
        raise _not_the_tables("data_storage_version", wanted, f"{has}, which the table at {uri} has and keeps")
    if dataset.has_stable_row_ids and not options.enable_stable_row_ids:
        raise _not_the_tables("enable_stable_row_ids", "false", f"true, which the table at {uri} has and keeps")


def _refuse_other_column_options(rows: pa.Schema, options: WriteOptions) -> None:
    for column, values in options.column_options:
        field = _find(list(rows), column)
        for name, value in values:
            if field is None or not _fits(field, name, value):
                has = "no such column" if field is None else field.type
                raise _not_the_tables(f"{column}.{name}", value, f"what the table has ({has})")


def _not_the_tables(option: str, value: str, has: str) -> OptionError:
    return OptionError(option, value, f"{has}, or no such option", problem="is not the table's")


def _fits(field: pa.Field[Any], option: str, value: str) -> bool:
    if option == "lance.encoding":
        return is_logical_blob(field)
    return has_option(field, option, value)


def _find(fields: Sequence[pa.Field[Any]], path: str) -> pa.Field[Any] | None:
    """Returns a column by its dotted path; options come in lower case from Spark."""
    first, _, rest = path.partition(".")
    found = next((field for field in fields if field.name.lower() == first.lower()), None)
    if found is None or not rest:
        return found
    children = [found.type.field(i) for i in range(found.type.num_fields)] if pa.types.is_struct(found.type) else []
    return _find(children, rest)
