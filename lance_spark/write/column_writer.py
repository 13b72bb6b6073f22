"""A DataFrame write of columns: planned and committed on the driver.

Two paths lead to the same column files. If the planner rule promised every fragment's rows in a
single task and in order, the task writes column files directly. Otherwise tasks write sorted runs,
and the commit merges the runs. Both paths verify the promises.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import (
    AppTransaction,
    PendingTransaction,
    RepeatedTransactionError,
)
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.column_commit import Outcome, commit_columns
from lance_spark.commit.commit_loop import CommitPolicy, open_head
from lance_spark.commit.conflicts.identity import UNKNOWN_FIELD, fragment_identity, ids_of
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import refuse_other_columns, refuse_renamed
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files, incarnation_of
from lance_spark.errors import (
    CommitError,
    CommitImpossibleError,
    SnapshotError,
    VersionNotFoundError,
)
from lance_spark.lance_compat import plain
from lance_spark.options.io_options import WriteOptions
from lance_spark.rebase.carry_over import CarryOver, CarryPlan
from lance_spark.rebase.snapshot import open_snapshot
from lance_spark.rows.row_addresses import Addresses, Rejected, SnapshotRows, Verifier, addresses_in
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging, abort, commit_or_give_up, find_commit, finish
from lance_spark.staging.column_file import ColumnFileWriter, NullColumnFiles
from lance_spark.types import WriteConverter
from lance_spark.write.column_write_plan import ColumnWritePlan, plan_column_write
from lance_spark.write.planned import fragment_from_json, fragment_to_json
from lance_spark.write.sorted_runs import Run, RunWriter, first_of_each, merge_runs

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsWritten(WriterCommitMessage):
    """Result of a task: finished column files, or sorted runs and the fragments of their rows."""

    fragments: tuple[FragmentColumns, ...] = ()
    runs: tuple[Run, ...] = ()
    seen: tuple[FragmentMetadata, ...] = ()
    rejected: Rejected = field(default_factory=Rejected)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values for :meth:`LanceBackfillWriter.read_answer`."""
        return {
            "fragments": [
                (
                    fragment_to_json(part.fragment),
                    part.staged.name,
                    part.staged.size_bytes,
                    part.given.to_text(),
                )
                for part in self.fragments
            ],
            "runs": [(run.path, run.rows, run.bytes) for run in self.runs],
            "seen": [*map(fragment_to_json, self.seen)],
            "rejected": (self.rejected.counts, self.rejected.examples),
        }


