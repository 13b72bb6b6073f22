"""Where tasks put files before a commit, so that each can be found and deleted again.

Spark tells a data source nothing about an attempt that it retries, kills, or ran twice: `abort` is
called for a failed job only. So an attempt leaves a marker in the table's own directory before it
makes anything else, and names its files after itself:

    _lance_spark/staging/<job>/open                          there from before the first task until
    the job is over _lance_spark/staging/<job>/committing                    there from before the
    first try to commit _lance_spark/staging/<job>/<attempt>/attempt             the marker
    _lance_spark/staging/<job>/<attempt>/...                 files that are not finished, and sorted
    runs data/<attempt>-<n>.lance                                 finished data files, n = 0, 1, ...
    data/<attempt>-<n>/*.blob                                their blob sidecars, where Lance puts
    them

The names of the files follow from the marker, so nothing has to be written down in time. Lance
ignores the folder, and its own `cleanup_old_versions` leaves it alone.

Spark ends a job while other tasks of it still run, and starts some that late that the job is over
before they begin. The process that ends the job deletes `open` before anything else; an attempt
looks for it when it begins and after it has finished a file, and where it is gone deletes what it
made. So nothing is left, whichever comes first.

On a local file system Lance writes into a temporary file of a random name beside the final one, and
a killed process leaves it there. Therefore files are written in the attempt's folder and renamed
into `data/` when they are finished. An object store shows an object only when it is complete, so
there files are written in place.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from lance_spark.dataset import is_local
from lance_spark.errors import CommitError, TableUnwritableError, refusals_as_errors
from lance_spark.objects import LanceObjects, open_session
from lance_spark.staging.folders import STAGING, prune_folders, remove_empty_folders, remove_if_empty

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.blob import DedicatedBlobWriter, PackedBlobWriter
    from lance.file import LanceFileSession, LanceFileWriter

logger = logging.getLogger(__name__)

_S = TypeVar("_S")
_T = TypeVar("_T")

_MARKER = "attempt"
_OPEN = "open"
_COMMITTING = "committing"
_ID_LENGTH = 40
_PARALLEL_REQUESTS = 16
_PROBED_ATTEMPTS = 1000
"""From this many attempts on, all of `data/` is listed instead of asking for the files of each: a
listing brings 1,000 names a request."""

_CACHE_BYTES_PER_COLUMN = 8 << 20
_CACHE_BYTES = 256 << 20
"""Lance keeps 8 MiB of unwritten values per column: 8 GiB for a table of a thousand. From 32
columns on they share this much."""


def new_id() -> str:
    """Returns a fresh id for a job or an attempt.

    32 random hexadecimal digits, then 8 of the time in seconds.

    The random part comes first because object stores spread their load by the first characters of a
    name.
    """
    return f"{uuid.uuid4().hex}{int(time.time()):08x}"


def made_at(identifier: str) -> datetime:
    """Returns when an id of :func:`new_id` was made, by the clock of the machine that made it."""
    return datetime.fromtimestamp(int(identifier[32:_ID_LENGTH], 16), UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The files of one job.

    A picklable value: made on the driver, used by tasks and by the committing process.

    Attributes:
        uri: Location of the table.
        storage_options: Options of the object store.
        job_id: Id of the job, of :func:`new_id`.
        made_folder: Topmost folder that the job makes on a local file system, to be taken away
            again if it fails.
    """

    uri: str
    storage_options: tuple[tuple[str, str], ...] = ()
    job_id: str
    made_folder: str | None = None

    @property
    def session(self) -> LanceFileSession:
        """The file session of this process."""
        return open_session(self.uri, self.storage_options)

    @property
    def folder(self) -> str:
        """Folder of the job, relative to the table."""
        return f"{STAGING}/{self.job_id}"

    def open_job(self) -> None:
        """Makes the job's own marker.

        Runs on the driver, after everything else was checked and before the first task.

        Raises:
            TableUnwritableError: The store refused.
        """
        self._mark(f"{self.folder}/{_OPEN}")

    def is_open(self) -> bool:
        """Tells whether the job is still under way."""
        return self.session.contains(f"{self.folder}/{_OPEN}")

    def begin_attempt(self) -> Attempt:
        """Makes the marker of a new attempt.

        Runs in a task, before it makes any file; a task without rows needs none.

        Raises:
            CommitError: The job is over already; Spark starts a task that late where another one
                fails or is quicker.
            TableUnwritableError: The store refused.
        """
        attempt = Attempt(self, new_id())
        with refusals_as_errors(self.uri):
            if not self.is_open():
                raise _job_is_over(self)
            self._mark(attempt.marker)
            if attempt.clear_if_over():
                raise _job_is_over(self)
        return attempt

    def sweep(self, keep: Collection[str] = ()) -> int:
        """Deletes every uncommitted file of the job's attempts, then the markers, at its end.

        An attempt that is still running, a killed speculative one for example, notices on closing
        its file that the job is over and deletes that file itself.

        Args:
            keep: Names in `data/` of the files that were committed.

        Returns:
            How many data files were deleted.
        """
        session = self.session
        if not session.list(self.folder):
            prune_folders(self.uri, self.folder)
            return 0
        # First of all: from here on no attempt begins, and a running one that finishes a file
        # deletes it.
        _delete(session, f"{self.folder}/{_OPEN}")
        attempts, private = self._contents()
        _in_parallel(functools.partial(_delete, session), private)
        leftovers = [name for name in _find_data_files(session, attempts) if name not in keep]
        _in_parallel(functools.partial(_delete_data_files, self.uri, session), _by_attempt(leftovers))
        _in_parallel(
            functools.partial(_delete, session), [f"{self.folder}/{attempt}/{_MARKER}" for attempt in attempts]
        )
        _delete(session, f"{self.folder}/{_COMMITTING}")
        prune_folders(self.uri, self.folder)
        if leftovers:
            logger.info("deleted %s uncommitted data files of job %s in %s", len(leftovers), self.job_id, self.uri)
        return len(leftovers)

    def begin_commit(self) -> None:
        """Notes that a commit is about to be tried.

        From here on only who knows its outcome may delete files.

        Raises:
            CommitError: The job has ended: Spark aborted it, or the table was deleted or cleaned
                up.
            TableUnwritableError: The store refused.
        """
        with refusals_as_errors(self.uri):
            self._mark(f"{self.folder}/{_COMMITTING}")
            # In this order: an abort closes the job before it looks for the marker, so one of the
            # two sees the other.
            self.check_open()

    def check_open(self) -> None:
        """Looks whether the job may still commit.

        Raises:
            CommitError: It has ended.
        """
        if not self.is_open():
            raise CommitError(
                "the job has ended before its commit: it was aborted, or what it wrote is not there any more because "
                f"the table was deleted or made anew, or cleaned up - at {self.uri}, job {self.job_id} - nothing was "
                "committed; read the table and write again",
                uri=self.uri,
            )

    def has_begun_commit(self) -> bool:
        """Tells whether a commit of this job has begun, in whatever process."""
        return self.session.contains(f"{self.folder}/{_COMMITTING}")

    def close_job(self) -> bool:
        """Ends the job: from here on no attempt begins and no commit.

        Runs on the driver, in another process than the commit.

        A commit that began and whose process is dead is over on a local file system. On an object
        store its last request may still be on its way.

        Returns:
            Whether a commit has begun that may still make a version.
        """
        _delete(self.session, f"{self.folder}/{_OPEN}")
        marker = LanceObjects(self.uri, self.storage_options).get(f"{self.folder}/{_COMMITTING}")
        if marker is None:
            return False
        if not is_local(self.uri):
            return True
        by = json.loads(marker)
        return by["host"] != socket.gethostname() or is_running(by["pid"])

    def find_data_files(self) -> list[str]:
        """Returns the names in `data/` of all data files of the job, also where only sidecars are."""
        return _find_data_files(self.session, self._contents()[0])

    def _mark(self, path: str) -> None:
        """Makes a marker, which says what process made it."""
        by = {"host": socket.gethostname(), "pid": os.getpid()}
        LanceObjects(self.uri, self.storage_options).put(path, json.dumps(by).encode())

    def _contents(self) -> tuple[set[str], list[str]]:
        """Returns the ids of the attempts, and the paths of their private files."""
        attempts, private = set(), []
        for path in self.session.list(self.folder):
            first, slash, rest = path.removeprefix(f"{self.folder}/").partition("/")
            if slash:
                attempts.add(first)
            if slash and rest != _MARKER:
                private.append(path)
        return attempts, private


