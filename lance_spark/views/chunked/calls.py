"""The calls of a chunker in a refresh: :class:`ChunkCalls`. Runs on the driver.

The calls are a round of the backfill engine over the source. The values, the places of the chunks
of each row, stay in checkpoints. So the engine serves progress, error policies, lost tasks, and
chunks of an unfinished refresh.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.backfill.driver.budget import Budget
from lance_spark.backfill.driver.scheduler import Scheduler, raise_if_fatal
from lance_spark.backfill.planning.fragment_plan import FragmentPlan, plan_tasks
from lance_spark.backfill.planning.planner import MOST_BASES, rows_per_task
from lance_spark.backfill.planning.reservation import reserve
from lance_spark.backfill.request import DEFAULT_REFRESH_S
from lance_spark.backfill.reuse.prior_round_rows import FirstRound
from lance_spark.backfill.reuse.round_context import store_of, with_lineages
from lance_spark.backfill.spending import Spending
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    FragmentRows,
    RangeOutcome,
    RowCounts,
    Task,
)
from lance_spark.backfill.task.source_reader import TableInputs
from lance_spark.backfill.task.value_source import CallChunker
from lance_spark.columns.binding import Binding, inputs_now
from lance_spark.environments.task import JobEnvironments
from lance_spark.errors import BackfillIncompleteError, counted
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.progress import Progress
from lance_spark.read.planning.sizes import measure_row
from lance_spark.rebase.source_changes import ChangedFragments
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.task_queue import LostTask
from lance_spark.staging.column_file import Targets
from lance_spark.views.chunked.rows import RowsToChunk
from lance_spark.views.definition import made_columns
from lance_spark.views.placement import PlacementSpec
from lance_spark.views.refresh_base import RefreshBase
from lance_spark.views.request import RefreshRequest
from udf_runtime import UDF
from udf_runtime.policies import CheckpointSizes, checkpoint_bounds

_LOG = logging.getLogger(__name__)

_SHOWN_FAILURES = 3

_SPARE_BASES = 4
"""Unfinished refreshes that may reach no task with moved chunks of the oldest version before its
chunks are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked:
    """Chunked rows: the input of the tasks that write the chunks.

    Attributes:
        calls: The calls.
        selects: The selection of the rows.
        skipped: Rows skipped by a policy, by fragment.
        columns: Names of the columns in the chunks, and in the view.
    """

    calls: BackfillSpec
    selects: RowsToChunk
    skipped: Mapping[int, RowSet]
    columns: tuple[tuple[str, str], ...]


class BudgetSpentError(Exception):
    """The budget of a refresh ended before its last call of the chunker."""


