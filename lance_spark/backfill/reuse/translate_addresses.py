"""Translates row addresses of an older version to the latest version.

Compactions move rows, so another row may have the old address.
"""

from __future__ import annotations

from collections.abc import Iterable

from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.row_origins import Origins
from lance_spark.rebase.snapshot import open_base
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet


def latest_addresses(ref: DatasetRef, rows: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the latest addresses of rows, ascending and unique. Runs on the driver.

    Skips rows deleted or updated since then, and rows of a compaction whose history was cleaned up.
    `rows` are pairs of a version and a row's address in the version.
    """
    by_version: dict[int, dict[int, list[int]]] = {}
    for version, address in rows:
        fragments = by_version.setdefault(version, {})
        fragments.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    head = SnapshotRows(ref.open_latest())
    return sorted(
        {row for version, fragments in by_version.items() for row in _translate(ref, head, version, fragments)}
    )


def _translate(
    ref: DatasetRef, head: SnapshotRows, version: int, offsets_by_fragment: dict[int, list[int]]
) -> Iterable[int]:
    """Yields the latest addresses of rows of a version's fragments."""
    latest = head.dataset.version
    lineage = Lineage(head.dataset, min(version, latest), latest)
    origins = Origins(open_base(ref, version), head, lineage, (), unchanged=offsets_by_fragment)
    for handle in head.dataset.get_fragments():
        fragment = handle.metadata
        if offsets_by_fragment.keys().isdisjoint(
            [fragment.id, *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ())]
        ):
            continue
        for origin in origins.of(fragment).origins:
            # Without inputs, only rows moved by an update are not certainly the same.
            rows = RowSet.of(offsets_by_fragment.get(origin.fragment.id, ())) if origin.same else RowSet.empty()
            yield from (fragment.id << 32 | row for row in origin.mapping.new_rows(rows))
