"""What was computed, beside the table: per fragment and column, which rows a UDF gave a value, gave NULL, or failed for.

    <root>/<column>/0-<digest>.rec            the records of one commit
    <root>/<column>/<level>-<random>.rec      those of many, level 1 and up

A commit adds one object per column. When a level has more than a few dozen, they are put together as one of the next level, so a reader
opens few objects and each record is written again only a few times, however many commits there are. No object is ever changed. What puts
objects together writes the new one before it deletes those that went into it: at every moment each record is in at least one object, and
a reader that finds a record twice counts it once. So appends, merges, reads and crashes may come in any order.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.rows.row_set import RowSet
from udf_runtime.checkpoint.codec import decode, encode
from udf_runtime.checkpoint.names import folder_name
from udf_runtime.errors import CheckpointError

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects

logger = logging.getLogger(__name__)

_MOST_OBJECTS = 32
"""Objects of one level before they are put together."""

_TRIES = 10
"""Listings until all that a listing named was there: a merge beside us takes objects away, but only after it has written theirs anew."""

_FIELDS: dict[str, pa.DataType] = {
    "fragment_id": pa.int64(),
    "physical_rows": pa.int64(),
    "table_version": pa.int64(),
    "job_id": pa.string(),
    "key": pa.string(),
    "udf_version": pa.string(),
    "source": pa.string(),
    "target_file": pa.string(),
    "computed": pa.binary(),
    "nulls": pa.binary(),
    "failed": pa.binary(),
}
_SCHEMA = pa.schema(_FIELDS)
_SETS = ("computed", "nulls", "failed")
_IDENTITY = ("fragment_id", "table_version", "job_id", "key", "source", "target_file")
"""Two records that agree in these are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRecord:
    """What one commit computed for one column of one fragment.

    Attributes:
        column: Identity of the column: its token.
        fragment_id: Id of the fragment.
        physical_rows: Its physical rows.
        table_version: The version that the commit made.
        job_id: The job.
        key: Digest of the checkpoint key: what the values depend on beside the rows' own data.
        udf_version: Version of the UDF.
        source: Digest of the fragment's input files.
        target_file: Name of the column file that holds the values.
        computed: Rows that the UDF gave a result, NULL included.
        nulls: Those of them whose result is NULL.
        failed: Rows that were skipped, or whose process died.
    """

    column: str
    fragment_id: int
    physical_rows: int
    table_version: int
    job_id: str
    key: str
    udf_version: str
    source: str
    target_file: str
    computed: RowSet
    nulls: RowSet
    failed: RowSet

    def __post_init__(self) -> None:
        if not self.nulls <= self.computed or not self.failed.isdisjoint(self.computed):
            raise ValueError(
                f"rows computed as NULL are computed, and failed ones are not - in a record of fragment {self.fragment_id} - "
                "correct the sets"
            )


class Records:
    """The records of one column, at the time of reading. Row sets are decoded when they are asked for."""

    def __init__(self, column: str, table: pa.Table) -> None:
        """Takes a table of records, in any order, some of them perhaps twice."""
        self._column = column
        self._table = _distinct(table)
        fragments = self._table["fragment_id"].to_numpy()
        # Stable, so that each fragment's records stay newest first.
        self._order = np.argsort(fragments, kind="stable")
        self._fragments = fragments[self._order]

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[FragmentRecord]:
        """Yields all records, by fragment, the newest of each first."""
        return map(self._record, self._order.tolist())

    def of(self, fragment_id: int) -> list[FragmentRecord]:
        """Returns the records of a fragment, the newest commit first."""
        first = np.searchsorted(self._fragments, fragment_id, "left")
        last = np.searchsorted(self._fragments, fragment_id, "right")
        return [self._record(row) for row in self._order[first:last].tolist()]

    @property
    def fragment_ids(self) -> set[int]:
        """The fragments that there are records of."""
        return set(np.unique(self._fragments).tolist())

    def files_of(self, key: str) -> frozenset[str]:
        """Returns the column files that records of a key name."""
        of_key = self._table.filter(pc.field("key") == key)
        return frozenset(map(str, of_key["target_file"].to_pylist()))

    def where(self, keep: Callable[[FragmentRecord], bool]) -> pa.Table:
        """Returns, as a table of the stored form, the records for which `keep` is true."""
        return self._table.take(np.array([row for row in range(len(self)) if keep(self._record(row))], dtype=np.int64))

    def _record(self, row: int) -> FragmentRecord:
        cells: dict[str, Any] = {name: self._table[name][row].as_py() for name in _SCHEMA.names}
        cells |= {name: RowSet.loads(cells[name]) for name in _SETS}
        return FragmentRecord(column=self._column, **cells)


