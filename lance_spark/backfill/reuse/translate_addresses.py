"""Row addresses of an older version, as they are in the latest one.

Compactions and updates move rows, so that an old address may be another row's now.
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
    """Returns where rows are in the latest version, ascending, each once. Runs on the driver.

    Rows that were deleted since are left out, and so are rows whose way cannot be followed: where
    the history of a compaction was cleaned up, or an update moved them and row ids are not stable.

    Args:
        ref: The table.
        rows: Pairs of a version and a row's address in it.
    """
    by_version: dict[int, dict[int, list[int]]] = {}
    for version, address in rows:
        fragments = by_version.setdefault(version, {})
        fragments.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    head = SnapshotRows(ref.open_latest())
    return sorted({row for version, wanted in by_version.items() for row in _translate(ref, head, version, wanted)})


def _translate(ref: DatasetRef, head: SnapshotRows, version: int, wanted: dict[int, list[int]]) -> Iterable[int]:
    """Yields where rows of fragments of a version are in the latest one."""
    latest = head.dataset.version
    lineage = Lineage.between(head.dataset, min(version, latest), latest)
    origins = Origins(open_base(ref, version), head, lineage, (), unchanged=wanted)
    for handle in head.dataset.get_fragments():
        fragment = handle.metadata
        ancestors = [leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ()]
        moved_from = lineage.moved_from(fragment) or frozenset()
        if wanted.keys().isdisjoint({fragment.id, *ancestors, *moved_from}):
            continue
        for origin in origins.of(fragment).origins:
            for row in origin.moved.new_rows(RowSet.of(wanted.get(origin.fragment.id, ()))):
                yield fragment.id << 32 | row
