"""Finds out whether table and source have the same order of keys. Then a load needs no shuffle.

Parquet files have the minimum and maximum key of each row group. If the keys of a part of the table
lie in few row groups, a task reads these row groups and finds all matches of the part. A sample of
the table decides. A wrong decision costs time, never a match: each part reads all row groups of its
own keys. Runs on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import panics_as_errors
from lance_spark.load.files import FileSystem, SourceFile

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

_MOST_FILES = 1000
"""Maximum number of files for the decision, because it reads their footers."""

_PARALLEL_FOOTERS = 16

_MOST_PART_ROWS = 1 << 20
_LEAST_PART_ROWS = 1 << 15
_PART_BYTES = 512 << 20
"""Approximate bytes of values of a part: a task merges all of its checkpoints."""

_SAMPLED_PARTS = 32
_SAMPLED_PIECES = 8
_SAMPLED_ROWS = 64

_MOST_READS = 2.0
"""Maximum reads of the whole source: a shuffle reads it once, writes it twice, and sorts."""

_ORDERED = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The row groups of Parquet files, with the minimum and maximum of a column.

    Attributes:
        places: Pairs of file number and row group number.
        rows: Number of rows of each row group.
    """

    places: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    least: pa.Array[Any]
    greatest: pa.Array[Any]

    def within(self, keys: pa.Array[Any]) -> list[int]:
        """Returns the row groups that may have some of the keys, ordered by minimum."""
        bounds: Any = pc.min_max(keys)
        if not bounds["min"].is_valid:
            return []
        low, high = (bounds[name].cast(self.least.type) for name in ("min", "max"))
        inside: Any = pc.and_(pc.less_equal(self.least, high), pc.greater_equal(self.greatest, low))
        return [int(number) for number in np.flatnonzero(inside.fill_null(False).to_numpy(zero_copy_only=False))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parts of a table with keys in few row groups each.

    Attributes:
        part_rows: Rows of a part.
        groups: The row groups, by the first column of the key.
    """

    part_rows: int
    groups: RowGroups


def layout_of(
    dataset: lance.LanceDataset,
    key: str,
    system: FileSystem,
    files: Sequence[SourceFile],
    columns: Sequence[str],
    slots: int,
) -> Layout | None:
    """Returns the alignment of the table with Parquet files; None if the load needs a shuffle.

    Args:
        dataset: A version of the table.
        key: The first column of the key.
        system: File system of the files.
        files: The files.
        columns: The loaded columns.
        slots: Number of running tasks.
    """
    field = dataset.schema.field(key)
    if len(files) > _MOST_FILES or not any(of_kind(field.type) for of_kind in _ORDERED):
        return None
    with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
        groups_by_file = list(pool.map(lambda file: _groups_of(system, file, key, columns), files))
    ranges = [
        (number, at, *group) for number, of_file in enumerate(groups_by_file) for at, group in enumerate(of_file or ())
    ]
    source_rows = sum(group[2] for group in ranges)
    if any(of_file is None for of_file in groups_by_file) or not source_rows:
        return None
    ranges = sorted((group for group in ranges if group[2]), key=lambda one: one[4])
    try:
        least, greatest = (pa.array([group[at] for group in ranges], field.type) for at in (4, 5))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    groups = RowGroups(
        places=tuple((number, at) for number, at, *_ in ranges),
        rows=tuple(group[2] for group in ranges),
        least=least,
        greatest=greatest,
    )
    width = sum(group[3] for group in ranges) / source_rows
    total = dataset.count_rows()
    rows = min(
        max(total // (4 * slots), _LEAST_PART_ROWS), _MOST_PART_ROWS, max(int(_PART_BYTES / max(width, 1)), 1024)
    )
    shares = [
        sum(groups.rows[number] for number in groups.within(keys)) / source_rows
        for keys in _samples(dataset, key, rows)
    ]
    if not shares or sum(shares) / len(shares) * math.ceil(total / rows) > _MOST_READS:
        return None
    return Layout(part_rows=rows, groups=groups)


_Group = tuple[int, int, Any, Any]
"""Rows of a row group, bytes of its loaded columns, and its minimum and maximum key."""


def _groups_of(system: FileSystem, file: SourceFile, key: str, columns: Sequence[str]) -> list[_Group] | None:
    """Returns the row groups of a file; None if a row group has no statistics of keys."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(system.open_input_file(file.path))
    groups: list[_Group] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            groups.append((0, 0, None, None))
            continue
        chunks = [group.column(at) for at in range(group.num_columns)]
        keys = next((chunk for chunk in chunks if chunk.path_in_schema == key), None)
        statistics = None if keys is None else keys.statistics
        if statistics is None or not statistics.has_min_max:
            return None
        loaded = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.partition(".")[0] in columns)
        groups.append((group.num_rows, loaded, statistics.min, statistics.max))
    return groups


def _samples(dataset: lance.LanceDataset, key: str, part_rows: int) -> list[pa.Array[Any]]:
    """Returns some keys of parts spread over the table."""
    parts = list(_parts(dataset.get_fragments(), part_rows))
    samples = []
    for at in _spread(0, len(parts), _SAMPLED_PARTS):
        pieces = [parts[at][number] for number in _spread(0, len(parts[at]), _SAMPLED_PIECES)]
        key_tables = []
        for fragment, first, rows in pieces:
            with panics_as_errors():
                chosen = _spread(first, first + rows, max(_SAMPLED_ROWS // len(pieces), 2))
                key_tables.append(fragment.take(chosen, columns=[key]))
        samples.append(pa.concat_tables(key_tables).column(key).combine_chunks())
    return samples


_Piece: TypeAlias = "tuple[LanceFragment, int, int]"
"""Rows of a fragment: first position among live rows, and number of rows."""


def _parts(fragments: Iterable[LanceFragment], part_rows: int) -> Iterator[list[_Piece]]:
    """Yields the rows of a table in parts: pieces of large fragments, groups of small fragments."""
    packed: list[_Piece] = []
    packed_rows = 0
    for fragment in fragments:
        live = fragment.metadata.num_rows
        for first in range(0, live, part_rows):
            rows = min(part_rows, live - first)
            if packed and packed_rows + rows > part_rows:
                yield packed
                packed, packed_rows = [], 0
            packed.append((fragment, first, rows))
            packed_rows += rows
    if packed:
        yield packed


def _spread(first: int, stop: int, most: int) -> list[int]:
    """Returns some numbers of a range, including the first and the last number."""
    count = min(most, stop - first)
    return [first + at * (stop - 1 - first) // max(count - 1, 1) for at in range(count)]