class LanceBackfillWriter(DataSourceArrowWriter):
    """Writes values of columns into existing rows."""

    def __init__(self, backfill: ColumnWritePlan, policy: CommitPolicy) -> None:
        snapshot = backfill.snapshot
        self.backfill = backfill
        table_files = count_data_files(snapshot.open())
        # Attempts with runs have markers, because only the folder of an attempt shows its runs.
        self.staging = Staging.of_new_job(
            snapshot, table_files=table_files, pipelined=True, marked=not backfill.exclusive
        )
        self._policy = policy
        transaction = AppTransaction.of(backfill.options.txn_app_id, backfill.options.txn_version)
        self._ledger = (
            None if transaction is None else AppLedger(ref=snapshot, transaction=transaction)
        )
        self._untouched = NullColumnFiles(self.staging, backfill.targets.format)

    @staticmethod
    def plan(
        ref: DatasetRef,
        schema: StructType,
        options: WriteOptions,
        write_spec: Mapping[str, Any] | None,
        *,
        overwrite: bool = False,
    ) -> LanceBackfillWriter:
        """Plans the write, with all checks that need no rows.

        Runs on the driver; reads manifests only.

        Raises:
            OptionError: An option does not fit a backfill.
            SnapshotError: The rows' table or version is unknown, or another table's.
            SchemaMismatchError, UnsupportedTypeError: A column does not fit.
            ColumnNotFoundError: An option names a column that the table lacks.
            TableNotFoundError, TableUnreadableError: No readable table exists.
        """
        # Read here, because the environment variables of the driver count.
        policy = CommitPolicy.of(
            options.commit_max_retries,
            options.commit_timeout,
            allow_unsafe=options.allow_unsafe_commits,
        )
        backfill = plan_column_write(ref, schema, options, write_spec, overwrite=overwrite)
        refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
        return LanceBackfillWriter(backfill, policy)

    # mypy compares with the row-wise base class. pyspark's Arrow writer overrides that class in the
    # same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> ColumnsWritten:  # type: ignore[override]
        """Writes a task's rows. Runs on an executor; its memory does not grow with the data.

        Raises:
            ValueConversionError: A value does not fit its column.
            SnapshotError: The rows' version was cleaned up, or the table was created again.
            CommitError: The rows' order breaks the planner rule's promise.
        """
        plan = self.backfill
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return ColumnsWritten()
        rows, rejected = SnapshotRows(self._open_snapshot()), Rejected()
        verifier = Verifier(rows, plan.verify_columns)
        attempt = self.staging.begin_attempt()
        addressed = self._read_addressed(itertools.chain([first], batches), rows, rejected)
        try:
            if plan.exclusive:
                files = ColumnFileWriter(attempt, rows, plan.targets, rejected)
                return ColumnsWritten(
                    fragments=files.write(self._filter_live(addressed, rows, rejected, verifier)),
                    rejected=rejected,
                )
            runs = RunWriter(attempt, rows, plan.targets.schema, rejected, verifier)
            for addresses, values in addressed:
                runs.append(addresses, values)
            return ColumnsWritten(
                runs=runs.finish(), seen=rows.opened_fragments(), rejected=rejected
            )
        finally:
            # Run files are never read after the end of the job.
            attempt.end() if plan.exclusive else attempt.clear_if_over()

    def read_answer(self, values: Mapping[str, Any]) -> ColumnsWritten:
        """Returns a task's answer from the values of :meth:`ColumnsWritten.to_json`."""
        fragments = (
            FragmentColumns(
                fragment=fragment_from_json(fragment),
                staged=StagedColumns(name=name, size_bytes=size),
                given=RowSet.from_text(row_set),
            )
            for fragment, name, size, row_set in values["fragments"]
        )
        counts, examples = values["rejected"]
        return ColumnsWritten(
            fragments=tuple(fragments),
            runs=tuple(
                Run(path=path, rows=rows, bytes=size) for path, rows, size in values["runs"]
            ),
            seen=tuple(map(fragment_from_json, values["seen"])),
            rejected=Rejected(counts=counts, examples=examples),
        )

    def _open_snapshot(self) -> lance.LanceDataset:
        snapshot = self.backfill.snapshot
        try:
            return snapshot.open()
        except VersionNotFoundError as error:
            raise SnapshotError(
                f"Version {snapshot.version}, which the rows were read at, was cleaned up while tasks of the write "
                f"ran: {plain(error)}. Table: {snapshot.uri}. Nothing was committed. Read the table again, and write "
                "again. Tag the version before a long write."
            ) from error

    def _read_addressed(
        self, batches: Iterable[pa.RecordBatch], rows: SnapshotRows, rejected: Rejected
    ) -> Iterator[tuple[Addresses, pa.RecordBatch]]:
        """Yields rows with an address, with the targets and the columns to verify."""
        plan = self.backfill
        converter = WriteConverter(plan.source, plan.columns)
        ids_of = rows.dataset if plan.by_row_id else None
        for batch in batches:
            converted = converter.convert(batch)
            column = cast(pa.Int64Array, converted.column(plan.address))
            addresses, usable = addresses_in(column, rejected, ids_of=ids_of)
            values = converted.select([*plan.targets.schema.names, *plan.verify_columns])
            yield addresses, values if usable.all() else values.filter(pa.array(usable))

    def _filter_live(
        self,
        addressed: Iterable[tuple[Addresses, pa.RecordBatch]],
        rows: SnapshotRows,
        rejected: Rejected,
        verifier: Verifier,
    ) -> Iterator[tuple[Addresses, pa.RecordBatch]]:
        """Yields live rows of the snapshot, for files.

        Rows that differ from the table stay included: the job fails at its end anyway.
        """
        plan = self.backfill
        for addresses, values in addressed:
            usable = rows.usable(addresses, rejected)
            live, batch = (
                addresses[usable],
                values if usable.all() else values.filter(pa.array(usable)),
            )
            if plan.verify_columns and len(live):
                once = np.concatenate([[True], live[1:] != live[:-1]])
                verifier.equal(
                    live[once], pa.Table.from_batches([batch.filter(pa.array(once))]), rejected
                )
            yield live, batch.select(plan.targets.schema.names)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits as :meth:`commit_tasks`, as Spark calls a writer."""
        self.commit_tasks(messages)

    def commit_tasks(self, messages: Sequence[WriterCommitMessage | None]) -> CommitResult | None:
        """Commits the tasks' work, all or nothing.

        Runs on the driver, without a session. Returns the earlier result if the job has committed.
        Returns the result of the first commit if the transaction of the application was committed
        before, or None if that commit is no longer known.

        Raises:
            RowAddressError: Rows are NULL, unknown, deleted, or given twice.
            CommitError: See :func:`~lance_spark.commit.column_commit.commit_columns`.
        """
        try:
            result = self._commit_and_finish(
                [item for item in messages if isinstance(item, ColumnsWritten)]
            )
        except RepeatedTransactionError as error:
            _logger.info("%s", error)
            if self._ledger is not None:
                self._ledger.finish_repeated(error)
            return error.prior
        if self._ledger is not None:
            self._ledger.finish(result)
        return result

    def _commit_and_finish(self, messages: Sequence[ColumnsWritten]) -> CommitResult:
        snapshot = self.backfill.snapshot
        head = open_head(snapshot)
        earlier = None if head is None else find_commit(self.staging, snapshot, head)
        if earlier is not None:
            return earlier
        fragments, outcome = commit_or_give_up(
            self.staging, snapshot, lambda: self._commit(messages, head)
        )
        keep = outcome.files or frozenset()
        unless_named = [
            *self._untouched.names,
            *([] if keep else [part.staged.name for part in fragments]),
        ]
        files = [*self._untouched.names, *(part.staged.name for part in fragments)]
        runs = [run.path for message in messages for run in message.runs]
        finish(self.staging, snapshot, keep, unless_named=unless_named, reported=[*files, *runs])
        return outcome.result

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes the job's files, unless the job has committed or may still commit."""
        del messages
        abort(self.staging, self.backfill.snapshot)

    def _commit(
        self, messages: Sequence[ColumnsWritten], head: lance.LanceDataset | None
    ) -> tuple[tuple[FragmentColumns, ...], Outcome]:
        plan = self.backfill
        if head is None:
            raise CommitImpossibleError(
                f"The table was deleted. Table: {plan.snapshot.uri}. Nothing was committed.",
                uri=plan.snapshot.uri,
            )
        if self._ledger is not None:
            self._ledger.look(head)
        if any(message.runs for message in messages):
            # Before the merge of the runs, which takes long.
            self.staging.check_open()
        fragments = self._collect(messages)
        self.staging.begin_commit()
        self.staging.refuse_missing(
            [p.staged.name for p in fragments], [p.fragment_id for p in fragments]
        )
        carry = CarryPlan(
            snapshot=plan.snapshot,
            targets=plan.targets,
            inputs=plan.inputs,
            on_stale=plan.options.on_stale,
            max_bytes=plan.options.carry_over_max_bytes,
        )
        with self._record_commit(head) as transaction:
            outcome = commit_columns(
                plan.snapshot,
                replace(self._build_request(fragments), transaction=transaction),
                job_id=self.staging.job_id,
                stage=self._untouched,
                snapshot_fragments=_list_fragment_ids(plan.snapshot, head),
                rebaser=CarryOver(
                    self.staging, carry, {part.fragment_id: part for part in fragments}
                ),
                policy=self._policy,
                # The merge of runs takes long, and other writers commit concurrently.
                history=SeenHistory(opened=head if plan.exclusive else None),
            )
        return fragments, outcome

    @contextlib.contextmanager
    def _record_commit(self, head: lance.LanceDataset) -> Iterator[PendingTransaction | None]:
        """Records the start of a commit in the ledger of the application, if any."""
        if self._ledger is None:
            yield None
            return
        with self._ledger.record_commit(head, self.staging.job_id) as pending:
            yield pending

    def _build_request(self, fragments: tuple[FragmentColumns, ...]) -> ColumnsToCommit:
        plan = self.backfill
        return ColumnsToCommit(
            read_version=plan.snapshot.version or 0,
            targets=plan.target_identities,
            new_columns=plan.new_columns,
            inputs=plan.inputs,
            inputs_from=plan.inputs_from,
            fragments=fragments,
            commit_message=plan.options.commit_message,
            properties=plan.options.properties,
        )

    def _collect(self, messages: Sequence[ColumnsWritten]) -> tuple[FragmentColumns, ...]:
        """Collects all tasks' work as column files, one per fragment."""
        plan = self.backfill
        rejected = Rejected()
        for message in messages:
            rejected.merge(message.rejected)
        fragments = [part for message in messages for part in message.fragments]
        files = collections.Counter(part.fragment_id for part in fragments)
        twice = sorted(fragment_id for fragment_id, count in files.items() if count > 1)
        if twice:
            raise CommitError(
                "Rows of one fragment arrived in several tasks, although the planner rule promised a single task. "
                f"Fragments: {twice[:10]} of {self.staging.uri}. Nothing was committed. Call "
                "lance_spark.disable_pushdown(spark), and write again.",
                uri=self.staging.uri,
            )
        fragments.extend(self._merge(messages, rejected))
        if rejected:
            raise rejected.to_error(plan.snapshot.uri, plan.snapshot.version or 0, plan.address)
        return tuple(sorted(fragments, key=lambda part: part.fragment_id))

    def _merge(
        self, messages: Sequence[ColumnsWritten], rejected: Rejected
    ) -> tuple[FragmentColumns, ...]:
        """Merges the tasks' sorted runs into column files."""
        plan = self.backfill
        runs = [run for message in messages for run in message.runs]
        if rejected:
            # The write fails in any case, and only the count of duplicates between tasks is
            # missing.
            for addresses, _ in merge_runs(self.staging, runs, ()):
                first_of_each(addresses, rejected)
            return ()
        if not runs:
            return ()
        if len(runs) > 1:
            self._warn_of_merge(runs)
        fragments = {
            fragment.id: fragment
            for fragment in itertools.chain(*(message.seen for message in messages))
        }
        rows = SnapshotRows(self._open_for_merge(fragments))
        files = ColumnFileWriter(self.staging.begin_attempt(), rows, plan.targets, rejected)
        rows_in_order = merge_runs(self.staging, runs, plan.targets.schema.names)
        # The values belong to the fragment as read.
        return tuple(
            replace(part, fragment=fragments[part.fragment_id])
            for part in files.write(rows_in_order)
        )

    def _warn_of_merge(self, runs: Sequence[Run]) -> None:
        _logger.warning(
            "The backfill of %s merges %d rows of %d sorted runs in one process, because the rows of a fragment may "
            "have arrived in several tasks. Call lance_spark.enable_pushdown(spark) to merge in the tasks, or write "
            'df.repartitionByRange("_rowaddr").sortWithinPartitions("_rowaddr") in fewer, larger partitions.',
            self.backfill.snapshot.uri, sum(run.rows for run in runs), len(runs),
        )  # fmt: skip

    def _open_for_merge(self, fragments: Mapping[int, FragmentMetadata]) -> lance.LanceDataset:
        """Opens the snapshot, else the latest version if its fragments are still the same."""
        plan = self.backfill
        try:
            return open_snapshot(plan.snapshot)
        except CommitImpossibleError:
            latest = plan.snapshot.open_latest()
            change, head, history = self._build_request(()), Head.of(latest), SeenHistory()
            history.look(latest, change.read_version)
            refuse_other_columns(change, head, history.changes, token=None, uri=plan.snapshot.uri)
            refuse_renamed(change, head, plan.snapshot.uri)
            ids = ids_of(
                column
                for column in (*plan.inputs, *plan.target_identities)
                if column.id != UNKNOWN_FIELD
            )
            for number, fragment in fragments.items():
                handle, old_identity = latest.get_fragment(number), fragment_identity(fragment, ids)
                new_identity = None if handle is None else fragment_identity(handle.metadata, ids)
                if (
                    new_identity is None
                    or not old_identity.is_same(new_identity, replaced=True)
                    or new_identity.inputs != old_identity.inputs
                ):
                    raise
            return latest


def _list_fragment_ids(snapshot: DatasetRef, head: lance.LanceDataset) -> frozenset[int]:
    """Returns the ids of a snapshot's fragments; none if the snapshot was cleaned up.

    `head` is the latest version, perhaps the snapshot.
    """
    is_head = (head.version, incarnation_of(head)) == (snapshot.version, snapshot.incarnation)
    try:
        return frozenset((head if is_head else open_snapshot(snapshot)).fragment_ids())
    except CommitImpossibleError:
        return frozenset()
