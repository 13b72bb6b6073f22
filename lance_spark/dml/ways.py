"""In which way an update changes rows: :func:`cheaper_way`. Runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from lance_spark.dataset import DatasetRef, is_local
from lance_spark.read.filtering import ask_index
from lance_spark.read.sizes import measure_row
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

Way: TypeAlias = Literal["delete", "columns", "rows"]
"""How rows are changed: they are deleted, get column files with their new values, or move to new
fragments."""

_FULL_ROWS_COST = 2.0
"""A byte of a moved row costs as much as so many of a column file: the row is read, written, and
leaves a hole that a compaction closes."""

_FILE_BYTES = {True: 1 << 20, False: 16 << 20}
"""What opening and writing the files of a fragment costs, as bytes: local ones, and those of an
object store, which is asked several times."""


def cheaper_way(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    columns: Sequence[str],
    matched: Mapping[int, int],
    physical: Mapping[int, int],
) -> Way:
    """Returns whether new column files of the fragments are cheaper to write than the rows.

    A table with blobs has them rewritten with the rows, so its rows stay.

    Args:
        ref: The version.
        dataset: The same, open.
        columns: The columns that are set.
        matched: Rows that match, by fragment.
        physical: Physical rows of these fragments, and perhaps of others.
    """
    if any(is_blob(field) for field in dataset.schema):
        return "columns"
    column_bytes = measure_row(dataset, columns, ref.storage_options)
    row_bytes = measure_row(dataset, dataset.schema.names, ref.storage_options)
    in_place = column_bytes * sum(physical[number] for number in matched)
    moved = row_bytes * sum(matched.values()) * _FULL_ROWS_COST
    return "rows" if moved < in_place else "columns"


def work_of(
    ref: DatasetRef, dataset: lance.LanceDataset, columns: Sequence[str], rows: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Returns about how many bytes tasks read or write of some columns, by fragment."""
    width = measure_row(dataset, columns, ref.storage_options) if columns else 0
    return [(number, _FILE_BYTES[is_local(ref.uri)] + int(width * count)) for number, count in rows.items()]


def named_columns(schema: pa.Schema, *texts: str) -> list[str]:
    """Returns the columns that texts may name; one too many costs less than a parser."""
    words = set(re.findall(r"\w+", " ".join(texts).lower()))
    return [name for name in schema.names if words.intersection(re.findall(r"\w+", name.lower()))]


def known_matches(
    ref: DatasetRef, where: str | None, fragments: Mapping[int, FragmentMetadata]
) -> tuple[dict[int, int], dict[int, int]]:
    """Returns how many rows match, by fragment, and of the others how many rows there are.

    Runs on the driver: an index tells, or a condition is missing.
    """
    rows = {number: fragment.num_rows for number, fragment in fragments.items() if fragment.num_rows}
    if where is None:
        return rows, {}
    index = ask_index(ref, where) if rows else None
    if index is None or not index.exact or index.matches is None:
        return {}, rows
    known = {number: count for number, count in index.matches.items() if number in rows}
    return known, {number: count for number, count in rows.items() if number not in index.covered}
