"""Streaming writes: each micro-batch is an append, or an overwrite in complete mode.

Spark makes a writer for each micro-batch and pickles the writer for the tasks. With the jar, the
gateway plans and commits (:mod:`lance_spark.sql.writes`). Without the jar, Spark makes a second
writer to commit the batch, in another process: the answers of the tasks carry the plan of the
first. A batch is a transaction of an application: the query's id, and the id of the
batch (:mod:`lance_spark.commit.app_ledger`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from lance_spark.commit.commit_loop import open_head
from lance_spark.dataset import DatasetRef
from lance_spark.errors import NoLocationError, OptionError, TableNotFoundError
from lance_spark.locations import is_local, normalize_uri
from lance_spark.options.io_options import WriteOptions
from lance_spark.options.statements import check_statement_options, statement_options
from lance_spark.options.values import parse_names
from lance_spark.staging.orphans import abort_older_jobs
from lance_spark.stored_json import load_object
from lance_spark.upkeep.small_fragments import join_small_fragments
from lance_spark.write.append_writer import LanceAppendWriter
from lance_spark.write.row_write import RowsWritten

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

CHECKPOINT_OPTION = "checkpointlocation"
QUERY_ID_OPTION = "streaming_query_id"
COMPACT_OPTION = "compact_after"
KEYS_OPTION = "merge_on"
_NAME_OPTION = "queryname"
"""Spark's option with the name of a query, from `queryName(...)`."""

_QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Spark's local property with the id of a streaming query."""

