"""An attempt of a task, with its data files: :class:`Attempt`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from lance_spark.errors import CommitError, LanceSparkError
from lance_spark.locations import is_local
from lance_spark.staging.data_file import StagedFile
from lance_spark.staging.data_files import delete_data_files

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_spark.staging.area import Staging

MARKER = "attempt"
"""Name of an attempt's marker in its folder."""


class LateAttemptError(CommitError):
    """A task attempt finished after the end of its job, like a speculative copy."""

    @staticmethod
    def of(job_id: str, uri: str) -> LateAttemptError:
        """Returns the error of an attempt of a job of a table."""
        return LateAttemptError(
            f"This task attempt came too late, because its job has ended. Job: {job_id}. Table: {uri}. If another "
            "attempt of the task succeeded, as with speculative tasks, no action is needed. If every task reports this "
            "error, the table was deleted, or executors do not share the driver's files. Write to a location that all "
            "machines share.",
            uri=uri,
        )


class Attempt:
    """An attempt of a task; file names begin with its id. Belongs to the task's process."""

    def __init__(self, staging: Staging, attempt_id: str) -> None:
        self.staging = staging
        self.id = attempt_id
        self._data_files = 0
        self._unconfirmed: list[str] = []
        self._run_files = 0
        self._checking = threading.Lock()
        self._checks = 0
        self._was_open: bool | None = None
        self._checked_until = 0.0 if staging.has_markers else time.monotonic() + staging.check_s

    @property
    def folder(self) -> str:
        """Folder of the attempt, relative to the table."""
        return f"{self.staging.folder}/{self.id}"

    @property
    def marker(self) -> str:
        """Path of the marker, relative to the table."""
        return f"{self.folder}/{MARKER}"

    def open_data_file(self, schema: pa.Schema, *, version: str) -> StagedFile:
        """Opens the attempt's next data file, for rows of a schema and in a format such as `2.2`.

        At most `open_files` files of the staging area are open at once. Open no file after a
        discarded file: leftovers are found by counting up.
        """
        name = f"{self.id}-{self._data_files}.lance"
        self._data_files += 1
        self._unconfirmed.append(name)
        return StagedFile(self, name, schema, version=version)

    def next_run_file(self) -> str:
        """Returns the path, relative to the table, of a new file in the attempt's folder."""
        self._run_files += 1
        return f"{self.folder}/run-{self._run_files - 1}"

    def confirm(self, name: str) -> None:
        """Leaves a finished file to the end of the job, which may commit the file.

        Call this method after :meth:`clear_if_over` has found a running job. Without a marker, the
        files of a pipelined job wait for :meth:`end`.
        """
        if self.staging.has_markers or not self.staging.check_s:
            self._unconfirmed.remove(name)

    def end(self) -> bool:
        """Deletes the attempt's files if its job has ended, and tells whether the job has ended.

        Call this method after the last file, and after an error.
        """
        if not self._unconfirmed:
            return False
        self._checked_until = 0.0
        return self.clear_if_over()

    def abandon(self) -> None:
        """Deletes all files of an attempt that failed, and its marker.

        The end of the job then waits for no file of the attempt. A failed deletion is left to the
        end of the job.
        """
        if not self.end():
            with contextlib.suppress(OSError, LanceSparkError):
                self.staging.delete_attempt(
                    self.id, [f"{self.id}-{i}.lance" for i in range(self._data_files)]
                )

    def clear_if_over(self) -> bool:
        """Deletes the attempt's files if its job has ended, and tells whether the job has ended.

        Confirmed files stay: the job may have committed them. Call this method after the last
        change, and after an error.
        """
        staging = self.staging
        # The end of a job deletes `open` before any marker.
        if time.monotonic() < self._checked_until or self._is_open():
            return False
        # Only this attempt's files: at the end of the job, files of other attempts are found by
        # their markers.
        if len(self._unconfirmed) == self._data_files:
            staging.delete_attempt(self.id, self._unconfirmed)
        else:
            # The marker was there while the job ran, and leads the end of the job to other files.
            delete_data_files(staging.uri, staging.storage_options, self._unconfirmed)
            for path in staging.objects.list_files(self.folder):
                if path != self.marker:
                    staging.objects.delete(path)
            if is_local(staging.uri):
                # Empty after the end of the job, which has deleted the marker.
                remove_if_empty(os.path.join(staging.uri, self.folder))
                remove_if_empty(os.path.join(staging.uri, staging.folder))
        staging.remove_empty_folders()
        return True

    def _is_open(self) -> bool:
        """Tells whether the job is running. Threads that ask during a request share the next."""
        checks = self._checks
        with self._checking:
            if self._checks == checks or self._was_open is None:
                self._checks, self._was_open = self._checks + 1, None
                began = time.monotonic()
                self._was_open = self.staging.is_open()
                # Counted from before the request: the store may have answered at once.
                self._checked_until = began + self.staging.check_s if self._was_open else 0.0
            return self._was_open

    def too_late(self) -> LateAttemptError:
        """Returns the error of an attempt whose job ended before the attempt finished."""
        return LateAttemptError.of(self.staging.job_id, self.staging.uri)


def remove_if_empty(folder: str) -> bool:
    """Deletes a folder of a local file system if the folder is empty, and tells whether."""
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
