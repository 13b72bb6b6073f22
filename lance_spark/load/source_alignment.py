"""Finds out whether table and source have the same order of keys. Then a load needs no shuffle.

Parquet files have the minimum and maximum key of each row group. If the keys of a part of the table
lie in few row groups, a task reads these row groups and finds all matches of the part. A sample of
the table decides. A wrong decision costs time, never a match: each part reads all row groups of its
own keys. Runs on the driver.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import panics_as_errors
from lance_spark.load.files import SourceFile
from lance_spark.spark_jobs.task_queue import pack
from lance_spark.storage.file_systems import FileSystem

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
class _RowGroup:
    """A row group of a Parquet file, with the minimum and maximum of its keys.

    Attributes:
        place: File number and row group number.
        loaded_bytes: Bytes of the loaded columns.
    """

    place: tuple[int, int]
    rows: int
    loaded_bytes: int
    least: Any
    greatest: Any


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
        return [
            int(number)
            for number in np.flatnonzero(inside.fill_null(False).to_numpy(zero_copy_only=False))
        ]

    def reads_per_part(self, samples: Sequence[pa.Array[Any]]) -> float:
        """Returns the share of the source that a part of the table reads, by samples of keys."""
        rows = sum(self.rows[number] for keys in samples for number in self.within(keys))
        return rows / sum(self.rows) / len(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAlignment:
    """Parts of a table with keys in few row groups each.

    Attributes:
        part_rows: Rows of a part.
        groups: The row groups, by the first column of the key.
    """

    part_rows: int
    groups: RowGroups


def align_source(
    dataset: lance.LanceDataset,
    key: str,
    system: FileSystem,
    files: Sequence[SourceFile],
    columns: Sequence[str],
    slots: int,
) -> SourceAlignment | None:
    """Returns the alignment of the table with Parquet files; None if the load needs a shuffle.

    Args:
        dataset: A version of the table.
        key: The first column of the key.
        system: File system of the files.
        files: The files.
        columns: The loaded columns.
        slots: Number of running tasks.
    """
    kind = dataset.schema.field(key).type
    if len(files) > _MOST_FILES or not any(of_kind(kind) for of_kind in _ORDERED):
        return None
    groups = _read_groups(system, files, key, columns)
    row_groups = _order_groups(groups, kind) if groups else None
    if row_groups is None:
        return None
    width = sum(group.loaded_bytes for group in groups) / sum(row_groups.rows)
    total = dataset.count_rows()
    most_rows = min(_MOST_PART_ROWS, max(int(_PART_BYTES / max(width, 1)), 1024))
    part_rows = min(max(total // (4 * slots), _LEAST_PART_ROWS), most_rows)
    samples = _samples(dataset, key, part_rows)
    if (
        not samples
        or row_groups.reads_per_part(samples) * math.ceil(total / part_rows) > _MOST_READS
    ):
        return None
    return SourceAlignment(part_rows=part_rows, groups=row_groups)


def _read_groups(
    system: FileSystem, files: Sequence[SourceFile], key: str, columns: Sequence[str]
) -> list[_RowGroup]:
    """Returns the row groups of files; none if a row group has no statistics of keys."""
    read = functools.partial(_groups_of, system, key, columns)
    with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
        by_file = list(pool.map(read, itertools.count(), files))
    return [group for groups in by_file for group in groups or ()] if None not in by_file else []


def _groups_of(
    system: FileSystem, key: str, columns: Sequence[str], file_number: int, file: SourceFile
) -> list[_RowGroup] | None:
    """Returns the row groups of a file; None if a row group has no statistics of keys."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(system.open_input_file(file.path))
    groups: list[_RowGroup] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        chunks = {
            chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))
        }
        statistics = chunks[key].statistics if key in chunks else None
        if statistics is None or not statistics.has_min_max:
            return None
        loaded_bytes = sum(
            chunk.total_uncompressed_size
            for path, chunk in chunks.items()
            if path.partition(".")[0] in columns
        )
        groups.append(
            _RowGroup(
                place=(file_number, number),
                rows=group.num_rows,
                loaded_bytes=loaded_bytes,
                least=statistics.min,
                greatest=statistics.max,
            )
        )
    return groups


def _order_groups(groups: Sequence[_RowGroup], kind: pa.DataType) -> RowGroups | None:
    """Returns row groups by their minimum; None for keys of another type than the table's."""
    try:
        ordered = sorted(groups, key=lambda group: group.least)
        return RowGroups(
            places=tuple(group.place for group in ordered),
            rows=tuple(group.rows for group in ordered),
            least=pa.array([group.least for group in ordered], kind),
            greatest=pa.array([group.greatest for group in ordered], kind),
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


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


_LiveRows: TypeAlias = "tuple[LanceFragment, int, int]"
"""Rows of a fragment: first position among live rows, and number of rows."""


def _parts(fragments: Iterable[LanceFragment], part_rows: int) -> Iterator[list[_LiveRows]]:
    """Yields the rows of a table in parts: pieces of large fragments, groups of small fragments."""
    pieces = (
        (fragment, first, min(part_rows, fragment.metadata.num_rows - first))
        for fragment in fragments
        for first in range(0, fragment.metadata.num_rows, part_rows)
    )
    return pack(pieces, operator.itemgetter(2), part_rows, most_items=math.inf)


def _spread(first: int, stop: int, most: int) -> list[int]:
    """Returns some numbers of a range, including the first and the last number."""
    count = min(most, stop - first)
    return [first + at * (stop - 1 - first) // max(count - 1, 1) for at in range(count)]
