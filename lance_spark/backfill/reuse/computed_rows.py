"""Records of computed rows: values, NULLs and failures of a UDF, by fragment and column.

    <table>/_lance_spark/records.lance

Every commit of a job appends at most two rows per fragment and column to this Lance table: the rows
of the job, and the rows of all earlier jobs together. Earlier records name the earlier jobs, so the
number of records grows with the number of commits. Equal records count once. Damaged rows are
skipped with a warning, and their values count as not computed.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.jobs.tables import (
    SystemTable,
    append_rows,
    delete_rows,
    quote_text,
    read_intact_rows,
)
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


VALUES_OF = "values of "
"""Prefix of `column` in records of rows with a value of any writer. Such a record has no job and no
UDF. Its `target_file` is a digest of the column's files and the deletion file of the fragment."""

LOAD_VERSION = "[0-9a-f]{16,}-(carry|error|null)"
"""Pattern of `udf_version` in records of `load_columns`, whose values no UDF made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRecord:
    """The results of a commit for a column of a fragment.

    Attributes:
        column: The column's token.
        table_version: The version of the commit.
        job_id: The job of the rows. Empty for the rows of all earlier jobs in the file of a commit.
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
    """The records of a column. Row sets are decoded on access. Picklable."""

    def __init__(self, rows: pa.Table) -> None:
        """Takes rows of :data:`RECORDS` in any order, maybe with duplicates."""
        is_of_values = pc.starts_with(rows["column"], VALUES_OF)
        self._values = _order(rows.filter(is_of_values))
        self._rows = _order(rows.filter(pc.invert(is_of_values)))
        self._spans, self._value_spans = _spans(self._rows), _spans(self._values)
        self._latest: tuple[int, list[FragmentRecord]] | None = None

    def __reduce__(self) -> tuple[Callable[[bytes], Records], tuple[bytes]]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, self._rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_table(self._rows)
            writer.write_table(self._values)
        return _records_of, (sink.getvalue().to_pybytes(),)

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded records in memory."""
        return int(self._rows.nbytes + self._values.nbytes)

    def __len__(self) -> int:
        """Returns the number of rows, duplicates included."""
        return len(self._rows)

    def __iter__(self) -> Iterator[FragmentRecord]:
        """Yields all records, by fragment, the newest of each first."""
        return _usable(self._rows, (0, len(self)))

    def moved_records(self, key: str, sources: Mapping[int, str]) -> list[FragmentRecord]:
        """Returns the records of a key whose fragments have other inputs now, or are gone.

        `sources` are the present digests of the inputs, by fragment.
        """
        rows = self._rows.filter(pc.field("key") == key)
        inputs = zip(
            rows["fragment_id"].to_numpy().tolist(), rows["source"].to_pylist(), strict=True
        )
        rows = rows.filter(
            pa.array([sources.get(number) != source for number, source in inputs], pa.bool_())
        )
        return list(_usable(rows, (0, len(rows))))

    def null_records(self, key: str, fragment_ids: Collection[int]) -> list[FragmentRecord]:
        """Returns the records of a key that have NULLs of some fragments."""
        has_nulls = pc.field("nulls") != pa.scalar(RowSet.empty().dumps(), pa.binary())
        rows = self._rows.filter((pc.field("key") == key) & has_nulls)
        rows = rows.filter(pc.field("fragment_id").isin(list(fragment_ids)))
        return [record for record in _usable(rows, (0, len(rows))) if record.nulls]

    def versions(self, key: str | None = None) -> set[int]:
        """Returns the versions of commits with records, of a key or of any key."""
        rows = self._rows if key is None else self._rows.filter(pc.field("key") == key)
        versions = pc.unique(rows["table_version"]).to_pylist()
        return {version for version in versions if version is not None}

    def of(self, fragment_id: int) -> list[FragmentRecord]:
        """Returns the records of a fragment, the newest commit first."""
        latest = self._latest
        if latest is None or latest[0] != fragment_id:
            latest = self._latest = (
                fragment_id,
                list(_usable(self._rows, self._spans.get(fragment_id))),
            )
        return latest[1]

    def values_of(self, fragment_id: int) -> Iterator[FragmentRecord]:
        """Yields the records of a fragment's rows with a value, the newest first."""
        return _usable(self._values, self._value_spans.get(fragment_id))

    def by_job(self, record: FragmentRecord, jobs: frozenset[str]) -> Iterator[FragmentRecord]:
        """Yields a record in parts: the rows of each of some jobs, and other rows without a job.

        The newest earlier record of a job with a row decides about the row.
        """
        records_with_job = self._older_with_job(record)
        if record.job_id or jobs.isdisjoint(older.job_id for older in records_with_job):
            yield record
            return
        undecided = rest = record.computed
        for older in records_with_job:
            part = older.computed & undecided
            undecided -= part
            if part and older.job_id in jobs:
                rest -= part
                yield replace(record, job_id=older.job_id, computed=part, nulls=record.nulls & part)
        if rest:
            yield replace(record, computed=rest, nulls=record.nulls & rest)

    def _older_with_job(self, record: FragmentRecord) -> list[FragmentRecord]:
        """Returns the records of the same fragment and UDF up to a record's version, with a job."""
        return [
            older
            for older in self.of(record.fragment_id)
            if older.job_id
            and older.key == record.key
            and older.table_version <= record.table_version
        ]

    def superseded(self) -> Iterator[FragmentRecord]:
        """Yields the records whose rows and jobs newer records of the same inputs have, too."""
        for fragment_id in sorted(self.fragment_ids):
            newer_rows: dict[tuple[str, str, int], RowSet] = {}
            newer_own: dict[str, RowSet] = {}
            for record in self.of(fragment_id):
                identity = record.key, record.source, record.physical_rows
                rows, own = (
                    newer_rows.get(identity, RowSet.empty()),
                    newer_own.get(record.key, RowSet.empty()),
                )
                if record.computed <= rows and (not record.job_id or record.computed <= own):
                    yield record
                newer_rows[identity] = rows | record.computed
                if record.job_id:
                    newer_own[record.key] = own | record.computed

    def values(self) -> Iterator[tuple[FragmentRecord, bool]]:
        """Yields all records of rows with a value, and whether each is its fragment's newest."""
        previous: int | None = None
        for record in _usable(self._values, (0, self._values.num_rows)):
            yield record, record.fragment_id != previous
            previous = record.fragment_id

    @property
    def fragment_ids(self) -> set[int]:
        """The fragments with records."""
        return set(self._spans)

    @property
    def has_udf_values(self) -> bool:
        """Whether a UDF has computed any value."""
        loads = pc.match_substring_regex(self._rows["udf_version"], f"^{LOAD_VERSION}$")
        return bool(pc.any(pc.invert(loads)).as_py())


