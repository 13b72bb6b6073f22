"""The column files of a task: their attempt, and checkpoints that point to finished files.

A checkpoint points to all files since the last checkpoint. A task over many small fragments writes
about one checkpoint per second. The checkpoint also reports the outcomes of the files to the
driver, because Spark returns no answer before the last task of its job has ended, maybe hours
later.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait

from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome
from lance_spark.jobs.history import every
from lance_spark.locations import is_local
from lance_spark.spark_jobs.codec import decode, encode
from lance_spark.staging.attempt import Attempt
from lance_spark.storage.parallel_calls import in_parallel, in_thread
from udf_runtime.checkpoint import CheckpointEntry, ColumnFileReference, JsonValue

_LOG = logging.getLogger(__name__)

ROUND, OUTCOMES = "round", "outcomes"
"""Fields of a report: the round of the outcomes, and the outcomes as JSON text."""

_INTERVAL_S = 1.0
"""Maximum seconds of a finished file without a checkpoint, if the job flushes no more often."""


class TaskFiles:
    """The attempt of a task, and its files without a checkpoint. Works from any thread."""

    def __init__(self, spec: BackfillSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._begun: list[Future[Attempt]] = []
        self._references: dict[str, ColumnFileReference] = {}
        self._outcomes: list[RangeOutcome] = []

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Writes checkpoints while the block runs, and at its end."""
        try:
            with every(min(self._spec.flush_s, _INTERVAL_S) or _INTERVAL_S, self._save):
                yield
        finally:
            wait(self._begun)  # no marker is written after the task
            self._save()

    def begin(self) -> None:
        """Begins the attempt while the task opens its version and reads its first rows.

        The call of the first file raises the error of an attempt.
        """
        if not is_local(self._spec.staging.uri):
            self._begun.append(in_thread(self.attempt))

    def attempt(self) -> Attempt:
        """Returns the attempt for the next file.

        Raises:
            CommitError: The job has ended already.
        """
        with self._lock:
            self._attempt = self._attempt or self._spec.staging.begin_attempt()
            return self._attempt

    def end_attempt(self) -> None:
        """Makes the next file begin another attempt, after a discarded file.

        Leftovers of an attempt are found by counting up its files.
        """
        with self._lock:
            self._attempt = None

    def add(self, outcome: RangeOutcome, *, reports: bool) -> None:
        """Adds the finished file of an outcome, if any. Reports the outcome if the file `reports`.

        The driver also commits a file without a checkpoint.
        """
        if outcome.file is None:
            return
        reference = ColumnFileReference(
            data_file=outcome.file,
            size_bytes=outcome.file_bytes,
            rows=dict(outcome.rows.to_json()),
            context={"fragment": outcome.fragment_id, "version": self._spec.snapshot.version},
        )
        with self._lock:
            self._references[outcome.source] = reference
            self._outcomes += [outcome] if reports else []
        if not self._spec.flush_s:
            self._save()

    def _save(self) -> None:
        spec = self._spec
        with self._lock:
            references, self._references = self._references, {}
            outcomes, self._outcomes = self._outcomes, []
        if not references:
            return
        report: dict[str, JsonValue] = {ROUND: spec.round_id, OUTCOMES: encode(outcomes)}
        try:
            store_of(spec).write_references(spec.key, references, job_id=spec.job_id, report=report)
        except OSError as error:
            with self._lock:
                self._references = {**references, **self._references}
                self._outcomes = [*outcomes, *self._outcomes]
            text = "a checkpoint of finished files of %s is not written yet: %s"
            _LOG.warning(text, spec.snapshot.uri, error)


def read_reported(
    spec: BackfillSpec, checkpoints: Sequence[CheckpointEntry]
) -> Iterator[RangeOutcome]:
    """Yields the outcomes that checkpoints of files report to the driver of a round.

    A damaged report counts as none. The Spark job returns its outcomes, too.

    Raises:
        OSError: The store failed.
    """
    store = store_of(spec)
    reports = in_parallel(
        spec.home.uri, lambda entry: store.read_report(entry, spec.key), checkpoints
    )
    for report in reports:
        if report.get(ROUND) == spec.round_id:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                yield from decode(list[RangeOutcome], str(report[OUTCOMES]))
