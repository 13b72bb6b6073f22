"""The store of checkpoints: :class:`CheckpointStore`, over any store of named objects.

    <root>/<key>/<source>/<start>-<stop>.<rows>.<job>.<random>.rows  values of rows of a fragment
    <root>/<key>/files.<job>.<random>.ref                            pointers to whole column files
    <root>/<key>/<source>/file.<job>.<random>.ref                    a pointer of an earlier release

`key` is the digest of a :class:`~udf_runtime.checkpoint.key.CheckpointKey`, and `source` is the
digest of the fragment's input files. So every job that needs the
same values finds their checkpoints, regardless of job, filter and batch size. A single listing
shows the rows with values. A task points to all column files of about a second in one object.
Objects never change in place, and every name is new, so writers do not have
to know of each other.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast

import pyarrow as pa

from udf_runtime.checkpoint.codec import JsonValue, decode, encode, explain_failures
from udf_runtime.checkpoint.key import CheckpointKey
from udf_runtime.checkpoint.names import quote, unquote
from udf_runtime.errors import CheckpointError
from udf_runtime.optional import np

logger = logging.getLogger(__name__)

Array: TypeAlias = "pa.Array[Any]"
"""An Arrow array of any type."""

_VALUES_NAME = re.compile(r"(\d+)-(\d+)\.(\d+)\.([^.]+)\.[0-9a-f]{16}\.rows")
_REFERENCE_NAME = re.compile(r"file\.([^.]+)\.[0-9a-f]{16}\.ref")
_GROUP_NAME = re.compile(r"files\.([^.]+)\.[0-9a-f]{16}\.ref")
_REFERENCE_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "data_file": str,
    "size_bytes": (int, NoneType),
    "rows": dict,
    "context": dict,
}
_PARALLEL_REQUESTS = 16
_LEFTOVER_AGE_S = 24 * 3600.0


class Objects(Protocol):
    """A store of named blocks of bytes.

    Implementations are picklable, and safe for concurrent threads and processes. Paths are
    relative, with `/` between folders. A listing includes all objects put before its start.
    """

    def put(self, path: str, data: bytes) -> None:
        """Makes or replaces an object; a reader sees the whole object or none.

        Raises OSError if the store fails.
        """

    def get(self, path: str) -> bytes | None:
        """Returns an object's content, or None without the object.

        Raises OSError if the store fails.
        """

    def list(self, prefix: str) -> list[str]:
        """Returns the sorted paths of all objects below a folder; [] without the folder."""

    def delete(self, path: str) -> None:
        """Deletes an object if present. Raises OSError if the store fails."""

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        """Deletes leftovers of killed writers, if the store shows any; returns their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """A stored checkpoint, as described by its name.

    Attributes:
        kind: `values` holds the values of rows; `reference` points to a column file; `references`
            points to column files of several fragments.
        source: Digest of the fragment's input files; empty for `references`.
        start: Lowest row offset of the values; 0 for a reference.
        stop: Highest row offset plus 1; 0 for a reference.
        rows: Number of rows with values; 0 for a reference.
        job_id: The job of the writer.
        path: Path in the store.
        reference: The content of a reference from an entry of the kind `references`.
    """

    kind: Literal["values", "reference", "references"]
    source: str = ""
    start: int = 0
    stop: int = 0
    rows: int = 0
    job_id: str
    path: str
    reference: ColumnFileReference | None = None


