"""Staging area: task attempts stage files before a commit, and a sweep can find and delete each.

Spark tells a data source nothing about an attempt that Spark retries, kills or runs twice: `abort`
is called for a failed job only. An attempt therefore creates a marker in the table's directory
before any other file, and begins its file names with its id::

    _lance_spark/staging/<job>/open               exists from before the first task until the job
                                                  ends
    _lance_spark/staging/<job>/committing         exists from before the first try to commit
    _lance_spark/staging/<job>/closing            the end of a job without markers, and no commit
    _lance_spark/staging/<job>/<attempt>/attempt  the marker
    _lance_spark/staging/<job>/<attempt>/...      unfinished files, and sorted runs
    data/<attempt>-<n>.lance                      finished data files, n = 0, 1, ...
    data/<attempt>-<n>/*.blob                     their blob sidecars, where Lance puts them

File names follow from the marker, so attempts need no list of their files. Lance ignores the
folder, and its `cleanup_old_versions` keeps the folder.

Attempts with few files need no marker if a single request to an object store lists all names in
`data/`. The id of such an attempt begins with the id of its job, and the end of the job finds the
files by these names.

Spark ends a job while other tasks of the job still run, and starts some tasks after the end of
their job. The process that ends the job deletes `open` first. An attempt checks for `open` when the
attempt begins and after each finished file. If `open` is gone, the attempt deletes its own files.
No file is left in either order of events.

On an object store each check is a request. An attempt of a pipelined job therefore relies on a
check for :data:`CHECK_S` seconds. In return, the end of the job waits as long before the search for
files of attempts that did not report their files. An attempt without a marker checks at its end
instead, because no marker shows the attempt to the end of the job.

A commit and an abort of a job run in two processes, maybe at the same time. A commit creates
`committing` and then checks for `open`. An abort deletes `open` and then checks for `committing`.
At least one of the two therefore sees the other: an abort keeps all files during a commit, and no
commit begins after an abort. A cleanup does the same as an abort.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import find_job, named_files
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    TableExistsError,
    TableNotFoundError,
    refusals_as_errors,
)
from lance_spark.interpreter import end_quietly
from lance_spark.locations import is_local
from lance_spark.staging.attempt import Attempt, remove_if_empty
from lance_spark.staging.data_files import (
    Leftovers,
    delete_data_file,
    delete_data_files,
    find_data_files,
    group_by_attempt,
    list_data_files,
    missing_data_files,
    note_listing,
    prefers_listing,
)
from lance_spark.staging.processes import OWNER_KINDS, has_ended, this_owner
from lance_spark.storage.objects import LanceObjects, open_session
from lance_spark.storage.parallel_calls import in_parallel
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

STAGING = f"{FOLDER}/staging"
"""Folder of all jobs, relative to the table."""

_OPEN = "open"
_COMMITTING = "committing"
_CLOSING = "closing"
_ID = re.compile("[0-9a-f]{40}")
_SHOWN_FILES = 3
_MARKER_REQUESTS = 2
"""Requests for the marker of an attempt: creation and deletion."""

_ATTEMPT_BYTES = 8
"""Random bytes of an attempt without a marker, after the id of its job."""

OPEN_FILES = 16
"""Maximum number of open files of an attempt. The files may end in any order."""

CHECK_S = 1.0
"""How long an attempt of a pipelined job relies on its last check of the job."""

LONGEST_COMMIT = timedelta(days=1)
"""Age at which a begun commit of an unknown process is over, counted from the end of its job."""

_ENDED_S = "ended_s"
"""Field of the marker `committing`: the time of the end of the job, in seconds of the epoch."""


def new_id(family: str = "") -> str:
    """Returns a fresh id: 32 random hexadecimal digits, then 8 of the time in seconds.

    The random part comes first because object stores distribute load by the first characters of a
    name. The id begins with the digits of `family`.
    """
    return f"{family}{uuid.uuid4().hex[len(family) :]}{int(time.time()):08x}"


def made_at(identifier: str) -> datetime:
    """Returns the creation time of an id of :func:`new_id`, by the creating machine's clock."""
    return datetime.fromtimestamp(int(identifier[32:], 16), UTC)