@dataclass(frozen=True, slots=True)
class RecordStore:
    """The records of a table's columns, in a folder of a store. A picklable value; used on the driver.

    Attributes:
        objects: The store.
        root: The folder.
    """

    objects: Objects
    root: str = "records"

    def append(self, records: Sequence[FragmentRecord]) -> None:
        """Stores records, one object per column that they are of. The same records again change nothing.

        Raises:
            CheckpointError: The store refused; some columns' records may be there, and the same call again is safe.
        """
        columns: dict[str, list[FragmentRecord]] = {}
        for record in records:
            columns.setdefault(record.column, []).append(record)
        for column, own in columns.items():
            payload = _encode(column, _table(own))
            name = hashlib.blake2b(payload, digest_size=16).hexdigest()
            self._put(f"{self._folder(column)}/0-{name}.rec", payload)
            try:
                self._merge_full_levels(column)
            except CheckpointError as error:
                # The records are there. That is what was asked for; the next call tries again to put them together.
                logger.warning("records of computed rows stay in more objects than need be: %s", error)

    def load(self, column: str) -> Records:
        """Returns all records of a column. Objects that cannot be used are left out, with a warning: their rows count as never computed.

        Raises:
            CheckpointError: The store refused, so nothing is known.
        """
        return Records(column, pa.concat_tables([_SCHEMA.empty_table(), *self._read(column).values()]))

    def compact(self, column: str, *, keep: Callable[[FragmentRecord], bool]) -> int:
        """Puts all records of a column together and drops those that nobody needs any more. Runs on the driver.

        Records that are appended meanwhile stay; where another process puts objects together meanwhile, dropped ones may come back.

        Args:
            column: Identity of the column.
            keep: Tells whether a record is still of use.

        Returns:
            How many records were dropped.

        Raises:
            CheckpointError: The store refused; no record is lost by that.
        """
        found = self._read(column)
        records = Records(column, pa.concat_tables([_SCHEMA.empty_table(), *found.values()]))
        kept = records.where(keep)
        if len(found) > 1 or len(kept) < len(records):
            # Above every level, so that the next merges leave it alone.
            level = 1 + max((_level(path) for path in found), default=0)
            self._replace(column, found, kept if len(kept) else None, level)
        return len(records) - len(kept)

    def _merge_full_levels(self, column: str) -> None:
        level = 0
        while True:
            paths = [path for path in self._list(column) if _level(path) == level]
            if len(paths) <= _MOST_OBJECTS:
                return
            opened = {path: self._open(path, column) for path in paths}
            # Without those that another process puts together at this moment, and damaged ones, which stay.
            found = {path: table for path, table in opened.items() if table is not None}
            if len(found) < 2:
                return
            self._replace(column, found, _distinct(pa.concat_tables(found.values())), level + 1)
            level += 1

    def _replace(self, column: str, old: Iterable[str], table: pa.Table | None, level: int) -> None:
        if table is not None:
            # A name of its own even for the same content: nobody else's merge may delete it for theirs.
            self._put(f"{self._folder(column)}/{level}-{os.urandom(16).hex()}.rec", _encode(column, table))
        for path in old:
            self._delete(path)

    def _read(self, column: str) -> dict[str, pa.Table]:
        """Returns the tables of all usable objects, by path."""
        # A folder holds so few objects that stores list it in one answer: no object can slip from one page to another.
        found: dict[str, pa.Table | None] = {}
        for _ in range(_TRIES):
            listed = self._list(column)
            found = {path: found[path] if path in found else self._open(path, column) for path in listed}
            gone = [path for path, table in found.items() if table is None and self._get(path) is None]
            if not gone:
                return {path: table for path, table in found.items() if table is not None}
            for path in gone:
                del found[path]
        raise CheckpointError(
            f"records of computed rows go away while they are read - in {self._folder(column)} - look for processes that merge or delete "
            "them without end, and try again"
        )

    def _open(self, path: str, column: str) -> pa.Table | None:
        """Returns the records of one object, or None where it is gone or not usable."""
        payload = self._get(path)
        if payload is None:
            return None
        try:
            header, table = decode(payload)
        except CheckpointError as error:
            logger.warning("records of computed rows at %s are not used: %s", path, error)
            return None
        if header.get("kind") != "records" or header.get("column") != column or table.schema != _SCHEMA:
            logger.warning("records of computed rows at %s are not used: they belong to something else", path)
            return None
        return table

    def _folder(self, column: str) -> str:
        return f"{self.root}/{folder_name(column)}"

    def _list(self, column: str) -> list[str]:
        try:
            return [path for path in self.objects.list(self._folder(column)) if _level(path) >= 0]
        except OSError as error:
            raise _refused("listed", self._folder(column), error) from error

    def _get(self, path: str) -> bytes | None:
        try:
            return self.objects.get(path)
        except OSError as error:
            raise _refused("read", path, error) from error

    def _put(self, path: str, payload: bytes) -> None:
        try:
            self.objects.put(path, payload)
        except OSError as error:
            raise _refused("written", path, error) from error

    def _delete(self, path: str) -> None:
        try:
            self.objects.delete(path)
        except OSError as error:
            raise _refused("deleted", path, error) from error


def _refused(what: str, path: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"records of computed rows cannot be {what}: {error} - at {path} - check space and permissions there"
    )


def _level(path: str) -> int:
    """Returns the level that the name of an object tells; -1 where something else left it there."""
    level, dash, rest = path.rpartition("/")[2].partition("-")
    return int(level) if level.isdecimal() and dash and rest.endswith(".rec") else -1


def _encode(column: str, table: pa.Table) -> bytes:
    return encode({"kind": "records", "column": column}, table, compression="zstd")


def _table(records: Sequence[FragmentRecord]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [getattr(record, name) for record in records] for name in _SCHEMA.names}
    for name in _SETS:
        columns[name] = [rows.dumps() for rows in columns[name]]
    return pa.table(columns, schema=_SCHEMA)


def _distinct(table: pa.Table) -> pa.Table:
    """Returns the records newest commit first, each once."""
    identities = zip(*(table[name].to_pylist() for name in _IDENTITY), strict=True)
    first = {identity: row for row, identity in reversed(list(enumerate(identities)))}
    rows = np.fromiter(first.values(), np.int64, len(first))
    rows.sort()
    versions = table["table_version"].to_numpy()[rows]
    # All of equal versions keep their order, which is that of their objects' names.
    return table.take(rows[np.argsort(-versions, kind="stable")]).combine_chunks()
