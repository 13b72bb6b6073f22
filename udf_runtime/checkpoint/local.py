"""Objects as files below a folder of a mounted file system."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

_TRIES = 100


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Keeps each object in a file of its own.

    A picklable value; safe beside other threads and processes. Writing is atomic for readers and
    for a process that is killed. It does not wait for the disk: what a machine's crash leaves of a
    file is recognised by its checksum.

    Attributes:
        root: Folder that all paths are relative to. It is made when the first object is.
    """

    root: str

    def put(self, path: str, data: bytes) -> None:
        """Makes or replaces an object, whole or not at all.

        Raises:
            OSError: The file system refused.
        """
        target = os.path.join(self.root, path)
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, f".{os.urandom(8).hex()}.tmp")
        file = self._create(temporary, folder)
        try:
            with open(file, "wb", buffering=0) as out:
                # One call writes at most 2 GiB.
                left = memoryview(data)
                while left:
                    left = left[out.write(left) :]
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def _create(self, path: str, folder: str) -> int:
        for _ in range(_TRIES):
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # Another process may take the folder away again, because it deleted the last file
                # in it. The second error: the folder was there, and was gone when `makedirs` looked
                # whether it is one.
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    os.makedirs(folder, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def get(self, path: str) -> bytes | None:
        """Returns the content of an object, or None where there is none.

        Raises:
            OSError: The file system refused.
        """
        try:
            with open(os.path.join(self.root, path), "rb", buffering=0) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str) -> list[str]:
        """Returns the paths of all objects below a folder, sorted; the folder need not be there."""
        return sorted(path for path in self._walk(prefix) if not _is_temporary(path))

    def delete(self, path: str) -> None:
        """Deletes an object if it is there, and the folders that this leaves empty.

        Raises:
            OSError: The file system refused.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(self.root, path))
        folder = os.path.dirname(path)
        while folder:
            try:
                os.rmdir(os.path.join(self.root, folder))
            except OSError:
                return
            folder = os.path.dirname(folder)

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        """Deletes files of killed writers that are older than this; returns how many."""
        oldest = time.time() - older_than_s
        removed = 0
        for path in self._walk(prefix):
            with contextlib.suppress(FileNotFoundError):
                if _is_temporary(path) and os.stat(os.path.join(self.root, path)).st_mtime < oldest:
                    self.delete(path)
                    removed += 1
        return removed

    def _walk(self, prefix: str) -> Iterator[str]:
        folders = [prefix.rstrip("/")]
        while folders:
            folder = folders.pop()
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(os.path.join(self.root, folder)) as entries,
            ):
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        yield path


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")
