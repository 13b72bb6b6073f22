"""The jobs of a table: their records, the state of their drivers, and the errors of their rows.

If the store fails at the end of a job, this process keeps the end and writes it later. If the
process dies first, the job shows as DEAD.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    DamagedFileError,
    DamagedRecordWarning,
    JobNotFoundError,
    LanceSparkError,
    TableNotFoundError,
)
from lance_spark.jobs.records import JobRecord, progress_of
from lance_spark.jobs.results import ENDED
from lance_spark.jobs.row_errors import ErrorRecord
from lance_spark.jobs.tables import (
    ERRORS,
    JOBS,
    append_rows,
    quote_text,
    read_intact_rows,
    read_rows,
)
from lance_spark.jobs.web_ui import JobInWebUi
from lance_spark.metrics import record_job
from lance_spark.staging.area import is_id
from lance_spark.staging.processes import DriverProcess, has_ended, is_of_this_machine, this_owner
from lance_spark.storage.objects import objects_beside
from lance_spark.storage.parallel_calls import in_parallel
from lance_spark.stored_json import load_object
from udf_runtime.errors import end_sentence

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_RETRY_S = 10.0

_Write = Callable[[], None]
_IsNoted = Callable[[], bool]

_ends: dict[tuple[str, str], tuple[DatasetRef, Sequence[JobRecord], _Write, _IsNoted]] = {}
_lock = threading.Lock()


def write_or_keep(
    ref: DatasetRef, records: Sequence[JobRecord], write: _Write, is_noted: _IsNoted
) -> None:
    """Writes the end of a job now, or keeps the end and writes it later.

    Args:
        ref: The table.
        records: The ends of the job's inner jobs, and then the end of the job.
        write: Writes the records, and raises if the store fails.
        is_noted: Tells whether the table's history has the start of the job. A table that was
            dropped and created again under the same name has another history. A DONE job has just
            committed to the table, and writes without a check.
    """
    record = records[-1]
    try:
        if record.status == "DONE" or is_noted():
            write()
    except TableNotFoundError:
        _LOG.info(
            "Job %s has no end in a history, because its table %s was dropped",
            record.job_id,
            ref.uri,
        )
    except (OSError, LanceSparkError) as error:
        _LOG.warning(
            "The end of job %s of %s is written later, because the store failed: %s",
            record.job_id,
            ref.uri,
            error,
        )
        with _lock:
            is_first = not _ends
            _ends[ref.uri, record.job_id] = (ref, records, write, is_noted)
        if is_first:
            threading.Thread(target=_write_all, name="lance-spark-late-ends", daemon=True).start()


def kept_ends(uri: str, job_id: str | None = None) -> list[JobRecord]:
    """Returns the unwritten ends of a table's jobs, or of a single job, in this process."""
    with _lock:
        records = [record for (place, _), end in _ends.items() if place == uri for record in end[1]]
    return [record for record in records if job_id in (None, record.job_id)]


def _write_all() -> None:
    while True:
        time.sleep(_RETRY_S)
        with _lock:
            ends = dict(_ends)
        for key, end in ends.items():
            if _is_settled(*end):
                with _lock:
                    _ends.pop(key)
        with _lock:
            if not _ends:
                return


def _is_settled(
    ref: DatasetRef, records: Sequence[JobRecord], write: _Write, is_noted: _IsNoted
) -> bool:
    """Writes an end, and tells whether the end is settled.

    A table that was dropped, or dropped and created again, needs no end.
    """
    try:
        ref.open_latest()
        if is_noted():
            write()
    except TableNotFoundError:
        return True
    except Exception as error:  # noqa: BLE001 - the thread keeps the ends of other jobs
        _LOG.debug("The end of job %s could not be written again: %s", records[-1].job_id, error)
        return False
    return True


def _forget_ends() -> None:
    """Leaves the ends to the parent process after a fork. The thread runs in the parent."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()
    _ends.clear()


os.register_at_fork(after_in_child=_forget_ends)

HEARTBEAT_S = 10.0

_SHORT_S = 60.0
"""Maximum duration of a job whose end is appended to the version with its start: far below the age
of removed versions, because Lance compares the transactions of all versions in between."""

_DAMAGE = (ValueError, OverflowError, ArithmeticError)
"""Errors of invalid values in records, including times outside of Python's range."""

_MEASURED_ROWS = (
    "computed",
    "from_checkpoint",
    "skipped",
    "failed",
    "carried",
    "recomputed",
    "nulled",
)

_BLOCK_ROWS = 64
"""Rows that become Python values at once."""

_DEAD_AFTER_S = 90.0
"""Seconds without a heartbeat until the driver of another machine or container counts as dead."""


