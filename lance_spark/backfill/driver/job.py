"""The driver of one backfill: plans, runs the tasks, commits what they finish, and says what became of it.

One thread runs a job from its start to its end. :class:`~lance_spark.jobs.handle.Job` is what
others hold of it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lance_spark.backfill.driver.fragment_state import FragmentStates, FragmentStatus
from lance_spark.backfill.driver.group_commit import Committed, GroupCommits
from lance_spark.backfill.driver.rounds import FollowUps
from lance_spark.backfill.driver.scheduler import Cluster, Lost
from lance_spark.backfill.driver.snapshot_tag import protect, release, remove_expired
from lance_spark.backfill.planning.fragment_plan import plan_tasks
from lance_spark.backfill.planning.planner import Prepared, concurrency_of
from lance_spark.backfill.planning.staleness import count_stale
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome, Task
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.errors import (
    BackfillIncompleteError,
    CommitImpossibleError,
    LanceSparkError,
    TableNotFoundError,
    TableUnreadableError,
    TableUnwritableError,
    VersionNotFoundError,
    counted,
    rebuild,
)
from lance_spark.jobs.history import HEARTBEAT_S, JobHistory, this_process, this_user
from lance_spark.jobs.model import BackfillJobResult, JobRecord, Status, UdfResult
from lance_spark.jobs.progress import Progress
from lance_spark.staging.job_end import finish
from udf_runtime import UdfRuntimeError

_LOG = logging.getLogger(__name__)

_SHOWN_FAILURES = 3

_LOOK_S = 2.0
"""Seconds between looks at the checkpoints of ranges that are still worked on, at least."""


class BackfillJob:
    """One backfill, run by one thread.

    Attributes:
        prepared: What is to be done.
    """

    def __init__(
        self, spark: SparkSession, prepared: Prepared, request: BackfillRequest, table_name: str, progress: Progress
    ) -> None:
        self.prepared = prepared
        self._spark = spark
        self._request = request
        self._table_name = table_name
        self._progress = progress
        self._states = FragmentStates()
        self._policy = CommitPolicy.of(request.commit_max_retries, request.commit_timeout_s)
        self._done = Committed(states=self._states)
        self._commits = GroupCommits(prepared, self._done, self._policy)
        self._staged_here: list[str] = []
        self._follow_ups: FollowUps | None = None
        self._settled = False
        self._files_can_serve = True
        self._fragments: tuple[int, ...] = ()
        self._stale = 0
        self._tag: str | None = None
        self._history = JobHistory(prepared.spec.snapshot) if request.save_job else None
        self._launched = datetime.now(UTC)
        self._began = time.monotonic()
        self._cancelled = threading.Event()
        self._cluster: Cluster | None = None
        self._commit_s = 0.0
        self._expected_rows = 0
        self._checkpointed: dict[str, int] = {}
        self._next_look = self._began + _LOOK_S
        self._last_beat = time.monotonic()

    def cancel(self) -> None:
        """Stops the tasks; what is complete is committed, and checkpoints stay.

        Returns at once; works from any thread.
        """
        self._cancelled.set()
        if self._cluster is not None:
            self._cluster.stop()

    def snapshot(self) -> BackfillJobResult:
        """Returns how the job stands."""
        return self._result("RUNNING")

    def run(self) -> BackfillJobResult:
        """Runs the job to its end.

        Raises:
            BackfillIncompleteError: Selected rows have neither a value nor were skipped.
            SkipThresholdExceededError: More rows were skipped than the UDF's policy allows.
            LanceSparkError: The job could not go on: the column or the table changed, or the store
                failed.
        """
        try:
            return self._run()
        except (LanceSparkError, UdfRuntimeError):
            raise
        except Exception as error:
            spec = self.prepared.spec
            raise BackfillIncompleteError(
                f"the backfill ended by an error that is not expected: {type(error).__name__}: {error} - column "
                f"{', '.join(self.prepared.columns)} of {spec.snapshot.uri}, version {spec.snapshot.version}, job "
                f"{spec.job_id} - what was computed is kept; run it again, and report the error if it comes again",
                result=self._result("FAILED"),
            ) from error

    def _run(self) -> BackfillJobResult:
        work = self.prepared.work()
        self._stale = count_stale(self.prepared, but_selected=True)
        if not work:
            if len(self.prepared.spec.serving_jobs) > 1:
                # Another job of this filter died after its last commit: it is resumed, and over.
                self._save("DONE", None)
            return self._result("DONE")
        self._commits.refuse_other_udf(f"since version {self.prepared.spec.snapshot.version}, which the job is to read")
        self._fragments = tuple(plan.fragment_id for plan in work)
        self._states.begin_round(self._fragments)
        self._expected_rows = sum(plan.live_rows if plan.pending is None else plan.pending for plan in work)
        spec = self.prepared.spec
        status: Status = "FAILED"
        message: str | None = None
        spec.staging.open_job()
        try:
            self._save("RUNNING", None)
            remove_expired(self.prepared.dataset)
            if self._request.protect_snapshot:
                self._tag = protect(spec.snapshot, spec.staging.job_id)
            self._progress.start(self._expected_rows, len(self._fragments))
            self._follow_ups = FollowUps(self.prepared, self._fragments, self._done.history, self._request.on_stale)
            self._run_tasks(self.prepared, plan_tasks(work, self.prepared.task_rows(self._spark)))
            self._follow(self._follow_ups)
            status = self._status()
            message = None if status == "DONE" else self._what_failed()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            self._files_can_serve = not isinstance(error, CommitImpossibleError)
            if self._states.of(FragmentStatus.COMMITTED):
                status = "PARTIAL"
            raise
        finally:
            self._close(status, message)
        result = self._result(status)
        if message is not None:
            raise BackfillIncompleteError(message, result=result)
        return result

    def _follow(self, follow_ups: FollowUps) -> None:
        """Runs follow-up rounds, until a version has been right as it was.

        A round that settles nothing is fruitless; as many are tried as commits are. Where
        concurrent writers change rows faster than they can be computed, there is no end to it: then
        it is over after as many rounds, and after the time that a commit has.
        """
        states = self._states
        fruitless, rounds, began = 0, 0, time.monotonic()
        first = began
        while True:
            failed = states.of(FragmentStatus.FAILED)
            next_round = follow_ups.next_round(states.done(), self._done.landed, failed)
            self._settled = next_round is None
            if next_round is None or self._cancelled.is_set():
                return
            out_of_time = time.monotonic() - began > self._policy.timeout_s
            if fruitless > self._policy.max_retries or (fruitless and out_of_time):
                return
            if rounds > self._policy.max_retries and time.monotonic() - first > self._policy.timeout_s:
                return
            rounds += 1
            self._beat()
            fragments = follow_ups.open
            states.begin_round(fragments)
            prepared = next_round.prepared
            self._commits = GroupCommits(prepared, self._done, self._policy)
            self._run_tasks(prepared, plan_tasks(next_round.plans, prepared.task_rows(self._spark)))
            if states.of(FragmentStatus.NOTHING_TO_DO).issuperset(fragments):
                # What concurrent writers did since that version came after the job as much as what
                # they do after its end.
                follow_ups.settle(states.done())
                self._settled = True
                return
            if any(states.is_done(fragment) for fragment in fragments):
                fruitless, began = 0, time.monotonic()
            else:
                fruitless += 1

    def _run_tasks(self, prepared: Prepared, tasks: list[Task]) -> None:
        spec = prepared.spec
        limit = concurrency_of(self._spark, prepared.udf, self._request.concurrency)
        work = {one.fragment_id: one for task in tasks for one in task.work}
        description = f"lance-spark: backfill of {', '.join(prepared.columns)} in {self._table_name}, fragments {min(work)} to {max(work)}"
        cluster = Cluster(self._spark, spec, limit=limit, description=description)
        self._cluster = cluster
        pending: list[RangeOutcome] = []
        if self._cancelled.is_set():
            cluster.stop()
        running = cluster.run(tasks, min(self._request.refresh_s, HEARTBEAT_S))
        try:
            for answers in running:
                for answer in answers:
                    pending += self._take(answer, spec, work, cluster)
                self._check_skips(final=False)
                granularity = self._request.commit_granularity
                if granularity is not None and len(pending) >= granularity:
                    pending = self._commit(pending)
                self._look()
                self._show()
                self._beat()
            self._check_skips(final=True)
            self._commit(pending)
            self._commits.inherit(self._states.inherited)
        except BaseException:
            cluster.stop()
            raise
        finally:
            running.close()
            self._staged_here += self._commits.staged_here
        self._checkpointed = {}
        self._show()

    def _take(
        self, answer: RangeOutcome | Lost, spec: BackfillSpec, work: Mapping[int, FragmentWork], cluster: Cluster
    ) -> list[RangeOutcome]:
        """Notes an answer, and returns it if it is a fragment that can be committed.

        Submits what assembles one of several ranges.
        """
        if isinstance(answer, Lost):
            for one in answer.task.work:
                self._states.fails(one.fragment_id, answer.error)
            return []
        if str(answer.error_type).endswith(TableUnwritableError.__name__):
            # A full disk is as full for every other range.
            message = str(answer.error).removeprefix(f"{answer.error_type}: ")
            raise rebuild(TableUnwritableError, (message,), {"uri": spec.snapshot.uri})
        kind = str(answer.error_type).rpartition(".")[2]
        is_void = answer.error is not None and kind in _GONE_ERRORS and _is_gone(spec)
        following = self._states.add(answer, work[answer.fragment_id], is_void=is_void)
        if isinstance(following, FragmentWork):
            cluster.add(following)
        return [following] if isinstance(following, RangeOutcome) else []

    def _check_skips(self, *, final: bool) -> None:
        counts = self._states.counts
        called = self._states.calls + counts.skipped + counts.crashed
        self.prepared.udf.on_error.check_skips(counts.skipped, called, final=final)

    def _commit(self, pending: list[RangeOutcome]) -> list[RangeOutcome]:
        if pending:
            began = time.monotonic()
            try:
                self._commits.commit(pending)
            finally:
                self._commit_s += time.monotonic() - began
        return []

    def _status(self) -> Status:
        complete = self._settled and not self._failed()
        if self._cancelled.is_set() and not complete:
            return "CANCELLED"
        if complete and not self._states.counts.crashed:
            return "DONE"
        return "PARTIAL" if self._states.done() else "FAILED"

    def _failed(self) -> dict[int, str]:
        """Returns why fragments are not done."""
        if self._settled:
            # What was in conflict or has moved is right, wherever it is; what failed for good is
            # not.
            return self._states.reasons(FragmentStatus.FAILED)
        reasons = self._states.reasons(FragmentStatus.FAILED, FragmentStatus.CONFLICT)
        if self._follow_ups is None or self._cancelled.is_set():
            return reasons
        changing = "concurrent commits kept changing it while the job computed its rows"
        unsettled = [number for number in self._follow_ups.open if not self._states.is_done(number)]
        return {**dict.fromkeys(unsettled, changing), **reasons}

    def _fragments_done(self) -> int:
        """Returns how many of the fragments that the job was to fill are done.

        Their rows may be in other fragments by now.
        """
        if self._settled and not self._failed():
            return len(self._fragments)
        return sum(self._states.is_done(number) for number in self._fragments)

    def _what_failed(self) -> str:
        """Returns the message of a job that did not compute everything."""
        crashed, failed = self._states.counts.crashed, self._failed()
        parts = [f"{self._fragments_done()} of {counted(len(self._fragments), 'fragment')} done"]
        if self._cancelled.is_set():
            parts.insert(0, "the job was cancelled")
        if crashed:
            parts.append(f"{counted(crashed, 'row')} killed the process that ran the UDF")
        for fragment, reason in sorted(failed.items())[:_SHOWN_FAILURES]:
            parts.append(f"fragment {fragment}: {reason}")
        more = len(failed) - _SHOWN_FAILURES
        if more > 0:
            parts.append(f"and {counted(more, 'more fragment')}")
        spec = self.prepared.spec
        return (
            f"the backfill is incomplete: {'; '.join(parts)} - column {', '.join(self.prepared.columns)} of "
            f"{spec.snapshot.uri}, version {spec.snapshot.version}, job {spec.job_id} - get_errors({spec.job_id!r}) "
            "has every error; what was computed is kept, so run it again when the cause is gone"
        )

    def _close(self, status: Status, message: str | None) -> None:
        """Ends the job: removes its files but for those that a version or a later run needs, and notes how it ended."""
        spec, done = self.prepared.spec, self._done
        self._progress.close(status)
        if self._tag is not None:
            self._try(functools.partial(release, spec.snapshot, self._tag))
        try:
            if status == "DONE":
                self._commits.drop_own_checkpoints("values", "reference")
            elif not self._files_can_serve:
                self._commits.drop_own_checkpoints("reference")
            if self._commits.leaves_files():
                # Files that were finished and not committed serve the next run, which removes them.
                spec.staging.close_job()
            else:
                finish(spec.staging, spec.snapshot, sorted(done.files), unless_named=self._staged_here)
            if status == "DONE":
                self._commits.sweep_ended_jobs()
        except (OSError, LanceSparkError) as error:
            _LOG.warning("files of job %s in %s were not removed: %s", spec.job_id, spec.snapshot.uri, error)
        result = self._result(status)
        _LOG.info(
            "backfill of %s in %s ended %s: %d rows selected, %d computed, %d from checkpoints, %d skipped, %d of %d "
            "fragments, versions %s, %.1f s (job %s)%s",
            ", ".join(self.prepared.columns), spec.snapshot.uri, status, result.rows_selected, result.rows_computed,
            result.rows_from_checkpoint, result.rows_skipped, result.fragments_done, result.fragments_total, list(result.versions),
            time.monotonic() - self._began, spec.job_id, "" if message is None else f": {message}",
        )  # fmt: skip
        self._save(status, message)
        self._try(lambda: JobHistory(spec.snapshot).clear(spec.staging.job_id))

    def _save(self, status: Status, message: str | None) -> None:
        if self._history is None:
            return
        spec, history = self.prepared.spec, self._history
        result = self._result(status)
        record = JobRecord(
            job_id=spec.job_id,
            status=status,
            columns=self.prepared.columns,
            udf_name=spec.key.udf_name,
            udf_version=spec.key.udf_version,
            input_columns=spec.input_names,
            key=spec.key.digest,
            where=spec.where,
            read_version=spec.snapshot.version or 0,
            staging_id=spec.staging.job_id,
            launched_at=self._launched,
            updated_at=datetime.now(UTC),
            completed_at=None if status == "RUNNING" else datetime.now(UTC),
            launched_by=this_user(),
            process=this_process(),
            rows_selected=result.rows_selected,
            rows_computed=result.rows_computed,
            rows_from_checkpoint=result.rows_from_checkpoint,
            rows_skipped=result.rows_skipped,
            rows_failed=result.rows_failed,
            fragments_total=result.fragments_total,
            fragments_done=result.fragments_done,
            versions=result.versions,
            retries=result.retries,
            seconds=result.seconds,
            message=message,
        )
        if status == "RUNNING":
            history.save(record)
        else:
            self._try(lambda: history.save(record))

    def _try(self, act: Callable[[], None]) -> None:
        """Does what must not make a job fail whose values are committed."""
        try:
            act()
        except (OSError, LanceSparkError) as error:
            _LOG.warning("the history of %s could not be written: %s", self.prepared.spec.snapshot.uri, error)

    def _beat(self) -> None:
        if self._history is not None and time.monotonic() - self._last_beat >= HEARTBEAT_S:
            self._last_beat = time.monotonic()
            self._try(lambda: self._history.beat(self.prepared.spec.staging.job_id))  # type: ignore[union-attr]

    def _look(self) -> None:
        """Counts what ranges that are still worked on have left in checkpoints, so that a long range shows how far it is."""
        began = time.monotonic()
        if began < self._next_look:
            return
        try:
            entries = store_of(self.prepared.spec).find_all(self.prepared.spec.key)
        except OSError as error:
            _LOG.debug("checkpoints of %s cannot be listed: %s", self.prepared.spec.snapshot.uri, error)
            return
        mine = self.prepared.spec.job_id
        self._checkpointed = {
            source: sum(entry.rows for entry in found if entry.job_id == mine) for source, found in entries.items()
        }
        # A listing of many checkpoints takes its time, and must not be what the driver does.
        self._next_look = time.monotonic() + max(_LOOK_S, 20 * (time.monotonic() - began))

    def _underway(self) -> int:
        """Returns the rows in checkpoints of fragments of which no range has ended.

        The others are counted by their outcomes.
        """
        return sum(rows for source, rows in self._checkpointed.items() if source not in self._states.sources)

    def _show(self) -> None:
        counts = self._states.counts
        self._progress.update(
            rows=counts.valued + counts.skipped + self._underway(),
            written=len(self._states.done()) + len(self._states.of(FragmentStatus.COMPUTED)),
            committed=len(self._states.of(FragmentStatus.COMMITTED)),
        )

    def _result(self, status: Status) -> BackfillJobResult:
        spec, states, done, follow_ups = self.prepared.spec, self._states, self._done, self._follow_ups
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
            columns=dict.fromkeys(self.prepared.columns, udf),
            where=spec.where,
            read_version=spec.snapshot.version,
            versions=tuple(done.versions),
            rows_selected=counts.selected,
            rows_computed=states.calls + (0 if ended else self._underway()),
            rows_from_checkpoint=counts.reused,
            rows_skipped=counts.skipped,
            rows_failed=max(0, counts.selected - counts.valued - counts.skipped) if ended else counts.crashed,
            rows_carried=counts.carried,
            rows_recomputed=counts.recomputed,
            rows_nulled=counts.nulled,
            rows_stale=self._stale,
            rows_gone=0 if follow_ups is None else follow_ups.rows_gone,
            new_rows=0 if follow_ups is None else follow_ups.new_rows,
            fragments_total=len(self._fragments),
            fragments_done=self._fragments_done(),
            fragments_failed=self._failed(),
            retries=states.retries + sum(result.retries for result in done.results),
            seconds={**states.seconds, "commit": self._commit_s, "total": time.monotonic() - self._began},
        )


_GONE_ERRORS = ("VersionNotFoundError", "SnapshotError", "TableUnreadableError", "TableNotFoundError")


def _is_gone(spec: BackfillSpec) -> bool:
    """Tells whether the version that a round reads was cleaned up."""
    try:
        replace(spec.snapshot, incarnation=None).pin(spec.snapshot.version)
    except (VersionNotFoundError, TableNotFoundError, TableUnreadableError):
        return True
    return False
