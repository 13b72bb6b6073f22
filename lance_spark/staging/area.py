"""Where tasks put files before a commit, so that each can be found and deleted again.

Spark tells a data source nothing about an attempt that it retries, kills, or ran twice: `abort` is
called for a failed job only. So an attempt leaves a marker in the table's own directory before it
makes anything else, and names its files after itself::

    _lance_spark/staging/<job>/open               there from before the first task on, until
                                                  the job is over
    _lance_spark/staging/<job>/committing         there from before the first try to commit
    _lance_spark/staging/<job>/<attempt>/attempt  the marker
    _lance_spark/staging/<job>/<attempt>/...      files that are not finished, and sorted runs
    data/<attempt>-<n>.lance                      finished data files, n = 0, 1, ...
    data/<attempt>-<n>/*.blob                     their blob sidecars, where Lance puts them

The names of the files follow from the marker, so nothing has to be written down in time. Lance
ignores the folder, and its own `cleanup_old_versions` leaves it alone.

Spark ends a job while other tasks of it still run, and starts some that late that the job is over
before they begin. The process that ends the job deletes `open` before anything else; an attempt
looks for it when it begins and after it has finished a file, and where it is gone deletes what it
made. So nothing is left, whichever comes first.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from lance_spark.dataset import is_local
from lance_spark.errors import CommitConflictError, CommitError, refusals_as_errors
from lance_spark.objects import LanceObjects, open_session
from lance_spark.staging.data_file import StagedFile
from lance_spark.staging.folders import STAGING, remove_empty_folders
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.file import LanceFileSession

logger = logging.getLogger(__name__)

_S = TypeVar("_S")
_T = TypeVar("_T")

_MARKER = "attempt"
_OPEN = "open"
_COMMITTING = "committing"
_ID = re.compile("[0-9a-f]{40}")
_PARALLEL_REQUESTS = 16
_SHOWN_FILES = 3
_PROBED_ATTEMPTS = 1000
"""From this many attempts on, all of `data/` is listed instead of asking for the files of each: a
listing brings 1,000 names a request."""


def new_id() -> str:
    """Returns a fresh id: 32 random hexadecimal digits, then 8 of the time in seconds.

    The random part comes first because object stores spread their load by the first characters of a
    name.
    """
    return f"{uuid.uuid4().hex}{int(time.time()):08x}"


def made_at(identifier: str) -> datetime:
    """Returns when an id of :func:`new_id` was made, by the clock of the machine that made it."""
    return datetime.fromtimestamp(int(identifier[32:], 16), UTC)


def is_id(text: str) -> bool:
    """Tells whether a text has the form of an id of :func:`new_id`; no other text names a file."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The files of one job: a picklable value for the driver, tasks, and the committing process.

    What writes raises a TableUnwritableError where the store refuses.

    Attributes:
        made_folder: Topmost folder that the job makes on a local file system, to be taken away
            again if it fails.
    """

    uri: str
    storage_options: tuple[tuple[str, str], ...] = ()
    job_id: str
    made_folder: str | None = None

    @property
    def session(self) -> LanceFileSession:
        """This process's session that reads and writes Lance files of the table."""
        return open_session(self.uri, self.storage_options)

    @property
    def objects(self) -> LanceObjects:
        """What is in the table's directory."""
        return LanceObjects(self.uri, self.storage_options)

    @property
    def folder(self) -> str:
        """Folder of the job, relative to the table."""
        return f"{STAGING}/{self.job_id}"

    def open_job(self) -> None:
        """Makes the job's own marker, after everything was checked and before the first task."""
        self._mark(f"{self.folder}/{_OPEN}")

    def is_open(self) -> bool:
        """Tells whether the job is still under way."""
        return self.objects.contains(f"{self.folder}/{_OPEN}")

    def begin_attempt(self) -> Attempt:
        """Makes the marker of a new attempt, in a task that is about to make a file.

        Raises:
            CommitError: The job is over already; Spark starts a task that late where another one
                fails or is quicker.
        """
        attempt = Attempt(self, new_id())
        with refusals_as_errors(self.uri):
            if self.is_open():
                self._mark(attempt.marker)
                if not attempt.clear_if_over():
                    return attempt
        raise attempt.too_late()

    def sweep(self, keep: Collection[str] = ()) -> int:
        """Deletes data files but those named in `keep`, at the job's end, and returns how many.

        An attempt that is still running, a killed speculative one for example, notices on closing
        its file that the job is over and deletes that file itself.
        """
        # First of all: from here on no attempt begins, and a running one that finishes a file
        # deletes it.
        self.objects.delete(f"{self.folder}/{_OPEN}")
        kept = frozenset(keep)
        files = _find_data_files(self.objects, self._attempts())
        leftovers = {attempt: [name for name in names if name not in kept] for attempt, names in files.items()}
        in_parallel(self.objects, lambda attempt: self.delete_attempt(attempt, leftovers[attempt]), leftovers)
        self.objects.delete_folder(self.folder)
        deleted = sum(len(names) for names in leftovers.values())
        if deleted:
            logger.info("deleted %s uncommitted data files of job %s in %s", deleted, self.job_id, self.uri)
        return deleted

    def delete_attempt(self, attempt: str, data_files: Sequence[str]) -> None:
        """Deletes data files of an attempt, and then its folder.

        The last file goes first: what a deletion that stops halfway leaves is found by counting up
        from 0.
        """
        for name in reversed(data_files):
            _delete_data_file(self.objects, name)
        self.objects.delete_folder(f"{self.folder}/{attempt}")

    def begin_commit(self) -> None:
        """Notes that a commit is about to be tried.

        From here on only who knows its outcome may delete files.

        Raises:
            CommitError: The job has ended: Spark aborted it, or the table was deleted or cleaned
                up.
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

    def refuse_missing(self, names: Sequence[str], fragments: Sequence[int] = ()) -> None:
        """Refuses files that a cleanup took before their commit; `fragments` are whose they are."""
        missing = missing_data_files(self.uri, self.storage_options, names)
        if missing:
            raise CommitConflictError(
                f"{len(missing)} of {len(names)} data files that this job wrote were deleted before it could commit "
                f"them ({', '.join(missing[:_SHOWN_FILES])}) - at {self.uri} - nothing was committed; write again, and "
                "clean up only what is older than the longest job",
                uri=self.uri,
                fragments=[fragment for fragment, name in zip(fragments, names, strict=False) if name in missing],
            )

    def has_begun_commit(self) -> bool:
        """Tells whether a commit of this job has begun, in whatever process."""
        return self.objects.contains(f"{self.folder}/{_COMMITTING}")

    def close_job(self) -> bool:
        """Ends the job, and tells whether a commit has begun that may still make a version.

        From here on no attempt begins and no commit. One that began and whose process is dead is
        over on a local file system; on an object store its last request may still be on its way.
        """
        self.objects.delete(f"{self.folder}/{_OPEN}")
        marker = self.objects.get(f"{self.folder}/{_COMMITTING}")
        if marker is None:
            return False
        if not is_local(self.uri):
            return True
        try:
            by = load_object(marker, {"host": str, "pid": int})
            return bool(by["host"] != socket.gethostname()) or is_running(by["pid"])
        except (ValueError, OverflowError):
            return True  # a damaged marker proves no death

    def find_data_files(self) -> list[str]:
        """Returns the names of all data files of the job, also where only sidecars are there."""
        files = _find_data_files(self.objects, self._attempts())
        return [name for names in files.values() for name in names]

    def _mark(self, path: str) -> None:
        """Makes a marker, which says what process made it."""
        by = {"host": socket.gethostname(), "pid": os.getpid()}
        self.objects.put(path, json.dumps(by).encode())

    def _attempts(self) -> set[str]:
        """Returns the ids of the attempts: the names of the job's subfolders."""
        paths = (path.removeprefix(f"{self.folder}/") for path in self.objects.list(self.folder))
        return {attempt for path in paths if "/" in path and is_id(attempt := path.split("/")[0])}


