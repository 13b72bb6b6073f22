"""Differences between two versions of a table, as DataFrames: :func:`diff_versions`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.changes.plan import StepPart, plan_parts
from lance_spark.changes.rows import ChangeType, RowFinder, RowQuery
from lance_spark.changes.steps import FeedStep
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, StableRowIdsError, UnsupportedOperationError
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
    compared = _find_columns(before.open(), after.open(), columns)
    parts = tuple(plan_parts(FeedStep.of(before, after), compared))

    def rows(ref: DatasetRef, kind: ChangeType) -> DataFrame:
        options = ref.storage_settings | {"version": str(ref.version)}
        reader = spark.read.format("lance").options(**options)
        chosen = tuple(part for part in parts if _fragments_of(part, is_new=ref is after))
        if not chosen:
            return reader.load(ref.uri).limit(0)
        fragments = sorted(
            number for part in chosen for number in _fragments_of(part, is_new=ref is after)
        )
        find = _FindRows(parts=chosen, query=RowQuery(columns=compared, kinds=(kind,)))
        tasks = min(len(chosen), _TASKS_PER_SLOT * (known_slots(spark) or _TASKS_OF_UNKNOWN_SLOTS))
        addresses = spark.range(0, len(chosen), 1, tasks).mapInArrow(find, _ADDRESSES)
        reader = reader.option("fragments", ",".join(map(str, fragments))).option(
            "with_row_address", "true"
        )
        return reader.load(ref.uri).join(addresses, ROW_ADDRESS, "left_semi").drop(ROW_ADDRESS)

    return TableDiff(
        inserted=rows(after, "insert"),
        updated=rows(after, "update_postimage"),
        deleted=rows(before, "delete"),
    )


def _fragments_of(part: StepPart, *, is_new: bool) -> tuple[int, ...]:
    return part.new_ids if is_new else part.old_ids


def _find_columns(
    before: lance.LanceDataset, after: lance.LanceDataset, names: Sequence[str] | None
) -> tuple[str, ...]:
    """Returns the names of the compared columns, which both versions have."""
    if names is None:
        return tuple(name for name in _list_plain_columns(after) if name in before.schema.names)
    _check_columns(before, before.schema.names, names)
    _check_columns(after, after.schema.names, names)
    return tuple(names)


def _list_plain_columns(dataset: lance.LanceDataset) -> Iterator[str]:
    """Yields the columns without a UDF."""
    return (
        field.name for field in dataset.schema if BINDING_KEY.encode() not in (field.metadata or {})
    )


def _check_columns(
    dataset: lance.LanceDataset, present: Collection[str], names: Sequence[str]
) -> None:
    for name in names:
        if name not in present:
            where = f"{dataset.uri}, version {dataset.version}"
            raise ColumnNotFoundError(name, where, hint=f"its columns are {', '.join(present)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FindRows:
    """A callable for Spark's `mapInArrow`: positions in `parts` become addresses of rows."""

    parts: tuple[StepPart, ...]
    query: RowQuery

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finder = RowFinder(self.parts[0].step, self.query, self.parts[0].lineage)
        for batch in batches:
            for position in batch.column(0).to_numpy():
                for change in finder.find(self.parts[int(position)]):
                    addresses = change.rows.to_numpy() | (change.fragment_id << 32)
                    for first in range(0, len(addresses), _BATCH_ROWS):
                        part = addresses[first : first + _BATCH_ROWS]
                        yield pa.record_batch({ROW_ADDRESS: pa.array(part, pa.int64())})