def is_id(text: str) -> bool:
    """Tells whether a text has the form of an id of :func:`new_id`; no other text names a file."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The staged files of a job: a picklable value for the driver, tasks, and the commit process.

    Methods raise a TableUnwritableError if the store refuses a write.

    Attributes:
        made_folder: Topmost folder of a local file system created by the job. A failed job removes
            the folder again.
        table_files: Number of data files of the table's version at the start of the job. None if
            unknown.
        open_files: Maximum number of open files of an attempt.
        check_s: Seconds for which an attempt relies on its last check of the job.
        has_markers: Whether attempts create markers. The names of their files are enough otherwise.
    """

    uri: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    job_id: str
    made_folder: str | None = None
    table_files: int | None = None
    open_files: int = 1
    check_s: float = 0.0
    has_markers: bool = True

    @staticmethod
    def of_new_job(
        ref: DatasetRef,
        *,
        table_files: int | None = None,
        pipelined: bool = False,
        marked: bool = True,
        family: str | None = None,
    ) -> Staging:
        """Returns the staging area of a new job in a table, which may be absent.

        On an object store, attempts of a `pipelined` job rely on their checks for :data:`CHECK_S`,
        and may have :data:`OPEN_FILES` open files. If the job is not `marked`, its attempts have
        markers only in a table with many files. The ids of related jobs begin with the same
        `family` of digits.
        """
        is_pipelined = pipelined and not is_local(ref.uri)
        has_markers = marked or not prefers_listing(ref.uri, table_files, _MARKER_REQUESTS)
        return Staging(
            uri=ref.uri,
            storage_options=ref.storage_options,
            job_id=new_id(family or ""),
            made_folder=_find_missing_folder(ref.uri),
            table_files=table_files,
            open_files=OPEN_FILES if is_pipelined else 1,
            check_s=CHECK_S if is_pipelined else 0.0,
            has_markers=has_markers,
        )

    @property
    def session(self) -> LanceFileSession:
        """Session of this process for reading and writing Lance files of the table."""
        return open_session(self.uri, self.storage_options)

    @property
    def objects(self) -> LanceObjects:
        """Objects in the table's directory."""
        return LanceObjects(self.uri, self.storage_options)

    @property
    def folder(self) -> str:
        """Folder of the job, relative to the table."""
        return f"{STAGING}/{self.job_id}"

    def open_job(self) -> None:
        """Creates the job's own marker, after all checks and before the first task."""
        self._mark(f"{self.folder}/{_OPEN}")

    def is_open(self) -> bool:
        """Tells whether the job is still running."""
        return self.objects.contains(f"{self.folder}/{_OPEN}")

    def begin_attempt(self) -> Attempt:
        """Creates the marker of a new attempt, in a task about to write a file.

        Raises:
            CommitError: The job has ended already. Spark starts a task so late if another task
                fails or is quicker.
        """
        if not self.has_markers:
            return Attempt(self, self.job_id + secrets.token_hex(_ATTEMPT_BYTES))
        attempt = Attempt(self, new_id())
        with refusals_as_errors(self.uri):
            # A local check is cheap, and a late attempt makes no folder of a deleted table.
            if not is_local(self.uri) or self.is_open():
                self._mark(attempt.marker)
                if not attempt.clear_if_over():
                    return attempt
        raise attempt.too_late()

    def sweep(
        self, keep: Collection[str] = (), *, reported: Collection[str] = (), searches: bool = True
    ) -> int:
        """Deletes the other data files at the job's end, and returns their number.

        A running attempt, for example a killed speculative attempt, notices the end of the job when
        closing its file, and deletes the file itself.

        Args:
            keep: Names of the data files that stay.
            reported: All files of attempts that have ended: names of data files, and paths of run
                files. Only the files of other attempts are searched for.
            searches: Whether to search at all. A cleanup next to a job that lives longer than
                expected deletes only files that it has compared with the versions.
        """
        # The marker goes first: from here on no attempt begins, and a running attempt deletes each
        # file after finishing the file.
        self.objects.delete(f"{self.folder}/{_OPEN}")
        committed = frozenset(keep)
        paths = self.objects.list(self.folder)
        if attempts := self._attempts_in(paths):
            # No commit is in progress, and the markers of the attempts lead a cleanup to the files.
            paths = self._without_commit(paths)
        files = group_by_attempt(name for name in reported if "/" not in name)
        if searches and self.has_markers:
            unreported = attempts - files.keys() - self._attempts_in(reported)
            if unreported:
                time.sleep(self.check_s)
            files |= self._find_data_files(unreported, len(committed))
        elif searches:
            time.sleep(self.check_s)
            files = self._list_data_files()
        leftovers = {
            attempt: [name for name in names if name not in committed]
            for attempt, names in files.items()
        }
        in_parallel(
            self.objects.uri,
            self._delete_in_order,
            [names for names in leftovers.values() if names],
        )
        _delete_folder(self.objects, self.folder, paths)
        deleted = sum(len(names) for names in leftovers.values())
        if deleted:
            logger.info(
                "Deleted %s uncommitted data files of job %s in %s.", deleted, self.job_id, self.uri
            )
        return deleted

    def _without_commit(self, paths: Sequence[str]) -> list[str]:
        """Deletes the marker of the commit, and returns the other paths."""
        marker = f"{self.folder}/{_COMMITTING}"
        if marker in paths:
            self.objects.delete(marker)
        return [path for path in paths if path != marker]

    def close_committing(self, names: Collection[str]) -> Leftovers:
        """Ends a job without markers after :meth:`begin_commit`, and returns the job's other files.

        The marker of the commit leads a cleanup to these files.

        Raises:
            CommitConflictError: A cleanup deleted one of the named files.
        """
        present_names, leftovers = self._close_and_list(names)
        self._refuse_lost([name for name in names if name not in present_names], [*names])
        return leftovers

    def close_committed(self, names: Collection[str]) -> Leftovers:
        """Ends a job without markers after its commit, and returns the job's other files."""
        return self._close_and_list(names)[1]

    def _close_and_list(self, names: Collection[str]) -> tuple[set[str], Leftovers]:
        """Ends a job without markers, and returns all its files, and the files except `names`."""
        self.objects.delete(f"{self.folder}/{_OPEN}")
        ended_s = time.monotonic()
        present_names = self._names_of_data_files()
        leftovers = Leftovers(
            names=frozenset(present_names.difference(names)),
            committed=frozenset(names),
            final_s=ended_s + self.check_s,
        )
        return present_names, leftovers

    def _names_of_data_files(self) -> set[str]:
        """Returns the names of the files of all attempts without markers."""
        return {name for files in self._list_data_files().values() for name in files}

    def delete_leftovers(self, leftovers: Leftovers) -> None:
        """Deletes the other files of a closed job, and its last marker.

        These files belong to other attempts, which may finish more files until their next check.
        """
        names: Collection[str] = leftovers.names
        if names and self.check_s:
            time.sleep(max(0.0, leftovers.final_s - time.monotonic()))
            names = self._names_of_data_files() - leftovers.committed
        delete_data_files(self.uri, self.storage_options, names)
        self.objects.delete(f"{self.folder}/{_COMMITTING}")

    def delete_attempt(self, attempt: str, data_files: Sequence[str]) -> None:
        """Deletes data files of an attempt, and then its folder."""
        self._delete_in_order(data_files)
        if not self.has_markers:
            return
        folder = f"{self.folder}/{attempt}"
        _delete_folder(self.objects, folder, self.objects.list(folder))

    def _delete_in_order(self, data_files: Sequence[str]) -> None:
        """Deletes data files of an attempt, the last file first.

        Counting up from 0 therefore finds the remaining files of an interrupted deletion.
        """
        for name in reversed(data_files):
            delete_data_file(self.objects, name)

    def begin_commit(self) -> None:
        """Records the start of the first try to commit.

        From here on only a process with knowledge of the commit's outcome may delete files.

        Raises:
            CommitError: The job has ended: Spark aborted the job, or the table was deleted or
                cleaned up.
        """
        with refusals_as_errors(self.uri):
            self._mark(f"{self.folder}/{_COMMITTING}")
            # The order matters: an abort closes the job before checking for the marker, so at least
            # one of the two sees the other.
            self.check_open()

    def check_open(self) -> None:
        """Checks that the job may still commit.

        Raises:
            CommitError: The job has ended.
        """
        if not self.is_open():
            raise CommitError(
                "The job ended before its commit, because the job was aborted, or the table was deleted, created "
                f"again or cleaned up. Table: {self.uri}. Job: {self.job_id}. The commit made no version. Read the "
                "table, and write again.",
                uri=self.uri,
            )

    def refuse_missing(self, names: Sequence[str], fragments: Sequence[int] = ()) -> None:
        """Raises if a cleanup deleted files before their commit; `fragments` are the files' own."""
        self._refuse_lost(self.find_missing(names), names, fragments)

    def _refuse_lost(
        self, lost: Sequence[str], names: Sequence[str], fragments: Sequence[int] = ()
    ) -> None:
        if lost:
            raise CommitConflictError(
                f"{len(lost)} of {len(names)} data files of this job were deleted before their commit "
                f"({', '.join(lost[:_SHOWN_FILES])}). Table: {self.uri}. Nothing was committed. Write again, and let "
                "cleanups spare files younger than the longest job.",
                uri=self.uri,
                fragments=[
                    fragment
                    for fragment, name in zip(fragments, names, strict=False)
                    if name in lost
                ],
            )

    def find_missing(self, names: Collection[str]) -> list[str]:
        """Returns the names of files absent from the table's `data/`."""
        if not prefers_listing(self.uri, self.table_files, len(names)):
            return missing_data_files(self.uri, self.storage_options, names)
        present_names = self.objects.list_names("data")
        note_listing(self.uri, len(present_names))
        return [name for name in names if name not in present_names]

    def has_begun_commit(self) -> bool:
        """Tells whether any process has begun a commit of this job."""
        return self.objects.contains(f"{self.folder}/{_COMMITTING}")

    def close_job(self) -> bool:
        """Ends the job, and tells whether a commit has begun and may still make a version.

        From here on no attempt and no commit begins. On a local file system, a begun commit is over
        if its process is dead, as seen in the same boot and container. On an object store, the last
        request of a dead process may still arrive. Any commit is over :data:`LONGEST_COMMIT` after
        :meth:`note_end`.
        """
        if not self.has_markers:
            # The only trace of the files of a job without a commit, until their deletion. A store
            # without room for the marker still deletes files.
            with contextlib.suppress(OSError, LanceSparkError):
                self._mark(f"{self.folder}/{_CLOSING}")
        self.objects.delete(f"{self.folder}/{_OPEN}")
        marker = self.objects.get(f"{self.folder}/{_COMMITTING}")
        if marker is None:
            return False
        if not self.has_markers:
            self.objects.delete(f"{self.folder}/{_CLOSING}")
        return not self._is_commit_over(marker)

    def _is_commit_over(self, marker: bytes) -> bool:
        """Tells whether a begun commit, with this content of its marker, has certainly ended."""
        try:
            owner = load_object(marker, OWNER_KINDS)
            ended_s = owner.get(_ENDED_S)
            if isinstance(ended_s, int) and ended_s <= time.time() - LONGEST_COMMIT.total_seconds():
                return True
            return is_local(self.uri) and has_ended(owner)
        except (ValueError, OverflowError):
            return False  # a damaged marker proves no death

    def note_end(self) -> None:
        """Notes the time of the end of the job in the marker of its begun commit, if not yet noted.

        Call this method after :meth:`close_job`. Each later try to commit erases the time.
        """
        path = f"{self.folder}/{_COMMITTING}"
        marker = self.objects.get(path)
        if marker is None:
            return  # the job has just deleted its files
        try:
            owner = load_object(marker, OWNER_KINDS)
        except ValueError:
            owner = {"host": "", "pid": 0}
        if not isinstance(owner.get(_ENDED_S), int):
            # Without the time the files stay.
            with contextlib.suppress(OSError, LanceSparkError):
                self.objects.put(path, json.dumps({**owner, _ENDED_S: int(time.time())}).encode())

    def end_with_files(self) -> None:
        """Ends a job without a commit in progress, and keeps its files for a later job."""
        for marker in (_OPEN, _COMMITTING):
            self.objects.delete(f"{self.folder}/{marker}")

    def list_markers(self) -> list[str]:
        """Returns the paths of the objects in the folder of the job."""
        return self.objects.list(self.folder)

    def as_left(self, markers: Sequence[str]) -> Staging:
        """Returns the staging area of a job of a dead process, with or without markers of attempts.

        `markers` are the objects of :meth:`list_markers`.
        """
        return replace(self, has_markers=is_local(self.uri) or bool(self._attempts_in(markers)))

    def find_data_files(self, markers: Sequence[str] | None = None) -> list[str]:
        """Returns the names of all data files of the job, including files with sidecars only.

        `markers` are the objects of :meth:`list_markers`, if known.
        """
        if self.has_markers:
            markers = self.list_markers() if markers is None else markers
            files = self._find_data_files(self._attempts_in(markers))
        else:
            files = self._list_data_files()
        return [name for names in files.values() for name in names]

    def remove_empty_folders(self) -> None:
        """Deletes the empty folders of a table without a commit, and keeps folders with files."""
        if not is_local(self.uri):
            return
        for folder in ("data", STAGING, FOLDER):
            remove_if_empty(os.path.join(self.uri, folder))
        folder, made_folder = self.uri, self.made_folder
        while (
            made_folder is not None and len(folder) >= len(made_folder) and remove_if_empty(folder)
        ):
            folder = os.path.dirname(folder)

    def _mark(self, path: str) -> None:
        """Creates a marker with the identity of this process."""
        self.objects.put(path, json.dumps(this_owner()).encode())

    def _find_data_files(self, attempts: Collection[str], known: int = 0) -> dict[str, list[str]]:
        """Returns the files of attempts; `known` is the number of files that exist."""
        is_listed = prefers_listing(
            self.uri, self.table_files, 2 * self.open_files * len(attempts) + known
        )
        return find_data_files(self.objects, attempts, self.open_files, is_listed=is_listed)

    def _list_data_files(self) -> dict[str, list[str]]:
        """Returns the files of all attempts without markers."""
        return list_data_files(self.objects, lambda attempt: attempt.startswith(self.job_id))

    def _attempts_in(self, paths: Iterable[str]) -> set[str]:
        """Returns the ids of the attempts: the names of the job's subfolders."""
        names = (path.removeprefix(f"{self.folder}/") for path in paths)
        return {attempt for name in names if "/" in name and is_id(attempt := name.split("/")[0])}


