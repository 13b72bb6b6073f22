"""Which rows of a fragment a backfill selects. Runs on executors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.reuse.own_rows import OwnRows
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.task.messages import BackfillSpec, FragmentRows
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.errors import FilterError, panics_as_errors
from lance_spark.read.filtering import as_filter_error, conjunction
from lance_spark.read.masks import range_mask
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, Addresses, SnapshotRows, offsets_of
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


class RangeRows:
    """The rows of one range of a fragment, as filters select them; `live` are those not deleted."""

    def __init__(self, spec: BackfillSpec, rows: SnapshotRows, fragment: LanceFragment, start: int, stop: int) -> None:
        self.fragment = fragment
        self._spec = spec
        self._dataset = rows.dataset
        self._start, self._stop = start, stop
        deleted = rows.deleted(fragment.fragment_id)
        span = RowSet.span(start, stop)
        self.live = span if deleted is None else span - RowSet.of(np.flatnonzero(deleted[start:stop]) + start)

    @functools.cached_property
    def _mask(self) -> bytes | None:
        """What restricts a scan to the range, if anything does; costs a scan of a narrow column."""
        return range_mask(self._dataset, self.fragment, self._start, self._stop)

    @property
    def is_filled(self) -> bool:
        """Whether the fragment has any value in the target columns."""
        return has_values(self.fragment.metadata, self._spec.target_ids)

    def selected(self, done: FragmentRows, history: ValueHistory) -> RowSet:
        """Returns the rows that the first round of a job selects.

        `history` tells which values are out of date, for jobs that compute these anew.
        """
        if self._spec.where is None and not self._spec.recomputes:
            return self.without_value() - done.skip
        rows = (self.live if self._spec.where is None else self.matching(self._spec.where)) - done.skip
        return self.without_value_of_now(rows, history) if self._spec.recomputes else rows

    def without_value_of_now(self, rows: RowSet, history: ValueHistory) -> RowSet:
        """Returns those of some rows that have no value, or one that is out of date."""
        empty = rows & self.without_value() if rows else rows
        return empty | history.judge(self.fragment.metadata, rows - empty).rows

    def selected_again(self, own: OwnRows, done: FragmentRows, history: ValueHistory) -> RowSet:
        """Returns the rows that a follow-up round selects.

        Without a filter: covered rows without a value, and rows that the job has computed from
        other inputs than they have now. A value of a concurrent writer stays, unless the inputs
        changed too. With a filter, or where values that are out of date are computed anew: all rows
        that the job has computed, wherever they are, and the selected rows of fragments that it has
        not finished.

        Raises:
            FilterError: The filter names addresses that rows do not have any more.
        """
        unknown = own.unknown & self.live
        if self._spec.where is None and not self._spec.recomputes:
            empty = self.without_value() & own.covered
            settled = done.skip | own.kept.nulls | own.failed
            # Nothing tells which of these rows had no value when the job began.
            lost = (own.lost & self.live) - empty - unknown - done.computed
            outdated = history.judge(self.fragment.metadata, lost).stale if lost else lost
            return (empty - settled) | (own.changed & self.live) | unknown | outdated
        unfinished = own.unfinished & self.live
        if self._spec.recomputes:
            unfinished = self.without_value_of_now(unfinished - done.skip, history)
        if self._spec.where is not None:
            if unfinished and own.have_moved:
                _refuse_addresses(self._spec, self._dataset, self.fragment.fragment_id)
            if unfinished:
                unfinished &= self.matching(self._spec.where)
            if unknown:
                # What the job has given a value took it along.
                unknown &= self.with_value()
        # Where the table certainly has this UDF's values of these inputs, of whatever job, nothing
        # is to be put back.
        return ((own.computed & self.live) - done.computed) | unknown | (unfinished - done.skip - own.failed)

    def without_value(self) -> RowSet:
        """Returns the rows in which any of the target columns has no value."""
        if not self.is_filled:
            return self.live
        return self.matching(null_filter([column for _, column in self._spec.outputs]))

    def with_value(self) -> RowSet:
        """Returns the rows in which any of the target columns has a value."""
        return self.matching(" OR ".join(f"`{column}` IS NOT NULL" for _, column in self._spec.outputs))

    def matching(self, text: str) -> RowSet:
        """Returns the live rows that match a filter, as :func:`matching_addresses` finds them."""
        is_whole = (self._start, self._stop) == (0, self.fragment.metadata.physical_rows)
        mask = None if is_whole else self._mask
        if not is_whole and mask is None:
            first = self.fragment.fragment_id << 32
            within = f"_rowaddr >= {first + self._start} AND _rowaddr < {first + self._stop}"
            text = conjunction(text, within) or text
        batches = matching_addresses(self._dataset, [self.fragment], text, mask)
        return RowSet.of(np.concatenate([np.empty(0, dtype=np.int64), *map(offsets_of, batches)])) & self.live


def matching_addresses(
    dataset: lance.LanceDataset, fragments: Sequence[LanceFragment], text: str | None, mask: bytes | None = None
) -> Iterator[Addresses]:
    """Yields the addresses of the live rows that match a filter in Lance SQL, in order.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    try:
        with panics_as_errors():
            scanner = dataset.scanner(
                columns=[],
                filter=text,
                fragments=fragments,
                with_row_address=True,
                row_addr_allowlist=mask,
                scan_in_order=True,
            )
            for batch in scanner.to_reader():
                yield batch.column(ROW_ADDRESS).to_numpy()
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise as_filter_error(error, dataset, fragments[0].fragment_id, text) from error


def null_filter(columns: Sequence[str]) -> str:
    """Returns the filter for rows in which any of the columns has no value."""
    return " OR ".join(f"`{column}` IS NULL" for column in columns)


def has_values(fragment: FragmentMetadata, target_ids: Sequence[int]) -> bool:
    """Tells whether any data file of a fragment holds a target column; else all rows are NULL."""
    return bool(files_of(fragment, target_ids))


def _refuse_addresses(spec: BackfillSpec, dataset: lance.LanceDataset, fragment_id: int) -> None:
    """Refuses a filter that names addresses, or ids that are addresses, of another version."""
    name = ROW_ADDRESS if dataset.has_stable_row_ids else f"{ROW_ADDRESS}|{ROW_ID}"
    if re.search(rf"\b({name})\b", spec.where or ""):
        problem = f"its rows may have moved to fragment {fragment_id} while the job ran: their addresses are others"
        hint = "run the backfill again with the latest addresses; get_failed_row_addresses returns them"
        raise FilterError(spec.where or "", problem, uri=dataset.uri, hint=hint)
