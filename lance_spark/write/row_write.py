"""Fragments of new rows and their commit: the part that all writes of rows share.

Spark's tasks and this process write fragments that belong to no version. The commit makes one
version of all of them, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import WriterCommitMessage

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import CommitConflictError
from lance_spark.options import WriteOptions
from lance_spark.staging.area import Staging
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.fragment_writer import FragmentSink
from lance_spark.staging.job_end import abort, commit_or_give_up, find_commit, finish
from lance_spark.write.planned import fragment_from_json, fragment_to_json

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

logger = logging.getLogger(__name__)

RowMode = Literal["create", "append", "overwrite"]
"""`create` fails where a table exists, `append` creates a missing table, `overwrite` replaces all
rows."""


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

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values for :meth:`RowWrite.read_answer`."""
        return {"fragments": [*map(fragment_to_json, self.fragments)]}


@dataclass(frozen=True, kw_only=True)
class RowWrite:
    """A write of new rows. A picklable value.

    Attributes:
        ref: The table, pinned at the version that the write was planned on. Without a table, the
            reference has no version.
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
            # Also on Lance's panics, which are no Exception: the open file would otherwise stay as
            # long as the worker lives.
            sink.abandon()
            raise

    def read_answer(self, values: Mapping[str, Any]) -> RowsWritten:
        """Returns the answer of a task from the values of :meth:`RowsWritten.to_json`."""
        return RowsWritten(fragments=tuple(map(fragment_from_json, values["fragments"])))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes one version of all fragments, and deletes what other attempts left.

        Runs on the driver: in the process of the gateway, or in a process of Spark without the jar.

        Raises:
            CommitConflictError: A concurrent writer changed the table so that the rows do not fit
                it any more. Nothing is left behind.
            TableExistsError: The mode is `create`, and a concurrent writer created the table first.
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
            data_storage_version=self.layout.version,
            enable_stable_row_ids=self.options.enable_stable_row_ids,
            commit_message=self.options.commit_message,
            properties=self.options.properties,
        )
        return commit_rows(self.ref, change, job_id=self.staging.job_id, policy=self.policy)

    def _exists(self) -> bool:
        return table_exists(self.ref.uri, self.ref.storage)