def _find_missing_folder(uri: str) -> str | None:
    """Returns the topmost missing folder of a new table's location.

    None if the folder exists, or on an object store.
    """
    missing_folder = None
    folder = uri
    while is_local(uri) and not os.path.isdir(folder):
        missing_folder, folder = folder, os.path.dirname(folder)
    return missing_folder


def staged_jobs(uri: str, storage_options: tuple[tuple[str, str], ...]) -> list[str]:
    """Returns the ids of all jobs with files in the staging folder, running jobs included."""
    # A killed process may leave an empty folder.
    return [
        name for name in LanceObjects(uri, storage_options).list_folders(STAGING) if is_id(name)
    ]


def _delete_folder(objects: LanceObjects, folder: str, paths: Collection[str]) -> None:
    """Deletes a folder with its objects `paths`; on an object store, several objects at once."""
    if is_local(objects.uri):
        objects.delete_folder(folder)
    else:
        in_parallel(objects.uri, objects.delete, paths)


def commit_or_give_up(
    staging: Staging,
    ref: DatasetRef,
    act: Callable[[], _T],
    *,
    is_lost: Callable[[], bool] = lambda: False,
) -> _T:
    """Runs a commit, and deletes the job's files if the commit certainly made no version.

    The files are kept after a `CommitOutcomeUnknownError`, because a request may still arrive. On
    an object store, the files are also kept after any other failure of a begun commit, unless
    `is_lost` tells that the last attempt certainly made no version.
    """
    end_quietly()
    try:
        return act()
    except CommitOutcomeUnknownError:
        raise
    except BaseException as error:
        is_certain = isinstance(error, (CommitError, TableExistsError)) or is_lost()
        if is_certain or is_local(ref.uri) or not staging.has_begun_commit():
            # The error of the commit matters to the user, more than an error of the deletion.
            with _deletes_later(staging):
                _give_up(staging, ref)
        raise