class Attempt:
    """One attempt of a task; its id begins the names of its files. Lives in the task's process."""

    def __init__(self, staging: Staging, attempt_id: str) -> None:
        self.staging = staging
        self.id = attempt_id
        self._data_files: list[str] = []
        self._run_files = 0

    @property
    def folder(self) -> str:
        """Folder of the attempt, relative to the table."""
        return f"{self.staging.folder}/{self.id}"

    @property
    def marker(self) -> str:
        """Path of the marker, relative to the table."""
        return f"{self.folder}/{_MARKER}"

    def open_data_file(self, schema: pa.Schema, *, version: str) -> StagedFile:
        """Opens the attempt's next data file, for rows of a schema and in a format such as `2.2`.

        Close it before you open another one: leftovers are found by counting up.
        """
        name = f"{self.id}-{len(self._data_files)}.lance"
        self._data_files.append(name)
        return StagedFile(self, name, schema, version=version)

    def next_run_file(self) -> str:
        """Returns the path, relative to the table, of a new file in the attempt's folder."""
        self._run_files += 1
        return f"{self.folder}/run-{self._run_files - 1}"

    def clear_if_over(self) -> bool:
        """Deletes what the attempt made if its job has ended, and tells whether it has.

        Call it after the last change, and after an error.
        """
        staging = self.staging
        if staging.objects.contains(self.marker) and staging.is_open():
            return False
        # What this attempt made alone: the process that ends the job finds the files of the other
        # attempts by their markers.
        staging.delete_attempt(self.id, self._data_files)
        remove_empty_folders(staging.uri, made=staging.made_folder)
        return True

    def too_late(self) -> CommitError:
        """Returns the error of an attempt whose job has ended without it."""
        return CommitError(
            f"this task attempt came too late: its job has ended - job {self.staging.job_id}, table "
            f"{self.staging.uri} - nothing to do if another attempt of the task succeeded, as Spark arranges for "
            "speculative tasks; if every task says so, the table was deleted meanwhile, or executors do not see the "
            "driver's files: write to a location that all machines share",
            uri=self.staging.uri,
        )


