"""The job that refreshes a view to a version of its source.

The first step replaces rows. Tasks find the changes of the source since the shown version, and
write new and changed rows as fragments. One commit, stamped with the version, deletes old rows and
adds new rows. The second step fills the columns of UDFs, because new rows have NULL in these
columns. Each column is filled by a backfill of the view, with inputs of the same version of the
source. If the driver dies between the steps, the next refresh continues.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_spark.backfill.driver.job import BackfillJob
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.spending import REFRESH_AT_BUDGET, UNLIMITED, Spending
from lance_spark.backfill.task.messages import RowCounts
from lance_spark.commit.attempt import this_user
from lance_spark.commit.changes import RowsToReplace
from lance_spark.commit.commit_loop import CommitPolicy, Outdated, evaluate_until_committed
from lance_spark.commit.conflicts.history import Change, events_between
from lance_spark.commit.rows.replace_commit import CommitTakenBackError, commit_replaced
from lance_spark.commit.schema_change import change_schema, set_config
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.environments.task import JobEnvironments
from lance_spark.errors import (
    BackfillIncompleteError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    LanceSparkError,
)
from lance_spark.jobs.history import JobHistory, this_process
from lance_spark.jobs.progress import Progress
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult, Status
from lance_spark.lance_compat import path_of
from lance_spark.locations import is_local
from lance_spark.rebase.source_changes import ChangedFragments, affected
from lance_spark.session.sessions import cancel
from lance_spark.spark_jobs.failures import SparkFailure
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.staging.area import Staging, commit_or_give_up, finish
from lance_spark.storage.parallel_calls import begin_call
from lance_spark.views.chunked.calls import BudgetSpentError, ChunkCalls, Chunked
from lance_spark.views.chunked.skipped import keep_skipped, skipped_rows
from lance_spark.views.definition import define, existing_view, groups_of, made_columns
from lance_spark.views.placement import PlacementSpec, RefreshTaskResult
from lance_spark.views.refresh_base import RefreshBase, load_functions
from lance_spark.views.request import RefreshRequest
from lance_spark.views.row_tasks import RowTasks
from lance_spark.views.spark.form import SparkForm
from lance_spark.views.spark.rows import SparkRows
from lance_spark.views.state import CONFIG_KEY, JOB_TYPE, STAMP_KEY, Refreshed, is_settled
from lance_spark.views.table_function import QueryRows, TableCall
from udf_runtime import UDF, Kind, UdfRuntimeError

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession


class RefreshJob:
    """A refresh in a single thread. The constructor checks the request.

    Raises:
        ViewError, ViewSourceError, StableRowIdsError, VersionNotFoundError: The view cannot be
            refreshed.
        StoredUdfError: A stored UDF cannot be used.
        ResourcesUnavailableError: A UDF needs more resources than the cluster has.
    """

    def __init__(
        self,
        spark: SparkSession,
        ref: DatasetRef,
        request: RefreshRequest,
        *,
        table_name: str,
        checkpoints: str | None,
        progress: Callable[[str], Progress],
        job_id: str | None = None,
        budget: Spending = UNLIMITED,
    ) -> None:
        refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
        view = ref.pin(None)
        definition = existing_view(view.open())
        self._source = definition.pin_source(ref, request.src_version)
        start = RefreshBase.of(view, self._source)
        self._spark = spark
        self._ref = ref
        self._request = request
        self._functions = load_functions(start)
        self._has_functions = bool(groups_of(start.dataset))
        self._environments = JobEnvironments(ref, spark)
        for udf in self._functions.values():
            self._environments.of(udf)
            if request.admission_check:
                check_resources(spark, udf, strict=request.admission_strict)
        function = (
            None if definition.function is None else self._functions[definition.function.payload]
        )
        self.job_id = job_id or uuid.uuid4().hex
        self.columns = tuple(
            name for name in start.dataset.schema.names if name not in definition.row_columns
        )
        self._table_name = table_name
        self._checkpoints = checkpoints
        self._make_progress = progress
        self._previous = None if start.shows is None else start.shows.version
        self._staging = Staging.of_new_job(
            ref, table_files=count_data_files(start.dataset), pipelined=True
        )
        self._tag = f"lance-spark-{self._staging.job_id}"
        self._policy = CommitPolicy.of(None)
        self._await_start: Callable[[], None] = lambda: None
        self._query: SparkForm | None = None
        self._start: RefreshBase | None = start
        self._check_query(start)
        self._history = JobHistory(ref)
        self._budget = budget
        self._early: str | None = None
        self._cancelled = threading.Event()
        self._backfill: BackfillJob | None = None
        self._launched, self._began = datetime.now(UTC), time.monotonic()
        self._seconds: dict[str, float] = {}
        self._has_all_values = False
        self._head = start.dataset
        self._fragments = 0
        self._rows = (0, 0, 0)
        self._committed: list[str] = []  # files named by a version, also by a reverted commit
        self._landed: list[str] = []  # files of the last commit
        self._written: list[str] = []  # files of ended tasks
        self._versions: tuple[int, ...] = ()
        self._backfills: dict[str, BackfillJobResult] = {}
        self._function = definition.function
        self._chunks: ChunkCalls | None = None
        self._table = function if definition.makes_table else None
        if function is not None and function.kind is Kind.CHUNKS:
            self._chunks = ChunkCalls(
                spark,
                function,
                request=request,
                job_id=self.job_id,
                description=f"lance-spark: refresh of {table_name}",
                checkpoints=checkpoints,
                progress=progress(f"{table_name}: {function.name}"),
                check=self._refuse_cancelled,
            )

    def cancel(self) -> None:
        """Cancels the tasks, and returns at once. Works from any thread."""
        self._cancelled.set()
        cancel(self._spark, self._tag)
        if self._chunks is not None:
            self._chunks.stop()
        if self._backfill is not None:
            self._backfill.cancel()

    def snapshot(self) -> RefreshJobResult:
        """Returns the state of the job."""
        return self._result("RUNNING")

    def run(self) -> RefreshJobResult:
        """Runs the job to its end.

        Raises:
            BackfillIncompleteError: The job was cancelled, tasks failed, or rows have no value in a
                column of a UDF.
            CommitConflictError: Concurrent writers won every round.
            LanceSparkError: The job failed.
        """
        start = self._start
        if (
            start is not None
            and start.is_current
            and is_settled(start.view, start.dataset, start.shows)
        ):
            return self._result("DONE")
        self._await_start = begin_call(self._ref.uri, functools.partial(self._save, "RUNNING"))
        if is_local(self._ref.uri):
            self._await_start()
        status: Status = "FAILED"
        message: str | None = None
        try:
            # Tasks of a chunker write reports.
            with self._history.beating(
                self._staging.job_id, self.snapshot, has_other_files=self._chunks is not None
            ):
                self._compute()
            status = "DONE" if self._early is None else "PARTIAL"
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            status = self._failed_status()
            if isinstance(error, BackfillIncompleteError) and error.result is None:
                error.result = self._result(status)
            if isinstance(error, Exception) and not isinstance(
                error, (LanceSparkError, UdfRuntimeError)
            ):
                failure = SparkFailure.of(error)
                raise self._incomplete(failure.text) from error
            raise
        finally:
            with suppress(OSError, LanceSparkError):  # the job has failed with the error
                self._await_start()
            self._save(status, message or self._early)
        return self._result(status)

    def _compute(self) -> None:
        """Brings rows and values up to date, or ends at the budget."""
        try:
            self._bring_rows_up_to_date()
        except BudgetSpentError:
            self._early = REFRESH_AT_BUDGET
            return
        self._await_start()
        self._fill()

    def _bring_rows_up_to_date(self) -> None:
        self._staging.open_job()
        commit_or_give_up(self._staging, self._ref, self._replace_until_committed)
        finish(self._staging, self._ref, self._committed, reported=self._written)

    def _replace_until_committed(self) -> None:
        evaluate_until_committed(self._replace_once, self._policy, subject=f"view {self._ref.uri}")

    def _replace_once(self, _attempt: int) -> Outdated | None:
        # The commit finds any later change of the view, and this method then runs again.
        start = self._start or RefreshBase.of(self._ref.pin(None), self._source, job_id=self.job_id)
        self._start = None
        # A concurrent refresh may show a later version; this refresh requested the latest.
        is_overtaken = self._request.src_version is None and start.shows_later
        if start.shows is not None and (start.is_current or is_overtaken):
            self._note(start.shows)
            return None
        try:
            self._replace_rows(start)
        except CommitConflictError as error:
            return Outdated(error=error)
        return None

    def _replace_rows(self, start: RefreshBase) -> None:
        """Commits the rows of the requested version."""
        self._check_query(start)
        self._make_environments()
        spec = start.spec(self._staging, self._request.fragment_rows)
        look = affected(start.source, start.base, spec.used)
        spec = replace(spec, lineage=look.lineage)
        tag = SparkJobTag(tag=self._tag, description=f"lance-spark: refresh of {self._table_name}")
        jobs = SparkJobs(self._spark, tag, check=self._refuse_cancelled)
        tasks = RowTasks(
            self._spark, jobs, uri=self._ref.uri, concurrency=self._request.concurrency
        )
        self._fragments = len(look.now)
        chunked = None if self._chunks is None else self._chunk(self._chunks, start, spec, look)
        with self._measure("place"):
            placed = self._place(start, spec, look, tasks, chunked)
            if start.may_lack_rows(new=placed.new, unknown=placed.unknown):
                placed += tasks.spill_deleted(spec, look.then)
            if start.definition.spark is not None:
                placed += tasks.query(
                    SparkRows.of(spec, start.definition, start.definition.spark), look.now
                )
            rewritten = tasks.rewrite(spec, placed) if placed.spilled else RefreshTaskResult()
            self._written += [*placed.written_files, *rewritten.written_files]
        with self._measure("commit"):
            skipped = (
                None
                if chunked is None
                else keep_skipped(start.view, start.source.open(), chunked.skipped)
            )
            self._commit(start, placed, rewritten, skipped)
            self._has_all_values = self._keeps_all_values(start, placed, rewritten)
            if self._chunks is not None and chunked is not None:
                self._chunks.forget(chunked.calls)

    @contextmanager
    def _measure(self, step: str) -> Iterator[None]:
        """Adds the time of a successful step to the seconds of the result."""
        began = time.monotonic()
        yield
        self._seconds[step] = self._seconds.get(step, 0.0) + time.monotonic() - began

    def _keeps_all_values(
        self, start: RefreshBase, placed: RefreshTaskResult, rewritten: RefreshTaskResult
    ) -> bool:
        """Tells whether all rows of the view still have the values of UDFs from before the refresh.

        Then no column needs a backfill.
        """
        if not self._has_functions or start.base is None or start.definition.spark is not None:
            return False
        if placed.added or rewritten.added or rewritten.open_rows:
            return False
        return is_settled(start.view, start.dataset, start.shows, but=self.job_id)

    def _check_query(self, start: RefreshBase) -> None:
        """Checks the query of Spark, unless the last check had the same query.

        Raises:
            ViewError: The query cannot be a view.
        """
        query = start.definition.spark
        if query is not None and query != self._query:
            SparkRows.of(start.spec(self._staging, 1), start.definition, query).check(self._spark)
        self._query = query

    def _make_environments(self) -> None:
        """Makes the environments of all UDFs on a single executor, before tasks read rows.

        Raises:
            EnvironmentBuildError: An environment cannot be made.
        """
        for environment in self._environments.all():
            if environment.is_known(self._spark):
                continue
            tag = SparkJobTag(
                tag=self._tag, description=f"lance-spark: environment {environment.manifest.name}"
            )
            try:
                probes = SparkJobs(self._spark, tag).collect(
                    functools.partial(environment.probe, self._spark)
                )
            finally:
                self._refuse_cancelled()
            environment.check(self._spark, probes)

    def _chunk(
        self, chunks: ChunkCalls, start: RefreshBase, spec: PlacementSpec, look: ChangedFragments
    ) -> Chunked:
        """Calls the chunker for rows without chunks."""
        skipped_file = None if start.base is None or start.shows is None else start.shows.skipped
        again = skipped_rows(start.view, start.source.open(), skipped_file)
        with self._measure("chunk"):
            return chunks.run(start, spec, look, again, self._environments, self._rest())

    def _place(
        self,
        start: RefreshBase,
        spec: PlacementSpec,
        look: ChangedFragments,
        tasks: RowTasks,
        chunked: Chunked | None,
    ) -> RefreshTaskResult:
        """Writes the new rows, in no version yet, and spills changed rows."""
        if self._table is not None:
            return tasks.call_table(self._table_call(start, spec, self._table))
        if self._chunks is None or chunked is None:
            return (
                tasks.write_new(spec, look.now)
                if spec.selects or start.base is not None
                else RefreshTaskResult()
            )
        live = {
            handle.fragment_id: handle.metadata.num_rows
            for handle in start.source.open().get_fragments()
        }
        numbers = sorted({*dict(look.now), *chunked.selects.again})
        try:
            return tasks.write_chunks(chunked, [(number, live[number]) for number in numbers])
        except CommitConflictError:
            # Some chunks are lost, although checkpoints still name the chunks.
            self._chunks.forget(chunked.calls)
            raise

    def _table_call(self, start: RefreshBase, spec: PlacementSpec, function: UDF) -> TableCall:
        definition = start.definition
        source = QueryRows(ref=start.source, columns=definition.reads, where=definition.where)
        return TableCall(
            spec=spec,
            udf=function.dumps(),
            source=source,
            columns=made_columns(start.dataset),
            environment=self._environments.of(function),
            artifacts=self._environments.artifacts_of(function),
        )

    def _commit(
        self,
        start: RefreshBase,
        placed: RefreshTaskResult,
        rewritten: RefreshTaskResult,
        skipped: str | None,
    ) -> None:
        """Commits the rows of tasks, and notes the shown version.

        The history has the start of the job before any commit.
        """
        self._await_start()
        source, version = start.source, start.view.version or 0
        state = Refreshed(
            version=source.version or 0, incarnation=source.incarnation or "", skipped=skipped
        )
        # A view without a base keeps no row.
        rebuilt = () if start.base is not None else tuple(start.dataset.get_fragments())
        removed_rows = rewritten.deleted + sum(fragment.metadata.num_rows for fragment in rebuilt)
        change = RowsToReplace(
            read_version=version,
            updated=_fragments(rewritten.updated),
            removed=(*rewritten.removed, *(fragment.fragment_id for fragment in rebuilt)),
            fragments=_fragments([*placed.fragments, *rewritten.fragments]),
            rows=placed.added + rewritten.added + rewritten.rows_rewritten,
            stamp={STAMP_KEY: state.to_json()},
            commit_message=f"refresh from version {source.version} of the source (job {self.job_id})",
        )
        if change.fragments or change.updated or change.removed:
            version = self._commit_rows(change)
        elif (noted := start.noted_at(state)) is not None:
            version = noted  # the view has this state already
        self._rows = (
            placed.added + rewritten.added,
            rewritten.rows_rewritten,
            removed_rows - rewritten.rows_rewritten,
        )
        self._note(replace(state, at=version))

    def _commit_rows(self, change: RowsToReplace) -> int:
        """Commits rows of the view, and returns the version."""
        names = [str(file.path) for fragment in change.fragments for file in fragment.files]
        self._staging.begin_commit()
        self._staging.refuse_missing(names)
        try:
            result = commit_replaced(
                self._ref, change, job_id=self._staging.job_id, policy=self._policy
            )
        except CommitTakenBackError:
            self._committed += names  # an old version names the files
            raise
        self._committed += names
        self._landed = names
        self._versions = (result.version,)
        return result.version

    def _note(self, state: Refreshed) -> None:
        """Writes the shown version to the configuration of the view.

        Raises:
            CommitOutcomeUnknownError: A concurrent restore may have removed the rows.
        """

        def note(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
            text = head.config().get(CONFIG_KEY)
            if text is not None and Refreshed.from_json(text, head.uri).at >= state.at:
                return None
            events = list(events_between(head, state.at, head.version))
            # A restore brought back the earlier configuration.
            restored = any(
                event.operation is not None and Change.of(event).replaces for event in events
            )
            is_lost = any(event.operation is None for event in events)
            if not restored and is_lost and not self._has_rows(head, state.at):
                raise CommitOutcomeUnknownError(
                    f"A restore may have removed the rows that the refresh committed as version {state.at} of the "
                    f"view {self._ref.uri}, because a cleanup removed later transactions. Version: {head.version}. "
                    "Refresh again, which computes all rows again.",
                    uri=self._ref.uri,
                )
            return None if restored else set_config({CONFIG_KEY: state.to_json()})

        self._head = change_schema(self._ref, note)

    def _has_rows(self, head: lance.LanceDataset, version: int) -> bool:
        """Tells whether a version has all rows committed by this refresh."""
        if version not in self._versions or not self._landed:
            return False
        names = {
            path_of(file) for fragment in head.get_fragments() for file in fragment.metadata.files
        }
        return names.issuperset(self._landed)

    def _fill(self) -> None:
        """Fills the columns of UDFs."""
        began = time.monotonic()
        failed: list[BackfillIncompleteError] = []
        groups = groups_of(self._head) if self._has_functions and not self._has_all_values else []
        for number, (_, columns) in enumerate(groups):
            self._refuse_cancelled()
            rest = self._rest()
            if rest.is_nothing:
                self._early = REFRESH_AT_BUDGET
                break
            try:
                self._fill_columns(number, columns, rest)
            except BackfillIncompleteError as error:
                failed.append(error)
        self._seconds["backfill"] = time.monotonic() - began
        if failed:
            raise self._incomplete(" ".join(map(str, failed))) from failed[0]

    def _fill_columns(self, number: int, columns: tuple[str, ...], budget: Spending) -> None:
        """Fills a column of a UDF, or the sibling columns of a UDF, in a backfill."""
        backfill_request = BackfillRequest(
            columns=columns,
            max_calls=budget.calls,
            max_seconds=budget.seconds,
            max_cost=budget.cost,
            concurrency=self._request.concurrency,
            intra_applier_concurrency=self._request.intra_applier_concurrency,
            job_id=f"{self.job_id}-{number}",
        )
        define_columns = functools.partial(define, opened=self._source, functions=self._functions)
        # A later column reads the commit of an earlier column.
        head = None if number else self._head
        prepared = prepare(
            self._ref,
            backfill_request,
            checkpoints=self._checkpoints,
            define=define_columns,
            head=head,
        )
        progress = self._make_progress(f"{self._table_name}.{', '.join(columns)}")
        backfill = self._backfill = BackfillJob(
            self._spark, prepared, self._table_name, progress, self._environments, self._history
        )
        self._refuse_cancelled()
        result: BackfillJobResult | None = None
        try:
            result = backfill.run()
        except BackfillIncompleteError as error:
            result = error.result if isinstance(error.result, BackfillJobResult) else None
            raise
        finally:
            # A failed backfill has spent calls, too.
            result = result or replace(backfill.snapshot(), status="FAILED")
            self._backfills.update(dict.fromkeys(columns, result))
        if result.status != "DONE":
            self._early = REFRESH_AT_BUDGET

    def _cost(self) -> float:
        """Returns the cost of the chunker and of the backfills, once for sibling columns."""
        chunks = 0.0 if self._chunks is None else self._chunks.cost
        return chunks + sum(
            job.cost for job in {job.job_id: job for job in self._backfills.values()}.values()
        )

    def _rest(self) -> Spending:
        """Returns the rest of the budget."""
        return self._budget.after(self._result("RUNNING"))

    def _incomplete(self, reason: str) -> BackfillIncompleteError:
        return BackfillIncompleteError(
            f"The refresh of the view {self._ref.uri} is incomplete. Refresh again after the cause is removed: "
            f"computed values are kept. Job: {self.job_id}. Reason: {reason}",
            result=self._result(self._failed_status()),
        )

    def _refuse_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise self._incomplete("the job was cancelled")

    def _failed_status(self) -> Status:
        return (
            "CANCELLED" if self._cancelled.is_set() else "PARTIAL" if self._versions else "FAILED"
        )

    def _result(self, status: Status) -> RefreshJobResult:
        added, recomputed, removed = self._rows
        counts = RowCounts() if self._chunks is None else self._chunks.counts
        return RefreshJobResult(
            job_id=self.job_id,
            status=status,
            table_name=self._table_name,
            table_uri=self._ref.uri,
            source_uri=self._source.uri,
            source_version=self._source.version or 0,
            previous_version=self._previous,
            launched_at=self._launched,
            completed_at=None if status == "RUNNING" else datetime.now(UTC),
            rows_added=added,
            rows_recomputed=recomputed,
            rows_removed=removed,
            rows_chunked=0 if self._chunks is None else self._chunks.rows,
            rows_from_checkpoint=counts.reused,
            rows_skipped=0 if self._chunks is None else self._chunks.skipped,
            fragments_total=self._fragments,
            fragments_done=self._fragments if self._versions or status == "DONE" else 0,
            versions=self._versions,
            cost=self._cost(),
            message=self._early,
            backfills=dict(self._backfills),
            seconds={**self._seconds, "total": time.monotonic() - self._began},
        )

    def _save(self, status: Status, message: str | None = None) -> None:
        result = self._result(status)
        record = JobRecord(
            job_id=self.job_id,
            job_type=JOB_TYPE,
            status=status,
            columns=self.columns,
            udf_name="" if self._function is None else self._function.udf_name,
            udf_version="" if self._function is None else self._function.udf_version,
            key="" if self._function is None else self._function.key.digest,
            where=None,
            read_version=result.source_version,
            staging_id=self._staging.job_id,
            launched_at=self._launched,
            updated_at=datetime.now(UTC),
            completed_at=result.completed_at,
            launched_by=this_user(),
            process=this_process(),
            rows_selected=result.rows_refreshed,
            rows_computed=result.rows_computed,
            rows_skipped=result.rows_skipped,
            fragments_total=result.fragments_total,
            fragments_done=result.fragments_done,
            versions=self._versions,
            cost=result.cost,
            seconds=result.seconds,
            message=message,
        )
        self._history.save(record)


def _fragments(entries: Iterable[object]) -> tuple[FragmentMetadata, ...]:
    """Returns fragments of their JSON in pylance's form."""
    from lance.fragment import FragmentMetadata

    return tuple(FragmentMetadata.from_json(json.dumps(entry)) for entry in entries)