class Attempt:
    """One attempt of one task: names its files.

    Lives in the task's process; open one file at a time.

    Attributes:
        staging: The job's staging.
        id: Id of the attempt; begins the names of all of its files.
    """

    def __init__(self, staging: Staging, attempt_id: str) -> None:
        self.staging = staging
        self.id = attempt_id
        self._data_files = 0
        self._run_files = 0

    @property
    def folder(self) -> str:
        """Folder of the attempt, relative to the table."""
        return f"{self.staging.folder}/{self.id}"

    @property
    def marker(self) -> str:
        """Path of the marker, relative to the table."""
        return f"{self.folder}/{_MARKER}"

    def open_data_file(self, schema: pa.Schema, *, version: str | None) -> StagedFile:
        """Opens the attempt's next data file.

        Close it before you open another one: leftovers are found by counting up.

        Args:
            schema: Arrow schema of the file's columns.
            version: Lance file format, such as `2.2`; None is pylance's default.
        """
        name = f"{self.id}-{self._data_files}.lance"
        self._data_files += 1
        return StagedFile(self, name, schema, version=version)

    def next_run_file(self) -> str:
        """Returns the path, relative to the table, of a new private file.

        :meth:`Staging.sweep` deletes it.
        """
        self._run_files += 1
        return f"{self.folder}/run-{self._run_files - 1}"

    def is_live(self) -> bool:
        """Tells whether the job still waits for this attempt."""
        return self.staging.session.contains(self.marker) and self.staging.is_open()

    def clear_if_over(self) -> bool:
        """Deletes all that the attempt made, if its job has ended without it.

        Call it after the last change, and after an error.

        Returns:
            Whether the job is over.
        """
        if self.is_live():
            return False
        uri, session = self.staging.uri, self.staging.session
        for number in reversed(range(self._data_files)):
            _delete_data_file(uri, session, f"{self.id}-{number}.lance")
        for path in session.list(self.folder):
            _delete(session, path)
        # Its own folder alone: the process that ends the job finds the files of the other attempts
        # by their markers.
        prune_folders(uri, self.folder)
        remove_empty_folders(uri, made=self.staging.made_folder)
        return True


