"""The strategy of an update: :func:`choose_strategy`. Runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lance_spark.dataset import DatasetRef
from lance_spark.locations import is_local
from lance_spark.read.filtering import ask_index
from lance_spark.read.planning.sizes import bound_row, measure_row
from lance_spark.session.sessions import known_slots
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

UpdateStrategy: TypeAlias = Literal["delete", "columns", "rows"]
"""Strategies of a change: delete rows, write column files with new values, or move rows to new
fragments."""

_FULL_ROWS_COST = 2.0
"""Cost of a byte of a moved row, in bytes of a column file: the row is read, written, and leaves a
hole for a compaction."""

TASK_BYTES = 64 << 20
"""Minimum bytes of a task: the read takes about as long as the start of a task."""

_FILE_BYTES = {True: 1 << 20, False: 16 << 20}
"""Cost of a fragment's files, in bytes: on a local disk, and on an object store, with several
requests for each fragment."""


def choose_strategy(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    columns: Sequence[str],
    matched: Mapping[int, int],
    physical: Mapping[int, int],
) -> UpdateStrategy:
    """Returns the cheaper strategy: new column files of the fragments, or moved rows.

    Rows of a table with blobs stay, because a move would rewrite the blobs.

    Args:
        ref: The version.
        dataset: The open version.
        columns: The assigned columns.
        matched: Number of matching rows, by fragment.
        physical: Number of physical rows, at least of these fragments.
    """
    if any(is_blob(field) for field in dataset.schema):
        return "columns"
    column_bytes = measure_row(dataset, columns, ref.storage_options)
    in_place = column_bytes * sum(physical[number] for number in matched)
    moved_rows = sum(matched.values()) * _FULL_ROWS_COST
    # On an object store, each footer of a data file costs two requests.
    bound = bound_row(dataset)
    if bound is not None and bound * moved_rows < in_place:
        return "rows"
    row_bytes = measure_row(dataset, dataset.schema.names, ref.storage_options)
    return "rows" if row_bytes * moved_rows < in_place else "columns"


def work_of(
    ref: DatasetRef, dataset: lance.LanceDataset, columns: Sequence[str], rows: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Returns the estimated bytes of some columns that tasks read or write, by fragment."""
    width = measure_row(dataset, columns, ref.storage_options) if columns else 0
    return [
        (number, _FILE_BYTES[is_local(ref.uri)] + int(width * count))
        for number, count in rows.items()
    ]


def task_bytes(spark: SparkSession, work: Sequence[tuple[int, int]]) -> int:
    """Returns the bytes of one task, where `work` has the bytes of each fragment."""
    total = sum(size for _, size in work)
    share = 0 if total <= TASK_BYTES else total // (known_slots(spark) or 8) // 4
    return max(TASK_BYTES, share)


def named_columns(schema: pa.Schema, *texts: str) -> list[str]:
    """Returns the columns that texts may name, without a parser, maybe too many."""
    words = set(re.findall(r"\w+", " ".join(texts).lower()))
    return [name for name in schema.names if words.intersection(re.findall(r"\w+", name.lower()))]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMatches:
    """Matching rows of a condition, as known on the driver.

    Attributes:
        matched: Number of matching rows of each fragment with a known match.
        unknown: Number of rows of each fragment without a known answer.
        mask: Mask of all matching rows, for scans by tasks; None if unknown.
    """

    matched: dict[int, int]
    unknown: dict[int, int]
    mask: bytes | None = None


def known_matches(
    ref: DatasetRef, where: str | None, fragments: Mapping[int, FragmentMetadata]
) -> KnownMatches:
    """Returns the known matches in some fragments of a version.

    Runs on the driver. An index determines the matches, or the condition is missing.
    """
    rows = {
        number: fragment.num_rows for number, fragment in fragments.items() if fragment.num_rows
    }
    if where is None:
        return KnownMatches(matched=rows, unknown={})
    index = ask_index(ref, where) if rows else None
    if index is None or not index.exact or index.matches is None:
        return KnownMatches(matched={}, unknown=rows)
    matches = {number: index.matches[number] for number in index.matches.keys() & rows.keys()}
    unknown = {number: rows[number] for number in rows.keys() - index.covered}
    return KnownMatches(matched=matches, unknown=unknown, mask=None if unknown else index.mask)
