"""Update mode of streaming writes: each micro-batch is a merge by key, as one version.

Tasks write the rows of a micro-batch as a table in the folder of a job. The driver merges this
table into the target, in the session of the query, and deletes the rows. The merge is a transaction
of an application like an append: the query's id, and the id of the batch. Needs the jar, because
Spark tells only Java the output mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import ArrayType, MapType, StructType

from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.changes import CommitNote
from lance_spark.dml.clauses import MergeClauses
from lance_spark.dml.merge import Merge
from lance_spark.dml.source import read_table
from lance_spark.errors import ColumnNotFoundError, OptionError, TableNotFoundError
from lance_spark.ingest.staging import discard
from lance_spark.options.io_options import WriteOptions
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import row_field
from lance_spark.staging.orphans import abort_older_jobs
from lance_spark.streaming.writes import StreamWrite
from lance_spark.types import check_writable
from lance_spark.upkeep.small_fragments import join_small_fragments
from lance_spark.views.definition import refuse_view
from lance_spark.write.append_writer import LanceAppendWriter, pin_present
from lance_spark.write.row_write import RowsWritten

if TYPE_CHECKING:
    from lance_spark.dataset import DatasetRef
    from lance_spark.ingest.rows import Data

_LOCAL_BYTES = 16 << 20
"""Maximum bytes of files of a micro-batch that the driver reads. A small merge is a single task.
Spark joins rows with nested columns, because merges of the driver's rows refuse NaN in vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertWriter:
    """Writes the rows of a micro-batch, and merges them by key. A picklable value.

    Attributes:
        stream: The streaming write.
        staging: The job with the rows of the micro-batch.
        rows: The write of these rows.
    """

    stream: StreamWrite
    staging: Staging
    rows: LanceAppendWriter

    @staticmethod
    def plan(stream: StreamWrite) -> UpsertWriter:
        """Plans a micro-batch, and opens its job. Runs on the driver.

        Raises:
            TableNotFoundError: The table does not exist.
            ColumnNotFoundError: The table or the rows lack a key column.
            OptionError, SchemaMismatchError, UnsupportedOperationError: The rows, an option or the
                table do not fit.
        """
        ref = _existing_table(stream)
        _check_columns(stream, ref)
        staging = Staging.of_new_job(ref, family=stream.family)
        staging.open_job()
        place = replace(
            ref, uri=f"{ref.uri}/{staging.folder}/rows", version=None, incarnation=None, branch=None
        )
        options = WriteOptions(path=place.uri)
        rows = LanceAppendWriter.plan(place, stream.schema, options, overwrite=False)
        rows.staging.open_job()
        return UpsertWriter(stream=stream, staging=staging, rows=rows)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Writes the rows of a task. Runs on an executor.

        Raises:
            ValueConversionError: A value does not fit its column.
        """
        return self.rows.write(iterator)

    def read_answer(self, values: Mapping[str, Any]) -> RowsWritten:
        """Returns a task's answer from the values of :meth:`RowsWritten.to_json`."""
        return self.rows.read_answer(values)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int, session: object
    ) -> None:
        """Merges a micro-batch, unless the table has the batch already.

        Args:
            messages: The answers of the tasks.
            batch_id: The id of the batch.
            session: Session of the query in the JVM.

        Raises:
            StreamRewoundError: The table has a later batch of the query.
            MergeError: Several rows of the batch have one key of the table.
            CommitConflictError: Other writers kept committing first.
            CommitOutcomeUnknownError: The store did not answer.
        """
        from pyspark import SparkContext

        answers = [
            message for message in messages if isinstance(message, RowsWritten) and message.rows
        ]
        try:
            if not answers:
                return
            self.rows.commit_tasks(answers)
            spark = SparkSession(SparkContext.getOrCreate(), session)
            options, ref = self.stream.options, _existing_table(self.stream)
            transaction = AppTransaction.of(self.stream.query_id, batch_id)
            note = CommitNote.of(options.commit_message, dict(options.properties), transaction)
            clauses = MergeClauses(on=self.stream.keys, updates=True, inserts=True)
            data = self._read_rows(spark, ref, answers)
            merge = Merge(spark, ref, clauses, data, table_name=ref.uri, family=self.stream.family)
            merge.run(note)
        finally:
            self.abort([], batch_id)
        abort_older_jobs(self.staging, self.stream.ref, family=self.stream.family or "")
        if self.stream.compact_after is not None:
            join_small_fragments(self.stream.ref, self.stream.compact_after)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Deletes the rows of a micro-batch."""
        del messages, batch_id
        discard(self.staging)

    def _read_rows(
        self, spark: SparkSession, ref: DatasetRef, answers: Sequence[RowsWritten]
    ) -> Data:
        files = (
            file for answer in answers for fragment in answer.fragments for file in fragment.files
        )
        has_nested = any(
            isinstance(field.dataType, ArrayType | MapType | StructType)
            for field in self.stream.schema
        )
        if (
            not has_nested
            and sum(file.file_size_bytes or _LOCAL_BYTES for file in files) < _LOCAL_BYTES
        ):
            return self.rows.ref.open_latest().scanner().to_reader()
        return read_table(spark, ref, self.rows.ref.uri, {})


def _existing_table(stream: StreamWrite) -> DatasetRef:
    """Returns the table of a stream at its latest version."""
    ref = pin_present(stream.ref)
    if ref is None:
        hint = "update mode merges into an existing table: create the table first"
        raise TableNotFoundError(stream.ref.uri, hint=hint)
    return ref


def _check_columns(stream: StreamWrite, ref: DatasetRef) -> None:
    dataset = ref.open()
    refuse_view(dataset)
    if stream.options.mergeschema:
        raise OptionError(
            "mergeSchema", "true", "no value in update mode: add the columns to the table first"
        )
    names = dataset.schema.names
    for name in stream.keys:
        if name not in names:
            raise ColumnNotFoundError(name, ref.uri, hint=f"its columns are {', '.join(names)}")
        if name not in stream.schema.names:
            raise ColumnNotFoundError(
                name, "the stream", hint=f"its columns are {', '.join(stream.schema.names)}"
            )
    rows = pa.schema(
        [row_field(field) for field in dataset.schema if field.name in stream.schema.names]
    )
    check_writable(stream.schema, rows, uri=ref.uri)
