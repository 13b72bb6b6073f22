"""Which rows of a fragment a job still has to look after: those that it covers, and that others moved or changed meanwhile. On executors.

The job read one version; this round reads a later one. A row of it is covered where it was in a fragment that the job covers. What is to be
done about it depends on what the user asked for:

- rows without a value (no filter): covered rows that have none now, and those that have the job's own value although their inputs changed. A
  value that somebody else gave meanwhile is kept.
- a filter, or all rows that are out of date: the rows that the job has computed, wherever they are; of fragments that it has not finished,
  those that the filter selects now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.planning.selection import has_values, live_rows, matching_rows, null_filter, without
from lance_spark.backfill.reuse.value_finder import Finder
from lance_spark.backfill.task.messages import BackfillSpec, FollowSpec, FragmentWork
from lance_spark.backfill.unvalued import left_without_value
from lance_spark.errors import FilterError
from lance_spark.rebase.changed_inputs import read_rows
from lance_spark.rows.merge import Moved, Offsets, distinct, no_rows
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, SnapshotRows, equal_values
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

    from lance_spark.rebase.row_origins import Origin

_ROWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Followed:
    """The rows of a range that need a value.

    Attributes:
        selected: All of them, ascending.
        fresh: Those of them of which nobody knows that the job has computed them before.
        kept: How many rows keep a value that somebody else gave them meanwhile.
        held: How many rows of the range the job looks after: these, those that are right, and those that failed for good.
        added: How many live rows the version lacked that the job read first.
    """

    selected: Offsets
    fresh: Offsets
    kept: int
    held: int
    added: int


def select_followed(
    spec: BackfillSpec,
    follow: FollowSpec,
    work: FragmentWork,
    rows: SnapshotRows,
    fragment: LanceFragment,
    finder: Finder,
) -> Followed:
    """Returns the rows of a range that the job still has to look after.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    found = finder.found(fragment.metadata, follow.version)
    live = live_rows(rows, work)
    covered = [origin for origin in found.origins if origin.fragment.id in follow.covered]
    all_covered = _union([found.unknown, *(origin.moved.new for origin in covered)], live)
    own = _union([moved.new for _, _, moved in own_moves(spec, fragment, finder)], live)
    own = np.intersect1d(own, all_covered, assume_unique=True)
    there = _union([found.unknown, *(origin.moved.new for origin in found.origins)], live)
    if not follow.unfinished:
        # Whatever nobody can tell apart was computed before, but for rows that came with it.
        own = distinct(own, _union([found.unknown], live))
    left = np.intersect1d(left_without_value(spec.bases, fragment.metadata, finder), all_covered, assume_unique=True)
    if spec.where is None and not spec.recomputes:
        known = _Known(
            added=len(live) - len(there),
            covered=all_covered,
            own=own,
            left=left,
            unknown=_union([found.unknown], live),
        )
        return _of_missing(spec, follow, work, rows, fragment, finder, known)
    unfinished = _union([found.unknown, *(o.moved.new for o in covered if o.fragment.id in follow.unfinished)], live)
    if spec.where is not None and len(unfinished):
        if any(o.fragment.id != fragment.fragment_id for o in covered) or len(found.unknown):
            _refuse_addresses(spec, rows, fragment)
        now = matching_rows(rows.dataset, fragment, work, spec.where)
        unfinished = np.intersect1d(unfinished, now, assume_unique=True)
    selected = distinct(own, without(unfinished, work.done.skip.to_numpy()))
    return Followed(
        selected=selected,
        fresh=np.setdiff1d(selected, own, assume_unique=True),
        kept=0,
        held=len(distinct(selected, own, left)),
        added=len(live) - len(there),
    )


