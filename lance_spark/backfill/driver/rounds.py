"""Rounds of a job after its first: what others did to the rows that it covers, and what is to be done about it. Runs on the driver.

A job reads one version. When its tasks have ended, the head is looked at: rows that it covers may be in other fragments by now, and inputs may
have been rewritten. Then a round follows that reads the head, takes the values that are still right from where the job left them, and computes
the others. It ends when the head has nothing of that kind; so it does in the first place where nobody interfered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from lance_spark.backfill.planning.fragment_plan import FragmentPlan, plan_fragments
from lance_spark.backfill.planning.planner import MOST_BASES, Prepared
from lance_spark.backfill.reuse.computed_rows import RecordStore
from lance_spark.backfill.reuse.value_finder import FOLDER, store_of
from lance_spark.backfill.shipped import ship
from lance_spark.backfill.task.messages import BackfillSpec, FollowSpec, OnStale
from lance_spark.checkpoints import LanceObjects
from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.commit.conflicts.verdicts import Verdict, drop_of, judge_column
from lance_spark.dataset import DatasetRef, moments_of
from lance_spark.errors import CommitImpossibleError, TableNotFoundError
from lance_spark.read.sizes import measure
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import Targets

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRound:
    """A round that looks after rows.

    Attributes:
        prepared: What is to be done, on the version that it reads.
        plans: The fragments.
    """

    prepared: Prepared
    plans: tuple[FragmentPlan, ...]


class Following:
    """Follows the rows that a job covers from version to version. Used by the job's thread.

    Attributes:
        new_rows: Rows that were added since the job's snapshot, as far as it has looked.
        open: Fragments that were not right at the last look.
    """

    def __init__(
        self,
        first: Prepared,
        fragments: Collection[int],
        history: SeenHistory,
        on_stale: OnStale,
        beat: Callable[[], None],
    ) -> None:
        self.new_rows = 0
        self.open: tuple[int, ...] = ()
        self._first = first
        self._history = history
        self._on_stale = on_stale
        self._beat = beat
        self._covered = frozenset(fragments)
        self._bases = [first.spec.snapshot.version or 0]
        self._opened = [first.dataset]
        self._rounds = 0
        covered, others = dict[int, Covered](), set[int]()
        for handle in first.dataset.get_fragments():
            if handle.fragment_id in self._covered:
                covered[handle.fragment_id] = Covered.of(handle.metadata, first.spec.input_ids, done=False)
            else:
                others.add(handle.fragment_id)
        self._first_inputs = {number: one.inputs for number, one in covered.items()}
        self._coverage = Coverage(version=self._bases[0], covered=covered, others=frozenset(others))

    def next_round(
        self, done: Collection[int], landed: Collection[int], hopeless: Collection[int], held: Mapping[int, int]
    ) -> NextRound | None:
        """Looks at the head.

        Args:
            done: Fragments, as they were numbered at the last look, of which the table has all values.
            landed: Fragments of which the job has committed values, in whatever round.
            hopeless: Fragments that failed for a reason that another version does not change.
            held: How many rows the last round has looked after, by fragment.

        Returns:
            What is to be done; None where nothing is.

        Raises:
            CommitImpossibleError: The table or the column is not there any more.
        """
        spec = self._first.spec
        ref = replace(spec.snapshot, version=None, incarnation=None)
        try:
            head = ref.pin(None)
        except TableNotFoundError as error:
            raise CommitImpossibleError(
                f"the table was deleted while the job ran - at {spec.snapshot.uri} - nothing more is committed",
                uri=spec.snapshot.uri,
            ) from error
        dataset = head.open()
        self._history.look(dataset, self._bases[-1])
        lineage = self._history.lineage(dataset, self._coverage.version)
        fragments = [handle.metadata for handle in dataset.get_fragments()]
        self.settle(done, held)
        look = self._coverage.look(dataset.version, fragments, lineage, spec.input_ids)
        self._coverage = look.coverage
        new = frozenset(look.new)
        self.new_rows += sum(fragment.num_rows for fragment in fragments if fragment.id in new)
        self.open = tuple(fragment for fragment in look.open if fragment not in hopeless)
        if not self.open:
            return None
        unfinished = self._covered.difference(done, landed)
        follow = FollowSpec(
            version=self._bases[-1],
            covered=self._covered.difference(hopeless),
            unfinished=unfinished.difference(hopeless),
            landed=self._covered.intersection(landed),
            unchanged=frozenset(
                number
                for number, covered in look.coverage.covered.items()
                if number in self._first_inputs and covered.inputs == self._first_inputs[number]
            ),
            on_stale=self._on_stale,
        )
        _LOG.info(
            "fragments %s of %s are looked at again at version %d: others moved or changed rows since version %d",
            list(self.open[:10]), spec.snapshot.uri, dataset.version, self._bases[-1],
        )  # fmt: skip
        return self._prepare(head, follow)

    def settle(self, done: Collection[int], held: Mapping[int, int]) -> None:
        """Notes what the last round has found, where no other follows; as :meth:`next_round` does first of all."""
        self._coverage = self._coverage.settled(done, held)

    @property
    def held_rows(self) -> int:
        """Live rows at the last look that the job looks after."""
        return sum(covered.held for covered in self._coverage.covered.values())

    def _prepare(self, head: DatasetRef, follow: FollowSpec) -> NextRound:
        first, dataset = self._first, head.open()
        self._rounds += 1
        spec = self._spec_at(head, follow)
        kept = {version["version"] for version in dataset.version_refs()}
        for base in self._opened:
            if base.version not in kept:
                for number in self.open:
                    # Where nothing has happened to a fragment but that others' versions are gone, its rows are where they were.
                    if number not in follow.unchanged or base.version != follow.version:
                        self._beat()
                        ship(spec, base, dataset, number)
        self._bases = _some([dataset.version, *self._bases])
        self._opened = _some([dataset, *self._opened])
        records = RecordStore(LanceObjects(f"{head.uri}/{FOLDER}", head.storage_options)).load(spec.column)
        names = [name for name in spec.input_names if name in dataset.schema.names]
        sizes = measure(dataset, names, None, blob_bytes=False, storage=head.storage_options)
        plans = plan_fragments(
            spec,
            dataset,
            records,
            frozenset(),
            window=slice(None),
            row_bytes=sizes.row_bytes,
            only=frozenset(self.open),
        )
        plans = [replace(plan, search=True, pending=None) for plan in plans]
        prepared = replace(
            first,
            spec=spec,
            dataset=dataset,
            records=records,
            entries=store_of(spec).find_all(spec.key),
            plans=tuple(plans),
        )
        return NextRound(prepared=prepared, plans=tuple(plans))

    def _spec_at(self, head: DatasetRef, follow: FollowSpec) -> BackfillSpec:
        """Returns the job's spec for a later version: columns may have other names there."""
        first, dataset = self._first.spec, head.open()
        fields = field_identities(dataset.lance_schema)
        then = field_identities(self._first.dataset.lance_schema)
        targets = self._targets_now(then, fields, head)
        by_id = {column.id: column for column in fields}
        self._refuse_other_inputs(by_id, head)
        return replace(
            first,
            snapshot=head,
            inputs=tuple(by_id.get(column.id, column) for column in first.inputs),
            outputs=tuple((field, now.name) for (field, _), now in zip(first.outputs, targets, strict=True)),
            targets=Targets(
                schema=pa.schema([row_field(dataset.schema.field(column.name)) for column in targets]),
                existing=tuple(column.name for column in targets),
                format=first.targets.format,
            ),
            bases=tuple(dict.fromkeys([*self._bases, *first.bases]))[:MOST_BASES],
            follow=follow,
            round=self._rounds,
        )

    def _refuse_other_inputs(self, now: Mapping[int, FieldIdentity], head: DatasetRef) -> None:
        """Ends the job where rows have to be looked at whose input was dropped, and another column has its field id.

        Raises:
            CommitImpossibleError: So it is.
        """
        for column in self._first.spec.inputs:
            dropped = drop_of(column, self._history.changes) if column.id in now else None
            if dropped is not None:
                raise CommitImpossibleError(
                    f"input column {column.name!r} was dropped ({dropped.text}), and rows that need it changed{moments_of(head.open(), [dropped.version])} "
                    f"- at {head.uri}, version {head.version}, read at version {self._bases[-1]} - nothing more is committed; what was computed is "
                    "kept; give the column another UDF, or drop it",
                    uri=head.uri,
                )

    def _targets_now(
        self, then: Sequence[FieldIdentity], now: Sequence[FieldIdentity], head: DatasetRef
    ) -> list[FieldIdentity]:
        """Returns the target columns, under the names that they have now.

        Raises:
            CommitImpossibleError: One is not there any more, or may be another one.
        """
        by_name, by_id = {column.name: column for column in then}, {column.id: column for column in now}
        found = []
        for _, name in self._first.spec.outputs:
            judgement = judge_column(by_name[name], now, self._history.changes)
            if judgement.verdict is not Verdict.VALID:
                raise CommitImpossibleError(
                    f"the values cannot be applied: {judgement.reason}{moments_of(head.open(), judgement.versions)} - at {head.uri}, version "
                    f"{head.version}, read at version {self._bases[-1]} - nothing more is committed; what was computed is kept, and serves a "
                    "column that is the same",
                    uri=head.uri,
                )
            found.append(by_id[by_name[name].id])
        return found


def _some(versions: list[_T]) -> list[_T]:
    """Returns the newest versions and the oldest one: each takes up to 160 MB for a table of 100,000 fragments."""
    return versions if len(versions) <= MOST_BASES else [*versions[: MOST_BASES - 1], versions[-1]]
