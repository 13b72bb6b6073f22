"""The driver of a compaction: plans, runs tasks that write new fragments, and commits them.

The tasks of the plan run in groups. A group is a Spark job, and two jobs run at a time, so that no
slot waits for the last task of a group. The driver commits the fragments of a group at the end of
its job. If the driver dies, the work of two running jobs is lost, and the next compaction plans the
remaining fragments.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lance_spark.commit.commit_loop import CommitPolicy, Outdated, evaluate_until_committed
from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    OptionError,
    TableUnreadableError,
    UpkeepIncompleteError,
    VersionNotFoundError,
    counted,
    panics_as_errors,
)
from lance_spark.jobs.plain_record import Done, noted
from lance_spark.jobs.progress import Progress
from lance_spark.lance_compat import files_of_rewrite, path_of, plain
from lance_spark.options.io_options import check_number
from lance_spark.session.sessions import known_slots
from lance_spark.spark_jobs.run import CANCEL_INTERVAL_S, SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import LostTask
from lance_spark.staging.data_files import delete_unnamed_files, missing_data_files
from lance_spark.upkeep.results import CompactionResult

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

JOB_TYPE = "compact_files"
"""Type of a compaction in the history."""

_LEAST_1 = (
    "target_rows_per_fragment",
    "max_bytes_per_file",
    "batch_size",
    "concurrency",
    "commit_granularity",
)
_PLAN_OPTIONS = (
    "target_rows_per_fragment",
    "max_bytes_per_file",
    "materialize_deletions",
    "materialize_deletions_threshold",
    "defer_index_remap",
    "batch_size",
)

_JOBS_AT_ONCE = 2
_TASKS_PER_SLOT = 8
_FEWEST_TASKS = 64
_TASKS_OF_UNKNOWN_SLOTS = 512
"""Tasks of a group: by the size of the cluster, and for a cluster of unknown size."""

_SHOWN_FAILURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of a task: pylance's `RewriteResult` as JSON, or the error of the task."""

    number: int
    rewrite: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A task of a plan. Picklable.

    Attributes:
        number: Position in the plan.
        task: pylance's task, as JSON.
    """

    snapshot: DatasetRef
    number: int
    task: str

    def run(self) -> Written:
        """Writes the new fragments. Runs on an executor.

        A task that runs twice writes its files twice, under different names.
        """
        try:
            with panics_as_errors():
                return Written(number=self.number, rewrite=self._rewrite())
        except (LanceSparkError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            return Written(number=self.number, error=plain(error))

    def _rewrite(self) -> str:
        dataset = self.snapshot.open()
        from lance.optimize import CompactionTask as LanceTask

        rewrite_json: str = LanceTask.from_json(self.task).execute(dataset).json()  # type: ignore[attr-defined]
        return rewrite_json


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompactionPlan:
    """The plan of a compaction of a version.

    Attributes:
        olds: The fragments of each task, by its number.
        defer_index_remap: Whether the remap of indexes is deferred.
    """

    basis: Basis
    tasks: tuple[CompactionTask, ...]
    olds: tuple[tuple[FragmentMetadata, ...], ...]
    defer_index_remap: bool

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """All fragments of the plan."""
        return [fragment for olds in self.olds for fragment in olds]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """The validated parameters of :meth:`lance_spark.Table.compact_files`.

    None means the value of the table's configuration (keys `lance.compaction.*`), or pylance's
    default.
    """

    target_rows_per_fragment: int | None = None
    max_bytes_per_file: int | None = None
    materialize_deletions: bool | None = None
    materialize_deletions_threshold: float | None = None
    defer_index_remap: bool | None = None
    batch_size: int | None = None
    concurrency: int | None = None
    commit_granularity: int | None = None
    commit_max_retries: int | None = None

    def __post_init__(self) -> None:
        for name in _LEAST_1:
            check_number(name, getattr(self, name), least=1)
        check_number("commit_max_retries", self.commit_max_retries, least=0)
        for name in ("materialize_deletions", "defer_index_remap"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise OptionError(name, value, "True or False")
        share = self.materialize_deletions_threshold
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1
        ):
            accepted = "the share of deleted rows from which on a fragment is written anew, 0 or more and below 1"
            raise OptionError("materialize_deletions_threshold", share, accepted)

    @property
    def plan_options(self) -> dict[str, object]:
        """The requested options of pylance's plan."""
        return {name: value for name in _PLAN_OPTIONS if (value := getattr(self, name)) is not None}


