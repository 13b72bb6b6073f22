"""Differences between two versions of a table, as DataFrames: :func:`diff_versions`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.commit.conflicts.identity import BINDING_KEY, FieldIdentity, field_identities
from lance_spark.commit.conflicts.row_lineage import LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, StableRowIdsError, UnsupportedOperationError
from lance_spark.rebase.source_changes import SourceChanges, affected
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.session.sessions import known_slots

if TYPE_CHECKING:
    import lance

_TASKS_PER_SLOT = 4
_TASKS_OF_UNKNOWN_SLOTS = 64

_ADDRESSES = StructType([StructField(ROW_ADDRESS, LongType())])
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """Differences between two versions of a table, as lazy DataFrames.

    Stable row ids identify rows, so a row stays the same row through compactions and updates.

    Attributes:
        inserted: Rows of only the second version.
        updated: Rows of both versions with another value in a compared column, as of the second
            version. NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.
        deleted: Rows of only the first version.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.update("id = 3", values={"price": 0})
        changes = books.diff(1)
        assert [row.id for row in changes.updated.collect()] == [3]
        ```
    """

    inserted: DataFrame
    updated: DataFrame
    deleted: DataFrame


def check_comparable(before: DatasetRef, after: DatasetRef) -> None:
    """Checks that row ids identify the rows of two pinned versions.

    Raises:
        StableRowIdsError: The table has no stable row ids.
        UnsupportedOperationError: The versions belong to two branches.
    """
    if before.uri != after.uri:
        raise UnsupportedOperationError(
            f"{before!r} and {after!r} are versions of two branches, which give new rows the same ids. Compare "
            "versions of one branch, or compare two DataFrames by a key with exceptAll."
        )
    for ref in (before, after):
        if not ref.open().has_stable_row_ids:
            raise StableRowIdsError(
                f"Rows of {ref.uri}, version {ref.version}, have no stable ids, so versions cannot be compared. Write "
                "the table anew with enable_stable_row_ids=True.",
                uri=ref.uri,
            )


def diff_versions(
    spark: SparkSession, before: DatasetRef, after: DatasetRef, columns: Sequence[str] | None
) -> TableDiff:
    """Compares two pinned versions.

    Without `columns`, compares all columns except columns of a UDF.

    Raises:
        ColumnNotFoundError: A version lacks a column.
    """
    compared = _pair_columns(before.open(), after.open(), columns)
    look = affected(after, before, compared)
    new_fragments, old_fragments = ([number for number, _ in fragments] for fragments in (look.now, look.then))

    def rows(ref: DatasetRef, fragments: Sequence[int], kind: _Kind) -> DataFrame:
        options = ref.storage_settings | {"version": str(ref.version)}
        reader = spark.read.format("lance").options(**options)
        if not fragments:
            return reader.load(ref.uri).limit(0)
        find = _FindRows(
            before=before, after=after, compared=compared, fragments=tuple(fragments), kind=kind, lineage=look.lineage
        )
        tasks = min(len(fragments), _TASKS_PER_SLOT * (known_slots(spark) or _TASKS_OF_UNKNOWN_SLOTS))
        addresses = spark.range(0, len(fragments), 1, tasks).mapInArrow(find, _ADDRESSES)
        reader = reader.option("fragments", ",".join(map(str, fragments))).option("with_row_address", "true")
        return reader.load(ref.uri).join(addresses, ROW_ADDRESS, "left_semi").drop(ROW_ADDRESS)

    return TableDiff(
        inserted=rows(after, new_fragments, "inserted"),
        updated=rows(after, new_fragments, "updated"),
        deleted=rows(before, old_fragments, "deleted"),
    )


def _pair_columns(
    before: lance.LanceDataset, after: lance.LanceDataset, names: Sequence[str] | None
) -> tuple[FieldIdentity, ...]:
    """Returns columns of both versions, with the field ids of both."""
    old_columns, new_columns = (
        {column.name: column for column in field_identities(dataset.lance_schema)} for dataset in (before, after)
    )
    if names is None:
        names = [name for name in _list_plain_columns(after) if name in old_columns]
    _check_columns(before, old_columns, names)
    _check_columns(after, new_columns, names)
    return tuple(
        replace(new_columns[name], ids=tuple({*old_columns[name].ids, *new_columns[name].ids})) for name in names
    )


def _list_plain_columns(dataset: lance.LanceDataset) -> Iterator[str]:
    """Yields the columns without a UDF."""
    return (field.name for field in dataset.schema if BINDING_KEY.encode() not in (field.metadata or {}))


def _check_columns(dataset: lance.LanceDataset, present: Collection[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in present:
            where = f"{dataset.uri}, version {dataset.version}"
            raise ColumnNotFoundError(name, where, hint=f"its columns are {', '.join(present)}")


_Kind = Literal["inserted", "updated", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FindRows:
    """A callable for Spark's `mapInArrow`: positions in `fragments` become addresses of rows.

    Memory: 24 bytes a row of one fragment, and a few batches of the compared columns.
    """

    before: DatasetRef
    after: DatasetRef
    compared: tuple[FieldIdentity, ...]
    fragments: tuple[int, ...]
    kind: _Kind
    lineage: LineageFacts | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        difference = SourceChanges(
            self.after, self.before, self.compared, lineage=self.lineage, by_name=True, strict=True
        )
        find = {
            "inserted": difference.inserted,
            "updated": lambda number: difference.row_changes(number).changed,
            "deleted": difference.deleted,
        }[self.kind]
        for batch in batches:
            for position in batch.column(0).to_numpy():
                fragment = self.fragments[int(position)]
                addresses = find(fragment).to_numpy() | (fragment << 32)
                for first in range(0, len(addresses), _BATCH_ROWS):
                    yield pa.record_batch({ROW_ADDRESS: pa.array(addresses[first : first + _BATCH_ROWS], pa.int64())})
