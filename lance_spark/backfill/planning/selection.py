"""Selects the rows of a fragment for a backfill. Runs on executors."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lance_spark.backfill.reuse.computed_rows import FragmentRecord
from lance_spark.backfill.reuse.prior_round_rows import PriorRoundRows
from lance_spark.backfill.reuse.value_history import OutOfDate, ValueHistory
from lance_spark.backfill.task.messages import FragmentRows
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.errors import FilterError
from lance_spark.read.filtering import conjunction
from lance_spark.read.masks import range_mask
from lance_spark.rows.matching_rows import matching_addresses
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, offsets_of
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata, LanceFragment


class RangeRows:
    """The rows of a range of a fragment, and filters over these rows.

    Attributes:
        span: All rows of the range.
        live: The rows without deleted rows.
        recorded_rows: Known results of earlier runs.
        prior: Results of earlier rounds of the job.
    """

    def __init__(
        self,
        history: ValueHistory,
        fragment: LanceFragment,
        span: tuple[int, int],
        recorded_rows: FragmentRows,
        prior: PriorRoundRows,
    ) -> None:
        self.fragment = fragment
        self.span = RowSet.span(*span)
        self._range = span
        self.recorded_rows = recorded_rows
        self.prior = prior
        self.dataset = history.rows.dataset
        self._spec = history.spec
        self._history = history
        deleted = history.rows.deleted(fragment.fragment_id)
        self.live = (
            self.span
            if deleted is None
            else self.span - RowSet.of(np.flatnonzero(deleted[slice(*span)]) + span[0])
        )

    @functools.cached_property
    def _mask(self) -> bytes | None:
        """The mask that restricts a scan to the range, or None. Scans a narrow column once."""
        return range_mask(self.dataset, self.fragment, *self._range)

    def without_value(self) -> RowSet:
        """Returns the rows without a value in any of the target columns."""
        if not has_values(self.fragment.metadata, self._spec.target_ids):
            return self.live
        return self.matching(null_filter([column for _, column in self._spec.outputs]))

    def with_value(self) -> RowSet:
        """Returns the rows with a value in any of the target columns."""
        return self.matching(
            " OR ".join(f"`{column}` IS NOT NULL" for _, column in self._spec.outputs)
        )

    def without_current_value(self, rows: RowSet) -> RowSet:
        """Returns the subset of rows without a value or with an outdated value."""
        empty = rows & self.without_value() if rows else rows
        return empty | self.judge(rows - empty).rows

    def judge(self, rows: RowSet) -> OutOfDate:
        """Returns the outdated rows among some rows with a value."""
        return self._history.judge(self.fragment.metadata, rows) if rows else OutOfDate()

    def matching(self, text: str) -> RowSet:
        """Returns the live rows that match a filter. Raises as :func:`matching_addresses` does."""
        if len(self.span) == self.fragment.metadata.physical_rows:
            return self._history.matches.of(self.dataset, self.fragment, text) & self.live
        mask = self._mask
        if mask is None:
            first, end = (self.fragment.fragment_id << 32 | bound for bound in self._range)
            within = f"_rowaddr >= {first} AND _rowaddr < {end}"
            text = conjunction(text, within) or text
        batches = matching_addresses(self.dataset, [self.fragment], text, mask)
        return (
            RowSet.of(np.concatenate([np.empty(0, dtype=np.int64), *map(offsets_of, batches)]))
            & self.live
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelector(ABC):
    """Selects the rows of a job, and decides which earlier results replace calls. Picklable.

    Attributes:
        where: The user's filter in Lance SQL, or None.
        serving_jobs: Jobs whose results replace more calls than the results of other jobs.
    """

    where: str | None = None
    serving_jobs: frozenset[str] = frozenset()

    selects_values: ClassVar[bool] = True
    """Whether a selected row may have a value. Otherwise a column file of NULLs is useless."""

    @property
    def selects_outdated(self) -> bool:
        """Whether the job selects every row with an outdated value."""
        return False

    @abstractmethod
    def select(self, rows: RangeRows) -> RowSet:
        """Returns the rows of a range for the first round or a follow-up round of a job.

        Raises:
            FilterError: The filter names outdated addresses.
        """

    def filter_of(self, columns: Sequence[str]) -> str | None:  # noqa: ARG002 - of the interface
        """Returns a filter for the number of rows; None if the history of values decides."""
        return None

    def skipped(self, record: FragmentRecord, computed: RowSet) -> RowSet:  # noqa: ARG002 - of the interface
        """Returns the rows of a record that the job skips: by default all valid results."""
        return computed

    def is_served_by(self, job_id: str) -> bool:  # noqa: ARG002 - of the interface
        """Tells whether all results of a job replace calls."""
        return True

    def served_by_any_job(self, rows: RangeRows, missing_rows: RowSet) -> RowSet:  # noqa: ARG002 - of the interface
        """Returns rows for which also the results of jobs without :meth:`is_served_by` serve."""
        return RowSet.empty()

    def _matching(self, rows: RangeRows, candidates: RowSet) -> RowSet:
        if self.where is None or not candidates:
            return candidates
        if rows.prior.have_moved:
            _refuse_addresses(rows, self.where)
        return candidates & rows.matching(self.where)

    def _with_computed(self, rows: RangeRows, unfinished: RowSet) -> RowSet:
        """Returns all rows that the job has computed, in any fragment, and the unfinished rows."""
        prior, unknown = rows.prior, rows.prior.unknown & rows.live
        if unknown and self.where is not None:
            # Values written by this job moved with their rows.
            unknown &= rows.with_value()
        # If the table certainly has this UDF's values of these inputs, no value must be put back.
        computed = (prior.computed & rows.live) - rows.recorded_rows.computed
        return computed | unknown | (unfinished - rows.recorded_rows.skip - prior.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithoutValue(RowSelector):
    """Selects covered rows without a value, and rows computed by the job from changed inputs.

    The job skips rows computed as NULL. A value of a concurrent writer stays, unless the inputs
    changed too.
    """

    selects_values: ClassVar[bool] = False

    def select(self, rows: RangeRows) -> RowSet:
        """Returns the rows without a value or with changed inputs."""
        results, prior, unknown = rows.recorded_rows, rows.prior, rows.prior.unknown & rows.live
        empty = rows.without_value() & prior.covered
        settled = results.skip | prior.kept.nulls | prior.failed
        # The rows without a value at the start of the job are unknown.
        lost = (prior.lost & rows.live) - empty - unknown - results.computed
        return (empty - settled) | (prior.changed & rows.live) | unknown | rows.judge(lost).stale

    def filter_of(self, columns: Sequence[str]) -> str | None:
        """Returns the filter for rows without a value."""
        return null_filter(columns)

    def skipped(self, record: FragmentRecord, computed: RowSet) -> RowSet:  # noqa: ARG002 - of the interface
        """Returns the rows computed as NULL."""
        return record.nulls


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingRows(RowSelector):
    """Selects the rows that match the user's filter, with or without a value.

    The results of `serving_jobs`, the job and the jobs that it resumes, replace calls. Results of
    other jobs serve rows without a value, except rows computed as NULL.
    """

    def select(self, rows: RangeRows) -> RowSet:
        """Returns the matching rows of unfinished fragments, and the computed rows."""
        return self._with_computed(rows, self._matching(rows, rows.prior.unfinished & rows.live))

    def filter_of(self, columns: Sequence[str]) -> str | None:  # noqa: ARG002 - of the interface
        """Returns the user's filter."""
        return self.where

    def skipped(self, record: FragmentRecord, computed: RowSet) -> RowSet:
        """Returns the rows computed before an interruption of the same job."""
        return computed if self.is_served_by(record.job_id) else RowSet.empty()

    def is_served_by(self, job_id: str) -> bool:
        """Tells whether a job is this job or a resumed job."""
        return job_id in self.serving_jobs

    def served_by_any_job(self, rows: RangeRows, missing_rows: RowSet) -> RowSet:
        """Returns the rows without a value, except rows computed as NULL."""
        # Recorded results in the fragment's present file are values or NULLs.
        unknown = missing_rows - rows.recorded_rows.computed
        return unknown & rows.without_value() - rows.recorded_rows.nulls if unknown else unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedRows(RowSelector):
    """Selects the rows without a value or with an outdated value, among all or matching rows."""

    @property
    def selects_outdated(self) -> bool:
        """Whether the job has no filter."""
        return self.where is None

    def select(self, rows: RangeRows) -> RowSet:
        """Returns the unfinished rows without a current value, and the computed rows."""
        unfinished = (rows.prior.unfinished & rows.live) - rows.recorded_rows.skip
        if rows.prior.have_moved:
            # Only rows without a current value may be refused.
            unfinished = self._matching(rows, rows.without_current_value(unfinished))
        else:
            unfinished = rows.without_current_value(self._matching(rows, unfinished))
        return self._with_computed(rows, unfinished)


