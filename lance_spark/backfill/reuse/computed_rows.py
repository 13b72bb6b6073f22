"""What was computed: per fragment and column, which rows a UDF gave a value, NULL, or failed for.

    <table>/_lance_spark/records.lance

A Lance table to which every commit of a job appends a row per fragment and column. The same record
again counts once. Damaged rows are left out with a warning: what they told was never computed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.jobs.tables import SystemTable, append_rows, delete_rows, quoted, read_intact_rows
from lance_spark.rows.row_set import RowSet

logger = logging.getLogger(__name__)

_SETS = ("computed", "nulls", "failed")

_FIELDS: dict[str, pa.DataType] = {
    "column": pa.string(),
    "fragment_id": pa.int64(),
    "physical_rows": pa.int64(),
    "table_version": pa.int64(),
    "job_id": pa.string(),
    "key": pa.string(),
    "udf_version": pa.string(),
    "source": pa.string(),
    "target_file": pa.string(),
    **dict.fromkeys(_SETS, pa.binary()),
}

RECORDS = SystemTable(
    f"{FOLDER}/records.lance",
    pa.schema(
        [
            pa.field("record_id", pa.int64()),
            *(
                pa.field(name, type_, metadata={"lance-encoding:compression": "zstd"})
                for name, type_ in _FIELDS.items()
            ),
        ]
    ),
)
"""`record_id` is a digest of the rest."""


LOAD_VERSION = "[0-9a-f]{16,}-(carry|error|null)"
"""What `udf_version` of a record of `load_columns` matches as a whole: no UDF made the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRecord:
    """What one commit computed for one column of one fragment.

    Attributes:
        column: The column's token.
        table_version: The version that the commit made.
        key: Digest of the checkpoint key: what the values depend on beside the rows' own data.
        source: Digest of the fragment's input files.
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

    @property
    def is_of_load(self) -> bool:
        """Whether `load_columns` wrote the values."""
        return re.fullmatch(LOAD_VERSION, self.udf_version) is not None

    def __post_init__(self) -> None:
        if not self.nulls <= self.computed or not self.failed.isdisjoint(self.computed):
            raise ValueError(
                "rows computed as NULL are computed, and failed ones are not - in a record of fragment "
                f"{self.fragment_id} - correct the sets"
            )


class Records:
    """The records of one column, as they were read; row sets are decoded when asked for."""

    def __init__(self, rows: pa.Table) -> None:
        """Takes rows of :data:`RECORDS` in any order, some of them perhaps twice."""
        fragments = rows["fragment_id"].to_numpy()
        order = np.lexsort((-rows["table_version"].to_numpy(), fragments))
        self._rows, self._fragments = rows.take(order).combine_chunks(), fragments[order]

    def __len__(self) -> int:
        """Returns how many rows there are; some may be of one record."""
        return len(self._rows)

    def __iter__(self) -> Iterator[FragmentRecord]:
        """Yields all records, by fragment, the newest of each first."""
        return self._usable(0, len(self))

    def of(self, fragment_id: int) -> list[FragmentRecord]:
        """Returns the records of a fragment, the newest commit first."""
        first, last = np.searchsorted(self._fragments, [fragment_id, fragment_id + 1]).tolist()
        return list(self._usable(first, last))

    @property
    def fragment_ids(self) -> set[int]:
        """The fragments that there are records of."""
        return set(self._fragments.tolist())

    @property
    def has_udf_values(self) -> bool:
        """Whether a UDF has computed any value."""
        loads = pc.match_substring_regex(self._rows["udf_version"], f"^{LOAD_VERSION}$")
        return bool(pc.any(pc.invert(loads)).as_py())

    def _usable(self, first: int, last: int) -> Iterator[FragmentRecord]:
        seen = set()
        for row in self._rows.slice(first, last - first).to_pylist():
            record_id = row.pop("record_id")
            try:
                record = _intact(record_id, row)
            except ValueError as error:
                logger.warning("A record of fragment %s is damaged and not used: %s", row["fragment_id"], error)
                continue
            if record_id not in seen:
                seen.add(record_id)
                yield record


def check_record(row: Mapping[str, Any]) -> FragmentRecord:
    """Returns the record of a row of :data:`RECORDS`.

    Raises:
        ValueError: The row is damaged or forged.
    """
    if None in row.values():
        raise ValueError("a field is NULL")
    return _intact(row["record_id"], {name: row[name] for name in _FIELDS})


def _intact(record_id: int, row: Mapping[str, Any]) -> FragmentRecord:
    """Returns the record of a row.

    Raises:
        ValueError: The row is damaged or forged.
    """
    if record_id != _digest(row):
        raise ValueError("the digest differs")
    return FragmentRecord(**{**row, **{name: RowSet.loads(row[name]) for name in _SETS}})


@dataclass(frozen=True, slots=True)
class RecordStore:
    """The records of a table's columns. A picklable value; any number of drivers append at once."""

    ref: DatasetRef

    def append(self, records: Sequence[FragmentRecord]) -> None:
        """Stores records in one commit; none, with a warning, where their table is damaged.

        Raises:
            TableUnwritableError: The store refused; the same call again is safe.
        """
        if not records:
            return
        try:
            append_rows(self.ref, RECORDS, pa.Table.from_pylist(list(map(_row, records)), schema=RECORDS.schema))
        except TableUnreadableError as error:
            logger.warning("what was computed is not recorded: %s", error)

    def load(self, column: str) -> Records:
        """Returns all records of a column.

        Rows of a damaged file count as never computed, with a warning in the log.

        Raises:
            TableUnreadableError: The store refused.
        """
        rows, damaged = read_intact_rows(self.ref, RECORDS, f"column = {quoted(column)}")
        for file in damaged:
            path = f"{self.ref.uri}/{RECORDS.name}/{file.path}"
            logger.warning("The file %s is damaged, and its records are not used: %s", path, file.reason)
        return Records(rows.drop_null())

    def compact(self, column: str, *, keep: Callable[[FragmentRecord], bool]) -> int:
        """Drops useless records of a column, and returns how many; safe beside others."""
        dropped = [_row(record)["record_id"] for record in self.load(column) if not keep(record)]
        if dropped:
            delete_rows(self.ref, RECORDS, f"record_id IN ({', '.join(map(str, dropped))})")
        return len(dropped)


def _row(record: FragmentRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _FIELDS}
    row |= {name: row[name].dumps() for name in _SETS}
    return {"record_id": _digest(row), **row}


def _digest(row: Mapping[str, Any]) -> int:
    """Returns what tells a record from others, and from itself after a byte has changed."""
    digest = hashlib.blake2b(repr([row[name] for name in _FIELDS]).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
