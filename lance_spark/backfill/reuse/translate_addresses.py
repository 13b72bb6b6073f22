"""Row addresses of an older version, as they are in the latest one.

Compactions move rows, so that an old address may be another row's now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.rows.merge import distinct
from lance_spark.rows.row_addresses import Addresses, SnapshotRows, fragments_of, offsets_of


def latest_addresses(ref: DatasetRef, rows: Iterable[tuple[int, int]]) -> list[int]:
    """Returns where rows are in the latest version, ascending, each once. Runs on the driver.

    Args:
        ref: The table.
        rows: Pairs of a version and a row's address in it.
    """
    by_version: dict[int, list[int]] = {}
    for version, address in rows:
        by_version.setdefault(version, []).append(address)
    translated = (_translate(ref, version, addresses) for version, addresses in by_version.items())
    return sorted({address for addresses in translated for address in addresses})


def _translate(ref: DatasetRef, version: int, addresses: Sequence[int]) -> list[int]:
    """Returns where rows of a version are in the latest one, ascending.

    Rows that were deleted since, or that an update moved, are left out, and so are rows whose way
    cannot be followed, because the history of a compaction was cleaned up.
    """
    head = ref.open_latest()
    old_addresses: Addresses = distinct(np.asarray(addresses, dtype=np.uint64))
    rows = SnapshotRows(head)
    lineage = Lineage.between(head, version, head.version) if head.version > version else None
    translated: list[int] = []
    old_fragments = set(fragments_of(old_addresses).tolist())
    for handle in head.get_fragments():
        fragment_id = handle.fragment_id
        origins = []
        if lineage is not None and _may_come_from(lineage, fragment_id, old_fragments):
            origins = lineage.origins(fragment_id) or []
        offsets = []
        if fragment_id in old_fragments and not origins:
            offsets.append(offsets_of(old_addresses[fragments_of(old_addresses) == fragment_id]))
        for origin in origins:
            wanted = offsets_of(old_addresses[fragments_of(old_addresses) == origin.fragment.id])
            at = np.flatnonzero(np.isin(origin.offsets, wanted, assume_unique=True))
            offsets.append(at + origin.start)
        deleted = rows.deleted(fragment_id)
        for present in offsets:
            physical = present[present < handle.metadata.physical_rows]
            live = physical if deleted is None else physical[~deleted[physical]]
            translated += [fragment_id << 32 | offset for offset in live.tolist()]
    return sorted(set(translated))


def _may_come_from(lineage: Lineage, fragment: int, old: set[int]) -> bool:
    return any(leaf.fragment.id in old for leaf in lineage.leaves(fragment) or ())