def row_selector_of(
    where: str | None, *, stale: bool, redefined: bool, serving_jobs: frozenset[str]
) -> RowSelector:
    """Returns the selection of rows of a job.

    Args:
        where: The user's filter.
        stale: Whether the job also selects rows with an outdated value.
        redefined: Whether the column had another UDF before. A job without a filter replaces its
            values.
        serving_jobs: The job and the jobs that it resumes.
    """
    if stale or (redefined and where is None):
        return OutdatedRows(where=where)
    if where is None:
        return RowsWithoutValue()
    return MatchingRows(where=where, serving_jobs=serving_jobs)


def null_filter(columns: Sequence[str]) -> str:
    """Returns the filter for rows without a value in any of the columns."""
    return " OR ".join(f"`{column}` IS NULL" for column in columns)


def has_values(fragment: FragmentMetadata, target_ids: Sequence[int]) -> bool:
    """Tells whether a data file of a fragment has a target column. Otherwise all rows are NULL."""
    return bool(files_of(fragment, target_ids))


def _refuse_addresses(rows: RangeRows, where: str) -> None:
    """Refuses a filter over addresses, or over ids equal to addresses, of another version."""
    name = ROW_ADDRESS if rows.dataset.has_stable_row_ids else f"{ROW_ADDRESS}|{ROW_ID}"
    if re.search(rf"\b({name})\b", where):
        fragment = f"fragment {rows.fragment.fragment_id}"
        problem = (
            f"its rows may have moved to {fragment} while the job ran: their addresses are others"
        )
        hint = "run the backfill again with the latest addresses; get_failed_row_addresses returns them"
        raise FilterError(where, problem, uri=rows.dataset.uri, hint=hint)
