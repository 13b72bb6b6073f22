"""Objects as files below a folder of a mounted file system."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

_TRIES = 100
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def names_object(path: str) -> bool:
    """Tells whether a path stays below its base folder."""
    return all(part not in ("", ".", "..") and "\0" not in part for part in path.split("/"))


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Stores each object in a file of its own.

    A picklable value; safe for concurrent threads and processes. Writes are atomic for readers and
    for a killed process. A write does not wait for the disk. After a crash of the machine, the
    checksum reveals a damaged file.

    No method follows a symbolic link below `boundary`: a link is an object without content of its
    own. A path with `..`, or an absolute path, names no object.

    Attributes:
        root: Base folder of all paths. The first write makes the folder.
        boundary: A folder above the root, or empty for the root. Links above the boundary are
            trusted.
    """

    root: str
    boundary: str = ""

    def put(self, path: str, data: bytes) -> None:
        """Makes or replaces an object, whole or not at all.

        Raises:
            OSError: The file system failed.
            ValueError: The path leaves the root.
        """
        if not names_object(path):
            raise ValueError(
                f"The path {path!r} leaves its folder. Folder: {self.root}. Name an object below it."
            )
        folder, _, name = path.rpartition("/")
        with self._add_path_to_errors(path):
            for attempt in range(_TRIES + 1):
                try:
                    with self._open_folder(folder, make=attempt > 0) as parent:
                        _replace(parent, name, data)
                        return
                except FileNotFoundError:
                    # Another process may remove the folder after its last file.
                    if attempt == _TRIES:
                        raise

    def get(self, path: str) -> bytes | None:
        """Returns the content of an object, or None without the object.

        Raises:
            OSError: The file system failed.
        """
        if not names_object(path):
            return None
        folder, _, name = path.rpartition("/")
        with _ignore_absent(), self._add_path_to_errors(path), self._open_folder(folder) as parent:
            # A read of a pipe in place of the object does not wait.
            opener = functools.partial(_open_inside, parent, more=os.O_NONBLOCK)
            with open(name, "rb", buffering=0, opener=opener) as file:
                return file.read()
        return None

    def list_files(self, prefix: str) -> list[str]:
        """Returns the sorted paths of all files below a folder, with those of killed writers."""
        return sorted(self._walk(prefix))

    def list_folders(self, prefix: str) -> list[str]:
        """Returns the sorted names of the folders in a folder, including empty folders."""
        names: list[str] = []
        with _ignore_absent(), self._open_folder(prefix) as folder, os.scandir(folder) as entries:
            names += [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(names)

    def list(self, prefix: str) -> list[str]:
        """Returns the sorted paths of all objects below a folder; [] without the folder."""
        return sorted(path for path in self._walk(prefix) if not _is_temporary(path))

    def delete(self, path: str) -> None:
        """Deletes an object if present, and its folders if they become empty.

        Raises:
            OSError: The file system failed.
        """
        folder, _, name = path.rpartition("/")
        if not names_object(path):
            return
        with _ignore_absent(), self._open_folder(folder) as parent:
            os.unlink(name, dir_fd=parent)
        self._remove_empty(folder)

    def delete_folder(self, path: str) -> None:
        """Deletes a folder with all its files, and its parent folders if they become empty.

        Undeletable files stay, for example files of a concurrent writer.
        """
        folder, _, name = path.rpartition("/")
        if not names_object(path):
            return
        with _ignore_absent(), self._open_folder(folder) as parent:
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        self._remove_empty(folder)

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        """Deletes files of killed writers above this age; returns their number."""
        oldest = time.time() - older_than_s
        removed = 0
        for path in self._walk(prefix):
            with contextlib.suppress(FileNotFoundError):
                if (
                    _is_temporary(path)
                    and os.lstat(os.path.join(self.root, path)).st_mtime < oldest
                ):
                    self.delete(path)
                    removed += 1
        return removed

    def find_link(self, *, ignored: str | None = None) -> str | None:
        """Returns the path of a symbolic link between the boundary and the root, or below the root.

        Args:
            ignored: A name to skip, with all files below.

        Returns:
            None without a link.
        """
        place = self.boundary or self.root
        below = os.path.relpath(self.root, place)
        for part in () if below == "." else below.split("/"):
            place = os.path.join(place, part)
            if os.path.islink(place):
                return place
        folders = [place]
        while folders:
            with _ignore_absent(), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name == ignored:
                        continue
                    if entry.is_symlink():
                        return entry.path
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        return None

    def _walk(self, prefix: str) -> Iterator[str]:
        folders = [prefix.rstrip("/")]
        while folders:
            folder = folders.pop()
            with (
                _ignore_absent(),
                self._open_folder(folder) as open_folder,
                os.scandir(open_folder) as entries,
            ):
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        yield path

    def _remove_empty(self, folder: str) -> None:
        while folder:
            folder, _, name = folder.rpartition("/")
            try:
                with self._open_folder(folder) as parent:
                    os.rmdir(name, dir_fd=parent)
            except OSError:
                return

    @contextlib.contextmanager
    def _add_path_to_errors(self, path: str) -> Iterator[None]:
        """Adds the whole path to an error of the file system."""
        try:
            yield
        except OSError as error:
            error.filename, error.filename2 = os.path.join(self.root, path), None
            raise

    @contextlib.contextmanager
    def _open_folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """Opens a folder of the root, without following a link below the boundary.

        Raises:
            FileNotFoundError, NotADirectoryError: The folder is missing, or behind a link.
        """
        boundary = self.boundary or self.root
        below = os.path.relpath(self.root, boundary)
        if make:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(boundary, exist_ok=True)
        opened = os.open(boundary, _FOLDER)
        try:
            for part in [
                *(() if below == "." else below.split("/")),
                *(folder.split("/") if folder else ()),
            ]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=opened)
                inner = _open_inside(opened, part, _FOLDER)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)


def _replace(folder: int, name: str, data: bytes) -> None:
    """Makes or replaces a file in an open folder, whole or not at all."""
    temporary = f".{os.urandom(8).hex()}.tmp"
    file = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder
    )
    try:
        with open(file, "wb", buffering=0) as out:
            # A single call writes at most 2 GiB.
            unwritten = memoryview(data)
            while unwritten:
                unwritten = unwritten[out.write(unwritten) :]
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _open_inside(folder: int, name: str, flags: int, more: int = 0) -> int:
    try:
        return os.open(name, flags | more | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "a link is not followed", name) from error
        raise


def _ignore_absent() -> contextlib.suppress:
    return contextlib.suppress(FileNotFoundError, NotADirectoryError)


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")