def this_process() -> str:
    """Returns the identity of this process as JSON, unique even if its number is reused."""
    return json.dumps(this_owner())


class JobHistory:
    """The history of a table.

    Runs on the driver; writes one small row per change of a job's status.

    Attributes:
        ref: The table.
        web_ui: The job of this history in the web UI of this process's Spark application.
        is_inner: Whether the job is part of another job of the table.
        inner_ends: Ends of inner jobs, for the next record.
        inner_beats: Ids of the files of ended inner jobs whose last heartbeat stays until then.
        starts: The time and the version of the last start of the job or of an inner job.
    """

    def __init__(self, ref: DatasetRef, *, outer: JobHistory | None = None) -> None:
        """Takes the table, and for an inner job the history of the outer job.

        The next record of the outer job, or of a further inner job, also writes the end of the
        inner job. If the driver dies before, the inner job shows as DEAD.
        """
        self.ref = ref
        self.web_ui = JobInWebUi(ref.uri)
        self.is_inner = outer is not None
        self._objects = objects_beside(ref)
        self.inner_ends: list[JobRecord] = [] if outer is None else outer.inner_ends
        self.inner_beats: list[str] = [] if outer is None else outer.inner_beats
        self.starts: list[tuple[float, lance.LanceDataset]] = [] if outer is None else outer.starts

    def save(self, record: JobRecord) -> None:
        """Writes the state of a job. If the store fails, the end of a job is written later.

        Raises:
            TableUnwritableError, TableUnreadableError: The store failed at the start of the job.
        """
        is_end = record.status in ENDED
        if is_end:
            _measure(record)
            self.web_ui.show(record)
        if is_end and self.is_inner:
            self.inner_ends.append(record)
            return
        records, beats = (*self.inner_ends, record), tuple(self.inner_beats)

        def write() -> None:
            rows = pa.Table.from_pylist([r.to_row() for r in records], schema=JOBS.schema)
            landed = append_rows(self.ref, JOBS, rows, recent=self._take_recent(record))
            if not is_end:
                self.starts[:] = [(time.monotonic(), landed)]
            for staging_id in beats:
                with contextlib.suppress(OSError, LanceSparkError):
                    self.clear(staging_id)

        if is_end:
            write_or_keep(self.ref, records, write, lambda: self._is_noted(record))
        else:
            write()
            self.web_ui.show(record)
        del self.inner_ends[: len(records) - 1]
        del self.inner_beats[: len(beats)]

    def _take_recent(self, record: JobRecord) -> lance.LanceDataset | None:
        """Returns the version with the start of a short job that is DONE, for one append.

        A job that is DONE has just committed to the table, so the table still exists.
        """
        for start_s, landed in self.starts:
            if record.status == "DONE" and time.monotonic() - start_s < _SHORT_S:
                self.starts.clear()
                return landed
        return None

    def _is_noted(self, record: JobRecord) -> bool:
        """Tells whether the history has a row of this run of the job; damage may hide the row."""
        rows, damaged = read_intact_rows(self.ref, JOBS, _filter_of(record.job_id))
        return bool(damaged) or record.staging_id in rows["staging_id"].to_pylist()

    def beat(self, staging_id: str, progress: object = None) -> None:
        """Writes a heartbeat with the counts of a running job, if its present result is given."""
        values = {**progress_of(progress), "at": time.time()}
        self._objects.put(f"jobs/{staging_id}/heartbeat", json.dumps(values).encode())

    @contextlib.contextmanager
    def beating(
        self, staging_id: str, progress: Callable[[], object], *, has_other_files: bool = False
    ) -> Iterator[None]:
        """Writes heartbeats while the block runs, and deletes them afterwards.

        The web UI has a thread of its own: it shows the job also while a heartbeat waits for the
        store.

        Args:
            staging_id: Id of the job's files.
            progress: Returns the present result of the job. Called in other threads.
            has_other_files: Whether other processes may write files next to the job's record.
        """
        values: object = None
        has_beaten = False

        def present() -> object:
            nonlocal values
            # The thread of the job changes the state at the same time. A job without heartbeats
            # counts as dead, so a heartbeat with earlier progress is better than none.
            with contextlib.suppress(Exception):
                values = progress()
            return values

        def beat() -> None:
            nonlocal has_beaten
            has_beaten = True
            try:
                self.beat(staging_id, present())
            except (
                OSError,
                ValueError,
                LanceSparkError,
            ) as error:  # any other error would end the thread
                _LOG.warning(
                    "a sign of life of a job of %s could not be given: %s", self.ref.uri, error
                )

        def show() -> None:
            try:
                self.web_ui.update(progress_of(present()))
            except Exception as error:  # noqa: BLE001 - an error would end the thread
                _LOG.warning("the web UI does not show a job of %s: %s", self.ref.uri, error)

        try:
            with (
                every(HEARTBEAT_S, show),
                every(HEARTBEAT_S, beat),
            ):
                yield
        finally:
            if has_beaten and self.is_inner:
                beat()  # the counts of the job, until the history has its end
                self.inner_beats.append(staging_id)
            elif has_beaten or has_other_files:
                with contextlib.suppress(OSError, LanceSparkError):
                    self.clear(staging_id)

    def clear(self, staging_id: str) -> None:
        """Deletes a running job's files next to its record.

        A writer of the table may forge a record. An id of another form has no files.
        """
        if not is_id(staging_id):
            _LOG.warning(
                "A job's record has no valid id of its files: %r. Table: %s.",
                staging_id,
                self.ref.uri,
            )
            return
        in_parallel(
            self._objects.uri, self._objects.delete, self._objects.list(f"jobs/{staging_id}")
        )
        self._objects.remove_leftovers(f"jobs/{staging_id}", older_than_s=0)

    def jobs(self, job_id: str | None = None, *, but: str | None = None) -> list[JobRecord]:
        """Returns jobs, newest first, with their present state. Skips damaged rows with a warning.

        Args:
            job_id: Only this job.
            but: A job to leave out.

        Raises:
            DamagedFileError: A file of the history is damaged, and jobs may be missing.
        """
        text = _filter_of(job_id) if but is None else f"job_id != {quote_text(but)}"
        return self._jobs(read_rows(self.ref, JOBS, text), job_id)

    def intact_jobs(self, filter: str) -> list[JobRecord]:
        """Returns the readable jobs that match a filter, in their present state.

        Warns of damaged files. All rows of a job have to match the filter, or none.
        """
        return self._jobs(self._intact_rows(filter))

    def unfinished_jobs(self, filter: str) -> list[JobRecord]:
        """Returns the unfinished jobs since the last DONE job, as :meth:`intact_jobs` does.

        A job is earlier by its first row and by its clock. The history has its rows in the
        order of commits, but a rewrite of the last rows may move a row behind a concurrent start,
        and the clocks of drivers may differ.
        """
        rows = self._intact_rows(filter)
        runs, statuses = rows["staging_id"].to_pylist(), rows["status"].to_pylist()
        starts = {run: number for number, run in reversed([*enumerate(runs)])}
        late = {record.staging_id for record in kept_ends(self.ref.uri) if record.status == "DONE"}
        ended = {
            starts[run]: number
            for number, (run, status) in enumerate(zip(runs, statuses, strict=True))
            if status == "DONE" or run in late
        }
        for start in sorted(ended, reverse=True):
            # A damaged row tells nothing about earlier jobs.
            last = next(self._records(rows.slice(ended[start], 1)), None)
            if last is not None:
                # Arrow compares the times, because Python has no value for a damaged time.
                launched = rows["launched_at"]
                later = pc.greater(launched, pa.scalar(last.launched_at, launched.type))
                launched_later = later.fill_null(False).to_pylist()
                is_later = [starts[run] > start or launched_later[starts[run]] for run in runs]
                rows = rows.filter(pa.array(is_later, pa.bool_()))
                break
        return [record for record in self._jobs(rows) if record.status != "DONE"]

    def _intact_rows(self, filter: str) -> pa.Table:
        rows, damaged = read_intact_rows(self.ref, JOBS, filter)
        for file in damaged:
            _warn(
                self.ref,
                f"jobs of the damaged file {JOBS.name}/{file.path} are not known: {file.reason}",
            )
        return rows

    def _jobs(self, rows: pa.Table, job_id: str | None = None) -> list[JobRecord]:
        latest: dict[str, JobRecord] = {}
        runs = set(rows["staging_id"].to_pylist())
        late = (record for record in kept_ends(self.ref.uri, job_id) if record.staging_id in runs)
        for record in (*self._records(rows), *late):
            newest = latest.get(record.job_id)
            if newest is None or _order(record) > _order(newest):
                latest[record.job_id] = record
        running = [record for record in latest.values() if record.status not in ENDED]
        latest |= {
            record.job_id: record
            for record in in_parallel(self._objects.uri, self._with_life, running)
        }
        return sorted(latest.values(), key=lambda record: record.launched_at, reverse=True)

    def _records(self, rows: pa.Table) -> Iterator[JobRecord]:
        for start in range(0, rows.num_rows, _BLOCK_ROWS):
            block = rows.slice(start, _BLOCK_ROWS)
            try:
                values = block.to_pylist()
            except _DAMAGE:
                values = None  # then row by row
            for number in range(block.num_rows):
                try:
                    yield JobRecord.from_row(
                        values[number] if values else block.slice(number, 1).to_pylist()[0]
                    )
                except _DAMAGE as error:
                    _warn(
                        self.ref,
                        f"row {start + number} of {JOBS.name} is damaged and skipped: {error}",
                    )

    def first_versions(self) -> dict[str, int]:
        """Returns the earliest version read by any run of each job.

        Skips damaged files and rows. A job resumed under its id has several runs.
        """
        first: dict[str, int] = {}
        rows, _ = read_intact_rows(self.ref, JOBS)
        for job_id, version in zip(
            rows["job_id"].to_pylist(), rows["read_version"].to_pylist(), strict=True
        ):
            if job_id is not None and version is not None:
                first[job_id] = min(version, first.get(job_id, version))
        return first

    def job(self, job_id: str) -> JobRecord:
        """Returns the record of a job.

        Raises:
            JobNotFoundError: The history lacks the job.
        """
        records = self.jobs(job_id)
        if not records:
            raise JobNotFoundError(job_id, self.ref.uri)
        return records[0]

    def errors(
        self,
        job_id: str | None = None,
        column: str | None = None,
        error_type: str | None = None,
        *,
        most: int | None = None,
    ) -> list[ErrorRecord]:
        """Returns error records, oldest first. A task that ran twice leaves each record once.

        Args:
            job_id: Only errors of this job.
            column: Only errors of this column.
            error_type: Only errors of this exception, by its name with or without its module.
            most: Maximum number of stored records to read; by default all.

        Raises:
            DamagedFileError: A file or a row is damaged, and errors may be missing.
        """
        filters = []
        if job_id is not None:
            filters.append(f"job_id = {quote_text(job_id)}")
        if error_type is not None:
            error_type = error_type.removeprefix(
                "builtins."
            )  # records of built-in errors have no module
            filters.append(
                f"(error_type = {quote_text(error_type)} OR ends_with(error_type, {quote_text('.' + error_type)}))"
            )
        if column is not None:
            filters.append(f"array_has(columns, {quote_text(column)})")
        rows = read_rows(self.ref, ERRORS, " AND ".join(filters) or None, most=most)
        try:
            unique = {
                record.error_id: record for record in map(ErrorRecord.from_row, rows.to_pylist())
            }
        except _DAMAGE as error:
            raise DamagedFileError(
                self.ref.uri, [ERRORS.name], f"a row is damaged: {error}"
            ) from error
        return sorted(
            unique.values(), key=lambda record: (record.timestamp, record.row_address or 0)
        )

    def _with_life(self, record: JobRecord) -> JobRecord:
        """Returns the record of a job without an end, with the counts of its last heartbeat."""
        record = self._with_progress(record)
        if self._is_alive(record):
            return record
        return dataclasses.replace(
            record, status="DEAD", message=record.message or "its driver is gone"
        )

    def _with_progress(self, record: JobRecord) -> JobRecord:
        payload = self._objects.get(f"jobs/{record.staging_id}/heartbeat")
        try:
            values = load_object(payload or b"{}", {"at": (int, float)})
            return record.with_progress(values, datetime.fromtimestamp(values["at"], UTC))
        except (
            ValueError,
            OverflowError,
            OSError,
        ):  # no heartbeat, a damaged one, or no time of the calendar
            return record

    @staticmethod
    def _is_alive(record: JobRecord) -> bool:
        if is_of_this_machine(dataclasses.asdict(record.driver)):
            return not is_gone(record.driver)
        return time.time() - record.updated_at.timestamp() < _DEAD_AFTER_S


def is_gone(process: DriverProcess) -> bool:
    """Tells whether a process of this machine, boot and container has certainly ended."""
    return has_ended(dataclasses.asdict(process))


def _measure(record: JobRecord) -> None:
    end = record.completed_at or record.updated_at
    rows = {name: getattr(record, f"rows_{name}") for name in _MEASURED_ROWS}
    record_job(
        record.job_type,
        record.status,
        seconds=(end - record.launched_at).total_seconds(),
        rows=rows,
        retries=record.retries,
        fragments=record.fragments_done,
    )


def _filter_of(job_id: str | None) -> str | None:
    return None if job_id is None else f"job_id = {quote_text(job_id)}"


def _warn(ref: DatasetRef, text: str) -> None:
    warnings.warn(
        f"In the job history of {ref.uri}, {end_sentence(text)} Run `lance-spark check {ref.uri} --repair`.",
        DamagedRecordWarning,
        stacklevel=4,
    )


def _order(record: JobRecord) -> tuple[Any, ...]:
    return (record.launched_at, record.status in ENDED, record.updated_at)


@contextlib.contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Calls a function every few seconds, in a thread, while the block runs."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, name="lance-spark-every", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