def _refuse_addresses(spec: BackfillSpec, rows: SnapshotRows, fragment: LanceFragment) -> None:
    """Refuses to look for rows by addresses that they had in another version.

    Raises:
        FilterError: The filter names addresses, or ids that are addresses.
    """
    name = ROW_ADDRESS if rows.dataset.has_stable_row_ids else f"{ROW_ADDRESS}|{ROW_ID}"
    if re.search(rf"\b({name})\b", spec.where or ""):
        raise FilterError(
            spec.where or "",
            f"rows that it names were moved to fragment {fragment.fragment_id} while the job ran, where their addresses are others",
            uri=rows.dataset.uri,
            hint="run the backfill again with the addresses of now; get_failed_row_addresses returns them",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """Rows of a range: covered ones, those that the job has computed or left without a value, and those of which nobody knows where they were."""

    covered: Offsets
    own: Offsets
    left: Offsets
    unknown: Offsets
    added: int


def _of_missing(
    spec: BackfillSpec,
    follow: FollowSpec,
    work: FragmentWork,
    rows: SnapshotRows,
    fragment: LanceFragment,
    finder: Finder,
    known: _Known,
) -> Followed:
    """Selects where the user asked for rows without a value."""
    filled = has_values(fragment.metadata, spec.target_ids)
    empty = known.covered
    if filled:
        nulls = matching_rows(rows.dataset, fragment, work, null_filter([column for _, column in spec.outputs]))
        empty = np.intersect1d(empty, nulls, assume_unique=True)
    valued = np.setdiff1d(known.covered, empty, assume_unique=True)
    stale = [no_rows()]
    # Rows of an update that nobody can tell apart: the job's values may have been copied with them.
    if follow.landed:
        stale.append(np.intersect1d(valued, known.unknown, assume_unique=True))
    ours = [no_rows()]
    seen = no_rows()
    for version, origin, moved in own_moves(spec, fragment, finder):
        part = among(moved, np.setdiff1d(valued, seen, assume_unique=True))
        if not len(part.old):
            continue
        mine = _have_value_of(spec, origin, rows, fragment, part, finder)
        # Only what it has: the job may have computed a row several times, and committed none but the first.
        seen = distinct(seen, part.new[mine])
        ours.append(part.new[mine])
        if not origin.same and mine.any():
            part = Moved(old=part.old[mine], new=part.new[mine])
            stale.append(part.new[finder.changed(version, origin, fragment.metadata, part)])
    empty = without(without(empty, work.done.skip.to_numpy()), _failed(spec, fragment, finder))
    selected = distinct(empty, *stale)
    kept = np.intersect1d(valued, known.own, assume_unique=True)
    kept = np.setdiff1d(kept, distinct(*ours, selected), assume_unique=True)
    return Followed(
        selected=selected,
        fresh=np.setdiff1d(selected, known.own, assume_unique=True),
        kept=len(kept),
        held=len(distinct(selected, known.own, known.left)),
        added=known.added,
    )


def own_moves(spec: BackfillSpec, fragment: LanceFragment, finder: Finder) -> Iterator[tuple[int, Origin, Moved]]:
    """Yields the rows that the job has computed in whole fragments of the versions that it has read, the newest first."""
    for version in spec.bases:
        for origin in finder.found(fragment.metadata, version).origins:
            moved = _of(origin.moved, finder.own(origin.fragment)[0])
            if len(moved.old):
                yield version, origin, moved


def _failed(spec: BackfillSpec, fragment: LanceFragment, finder: Finder) -> Offsets:
    """Returns the rows that failed in this job, and whose inputs are the same: another call would end the same way."""
    found = [no_rows()]
    for version in spec.bases:
        for origin in finder.found(fragment.metadata, version).origins:
            moved = _of(origin.moved, finder.own(origin.fragment)[1])
            if len(moved.old) and not origin.same:
                same = ~finder.changed(version, origin, fragment.metadata, moved)
                moved = Moved(old=moved.old[same], new=moved.new[same])
            found.append(moved.new)
    return distinct(*found)


def _of(moved: Moved, rows: RowSet) -> Moved:
    """Returns the moves that begin in some rows."""
    chosen = np.isin(moved.old, rows.to_numpy(), assume_unique=True)
    return Moved(old=moved.old[chosen], new=moved.new[chosen])


def _have_value_of(
    spec: BackfillSpec, origin: Origin, rows: SnapshotRows, fragment: LanceFragment, part: Moved, finder: Finder
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tells which rows have the value that the job computed for them.

    Whatever cannot be compared counts as that: blobs, which cannot be read from a column file alone, and where a cleanup took the job's file
    after its rows had moved. What somebody else gave is then computed anew where inputs changed, rather than a copied value kept.
    """
    mine = np.ones(len(part.new), dtype=np.bool_)
    if spec.targets.blobs:
        return mine
    order = np.argsort(part.new)
    for first in range(0, len(order), _ROWS):
        at = order[first : first + _ROWS]
        offsets, values = finder.values_of(origin.fragment, Moved(old=part.old[at], new=part.new[at]))
        if not len(offsets):
            continue
        chosen = np.isin(part.new[at], offsets, assume_unique=True)
        now = read_rows(rows, fragment.fragment_id, tuple(column for _, column in spec.outputs), offsets)
        # Where one of several siblings is a copy it may be out of date; those that somebody gave stay.
        same = np.zeros(len(offsets), dtype=np.bool_)
        for (field, _), array in zip(spec.outputs, now, strict=True):
            same |= equal_values(field_of(values, field), array)
        mine[at[chosen]] = same
    return mine


def field_of(values: pa.Array[Any], field: str) -> pa.Array[Any]:
    """Returns one field of a UDF's values, or these where it has one output."""
    if not field:
        return values
    flat: Any = values
    names = [one.name for one in flat.type]
    found: pa.Array[Any] = flat.flatten()[names.index(field)]
    return found


def among(moved: Moved, rows: Offsets) -> Moved:
    """Returns the moves that end in some rows."""
    chosen = np.isin(moved.new, rows, assume_unique=True)
    return Moved(old=moved.old[chosen], new=moved.new[chosen])


def _union(parts: list[Offsets], within: Offsets) -> Offsets:
    """Returns the rows of several sets that are in a range."""
    return np.intersect1d(distinct(no_rows(), *parts), within, assume_unique=True)
