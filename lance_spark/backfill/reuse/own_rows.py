"""What a job knows of a fragment's rows in a follow-up round: which it covers and has computed.

Rows are followed from the versions that the job has read. A row whose origin is unknown counts as
covered, and as computed from other inputs where the job has committed anything. Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.round_context import target_files
from lance_spark.backfill.reuse.value_finder import ValueFinder
from lance_spark.backfill.task.messages import BackfillSpec, FollowUp, FragmentRows
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


@dataclass(slots=True, kw_only=True)
class OwnRows:
    """Rows of a fragment of the latest version, as a job's earlier rounds know them.

    Attributes:
        covered: Rows that the job is to give a value, if they are selected.
        unfinished: Those of them that were in fragments of which the job has not computed
            everything.
        have_moved: Whether any of these was in another fragment, or may have been.
        lost: Rows whose origin is unknown.
        unknown: The same rows, where the job has committed anything.
        computed: Rows that it has computed.
        changed: Those of them whose inputs are others now, or cannot be compared.
        failed: Rows that failed, or were left NULL, with the inputs that they have now.
        attempted: All rows that it has called the UDF for, or that it has found a result of.
        kept: Rows that it has computed from the inputs that they have now, and whose value the
            table certainly has, because its file is in place.
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


def own_rows(spec: BackfillSpec, follow_up: FollowUp, fragment: FragmentMetadata, finder: ValueFinder) -> OwnRows:
    """Returns what the job knows of the rows of a fragment of the version that the round reads."""
    first = finder.origins(follow_up.snapshot_version).of(fragment)
    unknown = RowSet.of(first.unknown)
    known = OwnRows(
        covered=unknown,
        unfinished=unknown,
        have_moved=bool(unknown),
        lost=unknown,
        unknown=unknown if follow_up.committed else RowSet.empty(),
    )
    for origin in first.origins:
        if origin.fragment.id in follow_up.covered:
            now = RowSet.of(origin.mapping.new)
            known.covered |= now
            if origin.fragment.id not in follow_up.finished:
                known.unfinished |= now
                known.have_moved |= origin.fragment.id != fragment.id
    target = target_files(spec, fragment)
    for version in spec.bases:
        for origin in finder.origins(version).of(fragment).origins:
            own, files = finder.own(origin.fragment)
            is_lost = not own.computed and not own.failed and version == follow_up.snapshot_version
            if is_lost and origin.fragment.id in follow_up.committed and not spec.joins:
                # The records of the commit are gone: all rows of the fragment count. A join leaves
                # rows without a value, so its rows count as unfinished (below).
                own = FragmentRows(computed=RowSet.of(origin.mapping.old))
            if spec.joins and version == follow_up.snapshot_version and origin.fragment.id in follow_up.finished:
                # The join had no value for them; it may have one for the keys that they have now.
                absent = RowSet.span(0, origin.fragment.physical_rows) - own.computed - own.failed
                known.unfinished |= finder.changed(version, fragment, origin, origin.mapping.new_rows(absent))
            own = own.mapped(origin.mapping)
            # Of a row that several versions know, the newest one speaks.
            rows = (own.computed | own.failed) - known.attempted
            if not rows:
                continue
            changed = finder.changed(version, fragment, origin, rows)
            right = (own.computed & rows) - changed
            known.attempted |= rows
            known.computed |= own.computed & rows
            known.changed |= own.computed & changed
            known.failed |= (own.failed & rows) - changed
            if origin.fragment.id == fragment.id and len(target) == 1 and target <= files:
                known.kept |= FragmentRows(computed=right, nulls=own.nulls & right)
    return known
