"""Ends of jobs with a failed store: this process keeps each end, and writes the end later.

If the process ends first, the job shows as DEAD.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, TableNotFoundError
from lance_spark.jobs.model import JobRecord

_LOG = logging.getLogger(__name__)

_RETRY_S = 10.0

_Write = Callable[[], None]
_IsNoted = Callable[[], bool]

_ends: dict[tuple[str, str], tuple[DatasetRef, JobRecord, _Write, _IsNoted]] = {}
_lock = threading.Lock()


def write_or_keep(ref: DatasetRef, record: JobRecord, write: _Write, is_noted: _IsNoted) -> None:
    """Writes the end of a job now, or keeps the end and writes it later.

    Args:
        ref: The table.
        record: The end of the job.
        write: Writes the record, and raises if the store fails.
        is_noted: Tells whether the table's history has the start of the job. A table that was
            dropped and created again under the same name has another history. A DONE job has just
            committed to the table, and writes without a check.
    """
    try:
        if record.status == "DONE" or is_noted():
            write()
    except TableNotFoundError:
        _LOG.info("Job %s has no end in a history, because its table %s was dropped", record.job_id, ref.uri)
    except (OSError, LanceSparkError) as error:
        _LOG.warning(
            "The end of job %s of %s is written later, because the store failed: %s", record.job_id, ref.uri, error
        )
        with _lock:
            is_first = not _ends
            _ends[ref.uri, record.job_id] = (ref, record, write, is_noted)
        if is_first:
            threading.Thread(target=_write_all, name="lance-spark-late-ends", daemon=True).start()


def kept_ends(uri: str, job_id: str | None = None) -> list[JobRecord]:
    """Returns the unwritten ends of a table's jobs, or of a single job, in this process."""
    with _lock:
        return [end[1] for (place, job), end in _ends.items() if place == uri and job_id in (None, job)]


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


def _is_settled(ref: DatasetRef, record: JobRecord, write: _Write, is_noted: _IsNoted) -> bool:
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
        _LOG.debug("The end of job %s could not be written again: %s", record.job_id, error)
        return False
    return True


def _forget_ends() -> None:
    """Leaves the ends to the parent process after a fork. The thread runs in the parent."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()
    _ends.clear()


os.register_at_fork(after_in_child=_forget_ends)
