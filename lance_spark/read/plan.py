"""Cuts a scan into partitions: :func:`plan_scan_tasks`, a pure function of the fragments' sizes.

Fragments are taken in the order of the table. A fragment bigger than a partition is cut into ranges
of equal length, small ones are packed together until a partition is full: a partition is either one
range of one fragment, or a run of whole fragments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from lance_spark.read.sizes import FragmentSize

if TYPE_CHECKING:
    from lance_spark.read.search.by_distance import NearestRows
    from lance_spark.read.spec import TopN

MIN_PARTITION_BYTES = 4 << 20
"""A table that is smaller than one partition per core is cut finer, but not finer than this. A task
costs 40 to 100 ms."""

MAX_PARTITION_ROWS = 1 << 23
"""Rows of a partition, however narrow: Spark takes about a second for a million of them."""

FRAGMENT_COST_BYTES = 128 << 10
"""What a fragment weighs at least. Opening one takes 0.1 ms on a local disk and 10 to 30 ms on an
object store."""

RANGE_ALIGNMENT = 4096
"""Ranges begin at a multiple of this many rows, which keeps most pages of a file in one range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTask(InputPartition):
    """One partition: the rows that one Spark task reads.

    Attributes:
        fragments: Ids of the fragments, in the order they are read.
        start: First row of the range in the only fragment, or None for whole fragments.
        stop: Row after the last of the range, or None for whole fragments.
        rows: Rows of the partition before any filter: exact without a filter, else an upper bound.
        filter: What Lance selects the rows by, in Lance SQL, or None. It travels with the task:
            Spark has sent the reader off before it asks for the partitions.
        limit: Most rows to return after the filter, or None.
        use_index: Whether scalar indexes may answer the filter.
        batch_rows: Most rows of one batch.
        late: Columns fetched only for the rows that pass the filter; None leaves the choice to
            Lance.
        nearest: The search that finds all rows that are needed, or None.
        top: The first rows of a sort, which are enough, or None.
    """

    fragments: tuple[int, ...]
    start: int | None = None
    stop: int | None = None
    rows: int = 0
    filter: str | None = None
    limit: int | None = None
    use_index: bool = True
    batch_rows: int = 8192
    late: tuple[str, ...] | None = None
    nearest: NearestRows | None = None
    top: TopN | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """How fragments may be cut.

    Attributes:
        target_bytes: Stored bytes that a partition aims at.
        parallelism: Tasks that can run at once; smaller tables are cut into as many partitions.
        splittable: Whether a fragment may be cut into ranges.
        physical: Whether ranges count row positions, deleted ones included; else live rows.
        prefix: Only so many first live rows are read, or None for all. Needs `physical` to be
            false.
    """

    target_bytes: int
    parallelism: int = 1
    splittable: bool = True
    physical: bool = False
    prefix: int | None = None


def plan_scan_tasks(fragments: Sequence[FragmentSize], rule: CutRule) -> list[ScanTask]:
    """Cuts fragments into partitions that together hold every live row once, in the table's order.

    With `rule.prefix`, together they hold exactly the first so many live rows.

    Args:
        fragments: The fragments, in the order they are to be read.
        rule: How to cut.
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
        # As near to an even share as fragments let it, and never above the target of the user.
        if packed and (weight + own > rule.target_bytes or weight + own // 2 > target):
            tasks.append(_whole(packed))
            packed, weight = [], 0
        # Halves of what is a little above its share would leave one core with half as much again.
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
    """Returns the fragments wholly within the first rows, and the next with its share of them."""
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
    return ScanTask(fragments=tuple(f.fragment_id for f in fragments), rows=sum(f.live_rows for f in fragments))


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