class StagedFile:
    """A Lance data file that is being written.

    After :meth:`close` it is in the table's `data/` under `name`.

    Attributes:
        name: Name in `data/`, as a `DataFile` wants it.
        num_rows: Rows, once it is closed.
        size_bytes: Size of the file, once it is closed.
    """

    def __init__(self, attempt: Attempt, name: str, schema: pa.Schema, *, version: str | None) -> None:
        self.name = name
        self.num_rows: int | None = None
        self.size_bytes: int | None = None
        self._attempt = attempt
        self._uri = attempt.staging.uri
        self._session = attempt.staging.session
        self._path = f"{attempt.folder}/{name}" if is_local(self._uri) else f"data/{name}"
        cache = _CACHE_BYTES if len(schema) * _CACHE_BYTES_PER_COLUMN > _CACHE_BYTES else None
        with refusals_as_errors(self._uri):
            self._writer: LanceFileWriter = self._session.open_writer(
                self._path, schema=schema, version=version, data_cache_bytes=cache
            )

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Writes a batch. Its buffers must be aligned: Lance panics otherwise.

        Raises:
            TableUnwritableError: The store refused.
        """
        with refusals_as_errors(self._uri):
            self._writer.write_batch(batch)

    def open_packed_blobs(self, blob_id: int) -> PackedBlobWriter:
        """Opens a sidecar that holds many blobs; finish it before the file is closed."""
        return self._session.open_packed_blob_writer(self._path, blob_id)

    def open_dedicated_blob(self, blob_id: int) -> DedicatedBlobWriter:
        """Opens a sidecar that holds one blob; finish it before the file is closed."""
        return self._session.open_dedicated_blob_writer(self._path, blob_id)

    def close(self) -> int:
        """Finishes the file and puts it where `name` says.

        Returns:
            The number of rows.

        Raises:
            CommitError: The job ended without this attempt. Nothing of the attempt is left.
            TableUnwritableError: The store refused.
        """
        try:
            rows = self._writer.close()
            if is_local(self._uri):
                self._publish()
        except OSError as error:
            # The sweep may have taken the folder away under us.
            if self._attempt.clear_if_over():
                raise _job_is_over(self._attempt.staging) from error
            raise TableUnwritableError(self._uri, str(error)) from error
        self.num_rows, self.size_bytes = rows or 0, self._writer.size_bytes
        if self._attempt.clear_if_over():
            raise _job_is_over(self._attempt.staging)
        return self.num_rows

    def discard(self) -> None:
        """Gives the file up after an error.

        What there is of it is deleted by :meth:`Staging.sweep`, or here if that has been.
        """
        # Dropping the last reference makes Lance delete its temporary file, or abandon the upload.
        del self._writer
        self._attempt.clear_if_over()

    def _publish(self) -> None:
        data = os.path.join(self._uri, "data")
        os.makedirs(data, exist_ok=True)
        source = os.path.join(self._uri, self._path)
        sidecars = source.removesuffix(".lance")
        if os.path.isdir(sidecars):
            # Before the file itself, so that the file never lacks them.
            os.rename(sidecars, os.path.join(data, os.path.basename(sidecars)))
        os.rename(source, os.path.join(data, self.name))


def staged_jobs(uri: str, storage_options: tuple[tuple[str, str], ...]) -> list[str]:
    """Returns the ids of all jobs with something in the staging folder, running ones included."""
    session = open_session(uri, storage_options)
    jobs = {path.removeprefix(f"{STAGING}/").split("/")[0] for path in session.list(STAGING)}
    folder = os.path.join(uri, STAGING)
    if is_local(uri) and os.path.isdir(folder):
        # A killed process may leave a folder without a file in it, which a listing of files does
        # not show.
        jobs.update(os.listdir(folder))
    return sorted(job for job in jobs if len(job) == _ID_LENGTH)


def missing_data_files(uri: str, storage_options: tuple[tuple[str, str], ...], names: Collection[str]) -> list[str]:
    """Returns those of the names that are not in the table's `data/`.

    A cleanup may have come between writing and committing.
    """
    session = open_session(uri, storage_options)
    there = _in_parallel(lambda name: session.contains(f"data/{name}"), names)
    return [name for name, found in zip(names, there, strict=True) if not found]


def _find_data_files(session: LanceFileSession, attempts: Collection[str]) -> list[str]:
    if len(attempts) < _PROBED_ATTEMPTS:
        return [name for names in _in_parallel(functools.partial(_probe, session), attempts) for name in names]
    # A stem is the attempt's id, a dash and a number; sidecars are one folder deeper.
    stems = {path.split("/")[1].removesuffix(".lance") for path in session.list("data")}
    return [f"{stem}.lance" for stem in stems if stem.partition("-")[0] in attempts]


def _probe(session: LanceFileSession, attempt: str) -> list[str]:
    found: list[str] = []
    while True:
        stem = f"{attempt}-{len(found)}"
        # Sidecars come first, so they may be there without their data file.
        if not session.contains(f"data/{stem}.lance") and not session.list(f"data/{stem}"):
            return found
        found.append(f"{stem}.lance")


def _by_attempt(names: Iterable[str]) -> list[list[str]]:
    """Returns names of data files attempt by attempt, the last file first.

    In this order a deletion that stops halfway leaves files that are found by counting up from 0.
    """
    attempts: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        attempt, _, number = name.removesuffix(".lance").partition("-")
        attempts.setdefault(attempt, []).append((int(number), name))
    return [[name for _, name in sorted(files, reverse=True)] for files in attempts.values()]


def _delete_data_files(uri: str, session: LanceFileSession, names: Iterable[str]) -> None:
    for name in names:
        _delete_data_file(uri, session, name)


def _delete_data_file(uri: str, session: LanceFileSession, name: str) -> None:
    stem = name.removesuffix(".lance")
    for path in session.list(f"data/{stem}"):
        _delete(session, path)
    if is_local(uri):
        remove_if_empty(os.path.join(uri, "data", stem))
    _delete(session, f"data/{name}")


def _delete(session: LanceFileSession, path: str) -> None:
    try:
        session.delete_file(path)
    except OSError:
        # Another process, that of the attempt itself for example, may have deleted it meanwhile.
        if session.contains(path):
            raise


def is_running(pid: int) -> bool:
    """Tells whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _in_parallel(act: Callable[[_S], _T], items: Iterable[_S]) -> list[_T]:
    items = list(items)
    if len(items) <= 1:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, len(items))) as pool:
        return list(pool.map(act, items))


def _job_is_over(staging: Staging) -> CommitError:
    return CommitError(
        f"this task attempt came too late: its job has ended - job {staging.job_id}, table {staging.uri} - nothing to "
        "do if another attempt of the task succeeded, as Spark arranges for speculative tasks; if every task says so, "
        "the table was deleted meanwhile, or executors do not see the driver's files: write to a location that all "
        "machines share",
        uri=staging.uri,
    )
