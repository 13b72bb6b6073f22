"""Where checkpoints are kept: :class:`CheckpointStore`, over any store of named objects.

    <root>/<key>/<source>/<start>-<stop>.<rows>.<job>.<random>.rows  values of rows of a fragment
    <root>/<key>/<source>/file.<job>.<random>.ref                    pointer to a whole column file

`key` is the digest of a :class:`~udf_runtime.checkpoint.key.CheckpointKey`, `source` that of the
fragment's input files. So each job that needs the same values finds them, whatever its job, filter
or batch size, and no other job does. The names say enough for planning: one listing tells which
rows are there. Nothing is ever changed in place, and every name is new: writers need not know of
each other.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast

import pyarrow as pa

from udf_runtime.checkpoint.codec import JsonValue, decode, encode
from udf_runtime.checkpoint.key import CheckpointKey
from udf_runtime.checkpoint.names import quote, unquote
from udf_runtime.errors import CheckpointError
from udf_runtime.optional import np

logger = logging.getLogger(__name__)

Array: TypeAlias = "pa.Array[Any]"
"""An Arrow array of any type."""

_VALUES_NAME = re.compile(r"(\d+)-(\d+)\.(\d+)\.([^.]+)\.[0-9a-f]{16}\.rows")
_REFERENCE_NAME = re.compile(r"file\.([^.]+)\.[0-9a-f]{16}\.ref")
_PARALLEL_REQUESTS = 16
_LEFTOVER_AGE_S = 24 * 3600.0


class Objects(Protocol):
    """A store of named blocks of bytes.

    Implementations are picklable, and safe beside other threads and processes. Paths are relative,
    with `/` between folders. A listing shows what was put before it began.
    """

    def put(self, path: str, data: bytes) -> None:
        """Makes or replaces an object; a reader sees all of it or nothing.

        Raises OSError where the store refuses.
        """

    def get(self, path: str) -> bytes | None:
        """Returns an object's content, or None where there is none.

        Raises OSError where the store refuses.
        """

    def list(self, prefix: str) -> list[str]:
        """Returns the paths of all objects below a folder, sorted; the folder need not be there."""

    def delete(self, path: str) -> None:
        """Deletes an object if it is there. Raises OSError where the store refuses."""

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        """Deletes what killed writers left, where the store shows it; returns how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One stored checkpoint, as its name tells.

    Attributes:
        kind: `values` holds the values of rows; `reference` points to a column file.
        start: Lowest row offset of the values; 0 for a reference.
        stop: Highest row offset plus 1; 0 for a reference.
        rows: How many rows there are values for; 0 for a reference.
        job_id: The job that wrote it.
        path: Where it is, for the store.
    """

    kind: Literal["values", "reference"]
    start: int = 0
    stop: int = 0
    rows: int = 0
    job_id: str
    path: str


class ColumnFileReference(TypedDict):
    """What a checkpoint of the kind `reference` says.

    Attributes:
        data_file: Name of a finished column file.
        size_bytes: Its size, where known.
        rows: Whatever the writer said about the rows that have values in it.
        context: Whatever else the writer needs to judge the file.
    """

    data_file: str
    size_bytes: int | None
    rows: dict[str, JsonValue]
    context: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """Checkpoints in a folder of a store. A picklable value; works on the driver and in tasks.

    Attributes:
        objects: The store.
        root: The folder.
    """

    objects: Objects
    root: str = "checkpoints"

    def write(self, key: CheckpointKey, source: str, *, job_id: str, offsets: Array, values: Array) -> CheckpointEntry:
        """Stores values of rows of one fragment. Runs in a task.

        Args:
            key: What the values depend on.
            source: Digest of the fragment's input files.
            job_id: The job that computed them.
            offsets: Physical row offsets, uint32 or int64, ascending, each once, without NULLs.
            values: Their values, of any Arrow type; NULL means computed as NULL. Leave out rows
                without a result.

        Raises:
            OSError: The store refused, as it says it.
            ValueError: Offsets and values do not belong together, or the job id is too long for a
                file name.
        """
        positions = _checked(offsets, values)
        start, stop = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        columns = {"value": values}
        if stop - start != len(positions):
            columns["offset"] = pa.array(positions, pa.uint32() if stop <= 1 << 32 else pa.int64())
        header = _header("values", key.digest, source, job_id) | {"start": start, "stop": stop, "rows": len(positions)}
        path = f"{self._folder(key, source)}/{start}-{stop}.{len(positions)}.{quote(job_id)}.{_random()}.rows"
        self.objects.put(path, encode(header, pa.table(columns)))
        return CheckpointEntry(kind="values", start=start, stop=stop, rows=len(positions), job_id=job_id, path=path)

    def write_reference(
        self,
        key: CheckpointKey,
        source: str,
        *,
        job_id: str,
        data_file: str,
        size_bytes: int | None,
        rows: Mapping[str, JsonValue],
        context: Mapping[str, JsonValue],
    ) -> CheckpointEntry:
        """Stores a pointer to a fragment's finished column file, not its values. Runs in a task.

        Args:
            key: What the values in the file depend on.
            source: Digest of the fragment's input files.
            job_id: The job that wrote the file.
            data_file: Name of the file.
            size_bytes: Its size, where known.
            rows: Which rows have values in it, in the writer's own terms.
            context: What else the reader needs to judge the file.

        Raises:
            OSError: The store refused, as it says it.
            ValueError: The job id is too long for a file name.
        """
        header = _header("reference", key.digest, source, job_id) | {
            "data_file": data_file,
            "size_bytes": size_bytes,
            "rows": rows,
            "context": context,
        }
        path = f"{self._folder(key, source)}/file.{quote(job_id)}.{_random()}.ref"
        self.objects.put(path, encode(header, pa.table({})))
        return CheckpointEntry(kind="reference", job_id=job_id, path=path)

    def find(self, key: CheckpointKey, source: str) -> list[CheckpointEntry]:
        """Returns the entries of one fragment, by first row and path. One listing, none opened.

        Raises:
            CheckpointError: The store refused.
        """
        return _entries(self._list(self._folder(key, source)))

    def find_all(self, key: CheckpointKey) -> dict[str, list[CheckpointEntry]]:
        """Returns the entries of all fragments of a key, by source. One listing.

        Raises:
            CheckpointError: The store refused.
        """
        by_source: dict[str, list[str]] = {}
        for path in self._list(f"{self.root}/{key.digest}"):
            by_source.setdefault(path.split("/")[-2], []).append(path)
        found = {source: _entries(paths) for source, paths in by_source.items()}
        return {source: entries for source, entries in found.items() if entries}

    def sources(self, key: CheckpointKey) -> set[str]:
        """Returns the sources that there is any entry for. One listing.

        Raises:
            CheckpointError: The store refused.
        """
        return set(self.find_all(key))

    def read(self, entry: CheckpointEntry, key: CheckpointKey, source: str) -> tuple[Array, Array] | None:
        """Returns row offsets (int64, ascending) and their values, or None.

        None where the entry is gone, damaged, or of another key.

        Raises:
            CheckpointError: The store refused; whether the entry is there is not known.
        """
        content = self._open(entry, key.digest, source)
        if content is None:
            return None
        header, table = content
        stated = [header.get("start"), header.get("stop"), header.get("rows"), len(table)]
        names = table.column_names
        if stated != [entry.start, entry.stop, entry.rows, entry.rows] or names not in (["value"], ["value", "offset"]):
            _warn(entry, "it does not hold what its name says")
            return None
        offsets: Array
        if len(names) == 2:
            offsets = _single(table["offset"]).cast(pa.int64())
        else:
            offsets = pa.array(np.arange(entry.start, entry.start + entry.rows, dtype=np.int64))
        return offsets, _single(table["value"])

    def read_reference(self, entry: CheckpointEntry, key: CheckpointKey, source: str) -> ColumnFileReference | None:
        """Returns the body of a reference; None where it is gone, damaged, or of another key.

        Whether the column file is still there is for the caller to see.

        Raises:
            CheckpointError: The store refused; whether the entry is there is not known.
        """
        content = self._open(entry, key.digest, source)
        if content is None:
            return None
        fields = ("data_file", "size_bytes", "rows", "context")
        if any(field not in content[0] for field in fields):
            _warn(entry, "it does not hold what its name says")
            return None
        return cast("ColumnFileReference", {field: content[0][field] for field in fields})

    def column_files(self) -> set[str]:
        """Returns the names of all column files that references of any key point to; opens each.

        Raises:
            CheckpointError: The store refused.
        """

        def name_in(path: str) -> str | None:
            _, key, source, _ = path.rsplit("/", 3)
            entry = _entry(path)
            content = None if entry is None else self._open(entry, key, source)
            return None if content is None else str(content[0].get("data_file"))

        paths = [path for path in self._list(self.root) if _REFERENCE_NAME.fullmatch(path.rpartition("/")[2])]
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            return {name for name in pool.map(name_in, paths) if name is not None}

    def delete(self, entry: CheckpointEntry) -> None:
        """Deletes an entry if it is there.

        Raises:
            CheckpointError: The store refused.
        """
        self._delete(entry.path)

    def drop(self, key: CheckpointKey) -> None:
        """Deletes everything that is kept of a key.

        Raises:
            CheckpointError: The store refused.
        """
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._delete, self._list(f"{self.root}/{key.digest}")))

    def cleanup(self, *, keep: Callable[[str, str], bool]) -> int:
        """Deletes the checkpoints that no job can use any more. Runs on the driver.

        Args:
            keep: Tells for the digest of a key and a source whether their checkpoints stay. Asked
                once for each pair.

        Returns:
            How many objects were deleted.

        Raises:
            CheckpointError: The store refused.
        """
        self.objects.remove_leftovers(self.root, older_than_s=_LEFTOVER_AGE_S)
        decided: dict[tuple[str, str], bool] = {}
        doomed = []
        for path in self._list(self.root):
            key, _, rest = path.removeprefix(f"{self.root}/").partition("/")
            source, slash, _ = rest.partition("/")
            if not slash:
                continue
            if (key, source) not in decided:
                decided[key, source] = keep(key, source)
            if not decided[key, source]:
                doomed.append(path)
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._delete, doomed))
        return len(doomed)

    def _folder(self, key: CheckpointKey, source: str) -> str:
        return f"{self.root}/{key.digest}/{source}"

    def _open(self, entry: CheckpointEntry, key: str, source: str) -> tuple[dict[str, JsonValue], pa.Table] | None:
        try:
            payload = self.objects.get(entry.path)
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint cannot be read: {error} - at {entry.path} - check access to the place of the checkpoints"
            ) from error
        if payload is None:
            return None
        try:
            header, table = decode(payload)
        except CheckpointError as error:
            _warn(entry, str(error))
            return None
        expected = _header(entry.kind, key, source, entry.job_id)
        if any(header.get(name) != value for name, value in expected.items()):
            _warn(entry, "it belongs to something else")
            return None
        return header, table

    def _list(self, folder: str) -> list[str]:
        try:
            return self.objects.list(folder)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be listed: {error} - in {folder} - check access to the place of the checkpoints"
            ) from error

    def _delete(self, path: str) -> None:
        try:
            self.objects.delete(path)
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint cannot be deleted: {error} - at {path} "
                "- check permissions at the place of the checkpoints"
            ) from error


def _header(kind: Literal["values", "reference"], key: str, source: str, job_id: str) -> dict[str, JsonValue]:
    return {"kind": kind, "key": key, "source": source, "job": job_id}


def _checked(offsets: Array, values: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if len(offsets) != len(values):
        raise ValueError(
            f"{len(offsets)} row offsets were given for {len(values)} values - for a checkpoint - give one for each"
        )
    if offsets.null_count:
        raise ValueError(f"{offsets.null_count} row offsets are NULL - for a checkpoint - give the offset of each row")
    positions = offsets.cast(pa.int64()).to_numpy()
    if len(positions) and (positions[0] < 0 or bool(np.any(positions[1:] <= positions[:-1]))):
        raise ValueError(
            "row offsets are negative or not ascending - for a checkpoint - sort the rows by their offsets"
        )
    return cast("np.ndarray[tuple[int], np.dtype[np.int64]]", positions)


def _single(column: pa.ChunkedArray[Any]) -> Array:
    # What was written was one array, and a stream keeps it in one piece; without rows it may keep
    # none.
    found: Array = column.chunks[0] if column.num_chunks else pa.nulls(0, column.type)
    return found


def _entries(paths: Iterable[str]) -> list[CheckpointEntry]:
    found = [entry for entry in map(_entry, paths) if entry is not None]
    return sorted(found, key=lambda entry: (entry.start, entry.stop, entry.path))


def _entry(path: str) -> CheckpointEntry | None:
    """Returns the entry that a path names; None where something else left the file there."""
    name = path.rpartition("/")[2]
    try:
        if match := _VALUES_NAME.fullmatch(name):
            start, stop, rows = (int(number) for number in match.groups()[:3])
            return CheckpointEntry(
                kind="values", start=start, stop=stop, rows=rows, job_id=unquote(match[4]), path=path
            )
        if match := _REFERENCE_NAME.fullmatch(name):
            return CheckpointEntry(kind="reference", job_id=unquote(match[1]), path=path)
    except ValueError:
        return None
    return None


def _random() -> str:
    return os.urandom(8).hex()


def _warn(entry: CheckpointEntry, reason: str) -> None:
    logger.warning("the checkpoint at %s is not used, and its rows are computed again: %s", entry.path, reason)