class ChunkCalls:
    """The calls of a refresh, counted over its attempts. Used by the thread of the refresh.

    Attributes:
        rows: Rows with a successful call of the chunker.
        skipped: Rows with a call of the chunker that its policy skipped.
        cost: Cost of the rows for the chunker.
        counts: Outcomes of the selected rows of the last attempt.
    """

    def __init__(
        self,
        spark: SparkSession,
        udf: UDF,
        *,
        request: RefreshRequest,
        job_id: str,
        description: str,
        checkpoints: str | None,
        progress: Progress,
        check: Callable[[], None],
    ) -> None:
        self.rows = 0
        self.skipped = 0
        self.cost = 0.0
        self.counts = RowCounts()
        self._spark = spark
        self._udf = udf
        self._request = request
        self._job_id = job_id
        self._description = description
        self._checkpoints = checkpoints
        self._progress = progress
        self._check = check
        self._rounds = 0
        self._scheduler: Scheduler | None = None

    def stop(self) -> None:
        """Cancels the tasks. Works from any thread."""
        if self._scheduler is not None:
            self._scheduler.stop()

    def run(
        self,
        start: RefreshBase,
        placement: PlacementSpec,
        look: ChangedFragments,
        again: Mapping[int, RowSet],
        environments: JobEnvironments,
        budget: Spending,
    ) -> Chunked:
        """Calls the chunker for rows without chunks in checkpoints.

        Raises:
            BudgetSpentError: Rows remain after the budget. Finished chunks are in checkpoints.
            BackfillIncompleteError: Rows have no chunks, and no policy skipped them.
            SkipThresholdExceededError: More rows were skipped than the policy of the chunker
                allows.
        """
        function = start.definition.function
        assert function is not None
        selects = RowsToChunk(placement=placement, again=again)
        spec = replace(
            self._spec(start, placement, function, selects),
            environment=environments.of(self._udf),
            artifacts=environments.artifacts_of(self._udf),
        )
        numbers = {number for number, _ in look.now} | again.keys()
        # Checkpoints have the chunks of an earlier attempt of this refresh.
        reused, self.counts = self.counts.reused, RowCounts()
        plans = _plans(
            spec, numbers, search=bool(spec.bases) or bool(store_of(spec).find_all(spec.key))
        )
        skipped: dict[int, RowSet] = {}
        if plans:
            self._call(spec, plans, skipped, budget)
        if spec.round:
            self.counts = replace(self.counts, reused=reused)
        return Chunked(
            calls=spec, selects=selects, skipped=skipped, columns=made_columns(start.dataset)
        )

    def forget(self, calls: BackfillSpec) -> None:
        """Deletes the checkpoints of the calls, because the view has the chunks."""
        try:
            store_of(calls).drop(calls.key)
        except OSError as error:
            _LOG.warning("checkpoints of view %s could not be deleted: %s", calls.home.uri, error)

    def _call(
        self,
        spec: BackfillSpec,
        plans: list[FragmentPlan],
        skipped: dict[int, RowSet],
        budget: Spending,
    ) -> None:
        rows = sum(plan.live_rows for plan in plans)
        tasks = plan_tasks(
            plans,
            self._udf.task_size or rows_per_task(self._spark, rows, self._request.concurrency),
        )
        reservation = reserve(self._spark, self._udf)
        self._check()
        scheduler = self._scheduler = Scheduler(
            self._spark,
            with_lineages(replace(spec, devices=reservation.devices)),
            limit=reservation.limit(self._request.concurrency),
            description=self._description,
            profile=reservation.profile(self._spark),
            budget=Budget(max_calls=budget.calls, max_cost=budget.cost, max_seconds=budget.seconds),
        )
        self._progress.start(rows, len(plans), commits=False)
        failures, finished_tasks = dict[int, str](), 0
        sources: set[str] = set()
        running = scheduler.run(tasks, DEFAULT_REFRESH_S)
        status = "FAILED"
        try:
            for answers in running:
                for answer in answers:
                    if isinstance(answer, RangeOutcome):
                        raise_if_fatal(answer, spec)
                    finished_tasks += self._take(answer, skipped, failures)
                    sources |= {answer.source} if isinstance(answer, RangeOutcome) else set()
                self._check_skips(final=False)
                in_flight = scheduler.in_flight.count(sources)
                rows = self.counts.valued + self.counts.skipped + in_flight
                self._progress.update(rows=rows, written=min(finished_tasks, len(plans)))
            self._check()
            is_unfinished = scheduler.is_unfinished
            self._check_skips(final=not is_unfinished)
            status = "FAILED" if failures else "PARTIAL" if is_unfinished else "DONE"
        except BaseException:
            scheduler.stop()
            raise
        finally:
            running.close()
            self._progress.close(status)
        if failures or self.counts.crashed:
            raise self._incomplete(failures)
        if is_unfinished:
            raise BudgetSpentError

    def _take(
        self,
        answer: RangeOutcome | LostTask[Task],
        skipped: dict[int, RowSet],
        failures: dict[int, str],
    ) -> int:
        if isinstance(answer, LostTask):
            failures.update(
                dict.fromkeys((work.fragment_id for work in answer.task.work), answer.error)
            )
            return 0
        self.rows += answer.calls
        self.skipped += answer.counts.skipped
        self.cost += answer.spent_cost
        self.counts += answer.counts
        if answer.error is not None:
            failures[answer.fragment_id] = answer.error
        elif answer.failed:
            skipped[answer.fragment_id] = (
                skipped.get(answer.fragment_id, RowSet.empty()) | answer.failed
            )
        return 1

    def _check_skips(self, *, final: bool) -> None:
        called = self.rows + self.counts.skipped + self.counts.crashed
        self._udf.on_error.check_skips(self.counts.skipped, called, final=final)

    def _incomplete(self, failures: Mapping[int, str]) -> BackfillIncompleteError:
        reasons = [
            f"fragment {number}: {failures[number].rstrip('.')}"
            for number in sorted(failures)[:_SHOWN_FAILURES]
        ]
        if self.counts.crashed:
            reasons.append(
                f"{counted(self.counts.crashed, 'row')} killed the process that chunked them"
            )
        return BackfillIncompleteError(
            f"Rows of the source have no chunks: {'; '.join(reasons)}. Nothing was committed, and finished chunks are "
            "kept. See get_errors. Refresh again after the cause is removed, or make the view with a chunker whose "
            f"on_error skips such rows. Job: {self._job_id} ({self._description}).",
            result=None,
        )

    def _spec(
        self, start: RefreshBase, placement: PlacementSpec, function: Binding, selects: RowsToChunk
    ) -> BackfillSpec:
        columns, chunker = made_columns(start.dataset), CallChunker.of(self._udf)
        spec = BackfillSpec(
            snapshot=start.source,
            staging=placement.staging,
            job_id=self._job_id,
            value_source=chunker,
            row_selector=selects,
            prior_rounds=FirstRound(),
            key=function.key,
            inputs=inputs_now(start.source.open(), function, columns[0][1] if columns else ""),
            input_source=TableInputs(),
            outputs=columns,
            targets=Targets(
                schema=pa.schema([]), existing=(), format=start.dataset.data_storage_version
            ),
            checkpoints=self._checkpoints,
            sizes=checkpoint_bounds(call=CheckpointSizes(), udf=self._udf),
            flush_s=0.0,  # the end of a batch writes its chunks to a separate file
            threads=self._request.intra_applier_concurrency,
            blob_strategy="auto",
            blob_buffer_bytes=self._request.blob_read_buffer_size,
            report_s=DEFAULT_REFRESH_S / 2,
            round=self._rounds,
        )
        self._rounds += 1
        bases = _bases(spec)
        # Further unfinished refreshes would lose the rows of the oldest versions.
        chunker = replace(chunker, stores_moved=len(bases) >= MOST_BASES - _SPARE_BASES)
        return replace(spec, bases=bases, value_source=chunker)


def _plans(spec: BackfillSpec, numbers: set[int], *, search: bool) -> list[FragmentPlan]:
    dataset = spec.snapshot.open()
    names = [column.name for column in spec.inputs]
    storage = spec.snapshot.storage_options
    row_bytes = measure_row(dataset, names, storage)
    return [
        FragmentPlan(
            fragment_id=fragment.fragment_id,
            physical_rows=fragment.metadata.physical_rows,
            live_rows=fragment.metadata.num_rows,
            recorded_rows=FragmentRows(),
            pending=None,
            search=search,
            input_bytes=int(fragment.metadata.physical_rows * row_bytes),
        )
        for fragment in dataset.get_fragments()
        if fragment.fragment_id in numbers
    ]


def _bases(spec: BackfillSpec) -> tuple[int, ...]:
    """Returns the versions of the source with chunks in checkpoints."""
    entries = store_of(spec).find_all(spec.key)
    first = JobHistory(spec.home).first_versions() if entries else {}
    versions = {
        first[entry.job_id] for some in entries.values() for entry in some if entry.job_id in first
    }
    newest = sorted(
        (version for version in versions if version < (spec.snapshot.version or 0)), reverse=True
    )
    return tuple(newest[:MOST_BASES])
