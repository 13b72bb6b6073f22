"""Bytes by name on any store of Lance, and our folder in a table's folder.

    <table>/_lance_spark/...

Checkpoints may have another folder. Lance ignores the folder, its `cleanup_old_versions` keeps it,
and no reader takes its files for data.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.dataset_retries import note_failure, retry_options
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    TableUnreadableError,
    refusals_as_errors,
)
from lance_spark.lance_compat import is_unanswered, load_lance, plain
from lance_spark.locations import is_local, is_misread, normalize_uri
from lance_spark.namespaces.access import renewal_arguments
from udf_runtime.checkpoint import CheckpointStore, LocalObjects

if TYPE_CHECKING:
    from lance.file import LanceFileSession

MOST_NAME_BYTES = 255
"""Bytes of a name in a local file system."""


def objects_beside(ref: DatasetRef) -> LanceObjects:
    """Returns the objects in our folder of a table or a branch. Touches no storage."""
    return LanceObjects(f"{ref.uri}/{FOLDER}", ref.storage_options)


def objects_of_table(ref: DatasetRef) -> LanceObjects:
    """Returns the objects in our folder of a table for all branches. Touches no storage."""
    return LanceObjects(f"{ref.table_uri}/{FOLDER}", ref.storage_options)


def open_session(uri: str, storage_options: tuple[tuple[str, str], ...]) -> LanceFileSession:
    """Returns this process's file session for a table's directory; paths are relative to it.

    Raises:
        TableUnreadableError: The store does not answer.
    """
    retry_options(uri, dict(storage_options))  # a store that failed has to answer again
    return _open_session(uri, storage_options)


@functools.lru_cache(maxsize=16)
def _open_session(uri: str, storage_options: tuple[tuple[str, str], ...]) -> LanceFileSession:
    load_lance()
    from lance.file import LanceFileSession

    options = dict(storage_options)
    return LanceFileSession(uri, retry_options(uri, options), **renewal_arguments(options))


@dataclass(frozen=True, slots=True)
class LanceObjects:
    """Objects below a location on a store of Lance.

    A picklable value for the driver and for tasks. On a mounted file system, this process writes
    and renames files, quicker than Lance and without an import of Lance. On an object store, an
    upload becomes visible at its end, so an upload is atomic.

    Attributes:
        uri: The location, as Lance takes it: an absolute path, or a URI.
        storage_options: Options of the object store, as pairs sorted by key.
    """

    uri: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def put(self, path: str, data: bytes) -> None:
        """Creates or replaces an object. A reader sees the whole object or nothing.

        Raises:
            TableUnwritableError: The store refused.
        """
        with refusals_as_errors(self.uri):
            if self._local is not None:
                self._local.put(path, data)
                return
            # A session uploads files, not bytes.
            with tempfile.NamedTemporaryFile(prefix="lance-spark-") as file:
                file.write(data)
                file.flush()
                with self._noting_failures():
                    self._session.upload_file(file.name, path)

    def get(self, path: str) -> bytes | None:
        """Returns the content of an object; None for a missing object.

        Raises:
            OSError: The store refused.
        """
        if self._local is not None:
            return self._local.get(path)
        # A session does not tell sizes, and reads only ranges of known length.
        with tempfile.TemporaryDirectory(prefix="lance-spark-") as folder, self._typed_failures():
            copy = os.path.join(folder, "object")
            try:
                self._session.download_file(path, copy)
            except OSError as error:
                if is_unanswered(error) or self._session.contains(path):
                    raise
                return None
            with open(copy, "rb") as file:
                return file.read()

    def list_files(self, prefix: str = "") -> list[str]:
        """Returns the paths of all files below a folder, sorted, with those of killed writers.

        Raises:
            OSError: The store refused.
        """
        return self.list(prefix) if self._local is None else self._local.list_files(prefix)

    def list_folders(self, prefix: str) -> list[str]:
        """Returns the names of the folders in a folder, sorted; a link is no folder.

        Raises:
            OSError: The store refused.
        """
        if self._local is not None:
            return self._local.list_folders(prefix)
        with self._typed_failures():
            paths = self._session.list_with_delimiter(prefix).common_prefixes
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def list_names(self, folder: str) -> frozenset[str]:
        """Returns the names of the objects in a folder, without those of its subfolders.

        Raises:
            OSError: The store refused.
        """
        if self._local is not None:
            paths = [
                path
                for path in self._local.list(folder)
                if "/" not in path.removeprefix(f"{folder}/")
            ]
        else:
            with self._typed_failures():
                paths = self._session.list_with_delimiter(folder).objects
        return frozenset(path.rpartition("/")[2] for path in paths)

    def list(self, prefix: str) -> list[str]:
        """Returns the paths of all objects below a folder, sorted; empty for a missing folder.

        Raises:
            OSError: The store refused.
        """
        if self._local is not None:
            return self._local.list(prefix)
        with self._typed_failures():
            return sorted(self._session.list(prefix))

    def delete(self, path: str) -> None:
        """Deletes an object; a missing object is no error.

        Raises:
            OSError: The store refused.
        """
        if self._local is not None:
            self._local.delete(path)
            return
        with self._typed_failures():
            session = self._session
            if "%" in path:
                # A session escapes this sign of a path once more, but not of its own location.
                session, path = (
                    open_session(f"{self.uri}/{path.replace('%', '%25')}", self.storage_options),
                    "",
                )
            try:
                session.delete_file(path)
            except OSError as error:
                # A concurrent writer may have deleted it.
                if is_unanswered(error) or session.contains(path):
                    raise

    def delete_folder(self, folder: str) -> None:
        """Deletes all objects in a folder.

        On a mounted file system, the folder is deleted too, with the files of killed writers.

        Raises:
            OSError: The store refused.
        """
        for path in self.list(folder):
            self.delete(path)
        if self._local is not None:
            self._local.delete_folder(folder)

    def find_link(self) -> str | None:
        """Returns the path of a symbolic link on the way to the location, or below it.

        Lance follows links when it deletes files. A writer of a table's folder may plant a link.

        Returns:
            None without a link; object stores have none.
        """
        return None if self._local is None else self._local.find_link()

    def contains(self, path: str) -> bool:
        """Tells whether an object exists.

        Raises:
            OSError: The store refused.
        """
        with self._typed_failures():
            return self._session.contains(path)

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        """Deletes the files of killed writers on a mounted file system, and returns their number.

        Object stores have no such files.
        """
        return (
            0
            if self._local is None
            else self._local.remove_leftovers(prefix, older_than_s=older_than_s)
        )

    @property
    def _local(self) -> LocalObjects | None:
        if not is_local(self.uri):
            return None
        # A user with write access to a table's folder may replace our folder by a link.
        table, ours, _ = f"{self.uri}/".rpartition(f"/{FOLDER}/")
        return LocalObjects(self.uri, boundary=table if ours else self.uri)

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            note_failure(self.uri, dict(self.storage_options), error)
            raise

    @contextlib.contextmanager
    def _typed_failures(self) -> Iterator[None]:
        """Turns failures of the store, which have two types in pylance, into our errors."""
        try:
            with self._noting_failures():
                yield
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, LanceSparkError):
                raise
            hint = "check that the store answers, and the storage.* options and permissions"
            raise TableUnreadableError(self.uri, plain(error), hint=hint) from error

    @property
    def _session(self) -> LanceFileSession:
        return open_session(self.uri, self.storage_options)


def checkpoint_place(folder: str, uri: str) -> str:
    """Returns the location of a table's checkpoints in a folder of many tables.

    Tables of one name in two folders have different locations.

    Args:
        folder: The common folder, the value of `connect(checkpoint=...)`.
        uri: Normalised location of the table.

    Raises:
        OptionError: The folder is no location, or a name in its path is too long.
    """
    parent, _, name = uri.rpartition("/")
    shared = normalize_uri(folder, option="checkpoint")
    if is_local(shared) and max(map(len, map(os.fsencode, shared.split("/")))) > MOST_NAME_BYTES:
        raise OptionError(
            "checkpoint",
            shared[:100],
            "a path with names of at most 255 bytes",
            problem="is too long",
        )
    name = name.removesuffix(".lance")
    if is_misread(shared, name):
        name = quote(name, safe="")
    return f"{shared}/{hashlib.sha256(parent.encode()).hexdigest()[:16]}/{name}"


def checkpoint_store(
    uri: str, storage_options: tuple[tuple[str, str], ...] = (), location: str | None = None
) -> CheckpointStore:
    """Returns the store of a table's checkpoints. Touches no storage.

    Args:
        uri: Normalised location of the table.
        storage_options: Options of the object store for both locations, as pairs sorted by key.
        location: A folder for the checkpoints, on any store of Lance, for one or more tables. None
            is the table's own folder.
    """
    table_objects = objects_beside(DatasetRef(uri=uri, storage_options=storage_options))
    objects = (
        table_objects
        if location is None
        else LanceObjects(normalize_uri(location), storage_options)
    )
    return CheckpointStore(objects, "checkpoints")