class _LostWorkError(CommitConflictError):
    """Concurrent commits outdated the work of some tasks."""


class CompactionJob:
    """A compaction. A single thread runs it. The constructor validates the request.

    Attributes:
        read_version: The first planned version.

    Raises:
        OptionError: The table has stable row ids, and the remap of indexes is deferred.
        UnsafeStoreError: The store ignores conditional puts.
    """

    def __init__(
        self,
        spark: SparkSession,
        ref: DatasetRef,
        request: CompactionRequest,
        *,
        job_id: str,
        progress: Progress,
    ) -> None:
        self._policy = CommitPolicy.of(request.commit_max_retries)
        refuse_unsafe_store(ref.uri, ref.storage, allow=self._policy.allow_unsafe)
        self._snapshot = ref.pin(None)
        if request.defer_index_remap and self._snapshot.open().has_stable_row_ids:
            accepted = "False where rows have stable ids, because most indexes of such a table need no change"
            raise OptionError("defer_index_remap", "True", accepted)
        self.read_version = self._snapshot.version or 0
        self._spark = spark
        self._ref = ref
        self._request = request
        self._job_id = job_id
        self._jobs = SparkJobs(
            spark, SparkJobTag.of(job_id, f"lance-spark: compaction of {ref.uri}")
        )
        self._progress = progress
        self._made: set[str] = set()
        self._versions: list[int] = []
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = dict.fromkeys(("plan", "write", "commit"), 0.0)
        self._failed: dict[int, str] = {}
        self._planned = 0
        self._await_start: Callable[[], None] = lambda: None
        self._began = time.monotonic()

    def snapshot(self) -> CompactionResult:
        """Returns the present result."""
        return CompactionResult(
            job_id=self._job_id,
            read_version=self.read_version,
            versions=tuple(self._versions),
            seconds={**self._seconds, "total": time.monotonic() - self._began},
            **self._counts,
        )

    def run(self) -> CompactionResult:
        """Runs the compaction to its end.

        Fragments changed by concurrent commits are planned and written again, up to
        `commit_max_retries` times.

        Raises:
            UpkeepIncompleteError: Some fragments cannot be rewritten. The other fragments are
                compacted.
            CommitError: A commit failed for another reason than a conflict.
        """
        plan = self._plan()
        self._planned = len(plan.fragments)
        if plan.tasks:
            with noted(
                self._ref, self._job_id, JOB_TYPE, read_version=self.read_version, done=self._done
            ) as self._await_start:
                self._run_shown(plan)
                if self._failed:
                    raise self._incomplete()
        result = self.snapshot()
        _LOG.info("compaction of %s: %s (job %s)", self._ref.uri, result.text, self._job_id)
        return result

    def _done(self) -> Done:
        return Done(
            versions=tuple(self._versions),
            fragments_total=self._planned,
            fragments_done=min(self._planned, self._counts["fragments_removed"]),
            seconds=self.snapshot().seconds,
        )

    def _run_shown(self, plan: _CompactionPlan) -> None:
        status = "FAILED"
        self._progress.start(sum(fragment.num_rows for fragment in plan.fragments), self._planned)
        try:
            self._rewrite_until_committed(plan)
            status = "DONE"
        finally:
            self._progress.close(status)

    def _rewrite_until_committed(self, plan: _CompactionPlan) -> None:
        """Rewrites fragments until no task lost its work, or the retries are used up."""

        def rewrite_once(_attempt: int) -> Outdated | None:
            nonlocal plan
            before = len(self._versions)
            lost = self._round(plan) if plan.tasks else 0
            if not lost:
                return None
            self._counts["retries"] += lost
            self._snapshot = self._ref.pin(None)
            plan = self._plan()
            error = _LostWorkError(
                f"{counted(lost, 'task')} lost work to concurrent commits.", uri=self._ref.uri
            )
            return Outdated(error=error, progress=len(self._versions) > before)

        try:
            evaluate_until_committed(
                rewrite_once, self._policy, subject=f"the compaction of {self._ref.uri}"
            )
        except _LostWorkError:
            self._counts["fragments_left"] = len(plan.fragments)

    def _plan(self) -> _CompactionPlan:
        """Plans the remaining fragments, without failed fragments and fragments of this job."""
        began = time.monotonic()
        dataset = self._snapshot.open()
        from lance.optimize import Compaction

        options = {**self._request.plan_options, "excluded_fragment_ids": sorted(self._failed)}
        try:
            planned = Compaction.plan(dataset, options).tasks  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            hint = "check the options, and the keys lance.compaction.* of the table's configuration"
            raise TableUnreadableError(
                self._ref.uri, f"no compaction can be planned: {plain(error)}", hint=hint
            ) from error
        texts, olds = list[str](), list[tuple["FragmentMetadata", ...]]()
        for task in planned:
            fragments = tuple(task.fragments)
            if not all(
                any(path_of(file) in self._made for file in fragment.files)
                for fragment in fragments
            ):
                texts.append(task.json())  # type: ignore[attr-defined]
                olds.append(fragments)
        self._seconds["plan"] += time.monotonic() - began
        return _CompactionPlan(
            basis=Basis.of(dataset),
            tasks=tuple(
                CompactionTask(snapshot=self._snapshot, number=n, task=text)
                for n, text in enumerate(texts)
            ),
            olds=tuple(olds),
            defer_index_remap=bool(texts)
            and bool(json.loads(texts[0])["options"]["defer_index_remap"]),
        )

    def _round(self, plan: _CompactionPlan) -> int:
        """Writes and commits a plan, and returns the number of tasks with lost work."""
        size = self._group_size()
        groups = [plan.tasks[at : at + size] for at in range(0, len(plan.tasks), size)]
        most = self._request.concurrency or len(plan.tasks)
        at_once = min(_JOBS_AT_ONCE, len(groups), most)
        lost, began = 0, time.monotonic()
        with ThreadPoolExecutor(at_once, thread_name_prefix="lance-spark-compaction") as pool:
            running = [pool.submit(self._write, group, max(1, most // at_once)) for group in groups]
            untaken = set(running)
            try:
                self._await_start()
                # In the order of the plan, because Lance orders fragments and rows by commits.
                for future in running:
                    parts, lost_fragments = self._take(plan, future.result())
                    untaken.discard(future)
                    lost += lost_fragments + self._commit(plan, parts)
            except BaseException:
                self._stop(plan, running, untaken)
                raise
            finally:
                self._seconds["write"] += time.monotonic() - began
        return lost

    def _write(self, group: Sequence[CompactionTask], at_once: int) -> list[Written]:
        """Runs tasks, at most `at_once` of them at the same time."""
        return [
            Written(number=result.task.number, error=result.error)
            if isinstance(result, LostTask)
            else result
            for result in self._jobs.run(group, Written, at_once=at_once)
        ]

    def _group_size(self) -> int:
        if self._request.commit_granularity is not None:
            return self._request.commit_granularity
        slots = known_slots(self._spark)
        return (
            _TASKS_OF_UNKNOWN_SLOTS
            if slots is None
            else max(_FEWEST_TASKS, slots * _TASKS_PER_SLOT)
        )

    def _take(
        self, plan: _CompactionPlan, results: Sequence[Written]
    ) -> tuple[list[Compacted], int]:
        """Returns the parts that tasks wrote, and the number of tasks without their version."""
        parts, failed = list[Compacted](), list[Written]()
        for result in sorted(results, key=lambda result: result.number):
            if result.rewrite is None:
                failed.append(result)
            else:
                parts.append(Compacted(olds=plan.olds[result.number], rewrite=result.rewrite))
        if failed and self._is_gone():
            return parts, len(failed)
        for result in failed:
            self._failed |= dict.fromkeys(
                (old.id for old in plan.olds[result.number]), result.error or ""
            )
        return parts, 0

    def _is_gone(self) -> bool:
        try:
            self._ref.pin(self._snapshot.version)
        except (VersionNotFoundError, TableUnreadableError):
            return True
        return False

    def _commit(self, plan: _CompactionPlan, parts: Sequence[Compacted]) -> int:
        """Commits parts, and returns the number of parts lost to concurrent commits."""
        began = time.monotonic()
        try:
            outcome = commit_compacted(
                self._ref,
                plan.basis,
                parts,
                missing=functools.partial(
                    missing_data_files, self._ref.uri, self._ref.storage_options
                ),
                defer_index_remap=plan.defer_index_remap,
                policy=self._policy,
            )
        except CommitError as error:
            if not isinstance(error, CommitOutcomeUnknownError):
                self._delete([name for part in parts for name in part.files])
            raise
        finally:
            self._seconds["commit"] += time.monotonic() - began
        for _, reason in outcome.lost:
            _LOG.info("fragments of %s are compacted once more: %s", self._ref.uri, reason)
        self._delete([name for part, _ in outcome.lost for name in part.files])
        if outcome.version is not None:
            self._versions.append(outcome.version)
        self._note(outcome.committed)
        return len(outcome.lost)

    def _note(self, parts: Sequence[Compacted]) -> None:
        for part in parts:
            self._made.update(part.files)
            self._counts.update(
                fragments_removed=len(part.olds),
                fragments_added=len(files_of_rewrite(part.rewrite)),
                files_removed=sum(len(old.files) for old in part.olds),
                files_added=len(part.files),
                rows=sum(old.num_rows for old in part.olds),
                deletions_removed=sum(old.num_deletions for old in part.olds),
            )
        removed_fragments = self._counts["fragments_removed"]
        self._progress.update(
            rows=self._counts["rows"], written=removed_fragments, committed=removed_fragments
        )

    def _stop(
        self,
        plan: _CompactionPlan,
        running: Sequence[Future[list[Written]]],
        untaken: Collection[Future[list[Written]]],
    ) -> None:
        """Ends all Spark jobs, and deletes their uncommitted files."""
        for future in running:
            future.cancel()
        while wait(running, timeout=0).not_done:
            self._jobs.stop()
            wait(running, timeout=CANCEL_INTERVAL_S)
        for future in untaken:
            if not future.cancelled() and future.exception() is None:
                self._delete(
                    [name for part in self._take(plan, future.result())[0] for name in part.files]
                )

    def _delete(self, names: Sequence[str]) -> None:
        delete_unnamed_files(self._snapshot, names)

    def _incomplete(self) -> UpkeepIncompleteError:
        result = self.snapshot()
        causes = [
            f"fragment {number}: {self._failed[number].rstrip('.')}"
            for number in sorted(self._failed)
        ]
        causes = causes[:_SHOWN_FAILURES]
        if len(self._failed) > _SHOWN_FAILURES:
            causes.append(f"and {counted(len(self._failed) - _SHOWN_FAILURES, 'more fragment')}")
        return UpkeepIncompleteError(
            f"The compaction is incomplete: {'; '.join(causes)}. Table: {self._ref.uri}, job {self._job_id}. The other "
            f"fragments are compacted: {result.text}. Compact again when the cause is gone.",
            result=result,
        )
