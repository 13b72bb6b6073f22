"""Cuts a scan into partitions: :func:`plan_scan_tasks`, a pure function of the fragment sizes.

The order of the fragments is the order of the table. A fragment larger than a partition is cut into
ranges of equal length. Small fragments are packed together until a partition is full. A partition
is either a range of a single fragment, or a sequence of whole fragments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from lance_spark.read.planning.sizes import FragmentSize

if TYPE_CHECKING:
    from lance_spark.read.planning.pushdown_request import TopN
    from lance_spark.read.ranking.sort_pushdown import IndexedSort

MIN_PARTITION_BYTES = 4 << 20
"""Minimum size of a partition. Tables smaller than one partition per core are cut down to this
size. A task costs 40 to 100 ms."""

MAX_PARTITION_ROWS = 1 << 23
"""Maximum number of rows of a partition, regardless of row width. Spark takes about a second per
million rows."""

FRAGMENT_COST_BYTES = 128 << 10
"""Minimum weight of a fragment. Opening a fragment takes 0.1 ms on a local disk and 10 to 30 ms on
an object store."""

RANGE_ALIGNMENT = 4096
"""Ranges begin at a multiple of this number of rows, so most pages of a file fall into a single
range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTask(InputPartition):
    """One partition: the rows that one Spark task reads.

    Attributes:
        fragments: Ids of the fragments, in the order of reading.
        start: First row of the range in the only fragment, or None for whole fragments.
        stop: Row after the last row of the range, or None for whole fragments.
        rows: Rows of the partition before its filter: exact without a filter, else an upper bound.
        filter: Filter in Lance SQL, or None. The filter travels with the task, because Spark
            pickles the reader before it asks for the partitions.
        limit: Maximum number of rows to return after the filter, or None.
        use_index: Whether scalar indexes may evaluate the filter.
        mask: Mask of the rows that may match the filter, or None for all rows. An index of the
            driver has found these rows.
        batch_rows: Maximum number of rows per batch.
        late: Columns fetched only for matching rows of the filter. None lets Lance choose.
        nearest: Vector search for all required rows, or None.
        top: Sort whose first rows are enough, or None.
    """

    fragments: tuple[int, ...]
    start: int | None = None
    stop: int | None = None
    rows: int = 0
    filter: str | None = None
    limit: int | None = None
    use_index: bool = True
    mask: bytes | None = None
    batch_rows: int = 8192
    late: tuple[str, ...] | None = None
    nearest: IndexedSort | None = None
    top: TopN | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """Rules for cutting fragments.

    Attributes:
        target_bytes: Target for the stored bytes of a partition.
        parallelism: Number of concurrent tasks. Smaller tables are cut into as many partitions.
        splittable: Whether a fragment may be cut into ranges.
        physical: Whether ranges count row positions, including deleted rows; else live rows.
        prefix: Number of leading live rows to read, or None for all rows. Requires `physical` to be
            false.
    """

    target_bytes: int
    parallelism: int = 1
    splittable: bool = True
    physical: bool = False
    prefix: int | None = None


def plan_scan_tasks(fragments: Sequence[FragmentSize], rule: CutRule) -> list[ScanTask]:
    """Cuts fragments into partitions with every live row once, in the order of the table.

    With `rule.prefix`, the partitions hold exactly the first `prefix` live rows.

    Args:
        fragments: The fragments, in the order of reading.
        rule: Rules for cutting.
    """
    if rule.prefix is not None:
        fragments, rest = _first_rows(fragments, rule.prefix)
    else:
        rest = None
    target = _target(fragments, rule)
    tasks: list[ScanTask] = []
    packed: list[FragmentSize] = []
    weight = 0
    for fragment in fragments:
        own = _weight(fragment, rule.target_bytes)
        # As close to an even share as the fragments allow, and never above the user's target.
        if packed and (weight + own > rule.target_bytes or weight + own // 2 > target):
            tasks.append(_whole(packed))
            packed, weight = [], 0
        # Halving a fragment slightly above its share would give one core half as much work again.
        pieces = max(math.ceil(own / rule.target_bytes), round(own / target))
        if pieces > 1 and rule.splittable:
            tasks += _ranges(fragment, pieces, rule.physical)
            continue
        packed.append(fragment)
        weight += own
    if packed:
        tasks.append(_whole(packed))
    if rest is not None:
        fragment, rows = rest
        tasks.append(ScanTask(fragments=(fragment.fragment_id,), start=0, stop=rows, rows=rows))
    return tasks


def _first_rows(
    fragments: Sequence[FragmentSize], rows: int
) -> tuple[Sequence[FragmentSize], tuple[FragmentSize, int] | None]:
    """Returns the fragments within the first rows, and the next fragment with its row count."""
    for position, fragment in enumerate(fragments):
        if fragment.live_rows > rows:
            return fragments[:position], (fragment, rows) if rows else None
        rows -= fragment.live_rows
    return fragments, None


def _target(fragments: Sequence[FragmentSize], rule: CutRule) -> int:
    total = sum(_weight(f, rule.target_bytes) for f in fragments)
    return min(rule.target_bytes, max(MIN_PARTITION_BYTES, math.ceil(total / rule.parallelism)))


def _weight(fragment: FragmentSize, target_bytes: int) -> int:
    by_rows = fragment.live_rows * target_bytes // MAX_PARTITION_ROWS
    return max(fragment.stored_bytes, by_rows, min(FRAGMENT_COST_BYTES, target_bytes))


def _whole(fragments: Sequence[FragmentSize]) -> ScanTask:
    return ScanTask(
        fragments=tuple(f.fragment_id for f in fragments), rows=sum(f.live_rows for f in fragments)
    )


def _ranges(fragment: FragmentSize, pieces: int, physical: bool) -> list[ScanTask]:
    rows = fragment.physical_rows if physical else fragment.live_rows
    length = math.ceil(rows / pieces)
    if length > RANGE_ALIGNMENT:
        length = math.ceil(length / RANGE_ALIGNMENT) * RANGE_ALIGNMENT
    return [
        ScanTask(
            fragments=(fragment.fragment_id,),
            start=start,
            stop=min(start + length, rows),
            rows=min(length, rows - start),
        )
        for start in range(0, rows, length)
    ]
