"""What a job knows, in a follow-up round, of the rows of a fragment: which it covers, and what it has computed of them before.

Rows are followed from the versions that the job has read. A row whose origin is unknown counts as
covered, and as computed from other inputs where the job has committed anything. Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.round_context import target_files
from lance_spark.backfill.reuse.value_finder import OwnResults, ValueFinder
from lance_spark.backfill.task.messages import BackfillSpec, FollowUp
from lance_spark.rows.merge import Moved
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.rebase.row_origins import Origin


@dataclass(slots=True, kw_only=True)
class OwnRows:
    """Rows of a fragment of the latest version, as a job's earlier rounds know them.

    Attributes:
        covered: Rows that the job is to give a value, if they are selected.
        unfinished: Those of them that were in fragments of which the job has not computed
            everything.
        valid: Rows that it has computed, from the inputs that they have now.
        nulls: Those of them whose result is NULL.
        kept: Those of them whose value the table certainly has, because its file is in place.
        changed: Rows that it has computed, and whose inputs are others now, or cannot be compared.
        failed: Rows that failed, or were left NULL, with the inputs that they have now.
        attempted: All rows that it has called the UDF for, or that it has found a result of.
        unknown: Rows whose origin is unknown.
        have_moved: Whether any of the unfinished rows was in another fragment, or may have been.
    """

    covered: RowSet
    unfinished: RowSet
    unknown: RowSet
    have_moved: bool
    valid: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    nulls: RowSet = RowSet.empty()  # noqa: RUF009
    kept: RowSet = RowSet.empty()  # noqa: RUF009
    changed: RowSet = RowSet.empty()  # noqa: RUF009
    failed: RowSet = RowSet.empty()  # noqa: RUF009
    attempted: RowSet = RowSet.empty()  # noqa: RUF009

    @property
    def computed(self) -> RowSet:
        """Rows that the job has computed, from whatever inputs."""
        return self.valid | self.changed

    def add(self, rows: RowSet, own: OwnResults, moved: Moved, differing: RowSet) -> None:
        """Adds rows of one origin that no newer version speaks of.

        Args:
            rows: The rows, as they are numbered now.
            own: The results of the job, as rows were numbered then.
            moved: Where they went.
            differing: Those of the rows whose inputs differ.
        """
        computed, failed = moved.new_rows(own.computed) & rows, moved.new_rows(own.failed) & rows
        self.valid |= computed - differing
        self.changed |= computed & differing
        self.nulls |= (moved.new_rows(own.nulls) & rows) - differing
        self.failed |= failed - differing


def own_rows(spec: BackfillSpec, follow_up: FollowUp, fragment: FragmentMetadata, finder: ValueFinder) -> OwnRows:
    """Returns what the job knows of the rows of a fragment of the version that the round reads."""
    first = finder.found(fragment, follow_up.snapshot_version)
    unknown = RowSet.of(first.unknown)
    known = OwnRows(covered=unknown, unfinished=unknown, unknown=unknown, have_moved=bool(unknown))
    for origin in first.origins:
        if origin.fragment.id in follow_up.covered:
            now = RowSet.of(origin.moved.new)
            known.covered |= now
            if origin.fragment.id not in follow_up.finished:
                known.unfinished |= now
                known.have_moved |= origin.fragment.id != fragment.id
    files = target_files(spec, fragment)
    for version in spec.bases:
        for origin in finder.found(fragment, version).origins:
            own = _own(finder, origin, version, follow_up)
            rows = origin.moved.new_rows(own.computed | own.failed) - known.attempted
            if not rows:
                continue
            known.attempted |= rows
            moved = origin.moved.into(rows)
            differing = RowSet.empty() if origin.same else finder.changed(version, origin, fragment, moved)
            known.add(rows, own, moved, differing)
            if origin.fragment.id == fragment.id and len(files) == 1 and files <= own.files:
                known.kept |= (moved.new_rows(own.computed) & rows) - differing
    return known


def _own(finder: ValueFinder, origin: Origin, version: int, follow_up: FollowUp) -> OwnResults:
    """Returns the results of the job of a fragment.

    All of its rows where it was committed and the records of it are gone.
    """
    own = finder.own(origin.fragment)
    lost = not own.computed and not own.failed
    if lost and version == follow_up.snapshot_version and origin.fragment.id in follow_up.committed:
        return OwnResults(
            computed=RowSet.of(origin.moved.old), nulls=RowSet.empty(), failed=RowSet.empty(), files=own.files
        )
    return own
