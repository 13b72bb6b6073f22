"""The column files of a task: their attempt, and checkpoints that point to finished files.

A checkpoint points to all files since the last checkpoint. A task over many small fragments writes
about one checkpoint per second.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait

from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome
from lance_spark.jobs.history import every
from lance_spark.locations import is_local
from lance_spark.staging.attempt import Attempt
from lance_spark.storage.parallel_calls import in_thread
from udf_runtime.checkpoint import ColumnFileReference

_LOG = logging.getLogger(__name__)

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

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Writes checkpoints while the block runs, and at its end."""
        try:
            with every(min(self._spec.flush_s, _INTERVAL_S) or _INTERVAL_S, self._try_to_save):
                yield
        finally:
            wait(self._begun)  # no marker is written after the task
            self._try_to_save()

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

    def add(self, outcome: RangeOutcome) -> None:
        """Adds the finished file of an outcome, if any.

        Raises:
            OSError: The checkpoint could not be written.
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
        if not self._spec.flush_s:
            self._save()

    def _save(self) -> None:
        with self._lock:
            references, self._references = self._references, {}
        if not references:
            return
        try:
            store_of(self._spec).write_references(
                self._spec.key, references, job_id=self._spec.job_id
            )
        except OSError:
            with self._lock:
                self._references = {**references, **self._references}
            raise

    def _try_to_save(self) -> None:
        try:
            self._save()
        except OSError as error:
            # The driver commits the files without a checkpoint, too.
            text = "a checkpoint of finished files of %s is not written yet: %s"
            _LOG.warning(text, self._spec.snapshot.uri, error)
