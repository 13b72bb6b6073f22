"""Follow-up rounds of a job, after concurrent commits changed its rows.

Runs on the driver. At the end of a round the job opens the latest version: covered rows may be in
other fragments, and concurrent commits may have rewritten inputs or values. A follow-up round
selects, in the changed fragments, the rows without a value and the job's own rows with changed
inputs. The round reuses the values that are still right, and computes the rest. The job ends with a
version that needs no round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lance_spark.backfill.planning.fragment_plan import measure_input_row, plan_fragments
from lance_spark.backfill.planning.planner import (
    MOST_BASES,
    PreparedBackfill,
    few_versions,
    targets_of,
)
from lance_spark.backfill.reuse.computed_rows import RecordStore
from lance_spark.backfill.reuse.prior_round_rows import FirstRound, FollowUp
from lance_spark.backfill.reuse.round_context import Bases, store_of
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, fragment_identity
from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.commit.conflicts.verdicts import Coverage, Covered, Verdict, drop_of, judge_column
from lance_spark.errors import (
    CommitImpossibleError,
    SnapshotError,
    TableNotFoundError,
    TableUnreadableError,
    VersionNotFoundError,
)
from lance_spark.version_times import moments_of

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)


GONE_ERRORS = (VersionNotFoundError, SnapshotError, TableUnreadableError, TableNotFoundError)
"""Errors of a round whose version a cleanup deleted."""


def is_gone(spec: BackfillSpec) -> bool:
    """Tells whether a cleanup deleted the version of a round."""
    try:
        replace(spec.snapshot, incarnation=None).pin(spec.snapshot.version)
    except (VersionNotFoundError, TableNotFoundError, TableUnreadableError):
        return True
    return False


class RoundLimit:
    """Limits the follow-up rounds of a job by the number and time for retries of a commit."""

    def __init__(self, policy: CommitPolicy) -> None:
        self._policy = policy
        self._rounds = self._fruitless = 0
        self._began = self._settled = time.monotonic()

    def is_exceeded(self) -> bool:
        """Tells whether another round would be beyond the limits."""
        most, timeout_s, current_s = (
            self._policy.max_retries,
            self._policy.timeout_s,
            time.monotonic(),
        )
        if self._fruitless > most or (self._fruitless and current_s - self._settled > timeout_s):
            return True
        return self._rounds > most and current_s - self._began > timeout_s

    def add(self, *, is_fruitless: bool) -> None:
        """Counts a round. A round that finishes no fragment is fruitless."""
        self._rounds += 1
        self._fruitless += 1
        if not is_fruitless:
            self._fruitless, self._settled = 0, time.monotonic()


class FollowUps:
    """Follows the rows that a job covers from version to version. Used by the job's thread.

    Attributes:
        open: Fragments that needed a round at the last look.
        new_rows: Rows added between the job's snapshot and the last look: the appended rows, or the
            growth of the table if that is more.
        rows_gone: Rows deleted since the snapshot: the shrinkage of the table plus `new_rows`.
    """

    def __init__(
        self, first: PreparedBackfill, history: SeenHistory, window: Collection[int] | None
    ) -> None:
        """Takes the first round, and the known part of the table's history.

        `window` are the fragments that the user chose. None means all fragments.
        """
        self.open: tuple[int, ...] = ()
        self.new_rows = 0
        self.rows_gone = 0
        self._first = first
        self._history = history
        self._window = window
        self._latest = first.spec.snapshot
        self._covered = frozenset(plan.fragment_id for plan in first.plans)
        self._versions: tuple[int, ...] = (first.spec.snapshot.version or 0,)
        self._rounds = 0
        self._appended = 0
        self._rows = first.dataset.count_rows()
        ids = first.spec.input_ids, first.spec.target_ids
        handles = {handle.fragment_id: handle for handle in first.dataset.get_fragments()}
        covered = {
            number: Covered(identity=fragment_identity(handles[number].metadata, *ids), done=False)
            for number in self._covered
        }
        uncovered = frozenset(handles.keys() - covered.keys())
        self._first_inputs = {
            number: fragment.identity.inputs for number, fragment in covered.items()
        }
        self._coverage = Coverage(version=self._versions[0], covered=covered, others=uncovered)

    def next_round(
        self,
        finished_fragments: Mapping[int, str | None],
        landed: Collection[int],
        failed: Collection[int],
    ) -> PreparedBackfill | None:
        """Opens the latest version, and returns its round; None if the version needs no round.

        Args:
            finished_fragments: Their committed files, by the ids of the last look.
            landed: Fragments with values that the job committed in any round.
            failed: Failed fragments.

        Raises:
            CommitImpossibleError: The table or the column was dropped.
        """
        spec = self._first.spec
        try:
            latest = replace(spec.snapshot, version=None, incarnation=None).pin(None)
        except TableNotFoundError as error:
            reason = f"The table {spec.snapshot.uri} was deleted while the job ran. Nothing more is committed."
            raise CommitImpossibleError(reason, uri=spec.snapshot.uri) from error
        self._latest, dataset = latest, latest.open()
        self._history.look(dataset, self._versions[-1])
        lineage = self._history.lineage(dataset, self._coverage.version)
        fragments = [handle.metadata for handle in dataset.get_fragments()]
        self.settle(finished_fragments)
        columns = field_identities(dataset.lance_schema)
        inputs = self._inputs_among(columns)
        input_ids = [number for column in inputs for number in column.ids]
        look = self._coverage = self._coverage.look(
            dataset.version, fragments, lineage, input_ids, spec.target_ids
        )
        self._count_rows(fragments, frozenset(look.new))
        self.open = tuple(fragment for fragment in look.open if fragment not in failed)
        if not self.open:
            return None
        self._refuse_other_inputs(columns, dataset)
        targets = self._targets_among(columns, dataset)
        follow_up = FollowUp(
            snapshot_version=self._versions[-1],
            covered=self._covered.difference(failed),
            finished=self._covered.intersection({*finished_fragments, *landed}),
            committed=frozenset(landed),
            unchanged=frozenset(
                number
                for number, fragment in look.covered.items()
                if fragment.identity.inputs == self._first_inputs.get(number)
            ),
            on_stale=self._first.request.on_stale,
        )
        again = "fragments %s of %s are looked at again at version %d: concurrent commits moved or changed rows"
        _LOG.info(again, list(self.open[:10]), spec.snapshot.uri, dataset.version)
        return self._prepare(inputs, targets, follow_up, only=frozenset(self.open))

    def last_look(self, commits: int) -> PreparedBackfill | None:
        """Returns the same backfill of the version of the last look.

        Returns None if only the job itself, by so many `commits`, has changed the table until then.

        Raises:
            CommitImpossibleError: The column is not there any more.
        """
        first = self._first.spec.snapshot.version or 0
        if (self._latest.version or 0) <= first + commits:
            return None
        dataset = self._latest.open()
        columns = field_identities(dataset.lance_schema)
        targets = self._targets_among(columns, dataset)
        only = (
            None if self._window is None else frozenset(self._window).union(self._coverage.covered)
        )
        return self._prepare(self._inputs_among(columns), targets, FirstRound(), only=only)

    def _count_rows(self, fragments: Sequence[FragmentMetadata], new: frozenset[int]) -> None:
        self._appended += sum(fragment.num_rows for fragment in fragments if fragment.id in new)
        rows = sum(fragment.num_rows for fragment in fragments)
        self.new_rows = max(self._appended, rows - self._rows)
        self.rows_gone = max(0, self._rows + self.new_rows - rows)

    def settle(self, finished_fragments: Mapping[int, str | None]) -> None:
        """Notes the finished fragments of the last round."""
        self._coverage = self._coverage.settled(finished_fragments)

    def _prepare(
        self,
        inputs: tuple[FieldIdentity, ...],
        targets: Sequence[str],
        prior_rounds: FirstRound,
        *,
        only: frozenset[int] | None,
    ) -> PreparedBackfill:
        """Returns a round. Columns may have other names at a later version."""
        first, latest, dataset = self._first.spec, self._latest, self._latest.open()
        self._rounds += 1
        spec = replace(
            first,
            snapshot=latest,
            inputs=inputs,
            outputs=tuple(
                (field, column) for (field, _), column in zip(first.outputs, targets, strict=True)
            ),
            targets=targets_of(dataset, targets),
            bases=tuple(dict.fromkeys([*self._versions, *first.bases]))[:MOST_BASES],
            prior_rounds=prior_rounds,
            round=self._rounds,
        )
        self._versions = few_versions([dataset.version, *self._versions])
        records = RecordStore(latest).load(spec.column)
        spec = replace(spec, records=records)
        entries = store_of(spec).find_all(spec.key)
        bases: Bases = {}
        plans = plan_fragments(
            spec,
            dataset,
            records,
            entries,
            row_bytes=measure_input_row(spec),
            only=only,
            bases=bases,
        )
        return replace(
            self._first, spec=spec, dataset=dataset, entries=entries, plans=plans, bases=bases
        ).for_tasks()

    def _inputs_among(self, columns: Sequence[FieldIdentity]) -> tuple[FieldIdentity, ...]:
        """Returns the input columns among those of a later version.

        A cast column has another field id, and its rows count as changed.
        """
        by_id, by_name = (
            {column.id: column for column in columns},
            {column.name: column for column in columns},
        )
        inputs = self._first.spec.inputs
        return tuple(
            by_id.get(column.id) or by_name.get(column.name) or column for column in inputs
        )

    def _refuse_other_inputs(
        self, columns: Sequence[FieldIdentity], dataset: lance.LanceDataset
    ) -> None:
        """Refuses a dropped input column if another column has its field id."""
        ids = {column.id for column in columns}
        for column in self._first.spec.inputs:
            dropped = drop_of(column, self._history.changes) if column.id in ids else None
            if dropped is not None:
                reason = f"input column {column.name!r} was dropped ({dropped.text}), and rows that need it changed"
                advice = "What was computed is kept. Give the column another UDF, or drop it."
                raise self._impossible(reason, [dropped.version], dataset, advice)

    def _targets_among(
        self, columns: Sequence[FieldIdentity], dataset: lance.LanceDataset
    ) -> list[str]:
        """Returns the names of the target columns at a later version; refuses other columns."""
        before = {
            column.name: column for column in field_identities(self._first.dataset.lance_schema)
        }
        names = {column.id: column.name for column in columns}
        for column in self._first.columns:
            by_name = not self._first.spec.value_source.is_computed
            judgement = judge_column(
                before[column], columns, self._history.changes, by_name=by_name
            )
            if judgement.verdict is not Verdict.VALID:
                reason = f"the values cannot be applied: {judgement.reason}"
                advice = "What was computed is kept, and serves a column that is the same."
                raise self._impossible(reason, judgement.versions, dataset, advice)
        return [names[before[column].id] for column in self._first.columns]

    def _impossible(
        self, reason: str, versions: Sequence[int], dataset: lance.LanceDataset, advice: str
    ) -> CommitImpossibleError:
        uri = self._first.spec.snapshot.uri
        where = f"version {dataset.version} of {uri}, read at version {self._versions[-1]}"
        text = (
            f"The job cannot fill {where}: {reason}{moments_of(dataset, versions)}. Nothing more is "
            f"committed. {advice}"
        )
        return CommitImpossibleError(text, uri=uri)
