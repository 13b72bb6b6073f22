"""The driver of a job: a backfill or a load.

Callers have a :class:`~lance_spark.jobs.handle.Job` as its handle.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import Row, SparkSession

from lance_spark.backfill.driver.budget import Budget
from lance_spark.backfill.driver.checkpoint_upkeep import CheckpointUpkeep, protect, release
from lance_spark.backfill.driver.fragment_state import FragmentStates, FragmentStatus
from lance_spark.backfill.driver.group_commit import GroupCommits, JobCommits, work_of
from lance_spark.backfill.driver.rate_limits import granting
from lance_spark.backfill.driver.record_writer import RecordWriter
from lance_spark.backfill.driver.rounds import GONE_ERRORS, FollowUps, RoundLimit, is_gone
from lance_spark.backfill.driver.scheduler import (
    InFlightRows,
    Scheduler,
    make_environment,
    raise_if_fatal,
)
from lance_spark.backfill.planning.fragment_plan import pack_whole
from lance_spark.backfill.planning.planner import PreparedBackfill
from lance_spark.backfill.planning.reservation import reserve
from lance_spark.backfill.planning.staleness import StaleCount, count_stale
from lance_spark.backfill.reuse.round_context import with_lineages
from lance_spark.backfill.task.computation import record_ranges
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome, Task
from lance_spark.backfill.transactions import ledger_of, run_once
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.environments.task import JobEnvironments
from lance_spark.errors import (
    BackfillIncompleteError,
    LanceSparkError,
    counted,
)
from lance_spark.jobs.history import HEARTBEAT_S, JobHistory
from lance_spark.jobs.progress import Progress
from lance_spark.jobs.results import BackfillJobResult, Status, UdfResult
from lance_spark.lance_compat import plain
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.codec import decode
from lance_spark.spark_jobs.failures import SparkFailure, is_error
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import LostTask
from lance_spark.staging.column_file import NullColumnFiles
from udf_runtime import UdfRuntimeError
from udf_runtime.errors import ServiceUnavailableError, end_sentence

_LOG = logging.getLogger(__name__)

_SHOWN_FAILURES = 3


class BackfillJob:
    """A backfill. A single thread runs it."""

    def __init__(
        self,
        spark: SparkSession,
        prepared: PreparedBackfill,
        table_name: str,
        progress: Progress,
        environments: JobEnvironments,
        outer: JobHistory | None = None,
    ) -> None:
        """Takes a prepared backfill. `outer` is the history of a job that this job is part of."""
        udf = prepared.definition.loaded
        if udf is not None:
            environment, artifacts = environments.of(udf), environments.artifacts_of(udf)
            prepared = replace(
                prepared, spec=replace(prepared.spec, environment=environment, artifacts=artifacts)
            )
        self._reservation = reserve(spark, prepared.definition.resources)
        prepared = replace(prepared, spec=replace(prepared.spec, devices=self._reservation.devices))
        request, spec = prepared.request, prepared.spec
        timeout = request.commit_timeout
        self._spark, self._prepared = spark, prepared
        self._table_name, self._noun = table_name, prepared.definition.noun
        self._progress = progress
        self._states = FragmentStates()
        self._commits = JobCommits(
            states=self._states,
            untouched=NullColumnFiles(spec.staging, spec.targets.format),
            upkeep=CheckpointUpkeep(spec, prepared.entries),
            policy=CommitPolicy.of(
                request.commit_max_retries, None if timeout is None else timeout.total_seconds()
            ),
            ledger=ledger_of(spec.snapshot, request),
        )
        self._in_flight = InFlightRows(spec)
        is_saved = request.enable_job_tracker_saves
        self._record = RecordWriter(
            spec, prepared.definition.job_type, self.snapshot, is_saved=is_saved, outer=outer
        )
        self._fragments: tuple[int, ...] = ()
        self._stale = StaleCount()
        self._follow_ups: FollowUps | None = None
        self._settled = False
        self._ended_files: set[str] = set()
        self._running: Scheduler | SparkJobs | None = None
        self._budget = Budget(
            max_calls=request.max_calls, max_cost=request.max_cost, max_seconds=request.max_seconds
        )
        self._service_error: str | None = None
        self._is_early = False
        self._cancelled = threading.Event()
        self._launched, self._began = datetime.now(UTC), time.monotonic()

    def cancel(self) -> None:
        """Stops the tasks, and returns at once. Works from any thread."""
        self._cancelled.set()
        if self._running is not None:
            self._running.stop()

    def snapshot(self) -> BackfillJobResult:
        """Returns the state of the job."""
        return self._result("RUNNING")

    def run(self) -> BackfillJobResult:
        """Runs the job to its end.

        Raises:
            BackfillIncompleteError: Selected rows have neither a value nor were skipped.
            SkipThresholdExceededError: More rows were skipped than the UDF's policy allows.
            LanceSparkError: The job could not continue: the column or the table changed, or the
                store failed.
        """
        try:
            return run_once(
                self._commits.ledger, self._prepared.spec.snapshot, self._run, self._result
            )
        except (LanceSparkError, UdfRuntimeError):
            raise
        except OSError as error:
            raise BackfillIncompleteError(
                f"The store failed, and the {self._noun} of {self._where()} ended early: {plain(error)}. What was "
                "computed is kept. Run it again when the store answers.",
                result=self._result("FAILED"),
            ) from error
        except Exception as error:
            text = end_sentence(f"{type(error).__name__}: {error}")
            raise BackfillIncompleteError(
                f"The {self._noun} of {self._where()} ended by an unexpected error: {text} What was computed is kept. "
                "Run it again, and report the error if it comes again.",
                result=self._result("FAILED"),
            ) from error
        finally:
            self._record.stop_beats()
            self._prepared.definition.release()

    def _run(self) -> BackfillJobResult:
        spec = self._prepared.spec
        with_nulls = spec.where is not None
        self._stale = count_stale(self._prepared, with_nulls=with_nulls, but_selected=True)
        work = work_of(self._prepared, self._stale.current, self._commits)
        if not work:
            self._prepared.bases.clear()
            result = self._result("DONE")
            if self._prepared.resumed_jobs - {spec.job_id}:
                # A job of the same filter died after its last commit. This job resumes and ends it.
                self._record.save(result)
            return result
        if self._prepared.request.read_version is not None:
            when = f"since version {spec.snapshot.version}, which the job is to read"
            self._prepared.definition.refuse_changed(spec.snapshot, when)
        window = self._prepared.window
        self._prepared = replace(self._prepared.for_tasks(), plans=work)
        self._fragments = tuple(plan.fragment_id for plan in work)
        status: Status = "FAILED"
        message: str | None = None
        failure: BaseException | None = None
        tag: str | None = None
        spec.staging.open_job()
        try:
            rows = sum(plan.rows_to_do for plan in work)
            self._record.begin(replace(self._result("RUNNING"), rows_selected=rows))
            self._make_environment(spec)
            if self._prepared.request.protect_snapshot:
                tag = protect(spec.snapshot, spec.staging.job_id)
            self._progress.start(rows, len(work))
            self._follow_ups = FollowUps(self._prepared, self._commits.history, window)
            with granting(spec, self._prepared.definition.rate_limit):
                self._run_round(self._prepared)
                self._follow(self._follow_ups)
            self._record.await_start()
            self._count_again(self._follow_ups)
            status = self._status()
            message = self._why_incomplete(status)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            failure = error
            if self._states.of(FragmentStatus.COMMITTED):
                status = "PARTIAL"
            raise
        finally:
            if tag is not None:
                self._record.warn_if_it_fails(functools.partial(release, spec.snapshot, tag))
            self._close(status, message, failure)
        result = replace(self._result(status), message=message)
        if message is not None and not self._is_at_budget:
            raise BackfillIncompleteError(message, result=result)
        return result

    @property
    def _is_at_budget(self) -> bool:
        """Whether the only reason of the job's end is its budget."""
        is_ok = (
            self._service_error is None
            and not self._cancelled.is_set()
            and not self._states.counts.crashed
        )
        return self._is_early and is_ok and not self._states.of(FragmentStatus.FAILED)

    def _make_environment(self, spec: BackfillSpec) -> None:
        if spec.environment is None:
            return
        description = (
            f"lance-spark: environment {spec.environment.manifest.name} of {self._table_name}"
        )
        jobs = self._running = SparkJobs(
            self._spark, SparkJobTag.of(spec.staging.job_id, description)
        )
        if not self._cancelled.is_set():
            refresh_s = min(self._prepared.request.refresh_status_secs, HEARTBEAT_S)
            make_environment(self._spark, spec, jobs, refresh_s, self._record.check_start)

    def _follow(self, follow_ups: FollowUps) -> None:
        """Runs follow-up rounds until a version needs no round.

        Limits the fruitless rounds, and the rounds while concurrent writers change rows faster than
        the job computes them.
        """
        states, limit = self._states, RoundLimit(self._commits.policy)
        while not self._is_early and self._service_error is None:
            failed = states.of(FragmentStatus.FAILED)
            prepared = follow_ups.next_round(
                states.finished_fragments(), self._commits.landed, failed
            )
            self._settled = prepared is None
            if prepared is None or self._cancelled.is_set():
                return
            if limit.is_exceeded():
                return
            self._record.check_start()
            self._run_round(prepared)
            if states.of(FragmentStatus.NOTHING_TO_DO).issuperset(follow_ups.open):
                # Commits after that version count as commits after the job.
                follow_ups.settle(states.finished_fragments())
                self._settled = True
                return
            limit.add(is_fruitless=not any(map(states.is_done, follow_ups.open)))

    def _count_again(self, follow_ups: FollowUps) -> None:
        """Counts the outdated values again after concurrent commits."""
        if not self._prepared.spec.value_source.is_computed:
            return
        try:
            latest = follow_ups.last_look(len(self._commits.versions))
            if latest is not None:
                self._stale = count_stale(latest, with_nulls=latest.spec.where is not None)
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "rows out of date in %s were not counted: %s",
                self._prepared.spec.snapshot.uri,
                error,
            )

    def _run_round(self, prepared: PreparedBackfill) -> None:
        """Runs the tasks of a round, and commits the finished fragments."""
        spec, request = with_lineages(prepared.spec, prepared.bases), prepared.request
        prepared.bases.clear()
        self._states.begin_round([plan.fragment_id for plan in prepared.plans])
        tasks = prepared.tasks(self._spark)
        work = {
            fragment_work.fragment_id: fragment_work
            for task in tasks
            for fragment_work in task.work
        }
        what = f"{self._noun} of {', '.join(prepared.columns)} in {self._table_name}"
        description = f"lance-spark: {what}, fragments {min(work)} to {max(work)}"
        limit, profile = (
            self._reservation.limit(request.concurrency),
            self._reservation.profile(self._spark),
        )
        self._in_flight = self._in_flight.next_round(spec)
        scheduler = self._running = Scheduler(
            self._spark,
            spec,
            limit=limit,
            description=description,
            budget=self._budget,
            profile=profile,
            in_flight=self._in_flight,
        )
        if self._cancelled.is_set():
            scheduler.stop()
        group_commits = GroupCommits(prepared, self._commits)
        computed: list[RangeOutcome] = []
        running = self._answers(prepared, tasks, work, scheduler)
        try:
            for answers in running:
                for answer in answers:
                    computed += self._take(answer, spec, work, scheduler)
                self._check_skips(final=False)
                if (
                    request.commit_granularity is not None
                    and len(computed) >= request.commit_granularity
                ):
                    self._record.await_start()
                    group_commits.commit(computed)
                    computed = []
                self._show()
                self._record.check_start()
            self._is_early = scheduler.is_unfinished or request.is_sample
            self._check_skips(final=not self._is_early)
            self._record.await_start()
            group_commits.commit_rest(computed, self._states)
        except BaseException:
            scheduler.stop()
            raise
        finally:
            running.close()
        self._ended_files |= scheduler.ended_files
        self._in_flight.clear()
        self._show()

    def _answers(
        self,
        prepared: PreparedBackfill,
        tasks: Sequence[Task],
        work: Mapping[int, FragmentWork],
        scheduler: Scheduler,
    ) -> Generator[list[RangeOutcome | LostTask[Task]], None, None]:
        """Runs the tasks of a round, and yields their outcomes.

        If a join has the values, the tasks select rows. A Spark job joins all selected rows, and
        further tasks write the values into column files.
        """
        refresh_s = min(prepared.request.refresh_status_secs, HEARTBEAT_S)
        yield from scheduler.run(tasks, refresh_s)
        join, spec, todo = prepared.definition.join, prepared.spec, self._states.to_join()
        if join is None or not todo or self._cancelled.is_set():
            return
        # Blobs of an uncommitted file are unreadable, so a later run needs checkpoints.
        whole_work = {} if spec.targets.blobs else self._states.filled_by_join(work)
        joined = yield from scheduler.spark_jobs.poll_spark_job(
            lambda: join.answers(self._spark, spec, todo, whole_work), refresh_s
        )
        if isinstance(joined, SparkFailure):
            self._join_failed(spec, joined, [work[number] for number in todo])
            return
        finished, whole = self._take_joined(joined, todo, work)
        scheduler.ended_files.update(
            outcome.file for outcome in finished if outcome.file is not None
        )
        group = prepared.request.commit_granularity or max(1, len(finished))
        for first in range(0, len(finished), group):
            yield [*finished[first : first + group]]
        yield from scheduler.run(pack_whole(whole, prepared.task_rows(self._spark)), refresh_s)

    def _take_joined(
        self, joined: Sequence[Row], todo: Collection[int], work: Mapping[int, FragmentWork]
    ) -> tuple[list[RangeOutcome], list[FragmentWork]]:
        """Returns the finished fragments of a join, and the work on the other fragments."""
        rows: dict[int, RowSet] = {}
        finished: dict[int, RangeOutcome] = {}
        for answer in joined:
            number = answer["fragment_id"]
            rows[number] = rows.get(number, RowSet.empty()) | RowSet.loads(bytes(answer["rows"]))
            if answer["outcome"] is not None:
                (finished[number],) = decode(list[RangeOutcome], answer["outcome"])
        following = [
            self._states.joined(work[number], rows.get(number, RowSet.empty())) for number in todo
        ]
        whole = [
            entry for entry in following if entry is not None and entry.fragment_id not in finished
        ]
        return list(finished.values()), whole

    def _join_failed(
        self, spec: BackfillSpec, failure: SparkFailure, work: Sequence[FragmentWork]
    ) -> None:
        if self._cancelled.is_set():
            return
        reason = failure.text
        if failure.is_a(*GONE_ERRORS) and is_gone(spec):
            for fragment_work in work:
                self._states.voids(fragment_work.fragment_id, reason)
            return
        record_ranges(
            spec, work, error_type=failure.error_type, message=failure.message, trace=failure.trace
        )
        self._record.note_failures(work, failure.error_type, spec.snapshot.version)
        for fragment_work in work:
            self._states.fails(fragment_work.fragment_id, reason)

    def _take(
        self,
        answer: RangeOutcome | LostTask[Task],
        spec: BackfillSpec,
        work: Mapping[int, FragmentWork],
        scheduler: Scheduler,
    ) -> list[RangeOutcome]:
        """Notes an outcome, and returns the fragment if the job can commit the fragment.

        Submits the assembly of a fragment after the last of its ranges.
        """
        if isinstance(answer, LostTask):
            self._record.note_failures(
                answer.task.work, answer.failure.error_type, spec.snapshot.version
            )
            for fragment_work in answer.task.work:
                self._states.fails(fragment_work.fragment_id, answer.error)
            return []
        self._record.note_errors(answer, spec.snapshot.version)
        raise_if_fatal(answer, spec)
        if is_error(answer.error_type, ServiceUnavailableError):
            self._service_error = str(answer.error).removeprefix(f"{answer.error_type}: ")
            scheduler.end_early()
        # The values of a sample stay in checkpoints, and in the files of whole fragments.
        is_sample = self._prepared.request.is_sample
        is_void = (
            answer.error is not None and is_error(answer.error_type, *GONE_ERRORS) and is_gone(spec)
        )
        following = self._states.add(answer, work[answer.fragment_id], is_void=is_void)
        if isinstance(following, FragmentWork) and not is_sample:
            scheduler.add(following)
        return [following] if isinstance(following, RangeOutcome) and not is_sample else []

    def _check_skips(self, *, final: bool) -> None:
        counts = self._states.counts
        called = self._states.calls + counts.skipped + counts.crashed
        self._prepared.definition.on_error.check_skips(counts.skipped, called, final=final)

    def _status(self) -> Status:
        complete = self._settled and not self._failed()
        if self._cancelled.is_set() and not complete:
            return "CANCELLED"
        if complete and not self._states.counts.crashed:
            return "DONE"
        is_early = self._is_at_budget or self._service_error is not None
        return "PARTIAL" if is_early or self._states.finished_fragments() else "FAILED"

    def _failed(self) -> dict[int, str]:
        """Returns the reasons of the unfinished fragments."""
        if self._settled:
            # Later rounds mended conflicts and moves. Only failures remain.
            return self._states.reasons(FragmentStatus.FAILED)
        reasons = self._states.reasons(FragmentStatus.FAILED, FragmentStatus.CONFLICT)
        if self._follow_ups is None or self._cancelled.is_set():
            return reasons
        changing = "concurrent commits kept changing it while the job computed its rows"
        unsettled = [number for number in self._follow_ups.open if not self._states.is_done(number)]
        return {**dict.fromkeys(unsettled, changing), **reasons}

    def _fragments_done(self) -> int:
        is_complete = self._settled and not self._failed()
        return sum(is_complete or self._states.is_done(number) for number in self._fragments)

    def _where(self) -> str:
        spec = self._prepared.spec
        columns = ", ".join(self._prepared.columns)
        return f"column {columns} of {spec.snapshot.uri}, version {spec.snapshot.version}, job {spec.job_id}"

    @property
    def _remaining(self) -> int:
        """Rows that a further run computes, at most."""
        counts = self._states.counts
        return max(
            0,
            sum(plan.rows_to_do for plan in self._prepared.plans) - counts.valued - counts.skipped,
        )

    def _why_incomplete(self, status: Status) -> str | None:
        """Returns the reason of an incomplete job; None for a complete job."""
        if status == "DONE":
            return None
        if status == "PARTIAL" and (self._is_at_budget or self._service_error is not None):
            return self._why_early()
        return self._what_failed()

    def _why_early(self) -> str:
        """Returns the reason of an early end, and the rest of the work."""
        budget = self._budget
        spent = counted(budget.calls, "row") + (f", cost {budget.cost:g}" if budget.cost else "")
        sample = "The job was the sample of a plan." if self._prepared.request.is_sample else None
        reason = self._service_error or sample or f"The budget {budget.limit_text()} is used up."
        progress = (
            f"{self._fragments_done():,} of {counted(len(self._fragments), 'fragment')} are done"
        )
        return (
            f"{reason} The {self._noun} ended early. It called the UDF for {spent}. {progress}, and at most "
            f"{counted(self._remaining, 'row')} remain. Computed values are kept. Run it again to continue: "
            f"{self._where()}."
        )

    def _what_failed(self) -> str:
        crashed, failed = self._states.counts.crashed, self._failed()
        parts = [f"{self._fragments_done()} of {counted(len(self._fragments), 'fragment')} done"]
        if self._cancelled.is_set():
            parts.insert(0, "the job was cancelled")
        if crashed:
            parts.append(f"{counted(crashed, 'row')} killed the process that ran the UDF")
        parts += [
            f"fragment {number}: {failed[number].rstrip('.')}"
            for number in sorted(failed)[:_SHOWN_FAILURES]
        ]
        if len(failed) > _SHOWN_FAILURES:
            parts.append(f"and {counted(len(failed) - _SHOWN_FAILURES, 'more fragment')}")
        return (
            f"The {self._noun} is incomplete: {'; '.join(parts)}. get_errors({self._prepared.spec.job_id!r}) has every "
            f"error of {self._where()}. What was computed is kept, so run it again when the cause is gone."
        )

    def _close(self, status: Status, message: str | None, failure: BaseException | None) -> None:
        """Removes useless checkpoints and files, and notes the end of the job."""
        spec, commits = self._prepared.spec, self._commits
        self._progress.close(status)
        try:
            # The start of the job never comes after its end.
            self._record.await_start()
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "the start of job %s in %s was not saved: %s", spec.job_id, spec.snapshot.uri, error
            )
        try:
            commits.upkeep.at_end(
                commits.ended_files(self._ended_files), is_done=status == "DONE", failure=failure
            )
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "files of job %s in %s were not removed: %s", spec.job_id, spec.snapshot.uri, error
            )
        result = self._result(status)
        _LOG.info(
            "%s of %s in %s ended %s: %d rows selected, %d computed, %d from checkpoints, %d skipped, %d of %d "
            "fragments, versions %s, %.1f s (job %s)%s",
            self._noun,
            ", ".join(self._prepared.columns),
            spec.snapshot.uri,
            status,
            result.rows_selected,
            result.rows_computed,
            result.rows_from_checkpoint,
            result.rows_skipped,
            result.fragments_done,
            result.fragments_total,
            list(result.versions),
            result.seconds["total"],
            spec.job_id,
            "" if message is None else f": {message}",
        )
        self._record.end(result, message)

    def _show(self) -> None:
        states, counts = self._states, self._states.counts
        self._progress.update(
            rows=counts.valued + counts.skipped + self._in_flight.count(states.sources),
            written=len(states.finished_fragments()) + len(states.of(FragmentStatus.COMPUTED)),
            committed=len(states.of(FragmentStatus.COMMITTED)),
            seconds={**states.seconds, "commit": self._commits.seconds},
        )

    def _result(self, status: Status) -> BackfillJobResult:
        spec, states, commits, follow_ups = (
            self._prepared.spec,
            self._states,
            self._commits,
            self._follow_ups,
        )
        counts = states.counts
        udf = UdfResult(
            udf_name=spec.key.udf_name,
            udf_version=spec.key.udf_version,
            rows_processed=counts.valued,
            rows_skipped=counts.skipped,
            input_columns=spec.input_names,
        )
        ended = status != "RUNNING"
        return BackfillJobResult(
            job_id=spec.job_id,
            status=status,
            table_name=self._table_name,
            table_uri=spec.snapshot.uri,
            launched_at=self._launched,
            completed_at=datetime.now(UTC) if ended else None,
            columns=dict.fromkeys(self._prepared.columns, udf),
            where=spec.where,
            read_version=spec.snapshot.version,
            versions=tuple(commits.versions),
            rows_selected=counts.selected,
            rows_computed=states.calls + (0 if ended else self._in_flight.count(states.sources)),
            rows_from_checkpoint=counts.reused,
            rows_skipped=counts.skipped,
            rows_failed=max(0, counts.selected - counts.valued - counts.skipped)
            if ended
            else counts.crashed,
            rows_carried=counts.carried,
            rows_recomputed=counts.recomputed,
            rows_nulled=counts.nulled,
            rows_stale=self._stale.rows,
            rows_unverified=self._stale.unverified,
            rows_gone=0 if follow_ups is None else follow_ups.rows_gone,
            new_rows=0 if follow_ups is None else follow_ups.new_rows,
            fragments_total=len(self._fragments),
            fragments_done=self._fragments_done(),
            fragments_failed=self._failed(),
            rows_remaining=self._remaining if ended and status != "DONE" else 0,
            cost=states.cost,
            retries=states.retries + commits.retries,
            rows_deduplicated=states.deduplicated,
            batch_rows=states.batch_rows,
            seconds={
                **states.seconds,
                "commit": commits.seconds,
                "total": time.monotonic() - self._began,
            },
        )
