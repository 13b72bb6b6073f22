"""Entries of a machine: made once, shared by all processes, removed by last use.

    <folder>/<entry>/<marker>   written last: the entry is complete
    <folder>/<entry>/...        its content
    <folder>/<entry>.lock       lock: shared by users, exclusive to make or remove
    <folder>/<entry>.failed     reason of the last failure

An entry is an environment, or a copy of an artifact. If a process dies, the system releases its
locks, and the next process makes the entry again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

_log = logging.getLogger(__name__)

FAILED_FOR_S = 60.0
"""Seconds until a machine repeats a failed attempt."""

DEFAULT_BYTES = 50 << 30

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class EntryKind:
    """A kind of entries.

    Attributes:
        form: The form of an entry's name; folders with other names are foreign.
        marker: Name of the file that is written last.
    """

    form: re.Pattern[str]
    marker: str


ENVIRONMENT = EntryKind(re.compile(r"[0-9a-f]{32}-cp\d+-\w+-\w+"), "environment.json")
ARTIFACT = EntryKind(re.compile(r"artifact-[0-9a-f]{64}"), "artifact.json")
_KINDS = (ENVIRONMENT, ARTIFACT)


class EntryError(Exception):
    """An entry cannot be made. Internal: callers raise an error with the name of the content.

    Attributes:
        reason: Message of the failure.
        hint: The remedy.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Content(Protocol[T_co]):
    """The content of an entry."""

    @property
    def name(self) -> str:
        """Name of the entry, a digest of its content."""

    @property
    def kind(self) -> EntryKind:
        """Kind of the entry."""

    @property
    def title(self) -> str:
        """Name of the content for the log."""

    def make(self, place: str, lock: int) -> dict[str, Any]:
        """Makes the content in an empty folder, and returns its facts for JSON.

        Raises:
            EntryError: The content cannot be made.
            OSError: The disk is full, or a store failed.
        """

    def restore(self, place: str, facts: Mapping[str, Any]) -> T_co | None:
        """Returns the value of a complete entry; None if the entry is damaged.

        Raises:
            ValueError, KeyError, TypeError: The entry is damaged.
        """

    def explain(self, error: OSError) -> EntryError:
        """Returns reason and remedy of a failure of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCache:
    """The entries of a machine. A picklable value; safe for concurrent processes and threads.

    Attributes:
        folder: Folder of the entries. None: `~/.cache/lance-spark/environments`, or a temporary
            folder of the user without a home directory.
        most_bytes: Maximum bytes of all entries. Above this size, a new entry removes the least
            recently used entries, except entries in use: a process uses an opened entry until its
            end.
    """

    folder: str | None = None
    most_bytes: int = DEFAULT_BYTES

    def open_entry(self, content: Content[T_co]) -> T_co:
        """Returns the value of an entry; makes a missing entry.

        This process uses the entry until its end. A single process makes the entry, and concurrent
        processes wait. All calls within a minute get the error of a failed attempt.

        Raises:
            EntryError: This machine cannot make the entry.
        """
        try:
            folder = self._find_folder()
            place = os.path.join(folder, content.name)
            with _opening:
                value = _read_ready(content, place) if place in _locks else None
                if value is not None:
                    return value
                if place in _locks:  # the entry of this lock is gone
                    os.close(_locks.pop(place))
                opened, _locks[place] = self._open_locked(content, place)
        except OSError as error:
            raise content.explain(error) from error
        return opened

    def _open_locked(self, content: Content[T_co], place: str) -> tuple[T_co, int]:
        """Returns a value and the descriptor of a shared lock, for this process to keep."""
        lock = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                fcntl.flock(lock, fcntl.LOCK_SH)
                value = _read_ready(content, place)
                if value is not None:
                    os.utime(os.path.join(place, content.kind.marker))
                    return value, lock
                # The lock is released for a moment, so the entry is checked again.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _read_ready(content, place) is None:
                    self._make(content, place, lock)
        except BaseException:
            os.close(lock)
            raise

    def _make(self, content: Content[T_co], place: str, lock: int) -> None:
        """Makes an entry, under its lock."""
        failed = f"{place}.failed"
        _raise_recent(failed)
        start_s = time.perf_counter()
        shutil.rmtree(place, ignore_errors=True)
        try:
            os.makedirs(place, mode=0o700)
            facts = content.make(place, lock)
            with open(os.path.join(place, ".ready"), "w", encoding="utf-8") as file:
                json.dump(facts | {"bytes": _measure(place)}, file)
            os.rename(file.name, os.path.join(place, content.kind.marker))
        except (EntryError, OSError) as error:
            shutil.rmtree(place, ignore_errors=True)
            failure = content.explain(error) if isinstance(error, OSError) else error
            with contextlib.suppress(OSError), open(failed, "w", encoding="utf-8") as file:
                json.dump((failure.reason, failure.hint), file)
            raise failure from error
        folder, name = os.path.split(place)
        _log.info("%s %s: %.1f s", content.title, name, time.perf_counter() - start_s)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(failed)
            self._remove_least_used(folder, name)
        except OSError as error:
            _log.warning("entries that are not used were not removed: %s", error)

    def _remove_least_used(self, folder: str, new_name: str) -> None:
        """Removes entries over the size limit, and leftovers of killed processes."""
        listed = set(os.listdir(folder))
        locked = {name for name in listed if f"{name}.lock" in listed}
        markers = {
            name: os.path.join(folder, name, kind.marker)
            for kind in _KINDS
            for name in filter(kind.form.fullmatch, locked)
        }
        sizes = {name: _read_size(marker) for name, marker in markers.items()}
        total = sum(sizes.values())
        for name in sorted(
            markers.keys() - {new_name}, key=lambda candidate: _read_last_use(markers[candidate])
        ):
            if total <= self.most_bytes and _read_last_use(markers[name]) > 0:
                continue
            with _locked_if_unused(os.path.join(folder, f"{name}.lock")) as unused:
                if unused:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(markers[name])
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                    total -= sizes[name]

    def _find_folder(self) -> str:
        """Returns the folder; makes a missing folder, for this user alone.

        Raises:
            OSError: The folder cannot be made, or another user may write there.
        """
        if self.folder is not None:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            _refuse_others(self.folder)
            return os.path.abspath(self.folder)
        home = os.path.expanduser("~")
        if os.path.isabs(home) and os.access(home, os.W_OK) and os.path.isdir(home):
            folder = os.path.join(home, ".cache", "lance-spark", "environments")
        else:
            folder = os.path.join(
                tempfile.gettempdir(), f"lance-spark-{os.getuid()}", "environments"
            )
            parent = os.path.dirname(folder)
            os.makedirs(parent, mode=0o700, exist_ok=True)
            _refuse_others(parent)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder


def hold_entry(place: str) -> None:
    """Marks an entry as used by this process until its end, for a process that did not open it.

    Raises:
        OSError: The folder of entries cannot be written.
    """
    with _opening:
        if place not in _locks:
            _locks[place] = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(_locks[place], fcntl.LOCK_SH)


_locks: dict[
    str, int
] = {}  # descriptors of the locks of entries that this process uses until its end
_opening = threading.Lock()


def _renew_lock() -> None:
    """Renews the lock in a forked process, because a thread of the parent may hold the lock."""
    global _opening  # noqa: PLW0603 - one lock per process
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _read_ready(content: Content[T_co], place: str) -> T_co | None:
    """Returns the value of a complete entry; None if the entry must be made."""
    try:
        _refuse_others(place)
        with open(os.path.join(place, content.kind.marker), encoding="utf-8") as file:
            return content.restore(place, json.load(file))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _refuse_others(folder: str) -> None:
    """Raises an error for a folder that another user owns or may write to.

    Raises:
        PermissionError: A user with write access chooses the code of UDFs.
    """
    about = os.stat(folder)
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(
            f"The folder of environments belongs to another user, or others may write to it. Folder: {folder}. Give a "
            "folder of this user with mode 700."
        )


def _raise_recent(failed: str) -> None:
    """Raises the error of an attempt on this machine less than a minute ago."""
    try:
        age_s = time.time() - os.stat(failed).st_mtime
        with open(failed, encoding="utf-8") as file:
            reason, hint = json.load(file)
    except (FileNotFoundError, ValueError, TypeError):
        return
    if age_s < FAILED_FOR_S:
        raise EntryError(reason, hint)


def _measure(place: str) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _read_size(marker: str) -> int:
    """Returns the bytes of an entry; 0 for an incomplete entry."""
    try:
        with open(marker, encoding="utf-8") as file:
            return int(json.load(file)["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _read_last_use(marker: str) -> float:
    """Returns the time of the last use of an entry; 0 for an incomplete entry."""
    try:
        return os.stat(marker).st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked_if_unused(path: str) -> Iterator[bool]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
