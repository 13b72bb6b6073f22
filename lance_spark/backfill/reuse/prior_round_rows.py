"""Rows of a fragment that a job covered and computed in earlier rounds. Runs on executors.

The job follows the rows from the versions of its rounds. A row of unknown origin counts as covered.
After a commit of the job the row also counts as computed from other inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.round_context import target_files
from lance_spark.backfill.reuse.value_reuse import ValueFinder
from lance_spark.backfill.task.messages import BackfillSpec, FollowUp, FragmentRows
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


@dataclass(slots=True, kw_only=True)
class PriorRoundRows:
    """Results of a job's earlier rounds for a fragment of the latest version.

    Attributes:
        covered: Rows for which the job computes a value, if they are selected.
        unfinished: Subset of `covered` from unfinished fragments.
        have_moved: Whether an unfinished row was or may have been in another fragment.
        lost: Rows of unknown origin.
        unknown: Equal to `lost` after a commit of the job, otherwise empty.
        computed: Rows that the job computed.
        changed: Subset of `computed` whose inputs have changed or could not be compared.
        failed: Rows with their current inputs that failed, or stayed NULL.
        attempted: All rows with a call of the UDF or a result.
        kept: Rows computed from their current inputs whose value is certainly in the table, because
            its file is in place.
    """

    covered: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    unfinished: RowSet = RowSet.empty()  # noqa: RUF009
    have_moved: bool = False
    lost: RowSet = RowSet.empty()  # noqa: RUF009
    unknown: RowSet = RowSet.empty()  # noqa: RUF009
    computed: RowSet = RowSet.empty()  # noqa: RUF009
    changed: RowSet = RowSet.empty()  # noqa: RUF009
    failed: RowSet = RowSet.empty()  # noqa: RUF009
    attempted: RowSet = RowSet.empty()  # noqa: RUF009
    kept: FragmentRows = FragmentRows()  # noqa: RUF009


def prior_round_rows(
    spec: BackfillSpec, follow_up: FollowUp, fragment: FragmentMetadata, finder: ValueFinder
) -> PriorRoundRows:
    """Returns the results of earlier rounds for a fragment of the version of the round."""
    first = finder.origins(follow_up.snapshot_version).of(fragment)
    unknown = RowSet.of(first.unknown)
    results = PriorRoundRows(
        covered=unknown,
        unfinished=unknown,
        have_moved=bool(unknown),
        lost=unknown,
        unknown=unknown if follow_up.committed else RowSet.empty(),
    )
    for origin in first.origins:
        if origin.fragment.id in follow_up.covered:
            current_rows = RowSet.of(origin.mapping.new)
            results.covered |= current_rows
            if origin.fragment.id not in follow_up.finished:
                results.unfinished |= current_rows
                results.have_moved |= origin.fragment.id != fragment.id
    target = target_files(spec, fragment)
    for version in spec.bases:
        for origin in finder.origins(version).of(fragment).origins:
            own, files = finder.own(origin.fragment)
            is_lost = not own.computed and not own.failed and version == follow_up.snapshot_version
            if is_lost and origin.fragment.id in follow_up.committed and not spec.joins:
                # Without the records of the commit all rows of the fragment count. A join may skip
                # rows, so its rows count as unfinished (below).
                own = FragmentRows(computed=RowSet.of(origin.mapping.old))
            if spec.joins and version == follow_up.snapshot_version and origin.fragment.id in follow_up.finished:
                # The join had no value for the rows, and may have values for their current keys.
                absent = RowSet.span(0, origin.fragment.physical_rows) - own.computed - own.failed
                results.unfinished |= finder.changed(version, fragment, origin, origin.mapping.new_rows(absent))
            own = own.mapped(origin.mapping)
            # If several versions recorded the row, use the newest.
            rows = (own.computed | own.failed) - results.attempted
            if not rows:
                continue
            changed = finder.changed(version, fragment, origin, rows)
            right = (own.computed & rows) - changed
            results.attempted |= rows
            results.computed |= own.computed & rows
            results.changed |= own.computed & changed
            results.failed |= (own.failed & rows) - changed
            if origin.fragment.id == fragment.id and len(target) == 1 and target <= files:
                results.kept |= FragmentRows(computed=right, nulls=own.nulls & right)
    return results