def staged_jobs(uri: str, storage_options: tuple[tuple[str, str], ...]) -> list[str]:
    """Returns the ids of all jobs with something in the staging folder, running ones included."""
    # A killed process may leave a folder without a file in it.
    return [name for name in LanceObjects(uri, storage_options).list_folders(STAGING) if is_id(name)]


def missing_data_files(uri: str, storage_options: tuple[tuple[str, str], ...], names: Collection[str]) -> list[str]:
    """Returns those of the names that are not in the table's `data/`."""
    objects = LanceObjects(uri, storage_options)
    there = in_parallel(objects, lambda name: objects.contains(f"data/{name}"), names)
    return [name for name, found in zip(names, there, strict=True) if not found]


def delete_data_files(uri: str, storage_options: tuple[tuple[str, str], ...], names: Collection[str]) -> None:
    """Deletes data files of the table that no version names, with their sidecars."""
    objects = LanceObjects(uri, storage_options)
    in_parallel(objects, functools.partial(_delete_data_file, objects), names)


def _find_data_files(objects: LanceObjects, attempts: Collection[str]) -> dict[str, list[str]]:
    """Returns the names of the data files of each attempt, in the order of their opening."""
    if len(attempts) < _PROBED_ATTEMPTS:
        return dict(zip(attempts, in_parallel(objects, functools.partial(_probe, objects), attempts), strict=True))
    # A stem is the attempt's id, a dash and a number; sidecars are one folder deeper.
    stems = {path.split("/")[1].removesuffix(".lance") for path in objects.list("data")}
    ours = [stem.split("-") for stem in stems if stem.split("-")[0] in attempts]
    found: dict[str, list[str]] = {attempt: [] for attempt in attempts}
    for attempt, number in sorted(ours, key=lambda parts: int(parts[1])):
        found[attempt].append(f"{attempt}-{number}.lance")
    return found


def _probe(objects: LanceObjects, attempt: str) -> list[str]:
    found: list[str] = []
    while True:
        stem = f"{attempt}-{len(found)}"
        # Sidecars come first, so they may be there without their data file.
        if not objects.contains(f"data/{stem}.lance") and not objects.list(f"data/{stem}"):
            return found
        found.append(f"{stem}.lance")


def _delete_data_file(objects: LanceObjects, name: str) -> None:
    objects.delete_folder(f"data/{name.removesuffix('.lance')}")
    objects.delete(f"data/{name}")


def is_running(pid: int) -> bool:
    """Tells whether a process of this machine runs, of whatever user."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def in_parallel(objects: LanceObjects, act: Callable[[_S], _T], items: Collection[_S]) -> list[_T]:
    """Calls a function with each item, on an object store with several at once."""
    # A local file system answers sooner than a thread starts.
    if is_local(objects.uri) or len(items) == 1:
        return [act(item) for item in items]
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        return list(pool.map(act, items))