def _give_up(staging: Staging, ref: DatasetRef) -> None:
    """Deletes the files of a job without a commit, except files of a version.

    An undone commit is an old version. A cleaned-up version has lost its events, and its files may
    live on in the next version. The check therefore reads manifests rather than transactions.
    """
    staging.close_job()
    try:
        head = ref.open_latest()
    except TableNotFoundError:
        staging.sweep()
        staging.remove_empty_folders()
        return
    data_files = staging.find_data_files()
    staging.sweep(keep=named_files(head, data_files, after=ref.version or 0) if data_files else ())


def abort(staging: Staging, ref: DatasetRef, *, since: int = 0) -> None:
    """Deletes the job's files, unless the job has committed or may still commit.

    Spark also aborts a job after the death of its commit process, or after the loss of the commit's
    result. The commit is searched for in the versions after `since`.
    """
    end_quietly()
    if (
        staging.close_job()
        and find_commit(staging, replace(ref, version=ref.version or since)) is None
    ):
        staging.note_end()
        logger.warning(
            "The outcome of the commit of job %s is unknown, so its files are kept. Table: %s. lance_spark.cleanup "
            "deletes them later.", staging.job_id, ref.uri,
        )  # fmt: skip
    else:
        _give_up(staging, ref)


def find_commit(
    staging: Staging, ref: DatasetRef, head: lance.LanceDataset | None = None
) -> CommitResult | None:
    """Returns the commit of this job, or None. `head` is the latest version, if just opened."""
    try:
        latest = ref.open_latest() if head is None else head
        commit = find_job(latest, staging.job_id, after=ref.version or 0)
    except TableNotFoundError:
        return None
    return None if commit is None else replace(commit, uri=ref.uri)


