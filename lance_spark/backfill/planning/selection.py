"""Selects the rows of a fragment for a backfill. Runs on executors."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.reuse.prior_round_rows import PriorRoundRows
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.task.messages import BackfillSpec, FragmentRows
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.errors import FilterError
from lance_spark.read.filtering import conjunction
from lance_spark.read.masks import range_mask
from lance_spark.rows.matching_rows import matching_addresses
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, SnapshotRows, offsets_of
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


class RangeRows:
    """Filters over the rows of a range of a fragment. `live` are the rows without deleted rows."""

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
        """The mask that restricts a scan to the range, or None. Scans a narrow column once."""
        return range_mask(self._dataset, self.fragment, self._start, self._stop)

    @property
    def is_filled(self) -> bool:
        """Whether the fragment has any value in the target columns."""
        return has_values(self.fragment.metadata, self._spec.target_ids)

    def selected(self, done: FragmentRows, history: ValueHistory) -> RowSet:
        """Returns the rows that the first round of a job selects.

        `history` finds outdated values for jobs that recompute these values.
        """
        if self._spec.where is None and not self._spec.recomputes:
            return self.without_value() - done.skip
        rows = (self.live if self._spec.where is None else self.matching(self._spec.where)) - done.skip
        return self.without_value_of_now(rows, history) if self._spec.recomputes else rows

    def without_value_of_now(self, rows: RowSet, history: ValueHistory) -> RowSet:
        """Returns the subset of rows without a value or with an outdated value."""
        empty = rows & self.without_value() if rows else rows
        return empty | history.judge(self.fragment.metadata, rows - empty).rows

    def selected_again(self, own: PriorRoundRows, done: FragmentRows, history: ValueHistory) -> RowSet:
        """Returns the rows that a follow-up round selects.

        Without a filter: covered rows without a value, and rows computed by the job from changed
        inputs. A value of a concurrent writer stays, unless the inputs changed too. With a filter,
        or if the job recomputes outdated values: all rows that the job has computed, in any
        fragment, and the selected rows of unfinished fragments.

        Raises:
            FilterError: The filter names outdated addresses.
        """
        unknown = own.unknown & self.live
        if self._spec.where is None and not self._spec.recomputes:
            empty = self.without_value() & own.covered
            settled = done.skip | own.kept.nulls | own.failed
            # The rows without a value at the start of the job are unknown.
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
                # Values written by this job moved with their rows.
                unknown &= self.with_value()
        # If the table certainly has this UDF's values of these inputs, no value must be put back.
        return ((own.computed & self.live) - done.computed) | unknown | (unfinished - done.skip - own.failed)

    def without_value(self) -> RowSet:
        """Returns the rows without a value in any of the target columns."""
        if not self.is_filled:
            return self.live
        return self.matching(null_filter([column for _, column in self._spec.outputs]))

    def with_value(self) -> RowSet:
        """Returns the rows with a value in any of the target columns."""
        return self.matching(" OR ".join(f"`{column}` IS NOT NULL" for _, column in self._spec.outputs))

    def matching(self, text: str) -> RowSet:
        """Returns the live rows that match a filter. Raises as :func:`matching_addresses` does."""
        is_whole = (self._start, self._stop) == (0, self.fragment.metadata.physical_rows)
        mask = None if is_whole else self._mask
        if not is_whole and mask is None:
            first = self.fragment.fragment_id << 32
            within = f"_rowaddr >= {first + self._start} AND _rowaddr < {first + self._stop}"
            text = conjunction(text, within) or text
        batches = matching_addresses(self._dataset, [self.fragment], text, mask)
        return RowSet.of(np.concatenate([np.empty(0, dtype=np.int64), *map(offsets_of, batches)])) & self.live


def null_filter(columns: Sequence[str]) -> str:
    """Returns the filter for rows without a value in any of the columns."""
    return " OR ".join(f"`{column}` IS NULL" for column in columns)


def has_values(fragment: FragmentMetadata, target_ids: Sequence[int]) -> bool:
    """Tells whether a data file of a fragment has a target column. Otherwise all rows are NULL."""
    return bool(files_of(fragment, target_ids))


def _refuse_addresses(spec: BackfillSpec, dataset: lance.LanceDataset, fragment_id: int) -> None:
    """Refuses a filter over addresses, or over ids equal to addresses, of another version."""
    name = ROW_ADDRESS if dataset.has_stable_row_ids else f"{ROW_ADDRESS}|{ROW_ID}"
    if re.search(rf"\b({name})\b", spec.where or ""):
        problem = f"its rows may have moved to fragment {fragment_id} while the job ran: their addresses are others"
        hint = "run the backfill again with the latest addresses; get_failed_row_addresses returns them"
        raise FilterError(spec.where or "", problem, uri=dataset.uri, hint=hint)
