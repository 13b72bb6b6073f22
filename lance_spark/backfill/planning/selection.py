"""Which rows of a range are to be computed: found by scanning the columns of the filter, and no others. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.errors import panics_as_errors
from lance_spark.read.filtering import both, explained
from lance_spark.read.masks import range_mask
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import ROW_ADDRESS, SnapshotRows, offsets_of

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


def null_filter(columns: Sequence[str]) -> str:
    """Returns the filter for rows in which any of the columns has no value."""
    return " OR ".join(f"`{column}` IS NULL" for column in columns)


def has_values(fragment: FragmentMetadata, target_ids: Sequence[int]) -> bool:
    """Tells whether any data file of a fragment holds a target column; where none does, all of its rows are NULL."""
    return bool(files_of(fragment, target_ids))


def select_rows(spec: BackfillSpec, work: FragmentWork, rows: SnapshotRows, fragment: LanceFragment) -> Offsets:
    """Returns the physical positions of the selected rows of a range, ascending.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    filled = has_values(fragment.metadata, spec.target_ids)
    if spec.where is None and (spec.recomputes or not filled):
        offsets = live_rows(rows, work)
    else:
        text = spec.where or null_filter([column for _, column in spec.outputs])
        offsets = matching_rows(rows.dataset, fragment, work, text)
    return without(offsets, work.done.skip.to_numpy()) if work.done.skip else offsets


def rows_without_value(
    spec: BackfillSpec, work: FragmentWork, rows: SnapshotRows, fragment: LanceFragment, selected: Offsets
) -> Offsets:
    """Returns those of the selected rows that any checkpoint may serve: with a filter of the user's, those without a value."""
    if spec.where is None or spec.stale or not has_values(fragment.metadata, spec.target_ids):
        return selected
    nulls = null_filter([column for _, column in spec.outputs])
    empty = matching_rows(rows.dataset, fragment, work, both(spec.where, nulls) or nulls)
    return selected[np.isin(selected, empty, assume_unique=True)]


def live_rows(rows: SnapshotRows, work: FragmentWork) -> Offsets:
    """Returns the rows of a range that are not deleted."""
    deleted = rows.deleted(work.fragment_id)
    offsets = np.arange(work.start, work.stop, dtype=np.int64)
    return offsets if deleted is None else offsets[~deleted[work.start : work.stop]]


def matching_rows(dataset: lance.LanceDataset, fragment: LanceFragment, work: FragmentWork, text: str) -> Offsets:
    """Returns the rows of a range that match a filter in Lance SQL."""
    mask = None
    if not work.is_whole:
        mask = range_mask(dataset, fragment, work.start, work.stop)
        if mask is None:
            first = work.fragment_id << 32
            text = both(text, f"_rowaddr >= {first + work.start} AND _rowaddr < {first + work.stop}") or text
    found = [np.empty(0, dtype=np.int64)]
    try:
        with panics_as_errors():
            scanner = dataset.scanner(
                columns=[],
                filter=text,
                fragments=[fragment],
                with_row_address=True,
                row_addr_allowlist=mask,
                scan_in_order=True,
            )
            found.extend(offsets_of(batch.column(ROW_ADDRESS).to_numpy()) for batch in scanner.to_reader())
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise explained(error, dataset, fragment.fragment_id, text) from error
    return np.sort(np.concatenate(found))


def without(offsets: Offsets, others: Offsets) -> Offsets:
    """Returns the offsets that are not among the others."""
    return offsets[~np.isin(offsets, others, assume_unique=True)] if len(others) else offsets