class ColumnFileReference(TypedDict):
    """The content of a checkpoint of the kind `reference`.

    Attributes:
        data_file: Name of a finished column file.
        size_bytes: Size of the file, if known.
        rows: The writer's description of the rows with values.
        context: Further facts from the writer, to judge the file.
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

    def write(
        self, key: CheckpointKey, source: str, *, job_id: str, offsets: Array, values: Array
    ) -> CheckpointEntry:
        """Stores values of rows of a fragment. Runs in a task.

        Args:
            key: Dependencies of the values.
            source: Digest of the fragment's input files.
            job_id: The job of the values.
            offsets: Physical row offsets, uint32 or int64, strictly ascending, without NULLs.
            values: The values, of any Arrow type; NULL means computed as NULL. Leave out rows
                without a result.

        Raises:
            OSError: The store failed; its own error.
            ValueError: Offsets and values do not belong together, or the job id is too long for a
                file name.
        """
        positions = _check_offsets(offsets, values)
        start, stop = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        columns = {"value": values}
        if stop - start != len(positions):
            columns["offset"] = pa.array(positions, pa.uint32() if stop <= 1 << 32 else pa.int64())
        header = _make_header("values", key.digest, source, job_id) | {
            "start": start,
            "stop": stop,
            "rows": len(positions),
        }
        path = f"{self._folder(key, source)}/{start}-{stop}.{len(positions)}.{quote(job_id)}.{_make_random_part()}.rows"
        self.objects.put(path, encode(header, pa.table(columns)))
        return CheckpointEntry(
            kind="values",
            source=source,
            start=start,
            stop=stop,
            rows=len(positions),
            job_id=job_id,
            path=path,
        )

    def write_references(
        self,
        key: CheckpointKey,
        references: Mapping[str, ColumnFileReference],
        *,
        job_id: str,
        report: Mapping[str, JsonValue] | None = None,
    ) -> CheckpointEntry:
        """Stores pointers to finished column files of fragments instead of values. Runs in a task.

        Args:
            key: Dependencies of the values in the files.
            references: The pointers, by the digest of a fragment's input files.
            job_id: The job of the files.
            report: A message about the files to the driver of the job.

        Raises:
            OSError: The store failed; its own error.
            ValueError: The job id is too long for a file name.
        """
        bodies = [{"source": source, **reference} for source, reference in references.items()]
        header = _make_header("references", key.digest, "", job_id) | {
            "references": cast("JsonValue", bodies),
            "report": None if report is None else dict(report),
        }
        path = f"{self.root}/{key.digest}/files.{quote(job_id)}.{_make_random_part()}.ref"
        self.objects.put(path, encode(header, pa.table({})))
        return CheckpointEntry(kind="references", job_id=job_id, path=path)

    def list_entries(self, key: CheckpointKey) -> list[CheckpointEntry]:
        """Returns the entries of a key, as described by their names. A single listing, no reads.

        Raises:
            CheckpointError: The store failed.
        """
        return _parse_entries(self._list(f"{self.root}/{key.digest}"))

    def find_all(
        self, key: CheckpointKey, contents: dict[str, list[CheckpointEntry]] | None = None
    ) -> dict[str, list[CheckpointEntry]]:
        """Returns the entries of all fragments of a key, by source.

        A single listing, and a read of each entry of the kind `references`. `contents` keeps the
        references of these entries for the next call, by path.

        Raises:
            CheckpointError: The store failed.
        """
        contents = {} if contents is None else contents
        entries = self.list_entries(key)
        groups = [entry for entry in entries if entry.kind == "references"]
        unread = [group for group in groups if group.path not in contents]
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            members = pool.map(lambda group: self.read_references(group, key), unread)
            contents.update(zip((group.path for group in unread), members, strict=True))
        entries += [member for group in groups for member in contents[group.path]]
        by_source: dict[str, list[CheckpointEntry]] = {}
        for entry in sorted(entries, key=_order):
            if entry.kind != "references":
                by_source.setdefault(entry.source, []).append(entry)
        return by_source

    def find(self, key: CheckpointKey, source: str) -> list[CheckpointEntry]:
        """Returns the entries of a fragment, by first row and path.

        Raises:
            CheckpointError: The store failed.
        """
        return self.find_all(key).get(source, [])

    def sources(self, key: CheckpointKey) -> set[str]:
        """Returns the sources with at least one entry. A single listing.

        Raises:
            CheckpointError: The store failed.
        """
        return set(self.find_all(key))

    def read(
        self, entry: CheckpointEntry, key: CheckpointKey, source: str
    ) -> tuple[Array, Array] | None:
        """Returns row offsets (int64, ascending) and their values, or None.

        None if the entry is deleted, damaged, or of another key.

        Raises:
            CheckpointError: The store failed; the entry may exist.
        """
        content = self._open(entry, key.digest, source)
        if content is None:
            return None
        header, table = content
        stated = [header.get("start"), header.get("stop"), header.get("rows"), len(table)]
        names = table.column_names
        if stated != [entry.start, entry.stop, entry.rows, entry.rows] or names not in (
            ["value"],
            ["value", "offset"],
        ):
            _warn(entry, "it does not hold what its name says")
            return None
        offsets: Array
        if len(names) == 2:
            offsets = _take_chunk(table["offset"]).cast(pa.int64())
        else:
            offsets = pa.array(np.arange(entry.start, entry.start + entry.rows, dtype=np.int64))
        return offsets, _take_chunk(table["value"])

    def read_reference(
        self, entry: CheckpointEntry, key: CheckpointKey, source: str
    ) -> ColumnFileReference | None:
        """Returns the body of a reference; None if the entry is deleted, damaged or foreign.

        The caller must check whether the column file still exists.

        Raises:
            CheckpointError: The store failed; the entry may exist.
        """
        return self._read_body(entry, key.digest, source)

    def _read_body(
        self, entry: CheckpointEntry, key: str, source: str
    ) -> ColumnFileReference | None:
        if entry.reference is not None:
            return entry.reference
        content = self._open(entry, key, source)
        return None if content is None else _parse_reference(entry, content[0])

    def read_references(self, group: CheckpointEntry, key: CheckpointKey) -> list[CheckpointEntry]:
        """Returns the references of an entry of the kind `references`.

        The list is empty if the entry is deleted, damaged or foreign.

        Raises:
            CheckpointError: The store failed; the entry may exist.
        """
        return self._read_group(group, key.digest)

    def _read_group(self, group: CheckpointEntry, key: str) -> list[CheckpointEntry]:
        content = self._open(group, key, "")
        bodies = None if content is None else content[0].get("references")
        entries = []
        for body in bodies if isinstance(bodies, list) else ():
            reference = _parse_reference(group, body)
            if reference is not None:
                entries.append(
                    replace(
                        group, kind="reference", source=str(body.get("source")), reference=reference
                    )
                )
        return entries

    def read_report(self, group: CheckpointEntry, key: CheckpointKey) -> dict[str, JsonValue]:
        """Returns the report of an entry of the kind `references`.

        The report is empty if the entry has none, or is deleted, damaged or foreign.

        Raises:
            CheckpointError: The store failed; the entry may exist.
        """
        content = self._open(group, key.digest, "")
        report = None if content is None else content[0].get("report")
        return report if isinstance(report, dict) else {}

    def column_files(
        self, *, keep: Callable[[str, str], bool] = lambda _key, _source: True
    ) -> set[str]:
        """Returns the names of the column files with references; opens each reference.

        Args:
            keep: Tells for the digest of a key and a source whether their references count.

        Raises:
            CheckpointError: The store failed.
        """

        def read_file_names(path: str) -> list[str]:
            entry, key = _parse_entry(path), self._key_of(path)
            if entry is None or entry.kind == "values":
                return []
            members = self._read_group(entry, key) if entry.kind == "references" else [entry]
            names = []
            for member in members:
                body = (
                    self._read_body(member, key, member.source)
                    if keep(key, member.source)
                    else None
                )
                names += [] if body is None else [body["data_file"]]
            return names

        paths = [path for path in self._list(self.root) if path.endswith(".ref")]
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            return {name for names in pool.map(read_file_names, paths) for name in names}

    def delete(self, entry: CheckpointEntry) -> None:
        """Deletes an entry if present.

        Raises:
            CheckpointError: The store failed.
        """
        self._delete(entry.path)

    def drop(self, key: CheckpointKey) -> None:
        """Deletes all checkpoints of a key.

        Raises:
            CheckpointError: The store failed.
        """
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._delete, self._list(f"{self.root}/{key.digest}")))

    def cleanup(self, *, keep: Callable[[str, str], bool], done_jobs: Collection[str] = ()) -> int:
        """Deletes the checkpoints without any further use. Runs on the driver.

        Args:
            keep: Tells for the digest of a key and a source whether their checkpoints stay. Called
                once for each pair.
            done_jobs: Ids of successful jobs. Their checkpoints have no use: a late attempt of a
                task wrote them after the end of the job.

        Returns:
            Number of deleted objects.

        Raises:
            CheckpointError: The store failed.
        """
        self.objects.remove_leftovers(self.root, older_than_s=_LEFTOVER_AGE_S)
        decided: dict[tuple[str, str], bool] = {}

        def is_kept(key: str, source: str) -> bool:
            if (key, source) not in decided:
                decided[key, source] = keep(key, source)
            return decided[key, source]

        doomed = []
        for path in self._list(self.root):
            sources = self._find_sources(path, done_jobs)
            if sources is not None and not any(
                is_kept(self._key_of(path), source) for source in sources
            ):
                doomed.append(path)
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._delete, doomed))
        return len(doomed)

    def _find_sources(self, path: str, done_jobs: Collection[str]) -> list[str] | None:
        """Returns the sources of an object in the folder of a key; None for a foreign object.

        An object of a job in `done_jobs` has no source.
        """
        entry = _parse_entry(path)
        if entry is not None and entry.job_id in done_jobs:
            return []
        source, slash, _ = path.removeprefix(f"{self.root}/").partition("/")[2].partition("/")
        if slash:
            return [source]
        if entry is None or entry.kind != "references":
            return None
        return [member.source for member in self._read_group(entry, self._key_of(path))]

    def _key_of(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/").partition("/")[0]

    def _folder(self, key: CheckpointKey, source: str) -> str:
        return f"{self.root}/{key.digest}/{source}"

    def _open(
        self, entry: CheckpointEntry, key: str, source: str
    ) -> tuple[dict[str, JsonValue], pa.Table] | None:
        with explain_failures("A checkpoint cannot be read", entry.path):
            payload = self.objects.get(entry.path)
        if payload is None:
            return None
        try:
            header, table = decode(payload)
        except CheckpointError as error:
            _warn(entry, str(error))
            return None
        expected = _make_header(entry.kind, key, source, entry.job_id)
        if any(header.get(name) != value for name, value in expected.items()):
            _warn(entry, "it belongs to something else")
            return None
        return header, table

    def _list(self, folder: str) -> list[str]:
        with explain_failures("Checkpoints cannot be listed", folder):
            return self.objects.list(folder)

    def _delete(self, path: str) -> None:
        with explain_failures("A checkpoint cannot be deleted", path):
            self.objects.delete(path)


def _make_header(kind: str, key: str, source: str, job_id: str) -> dict[str, JsonValue]:
    return {"kind": kind, "key": key, "source": source, "job": job_id}


def _check_offsets(offsets: Array, values: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if len(offsets) != len(values):
        raise ValueError(
            f"A checkpoint has {len(offsets)} row offsets for {len(values)} values. Give one row offset per value."
        )
    if offsets.null_count:
        raise ValueError(
            f"A checkpoint has {offsets.null_count} row offsets that are NULL. Give the offset of each row."
        )
    positions = offsets.cast(pa.int64()).to_numpy()
    if len(positions) and (positions[0] < 0 or bool(np.any(positions[1:] <= positions[:-1]))):
        raise ValueError(
            "The row offsets of a checkpoint are negative or not ascending. Sort the rows by their offsets."
        )
    return cast("np.ndarray[tuple[int], np.dtype[np.int64]]", positions)


def _take_chunk(column: pa.ChunkedArray[Any]) -> Array:
    # The writer stored a single array, and a stream keeps the array in a single piece. Without rows
    # the stream may have no piece.
    array: Array = column.chunks[0] if column.num_chunks else pa.nulls(0, column.type)
    return array


def _parse_entries(paths: Iterable[str]) -> list[CheckpointEntry]:
    return sorted((entry for entry in map(_parse_entry, paths) if entry is not None), key=_order)


def _order(entry: CheckpointEntry) -> tuple[int, int, str]:
    return entry.start, entry.stop, entry.path


def _parse_entry(path: str) -> CheckpointEntry | None:
    """Returns the entry for a path; None for the name of a foreign file."""
    folder, _, name = path.rpartition("/")
    source = folder.rpartition("/")[2]
    try:
        if match := _VALUES_NAME.fullmatch(name):
            start, stop, rows = (int(number) for number in match.groups()[:3])
            return CheckpointEntry(
                kind="values",
                source=source,
                start=start,
                stop=stop,
                rows=rows,
                job_id=unquote(match[4]),
                path=path,
            )
        if match := _REFERENCE_NAME.fullmatch(name):
            return CheckpointEntry(
                kind="reference", source=source, job_id=unquote(match[1]), path=path
            )
        if match := _GROUP_NAME.fullmatch(name):
            return CheckpointEntry(kind="references", job_id=unquote(match[1]), path=path)
    except ValueError:
        return None
    return None


def _parse_reference(entry: CheckpointEntry, body: object) -> ColumnFileReference | None:
    if not isinstance(body, dict) or any(
        name not in body or not isinstance(body[name], kind)
        for name, kind in _REFERENCE_FIELDS.items()
    ):
        _warn(entry, "it does not hold what its name says")
        return None
    return cast("ColumnFileReference", {name: body[name] for name in _REFERENCE_FIELDS})


def _make_random_part() -> str:
    return os.urandom(8).hex()


def _warn(entry: CheckpointEntry, reason: str) -> None:
    logger.warning(
        "The checkpoint at %s is not used, and its rows are computed again: %s", entry.path, reason
    )