_FAMILY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRowsWritten(WriterCommitMessage):
    """The answer of a task of a micro-batch.

    Attributes:
        plan: The write of the micro-batch.
        query_id: The id of the query, as Spark tells its tasks.
    """

    plan: LanceAppendWriter
    query_id: str | None
    written: RowsWritten

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values for :meth:`LanceStreamWriter.read_answer`."""
        return {"query_id": self.query_id, "written": self.written.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWrite:
    """The streaming write of a query, the same for each micro-batch.

    Attributes:
        options: The options of the write, without those of the query.
        schema: The columns of the rows.
        overwrite: Whether each batch replaces all rows.
        query_id: Id of the query, if already known.
        compact_after: Number of small fragments after which a batch compacts the table; None never
            compacts.
        keys: Key columns of update mode; empty in other modes.
    """

    options: WriteOptions
    schema: StructType
    overwrite: bool
    query_id: str | None
    compact_after: int | None = None
    keys: tuple[str, ...] = ()

    @staticmethod
    def of(
        options: Mapping[str, str],
        schema: StructType,
        *,
        overwrite: bool,
        query_id: str | None = None,
        updates: bool = False,
    ) -> StreamWrite:
        """Validates the options. Writes nothing.

        Args:
            options: The options of the query and of the write, by names in lower case.
            schema: The columns of the rows.
            overwrite: Whether each batch replaces all rows.
            query_id: Id of the query, if Spark passed the id.
            updates: Whether the output mode is `update`.

        Raises:
            NoLocationError: Spark passed no location.
            OptionError: An option is unknown, malformed, or belongs to another kind of write.
        """
        of_query = {CHECKPOINT_OPTION, QUERY_ID_OPTION, COMPACT_OPTION, KEYS_OPTION, _NAME_OPTION}
        of_write = {name: text for name, text in options.items() if name not in of_query}
        check_statement_options("STREAM", statement_options(of_write))
        parsed = WriteOptions.parse(of_write)
        if not parsed.path:
            raise NoLocationError(
                "Spark did not pass the location of the streaming write. Nothing was written. Start the query with "
                "start(path)."
            )
        requested_id = options.get(QUERY_ID_OPTION)
        if requested_id is not None and not requested_id.strip():
            raise OptionError(QUERY_ID_OPTION, requested_id, "an id that no other query has")
        return StreamWrite(
            options=parsed,
            schema=schema,
            overwrite=overwrite,
            query_id=requested_id or query_id or _read_query_id(options.get(CHECKPOINT_OPTION)),
            compact_after=_compact_after_of(options.get(COMPACT_OPTION)),
            keys=_keys_of(options.get(KEYS_OPTION), updates=updates),
        )

    @property
    def family(self) -> str | None:
        """The first digits of the ids of all jobs of the query; None for an unknown query."""
        return None if self.query_id is None else _family_of(self.query_id)

    @property
    def ref(self) -> DatasetRef:
        """The table or branch."""
        return DatasetRef.find(self.options.path, self.options.storage, self.options.branch)

    def plan(self) -> LanceAppendWriter:
        """Plans the write of a micro-batch, and opens its job.

        Raises:
            OptionError, SchemaMismatchError, UnsupportedTypeError: The rows do not fit the table.
        """
        plan = LanceAppendWriter.plan(
            self.ref, self.schema, self.options, overwrite=self.overwrite, family=self.family
        )
        plan.staging.open_job()
        return plan


class LanceStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. A picklable value.

    Attributes:
        stream: The streaming write.
        batch: The plan of a micro-batch; None in a process that only commits.
    """

    def __init__(self, stream: StreamWrite, batch: LanceAppendWriter | None) -> None:
        self.stream = stream
        self.batch = batch

    # mypy compares with the row-wise base class, as for the writer of DataFrames.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchRowsWritten:  # type: ignore[override]
        """Writes the rows of a task. Runs on an executor.

        Raises:
            ValueConversionError: A value does not fit its column.
            UnsupportedTypeError: The table's file format cannot hold a value.
        """
        assert self.batch is not None  # Spark plans before it runs tasks
        return BatchRowsWritten(
            plan=self.batch, query_id=_query_id_of_task(), written=self.batch.write(iterator)
        )

    def read_answer(self, values: Mapping[str, Any]) -> BatchRowsWritten:
        """Returns a task's answer from the values of :meth:`BatchRowsWritten.to_json`."""
        assert self.batch is not None  # as in `write`
        batch_rows = self.batch.read_answer(values["written"])
        return BatchRowsWritten(plan=self.batch, query_id=values["query_id"], written=batch_rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Makes a version of a micro-batch, unless the table has the batch already.

        Raises:
            StreamRewoundError: The table has a later batch of the query.
            CommitConflictError: The rows no longer fit the table.
            CommitOutcomeUnknownError: The store did not answer. The files are kept.
            TableNotFoundError: The table was dropped after the first batch.
            OptionError: The id of the query is unknown.
        """
        answers = [message for message in messages if isinstance(message, BatchRowsWritten)]
        query_id = self.stream.query_id or next((answer.query_id for answer in answers), None)
        if not answers and not self.stream.overwrite and open_head(self.stream.ref) is not None:
            self._abort(answers)
            return
        if query_id is None:
            self._abort(answers)
            raise OptionError(
                QUERY_ID_OPTION,
                "",
                "an id that no other query has",
                problem="is missing, and Spark passed no query id",
            )
        batch = answers[0].plan if answers else self.batch or self.stream.plan()
        _refuse_dropped_table(batch, batchId)
        options = dataclasses.replace(batch.options, txn_app_id=query_id, txn_version=batchId)
        result = dataclasses.replace(batch, options=options).commit_tasks(
            [answer.written for answer in answers]
        )
        # After a repeated batch, another driver may have replaced this driver.
        if result is not None and result.job_id == batch.staging.job_id:
            abort_older_jobs(batch.staging, batch.ref, family=_family_of(query_id))
            if self.stream.compact_after is not None:
                join_small_fragments(self.stream.ref, self.stream.compact_after)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Deletes the files of a micro-batch, unless the batch is or may be committed."""
        del batchId
        self._abort([message for message in messages if isinstance(message, BatchRowsWritten)])

    def _abort(self, answers: Sequence[BatchRowsWritten]) -> None:
        batch = answers[0].plan if answers else self.batch
        if batch is not None:
            batch.abort([])


def _keys_of(text: str | None, *, updates: bool) -> tuple[str, ...]:
    if text is not None and not updates:
        raise OptionError(
            KEYS_OPTION,
            text,
            "outputMode('update') and the jar",
            problem="is an option of update mode",
        )
    if text is None:
        if updates:
            raise OptionError(
                KEYS_OPTION,
                None,
                "the key columns, by which a micro-batch of update mode replaces rows",
            )
        return ()
    try:
        return parse_names(text)
    except ValueError as error:
        accepted = "key columns, comma-separated or as a JSON array, each once"
        raise OptionError(KEYS_OPTION, text, accepted) from error


def _compact_after_of(text: str | None) -> int | None:
    if text is None or (text.isascii() and text.isdecimal() and int(text) > 0):
        return None if text is None else int(text)
    raise OptionError(COMPACT_OPTION, text, "a number of fragments, 1 or more")


def _refuse_dropped_table(batch: LanceAppendWriter, batch_id: int) -> None:
    """Raises if a batch after the first finds no table, and deletes its files.

    Raises:
        TableNotFoundError: The table was dropped.
    """
    if (
        batch_id == 0
        or (batch.ref.version is not None and batch.mode == "append")
        or open_head(batch.ref) is not None
    ):
        return
    batch.abort([])
    raise TableNotFoundError(
        batch.ref.uri,
        hint=f"the table was dropped before batch {batch_id} of the query, and nothing was committed; start the query "
        "with a new checkpointLocation, or create the table first to continue with this batch",
    )


def _family_of(query_id: str) -> str:
    """Returns the first digits of the ids of all jobs of a query."""
    return hashlib.sha256(query_id.encode(errors="surrogatepass")).hexdigest()[:_FAMILY_DIGITS]


def _query_id_of_task() -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_ID_PROPERTY)


def _read_query_id(checkpoint: str | None) -> str | None:
    """Returns the id of the query with a checkpoint in a local folder; None for another checkpoint.

    Tasks get the id from Spark. The driver gets the id here to recognise files of a dead driver.
    """
    try:
        location = (
            None if checkpoint is None else normalize_uri(checkpoint, option=CHECKPOINT_OPTION)
        )
    except OptionError:  # Spark has more schemes than Lance
        return None
    if location is None or not is_local(location):
        return None
    try:
        with open(os.path.join(location, "metadata"), "rb") as file:
            return str(load_object(file.read(), {"id": str})["id"])
    except (OSError, ValueError):
        return None