def _order(rows: pa.Table) -> pa.Table:
    """Returns records by fragment, the newest of each first."""
    order = np.lexsort((-rows["table_version"].to_numpy(), rows["fragment_id"].to_numpy()))
    return rows.take(order).combine_chunks()


def _spans(rows: pa.Table) -> dict[int, tuple[int, int]]:
    """Returns the first and the last position of each fragment's records, the last exclusive."""
    fragments, starts = np.unique(rows["fragment_id"].to_numpy(), return_index=True)
    bounds = itertools.pairwise([*starts.tolist(), rows.num_rows])
    return dict(zip(fragments.tolist(), bounds, strict=True))


def _usable(rows: pa.Table, span: tuple[int, int] | None) -> Iterator[FragmentRecord]:
    """Yields the intact records between two positions, without duplicates."""
    if span is None:
        return
    record_ids = set()
    for row in rows.slice(span[0], span[1] - span[0]).to_pylist():
        record_id = row.pop("record_id")
        try:
            record = _intact(record_id, row)
        except ValueError as error:
            logger.warning(
                "A record of fragment %s is damaged and not used: %s", row["fragment_id"], error
            )
            continue
        if record_id not in record_ids:
            record_ids.add(record_id)
            yield record


def _records_of(payload: bytes) -> Records:
    """Returns pickled records."""
    with pa.ipc.open_stream(payload) as reader:
        return Records(reader.read_all())


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
            append_rows(
                self.ref,
                RECORDS,
                pa.Table.from_pylist(list(map(_row, records)), schema=RECORDS.schema),
            )
        except TableUnreadableError as error:
            logger.warning("what was computed is not recorded: %s", error)

    def load(self, column: str) -> Records:
        """Returns all records of a column, and of its rows with a value.

        Rows of a damaged file count as never computed, with a warning in the log.

        Raises:
            TableUnreadableError: The store failed.
        """
        names = quote_text(column), quote_text(VALUES_OF + column)
        rows, damaged = read_intact_rows(self.ref, RECORDS, f"column IN ({', '.join(names)})")
        for file in damaged:
            path = f"{self.ref.uri}/{RECORDS.name}/{file.path}"
            logger.warning(
                "The file %s is damaged, and its records are not used: %s", path, file.reason
            )
        return Records(rows.drop_null())

    def compact(
        self,
        column: str,
        *,
        keep: Callable[[FragmentRecord], bool],
        keep_superseded: Callable[[FragmentRecord], bool] = lambda _: True,
    ) -> int:
        """Drops useless records of a column, and returns their number. Concurrent jobs may run.

        Keeps a record of :meth:`Records.superseded` only if both functions return True.
        """
        records = self.load(column)
        useless = itertools.chain(
            itertools.filterfalse(keep, records),
            itertools.filterfalse(keep_superseded, filter(keep, records.superseded())),
            (record for record, is_newest in records.values() if not (is_newest and keep(record))),
        )
        dropped = [_row(record)["record_id"] for record in useless]
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
