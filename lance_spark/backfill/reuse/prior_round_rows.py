"""Results of a job's earlier rounds for the rows of a fragment. Runs on executors.

The job follows the rows from the versions of its rounds. A row of unknown origin counts as covered.
After a commit of the job the row also counts as computed from other inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.round_context import target_files
from lance_spark.backfill.task.messages import BackfillSpec, FragmentRows, OnStale
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.backfill.reuse.value_reuse import ValueFinder
    from lance_spark.rebase.row_origins import FragmentOrigins


@dataclass(slots=True, kw_only=True)
class PriorRoundRows:
    """Results of a job's earlier rounds for a fragment of the latest version.

    Attributes:
        covered: Rows of covered fragments: the job computes a value for each selected row.
        unfinished: Subset of `covered` from unfinished fragments.
        have_moved: Whether an unfinished row was or may have been in another fragment.
        lost: Rows of unknown origin.
        unknown: Equal to `lost` after a commit of the job, otherwise empty.
        computed: Rows with a value computed by the job.
        changed: Subset of `computed` whose inputs have changed or could not be compared.
        nulled: Subset of `changed` to become NULL without another computation.
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
    nulled: RowSet = RowSet.empty()  # noqa: RUF009
    failed: RowSet = RowSet.empty()  # noqa: RUF009
    attempted: RowSet = RowSet.empty()  # noqa: RUF009
    kept: FragmentRows = FragmentRows()  # noqa: RUF009

    def add(self, own: FragmentRows, rows: RowSet, changed: RowSet, *, in_place: bool) -> None:
        """Adds the results of the job for some rows.

        Args:
            own: The results.
            rows: The rows.
            changed: Subset of the rows whose inputs have changed or could not be compared.
            in_place: Whether the file of the results is in the fragment.
        """
        computed = own.computed & rows
        self.attempted |= rows
        self.computed |= computed
        self.changed |= computed & changed
        self.failed |= (own.failed & rows) - changed
        if in_place:
            unchanged = computed - changed
            self.kept |= FragmentRows(computed=unchanged, nulls=own.nulls & unchanged)


def first_round_rows(physical_rows: int) -> PriorRoundRows:
    """Returns no results, and covers all rows of a fragment."""
    rows = RowSet.span(0, physical_rows)
    return PriorRoundRows(covered=rows, unfinished=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRound:
    """The first round of a job has no earlier round."""

    def unchanged_at(self, version: int) -> Collection[int]:  # noqa: ARG002 - of the interface
        """Returns the fragments of an older version whose inputs are certainly unchanged."""
        return ()

    def prior_rows(
        self,
        spec: BackfillSpec,  # noqa: ARG002
        fragment: FragmentMetadata,
        finder: ValueFinder,  # noqa: ARG002
    ) -> PriorRoundRows:
        """Returns the results of earlier rounds for a fragment of the version of the round."""
        return first_round_rows(fragment.physical_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp(FirstRound):
    """The state of earlier rounds for a follow-up round.

    Attributes:
        snapshot_version: The first version of the job.
        covered: Fragments of the first version to fill.
        finished: Subset of `covered` with only computed rows.
        committed: Fragments of any version with values committed by the job.
        unchanged: Covered fragments of the latest version with the same input files.
        on_stale: Whether rows with changed inputs are recomputed or become NULL.
    """

    snapshot_version: int
    covered: frozenset[int]
    finished: frozenset[int]
    committed: frozenset[int]
    unchanged: frozenset[int]
    on_stale: OnStale

    def unchanged_at(self, version: int) -> Collection[int]:
        """Returns the fragments of the first version with the same input files."""
        return self.unchanged if version == self.snapshot_version else ()

    def prior_rows(
        self, spec: BackfillSpec, fragment: FragmentMetadata, finder: ValueFinder
    ) -> PriorRoundRows:
        """Returns the results of earlier rounds; for each row the newest result."""
        results = self._covered_rows(
            finder.origins(self.snapshot_version).of(fragment), fragment.id
        )
        target = target_files(spec, fragment)
        for version in spec.bases:
            for origin in finder.origins(version).of(fragment).origins:
                own, files = finder.own(origin.fragment)
                if version == self.snapshot_version:
                    own, unmatched = spec.value_source.complete_results(self, origin, own)
                    unmatched = origin.mapping.new_rows(unmatched)
                    results.unfinished |= finder.changed(version, fragment, origin, unmatched)
                own = own.mapped(origin.mapping)
                rows = (own.computed | own.failed) - results.attempted
                if rows:
                    changed = finder.changed(version, fragment, origin, rows)
                    in_place = (
                        origin.fragment.id == fragment.id and len(target) == 1 and target <= files
                    )
                    results.add(own, rows, changed, in_place=in_place)
        if self.on_stale == "null":
            results.nulled = results.changed
        return results

    def _covered_rows(self, first: FragmentOrigins, fragment_id: int) -> PriorRoundRows:
        """Returns the rows of a fragment from covered fragments of the first version."""
        unknown = RowSet.of(first.unknown)
        results = PriorRoundRows(
            covered=unknown,
            unfinished=unknown,
            have_moved=bool(unknown),
            lost=unknown,
            unknown=unknown if self.committed else RowSet.empty(),
        )
        for origin in first.origins:
            if origin.fragment.id in self.covered:
                current_rows = RowSet.of(origin.mapping.new)
                results.covered |= current_rows
                if origin.fragment.id not in self.finished:
                    results.unfinished |= current_rows
                    results.have_moved |= origin.fragment.id != fragment_id
        return results
