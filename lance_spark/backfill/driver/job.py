"""The driver of one backfill: plans, runs the tasks, commits what they finish, and says what became of it.

One thread runs a job from its start to its end. :class:`~lance_spark.jobs.handle.Job` is what others hold of it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lance_spark.backfill.driver.group_commit import Committed, GroupCommits
from lance_spark.backfill.driver.rounds import Following
from lance_spark.backfill.driver.scheduler import Cluster, Lost
from lance_spark.backfill.driver.snapshot_tag import protect, release, remove_expired
from lance_spark.backfill.driver.tally import Tally
from lance_spark.backfill.planning.fragment_plan import plan_tasks
from lance_spark.backfill.planning.planner import Prepared, concurrency_of
from lance_spark.backfill.planning.staleness import count_stale
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.value_finder import store_of
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome, Task
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.errors import (
    BackfillIncompleteError,
    LanceSparkError,
    TableNotFoundError,
    TableUnreadableError,
    VersionNotFoundError,
    counted,
)
from lance_spark.jobs.history import HEARTBEAT_S, JobHistory, this_process, this_user
from lance_spark.jobs.model import BackfillJobResult, JobRecord, Status, UdfResult
from lance_spark.jobs.progress import Progress
from lance_spark.staging.job_end import finish

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
        self._tally = Tally()
        self._policy = CommitPolicy.of(request.commit_max_retries, request.commit_timeout_s)
        self._done = Committed()
        self._commits = GroupCommits(prepared, self._done, self._policy)
        self._staged_here: list[str] = []
        self._following: Following | None = None
        self._hopeless: set[int] = set()
        self._settled = False
        self._stale = 0
        self._tag: str | None = None
        self._history = JobHistory(prepared.spec.snapshot) if request.save_job else None
        self._launched = datetime.now(UTC)
        self._began = time.monotonic()
        self._cancelled = threading.Event()
        self._cluster: Cluster | None = None
        self._filed: set[int] = set()
        self._commit_s = 0.0
        self._expected_rows = 0
        self._checkpointed: dict[str, int] = {}
        self._next_look = self._began + _LOOK_S
        self._last_beat = time.monotonic()

    def cancel(self) -> None:
        """Stops the tasks; what is complete is committed, and checkpoints stay. Returns at once; works from any thread."""
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
            LanceSparkError: The job could not go on: the column or the table changed, or the store failed.
        """
        work = self.prepared.work()
        self._stale = count_stale(self.prepared, but_selected=True)
        if not work:
            if len(self.prepared.spec.serving_jobs) > 1:
                # Another job of this filter died after its last commit: it is resumed, and over.
                self._save("DONE", None)
            return self._result("DONE")
        self._commits.refuse_other_udf(f"since version {self.prepared.spec.snapshot.version}, which the job is to read")
        self._tally.fragments_total = len(work)
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
            self._progress.start(self._expected_rows, self._tally.fragments_total)
            covered = [plan.fragment_id for plan in work]
            self._following = Following(self.prepared, covered, self._done.history, self._request.on_stale, self._beat)
            self._run_tasks(self.prepared, plan_tasks(work, self.prepared.task_rows(self._spark)))
            self._follow(self._following)
            status = self._status()
            message = None if status == "DONE" else self._what_failed()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            if self._done.fragments:
                status = "PARTIAL"
            raise
        finally:
            self._close(status, message)
        result = self._result(status)
        if message is not None:
            raise BackfillIncompleteError(message, result=result)
        return result

    def _follow(self, following: Following) -> None:
        """Looks after rows that others moved or changed meanwhile, round after round, until a version has been right as it was.

        A round that settles nothing is fruitless; as many are tried as commits are. Where others change rows faster than they can be
        computed, there is no end to it: then it is over after as many rounds, and after the time that a commit has.
        """
        fruitless, rounds, began = 0, 0, time.monotonic()
        first = began
        while True:
            done = self._done.fragments | self._tally.clean
            following_round = following.next_round(done, self._done.landed, self._hopeless, self._tally.held_now())
            self._settled = following_round is None
            if following_round is None or self._cancelled.is_set():
                return
            out_of_time = time.monotonic() - began > self._policy.timeout_s
            if fruitless > self._policy.max_retries or (fruitless and out_of_time):
                return
            if rounds > self._policy.max_retries and time.monotonic() - first > self._policy.timeout_s:
                return
            rounds += 1
            self._beat()
            before = set(following.open)
            for known in (self._done.fragments, self._tally.clean, self._filed):
                known.difference_update(before)
            for fragment in before:
                self._done.blocked.pop(fragment, None)
            round_ = following_round.prepared
            self._commits = GroupCommits(round_, self._done, self._policy)
            self._run_tasks(round_, plan_tasks(following_round.plans, round_.task_rows(self._spark)))
            if before <= self._tally.clean:
                # What others did since that version came after the job as much as what they do after its end.
                following.settle(self._tally.clean, self._tally.held_now())
                self._settled = True
                return
            if before & (self._done.fragments | self._tally.clean):
                fruitless, began = 0, time.monotonic()
            else:
                fruitless += 1

    def _run_tasks(self, prepared: Prepared, tasks: list[Task]) -> None:
        spec = prepared.spec
        limit = concurrency_of(self._spark, prepared.udf, self._request.concurrency)
        fragments = [work.fragment_id for task in tasks for work in task.work]
        description = f"lance-spark: backfill of {', '.join(prepared.columns)} in {self._table_name}, fragments {fragments[0]} to {fragments[-1]}"
        cluster = Cluster(self._spark, spec, limit=limit, description=description)
        self._cluster = cluster
        pending: list[RangeOutcome] = []
        if self._cancelled.is_set():
            cluster.stop()
        running = cluster.run(tasks, min(self._request.refresh_s, HEARTBEAT_S))
        self._tally.inherited.clear()
        self._tally.round.clear()
        try:
            for answers in running:
                for answer in answers:
                    pending += self._take(answer, spec)
                self._check_skips(final=False)
                granularity = self._request.commit_granularity
                if granularity is not None and len(pending) >= granularity:
                    pending = self._commit(pending)
                self._look()
                self._show()
                self._beat()
            self._check_skips(final=True)
            self._commit(pending)
            self._commits.inherit(self._tally.inherited)
        except BaseException:
            cluster.stop()
            raise
        finally:
            running.close()
            self._staged_here += self._commits.staged_here
        self._checkpointed = {}
        self._show()

    def _take(self, answer: RangeOutcome | Lost, spec: BackfillSpec) -> list[RangeOutcome]:
        """Notes an answer, and returns it if it is a fragment that can be committed."""
        if isinstance(answer, Lost):
            for work in answer.task.work:
                done = self._done.fragments | self._tally.clean
                if work.fragment_id not in done:
                    self._hopeless.add(work.fragment_id)
                    self._tally.failed.setdefault(work.fragment_id, answer.error)
            return []
        is_void = answer.error is not None and str(answer.error_type).endswith(_GONE_ERRORS) and _is_gone(spec)
        self._tally.add(answer, is_void=is_void)
        if answer.error is not None and not is_void:
            self._hopeless.add(answer.fragment_id)
        if answer.file is None or answer.fragment_id in self._filed:
            return []  # two tasks that ended a fragment at the same moment have both written its file: the first one serves
        self._filed.add(answer.fragment_id)
        return [answer]

    def _check_skips(self, *, final: bool) -> None:
        tally = self._tally
        self.prepared.udf.on_error.check_skips(
            tally.skipped, tally.computed + tally.skipped + tally.crashed, final=final
        )

    def _commit(self, pending: list[RangeOutcome]) -> list[RangeOutcome]:
        if pending:
            began = time.monotonic()
            try:
                self._commits.commit(pending)
            finally:
                self._commit_s += time.monotonic() - began
        return []

    def _status(self) -> Status:
        if self._cancelled.is_set() and not self._is_complete():
            return "CANCELLED"
        if self._is_complete() and not self._tally.crashed:
            return "DONE"
        return "PARTIAL" if self._done.fragments or self._tally.clean else "FAILED"

    def _is_complete(self) -> bool:
        return self._settled and not self._failed()

    def _failed(self) -> dict[int, str]:
        """Returns why fragments are not done. One whose task was lost may be: another range of it made the file."""
        done = self._done.fragments | self._tally.clean
        reasons = {**self._tally.failed, **self._done.blocked}
        if self._settled:
            # What was gone or moved is right by now, wherever it is; what failed for good is not.
            return {number: why for number, why in reasons.items() if number in self._hopeless and number not in done}
        still = () if self._following is None else self._following.open
        unsettled = dict.fromkeys(still, "others kept changing it while the job looked after it")
        return {number: why for number, why in {**unsettled, **reasons}.items() if number not in done}

    def _fragments_done(self) -> int:
        """Returns how many of the fragments that the job was to fill are done; rows of others may be in other fragments by now."""
        if self._following is not None and self._settled:
            return self._tally.fragments_total - min(len(self._failed()), self._tally.fragments_total)
        return min(len(self._done.fragments | self._tally.clean), self._tally.fragments_total)

    def _what_failed(self) -> str:
        """Returns the message of a job that did not compute everything."""
        tally, failed = self._tally, self._failed()
        parts = [f"{self._fragments_done()} of {counted(tally.fragments_total, 'fragment')} done"]
        if self._cancelled.is_set():
            parts.insert(0, "the job was cancelled")
        if tally.crashed:
            parts.append(f"{counted(tally.crashed, 'row')} killed the process that ran the UDF")
        for fragment, reason in sorted(failed.items())[:_SHOWN_FAILURES]:
            parts.append(f"fragment {fragment}: {reason}")
        if len(failed) > _SHOWN_FAILURES:
            parts.append(f"and {counted(len(failed) - _SHOWN_FAILURES, 'more fragment')}")
        spec = self.prepared.spec
        return (
            f"the backfill is incomplete: {'; '.join(parts)} - column {', '.join(self.prepared.columns)} of {spec.snapshot.uri}, version "
            f"{spec.snapshot.version}, job {spec.job_id} - get_errors({spec.job_id!r}) has every error; what was computed is kept, so run it "
            "again when the cause is gone"
        )

    def _close(self, status: Status, message: str | None) -> None:
        """Ends the job: removes its files but for those that a version or a later run needs, and notes how it ended."""
        spec, done = self.prepared.spec, self._done
        self._progress.close(status)
        if self._tag is not None:
            self._try(functools.partial(release, spec.snapshot, self._tag))
        try:
            if status != "DONE" and self._commits.leaves_files():
                # Files that were finished and not committed serve the next run; lance_spark.cleanup removes them one day.
                spec.staging.close_job()
            else:
                if status == "DONE":
                    self._commits.drop_own_checkpoints()
                finish(spec.staging, spec.snapshot, sorted(done.files), unless_named=self._staged_here)
        except OSError as error:
            _LOG.warning("files of job %s in %s were not removed: %s", spec.job_id, spec.snapshot.uri, error)
        result = self._result(status)
        _LOG.info(
            "backfill of %s in %s ended %s: %d rows selected, %d computed, %d from checkpoints, %d skipped, %d of %d fragments, versions %s, "
            "%.1f s (job %s)%s",
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
        """Returns the rows in checkpoints of fragments of which no range has ended; the others are counted by their outcomes."""
        return sum(rows for source, rows in self._checkpointed.items() if source not in self._tally.sources)

    def _show(self) -> None:
        done = self._done
        self._progress.update(
            rows=self._tally.computed + self._tally.reused + self._tally.skipped + self._underway(),
            written=len(done.fragments | self._tally.clean),
            committed=len(done.fragments),
        )

    def _result(self, status: Status) -> BackfillJobResult:
        spec, tally, done = self.prepared.spec, self._tally, self._done
        processed = tally.processed
        carried = tally.carried.values()
        udf = UdfResult(
            udf_name=spec.key.udf_name,
            udf_version=spec.key.udf_version,
            rows_processed=processed,
            rows_skipped=tally.skipped,
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
            rows_selected=tally.selected,
            rows_computed=tally.computed + (0 if ended else self._underway()),
            rows_from_checkpoint=tally.reused,
            rows_skipped=tally.skipped,
            rows_failed=max(0, tally.selected - processed - tally.skipped) if ended else tally.crashed,
            rows_carried=sum(outcome.carried for outcome in carried),
            rows_recomputed=tally.recomputed,
            rows_nulled=sum(outcome.nulled for outcome in carried),
            rows_kept=sum(outcome.kept for outcome in carried),
            rows_stale=self._stale,
            rows_gone=self._rows_gone(),
            new_rows=sum(o.added for o in carried) + (0 if self._following is None else self._following.new_rows),
            fragments_total=tally.fragments_total,
            fragments_done=self._fragments_done(),
            fragments_failed=self._failed(),
            retries=tally.retries + sum(result.retries for result in done.results),
            seconds={**tally.seconds, "commit": self._commit_s, "total": time.monotonic() - self._began},
        )

    def _rows_gone(self) -> int:
        """Returns how many rows that got a value, or were to get one and failed, are not in the table any more."""
        if self._following is None or not self._settled:
            return sum(result.rows_gone for result in self._done.results)
        tally = self._tally
        return max(0, tally.processed + tally.skipped + tally.crashed - self._following.held_rows)


_GONE_ERRORS = ("VersionNotFoundError", "SnapshotError", "TableUnreadableError", "TableNotFoundError")


def _is_gone(spec: BackfillSpec) -> bool:
    """Tells whether the version that a round reads was cleaned up."""
    try:
        replace(spec.snapshot, incarnation=None).pin(spec.snapshot.version)
    except (VersionNotFoundError, TableNotFoundError, TableUnreadableError):
        return True
    return False
