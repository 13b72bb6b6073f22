"""Records of computed rows: values, NULLs and failures of a UDF, by fragment and column.

    <table>/_lance_spark/records.lance

Every commit of a job appends a row per fragment and column to this Lance table. Equal records count
once. Damaged rows are skipped with a warning, and their values count as not computed.
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
from lance_spark.jobs.tables import SystemTable, append_rows, delete_rows, quote_text, read_intact_rows
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
"""Pattern of `udf_version` in records of `load_columns`, whose values no UDF made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRecord:
    """The results of a commit for a column of a fragment.

    Attributes:
        column: The column's token.
        table_version: The version of the commit.
        key: Digest of the checkpoint key: the dependencies of the values except the rows' data.
        source: Digest of the fragment's input files.
        computed: Rows with a result of the UDF, NULL included.
        nulls: Subset of `computed` whose result is NULL.
        failed: Rows that a policy skipped, or that killed their process.
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
                f"A record of fragment {self.fragment_id} has NULL rows that are not computed, or computed rows that "
                "failed. Correct the sets."
            )


class Records:
    """The records of a column. Row sets are decoded on access."""

    def __init__(self, rows: pa.Table) -> None:
        """Takes rows of :data:`RECORDS` in any order, maybe with duplicates."""
        fragments = rows["fragment_id"].to_numpy()
        order = np.lexsort((-rows["table_version"].to_numpy(), fragments))
        self._rows, self._fragments = rows.take(order).combine_chunks(), fragments[order]

    def __len__(self) -> int:
        """Returns the number of rows, duplicates included."""
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
        """The fragments with records."""
        return set(self._fragments.tolist())

    @property
    def has_udf_values(self) -> bool:
        """Whether a UDF has computed any value."""
        loads = pc.match_substring_regex(self._rows["udf_version"], f"^{LOAD_VERSION}$")
        return bool(pc.any(pc.invert(loads)).as_py())

    def _usable(self, first: int, last: int) -> Iterator[FragmentRecord]:
        record_ids = set()
        for row in self._rows.slice(first, last - first).to_pylist():
            record_id = row.pop("record_id")
            try:
                record = _intact(record_id, row)
            except ValueError as error:
                logger.warning("A record of fragment %s is damaged and not used: %s", row["fragment_id"], error)
                continue
            if record_id not in record_ids:
                record_ids.add(record_id)
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
    """The records of a table's columns. Picklable. Any number of drivers may append at once."""

    ref: DatasetRef

    def append(self, records: Sequence[FragmentRecord]) -> None:
        """Stores records in one commit; if their table is damaged, only logs a warning.

        Raises:
            TableUnwritableError: The store failed. The call may be repeated.
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
            TableUnreadableError: The store failed.
        """
        rows, damaged = read_intact_rows(self.ref, RECORDS, f"column = {quote_text(column)}")
        for file in damaged:
            path = f"{self.ref.uri}/{RECORDS.name}/{file.path}"
            logger.warning("The file %s is damaged, and its records are not used: %s", path, file.reason)
        return Records(rows.drop_null())

    def compact(self, column: str, *, keep: Callable[[FragmentRecord], bool]) -> int:
        """Drops useless records of a column, and returns their number. Concurrent jobs may run."""
        dropped = [_row(record)["record_id"] for record in self.load(column) if not keep(record)]
        if dropped:
            delete_rows(self.ref, RECORDS, f"record_id IN ({', '.join(map(str, dropped))})")
        return len(dropped)


def _row(record: FragmentRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _FIELDS}
    row |= {name: row[name].dumps() for name in _SETS}
    return {"record_id": _digest(row), **row}


def _digest(row: Mapping[str, Any]) -> int:
    """Returns the identity of a record, which changes with each byte."""
    digest = hashlib.blake2b(repr([row[name] for name in _FIELDS]).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