def finish(
    staging: Staging,
    ref: DatasetRef,
    keep: Collection[str],
    *,
    unless_named: Collection[str] = (),
    reported: Collection[str] = (),
) -> None:
    """Deletes the remaining files of other attempts of a committed job.

    The files of `keep` were committed. Files of `unless_named` stay if they belong to a version.
    `reported` are all files of attempts that have ended, as in :meth:`Staging.sweep`.
    """
    # The version exists, so a failed deletion of other files must not make the job fail.
    with _deletes_later(staging):
        referenced = _named_since(ref, unless_named) if unless_named else ()
        if staging.has_markers:
            staging.sweep([*keep, *referenced], reported=reported)
        elif not keep:
            staging.close_job()
            staging.sweep(referenced)
        else:
            staging.delete_leftovers(staging.close_committed({*keep, *referenced}))


def _named_since(ref: DatasetRef, names: Collection[str]) -> frozenset[str]:
    """Returns the files named by the latest version, or by a version after the version of `ref`."""
    head = ref.open_latest()
    # A table that was created again counts its versions from 1.
    return named_files(head, names, after=min(ref.version or 0, head.version - 1))


def finish_closed(staging: Staging, leftovers: Leftovers) -> None:
    """Deletes the remaining files of a committed job after :meth:`Staging.close_committing`."""
    with _deletes_later(staging):
        staging.delete_leftovers(leftovers)


@contextlib.contextmanager
def _deletes_later(staging: Staging) -> Iterator[None]:
    """Logs a warning about files whose deletion fails now."""
    try:
        yield
    except (OSError, ValueError) as error:  # a cleanup may delete a version that is looked at
        logger.warning(
            "Files of job %s could not be deleted: %s. Table: %s. lance_spark.cleanup deletes them later.",
            staging.job_id, error, staging.uri,
        )  # fmt: skip
