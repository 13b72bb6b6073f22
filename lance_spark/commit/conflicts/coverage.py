"""Which fragments of the head have rows of a job whose values are not right there: a pure function over manifests, no storage.

A job covers fragments of its snapshot. Meanwhile rows of these move: a compaction puts them into new fragments, and so does an update that
rewrites rows. Or they stay, and their inputs are rewritten in place. What stayed as it was needs nothing, or can be committed as it is; the
rest has to be looked at row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.identity import files_of

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import Leaf, Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A fragment whose rows a job covers, at some version.

    Attributes:
        physical_rows: Its physical rows.
        files: Names of all of its data files: one of them in common tells that a fragment of the same id is the same one.
        inputs: Files and overlays that hold its inputs.
        done: Whether the table has the job's values of its rows, so that they move along with them.
        deleted_rows: How many of its rows are deleted.
        held: How many of its rows the job looks after, as far as that is known.
    """

    physical_rows: int
    deleted_rows: int
    files: frozenset[str]
    inputs: tuple[str, ...]
    done: bool
    held: int = 0

    @staticmethod
    def of(fragment: FragmentMetadata, input_ids: Sequence[int], *, done: bool, held: int = 0) -> Covered:
        """Returns what is to be known of a fragment."""
        return Covered(
            physical_rows=fragment.physical_rows,
            deleted_rows=fragment.num_deletions,
            held=held,
            files=frozenset(file.path for file in fragment.files),
            inputs=files_of(fragment, input_ids),
            done=done,
        )

    def is_same(self, now: FragmentMetadata, *, replaced: bool) -> bool:
        """Tells whether a fragment of the same id at a later version is the same fragment, whatever was rewritten in place.

        Args:
            now: That fragment.
            replaced: Whether the table was overwritten or restored meanwhile, so that ids may have been given anew.
        """
        if now.physical_rows != self.physical_rows:
            return False
        return not replaced or any(file.path in self.files for file in now.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What became of the covered rows.

    Attributes:
        coverage: What the job covers at the later version.
        open: Fragments in which covered rows may lack their value, or have one that is out of date: the covered ones that are not done are
            among them.
        new: Fragments of rows that were added; they are not covered.
    """

    coverage: Coverage
    open: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a job covers at one version.

    Attributes:
        version: The version.
        covered: The fragments that it covers, by id.
        others: Ids of the other fragments.
    """

    version: int
    covered: Mapping[int, Covered]
    others: frozenset[int]

    def look(
        self, version: int, fragments: Iterable[FragmentMetadata], lineage: Lineage, input_ids: Sequence[int]
    ) -> Look:
        """Follows the covered rows to a later version.

        Args:
            version: The later version.
            fragments: Its fragments.
            lineage: What happened between this version and that one.
            input_ids: Field ids of the inputs and all that is below them.
        """
        covered, others = dict[int, Covered](), set[int]()
        open_ones, new = list[int](), list[int]()
        for fragment in fragments:
            state = self._state(fragment, lineage, input_ids)
            if state is None:
                others.add(fragment.id)
                known = {fragment.id, *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ())}
                if known.isdisjoint(self.others):
                    new.append(fragment.id)
                continue
            held = self._held(fragment, lineage)
            covered[fragment.id] = Covered.of(fragment, input_ids, done=state, held=held)
            if not state:
                open_ones.append(fragment.id)
        coverage = Coverage(version=version, covered=covered, others=frozenset(others))
        return Look(coverage=coverage, open=tuple(sorted(open_ones)), new=tuple(sorted(new)))

    def settled(self, done: Iterable[int], held: Mapping[int, int]) -> Coverage:
        """Returns the same with more fragments done, and more known of how many rows the job looks after in them."""
        covered = dict(self.covered)
        for number, rows in held.items():
            if number in covered:
                covered[number] = replace(covered[number], held=rows)
        for number in done:
            if number in covered:
                covered[number] = replace(covered[number], done=True)
        return replace(self, covered=covered)

    def _held(self, now: FragmentMetadata, lineage: Lineage) -> int:
        """Returns how many rows of a fragment the job looks after: those that it did and that are not deleted, at most."""
        before = self.covered.get(now.id)
        if before is not None and before.is_same(now, replaced=lineage.replaced):
            return max(0, before.held - max(0, now.num_deletions - before.deleted_rows))
        leaves = {leaf.fragment.id: leaf.fragment for leaf in lineage.leaves(now.id) or ()}
        held = 0
        for number, leaf in leaves.items():
            if number in self.covered:
                one = self.covered[number]
                held += max(0, one.held - max(0, leaf.num_deletions - one.deleted_rows))
        return min(held, now.num_rows)

    def _state(self, now: FragmentMetadata, lineage: Lineage, input_ids: Sequence[int]) -> bool | None:
        """Tells whether all covered rows of a fragment are done; None where it has none."""
        leaves = lineage.leaves(now.id)
        before = self.covered.get(now.id)
        if before is not None and before.is_same(now, replaced=lineage.replaced):
            return before.done and files_of(now, input_ids) == before.inputs
        if before is None and lineage.is_added(now):
            return None
        if before is not None or leaves is None:
            return False  # nobody knows what it is made of
        if not leaves:
            if now.id in self.others and not lineage.replaced:
                return None
            return False if self._may_have_come_to(now, lineage) else None
        states = [self._leaf_state(leaf, now, lineage, input_ids) for leaf in leaves]
        known = [state for state in states if state is not None]
        return all(known) if known else None

    def _leaf_state(self, leaf: Leaf, now: FragmentMetadata, lineage: Lineage, input_ids: Sequence[int]) -> bool | None:
        before = self.covered.get(leaf.fragment.id)
        if before is None:
            is_other = leaf.fragment.id in self.others
            return None if is_other or not self._may_have_come_to(leaf.fragment, lineage) else False
        unchanged = before.inputs == files_of(leaf.fragment, input_ids) and leaf.is_unchanged(now, input_ids)
        return before.done and unchanged

    def _may_have_come_to(self, fragment: FragmentMetadata, lineage: Lineage) -> bool:
        """Tells whether an update may have moved covered rows to a fragment; not one that took rows of other fragments alone."""
        touched = lineage.moved_from(fragment) or frozenset()
        return bool(touched) and (lineage.replaced or not touched <= self.others)
