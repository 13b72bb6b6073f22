"""The record of a running job in the history of its table: :class:`RecordWriter`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import UTC, datetime

from lance_spark.backfill.driver.checkpoint_upkeep import remove_expired
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome
from lance_spark.commit.attempt import this_user
from lance_spark.errors import LanceSparkError
from lance_spark.jobs.history import JobHistory, this_process
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.jobs.row_errors import RowError
from lance_spark.locations import is_local
from lance_spark.storage.parallel_calls import in_thread

_LOG = logging.getLogger(__name__)


class RecordWriter:
    """Writes the start, the heartbeats and the end of a job into the history of its table."""

    def __init__(
        self,
        spec: BackfillSpec,
        job_type: str,
        progress: Callable[[], BackfillJobResult],
        *,
        is_saved: bool,
        outer: JobHistory | None = None,
    ) -> None:
        self._spec = spec
        self._progress = progress
        self._job_type = job_type
        self._is_saved = is_saved
        self._history = JobHistory(spec.snapshot, outer=outer)
        self._saving: Future[None] | None = None
        self._beats = contextlib.ExitStack()

    def begin(self, running: BackfillJobResult) -> None:
        """Begins the heartbeats, and the save of the job's start, concurrent with the tasks.

        A resumed job of a filter takes its checkpoints from the history. The history of such a job
        therefore has the start before the first call.
        """
        snapshot = self._spec.snapshot

        def save() -> None:
            self.save(running)
            if not self._history.is_inner:
                remove_expired(snapshot.open())

        if self._spec.where is not None or is_local(snapshot.uri):
            save()
        else:
            self._saving = in_thread(save)
        if self._is_saved:
            self._beats.enter_context(self._beating())

    def _beating(self) -> contextlib.AbstractContextManager[None]:
        return self._history.beating(
            self._spec.staging.job_id, self._progress, has_other_files=True
        )

    def await_start(self) -> None:
        """Waits until the history has the start of the job. A job calls this before each commit.

        Raises:
            TableUnwritableError, TableUnreadableError: The store failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def save(self, result: BackfillJobResult, message: str | None = None) -> None:
        """Writes the state of the job into the history."""
        if not self._is_saved:
            return
        record = JobRecord.of(
            result,
            job_type=self._job_type,
            key=self._spec.key.digest,
            staging_id=self._spec.staging.job_id,
            updated_at=result.completed_at or datetime.now(UTC),
            launched_by=this_user(),
            process=this_process(),
            message=message,
        )
        self._history.save(record)

    def note_errors(self, outcome: RangeOutcome, version: int | None) -> None:
        """Notes the first errors of a range of a version for the web UI."""
        if outcome.error is not None and not outcome.row_errors:
            self.note_failures([outcome], outcome.error_type or "", version)
        self._history.web_ui.note_errors(outcome.row_errors)

    def note_failures(
        self, ranges: Iterable[FragmentWork | RangeOutcome], error_type: str, version: int | None
    ) -> None:
        """Notes the failed ranges of a version for the web UI."""
        self._history.web_ui.note_errors(
            RowError(
                fragment_id=part.fragment_id,
                row_address=None,
                table_version=version or 0,
                outcome="failed",
                error_type=error_type,
            )
            for part in ranges
        )

    def check_start(self) -> None:
        """Looks for a failure of the save of the start, without a wait.

        Raises:
            TableUnwritableError, TableUnreadableError: The start of the job could not be saved.
        """
        if self._saving is not None and self._saving.done():
            self.await_start()

    def stop_beats(self) -> None:
        """Ends the heartbeats, and removes their file."""
        self._beats.close()

    def end(self, result: BackfillJobResult, message: str | None) -> None:
        """Writes the end of the job, after its last heartbeat.

        Raises:
            TableUnwritableError, TableUnreadableError: The store failed.
        """
        self.stop_beats()
        self.save(result, message)

    def warn_if_it_fails(self, act: Callable[[], None]) -> None:
        """Runs a function. Its failure must not fail a job with committed values."""
        try:
            act()
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "the history of %s could not be written: %s", self._spec.snapshot.uri, error
            )
