"""Fragments of new rows and their commit: the shared part of all writes of rows.

Spark's tasks and this process write fragments without a version. The commit makes a single version
of all fragments, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import WriterCommitMessage

from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import (
    AppTransaction,
    PendingTransaction,
    RepeatedTransactionError,
)
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.commit_loop import CommitPolicy, open_head
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import WriteOptions
from lance_spark.staging.area import (
    Staging,
    abort,
    commit_or_give_up,
    find_commit,
    finish,
    finish_closed,
)
from lance_spark.staging.data_file import FragmentSink
from lance_spark.staging.data_files import Leftovers
from lance_spark.staging.file_layout import FileLayout
from lance_spark.write.planned import fragment_from_json, fragment_to_json

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

logger = logging.getLogger(__name__)

RowMode = Literal["create", "append", "overwrite"]
"""`create` fails if the table exists, `append` creates a missing table, `overwrite` replaces all
rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten(WriterCommitMessage):
    """The fragments written by a task, in the order of its rows; no version names them yet."""

    fragments: tuple[FragmentMetadata, ...]

    @property
    def rows(self) -> int:
        """Number of rows in the fragments."""
        return sum(fragment.physical_rows for fragment in self.fragments)

    @property
    def file_names(self) -> list[str]:
        """Names in `data/` of the data files."""
        return [str(file.path) for fragment in self.fragments for file in fragment.files]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values for :meth:`RowWrite.read_answer`."""
        return {"fragments": [*map(fragment_to_json, self.fragments)]}


@dataclass(slots=True)
class _Closing:
    """The files of other attempts, if the job ended before its commit; None otherwise."""

    leftovers: Leftovers | None = None


@dataclass(frozen=True, kw_only=True)
class RowWrite:
    """A write of new rows. A picklable value.

    Attributes:
        ref: The table, pinned at the planned version. Without a table, the reference has no
            version.
    """

    ref: DatasetRef
    layout: FileLayout
    mode: RowMode
    options: WriteOptions
    staging: Staging
    policy: CommitPolicy

    def write_fragments(self, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
        """Writes batches of the layout's `row_schema`. Memory does not grow with the rows.

        Raises:
            UnsupportedTypeError: The table's file format cannot hold a value.
            CommitError: The job ended before this attempt.
        """
        sink = FragmentSink(
            self.staging,
            self.layout,
            max_rows=self.options.max_rows_per_file,
            max_bytes=self.options.max_bytes_per_file,
        )
        try:
            for batch in batches:
                sink.write(batch)
            return RowsWritten(fragments=sink.finish())
        except BaseException:
            # Also after Lance's panics, which are no Exception: otherwise the file would stay open
            # as long as the worker lives.
            sink.abandon()
            raise

    def read_answer(self, values: Mapping[str, Any]) -> RowsWritten:
        """Returns a task's answer from the values of :meth:`RowsWritten.to_json`."""
        return RowsWritten(fragments=tuple(map(fragment_from_json, values["fragments"])))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits as :meth:`commit_tasks`, as Spark calls a writer."""
        self.commit_tasks(messages)

    def commit_tasks(self, messages: Sequence[WriterCommitMessage | None]) -> CommitResult | None:
        """Makes a single version of all fragments, and deletes the files of other attempts.

        Returns the result, or None if no version was needed. Runs on the driver: in the process of
        the gateway, or in a process of Spark without the jar.

        Raises:
            CommitConflictError: After a concurrent change of the table, the rows no longer fit. No
                file is left.
            TableExistsError: The mode is `create`, and a concurrent writer created the table first.
            CommitOutcomeUnknownError: The store did not answer. The files are kept.
            CommitError: The commit made no version. No file is left.
        """
        task_results = [message for message in messages if isinstance(message, RowsWritten)]
        files = _list_files(task_results)
        # A single opening serves the search for an earlier commit, and the commit.
        head = open_head(self.ref)
        result = None if head is None else find_commit(self.staging, self.ref, head)
        closing = _Closing()
        try:
            if result is None:
                result = commit_or_give_up(
                    self.staging, self.ref, lambda: self._commit(task_results, head, closing)
                )
        except RepeatedTransactionError as error:
            logger.info("%s", error)
            if self._ledger is not None:
                self._ledger.finish_repeated(error)
            return error.prior
        if closing.leftovers is None:
            finish(self.staging, self.ref, files, reported=files)
        else:
            finish_closed(self.staging, closing.leftovers)
        if self._ledger is not None:
            self._ledger.finish(result)
        return result

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes the job's files, unless the job has committed or may still commit."""
        del messages
        abort(self.staging, self.ref)

    @property
    def _ledger(self) -> AppLedger | None:
        """Records of the write's application; None for a write without a transaction."""
        transaction = AppTransaction.of(self.options.txn_app_id, self.options.txn_version)
        return None if transaction is None else AppLedger(ref=self.ref, transaction=transaction)

    def _commit(
        self,
        task_results: Sequence[RowsWritten],
        head: lance.LanceDataset | None,
        closing: _Closing,
    ) -> CommitResult | None:
        if self._ledger is None:
            return self._commit_rows(task_results, head, None, closing)
        with self._ledger.record_commit(head, self.staging.job_id) as pending:
            return self._commit_rows(task_results, head, pending, closing)

    def _commit_rows(
        self,
        task_results: Sequence[RowsWritten],
        head: lance.LanceDataset | None,
        pending: PendingTransaction | None,
        closing: _Closing,
    ) -> CommitResult | None:
        rows = sum(message.rows for message in task_results)
        is_append = self.mode == "append"
        if is_append and rows == 0 and head is not None:
            logger.info(
                "No rows were written, so no version was made. Table: %s. Job: %s.",
                self.ref.uri,
                self.staging.job_id,
            )
            return None
        files = _list_files(task_results)
        self.staging.begin_commit()
        if self.staging.has_markers or pending is not None:
            # The next driver of a stream finds the job of a dead driver open, and ends the job.
            self.staging.refuse_missing(files)
        else:
            closing.leftovers = self.staging.close_committing(files)
        change = RowsToCommit(
            mode=self.mode,
            schema=self.layout.table_schema,
            fields=self.layout.fields,
            fragments=tuple(fragment for message in task_results for fragment in message.fragments),
            rows=rows,
            read_version=self.ref.version,
            data_storage_version=self.layout.version,
            enable_stable_row_ids=self.options.enable_stable_row_ids,
            commit_message=self.options.commit_message,
            properties=self.options.properties,
            transaction=pending,
        )
        return commit_rows(
            self.ref, change, job_id=self.staging.job_id, policy=self.policy, head=head
        )


def _list_files(task_results: Iterable[RowsWritten]) -> list[str]:
    """Returns the names in `data/` of the tasks' data files."""
    return [name for message in task_results for name in message.file_names]
