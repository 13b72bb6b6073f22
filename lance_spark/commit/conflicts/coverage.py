"""Which fragments of a version have rows of a job whose values are not right there.

Pure functions over manifests, no storage. A job covers fragments of its snapshot. Meanwhile rows of
these move: a compaction puts them into new fragments, and so does an update that rewrites rows. Or
they stay, and their inputs are rewritten in place. What stayed as it was needs nothing, or can be
committed as it is; the rest has to be looked at row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.identity import FragmentIdentity, fragment_identity

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import Leaf, Lineage

_Ids = tuple[Sequence[int], Sequence[int]]
"""Field ids of inputs and of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A fragment whose rows a job covers, at some version.

    Attributes:
        done: Whether the table has the job's values of its rows, so that they move along with them.
        committed: Name of the column file that the job has committed for it since, which is its
            target file then.
    """

    identity: FragmentIdentity
    done: bool
    committed: str | None = None

    def is_right(self, now: FragmentIdentity) -> bool:
        """Tells whether the fragment has the job's values still, and the same inputs."""
        if not self.done or now.inputs != self.identity.inputs:
            return False
        if self.committed is None:
            return now.targets == self.identity.targets
        return len(now.targets) == 1 and now.targets[0].startswith(f"{self.committed}:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a job covers at one version: fragments by their ids.

    Attributes:
        others: Ids of the other fragments.
        new: Those of the others with rows that were added since the version before.
    """

    version: int
    covered: Mapping[int, Covered]
    others: frozenset[int]
    new: frozenset[int] = frozenset()

    @property
    def open(self) -> tuple[int, ...]:
        """Fragments in which covered rows may lack their value, or have one that is out of date."""
        return tuple(sorted(number for number, one in self.covered.items() if not one.done))

    def look(
        self,
        version: int,
        fragments: Iterable[FragmentMetadata],
        lineage: Lineage,
        input_ids: Sequence[int],
        target_ids: Sequence[int] = (),
    ) -> Coverage:
        """Follows the covered rows to a later version.

        `lineage` says what happened between this version and that one. Without `target_ids` the job
        replaces whatever the target columns have.
        """
        covered, others, new = dict[int, Covered](), set[int](), set[int]()
        for fragment in fragments:
            identity = fragment_identity(fragment, input_ids, target_ids)
            state = self._state(fragment, identity, lineage, (input_ids, target_ids))
            if state is None:
                others.add(fragment.id)
                known = {fragment.id, *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ())}
                if known.isdisjoint(self.others):
                    new.add(fragment.id)
            else:
                covered[fragment.id] = Covered(identity=identity, done=state)
        return Coverage(version=version, covered=covered, others=frozenset(others), new=frozenset(new))

    def settled(self, done: Mapping[int, str | None]) -> Coverage:
        """Returns the same with more fragments done: with the file committed, or nothing to do."""
        covered = dict(self.covered)
        for number in done.keys() & covered.keys():
            covered[number] = replace(covered[number], done=True, committed=done[number])
        return replace(self, covered=covered)

    def _state(self, now: FragmentMetadata, identity: FragmentIdentity, lineage: Lineage, ids: _Ids) -> bool | None:
        """Tells whether all covered rows of a fragment are done; None where it has none."""
        leaves = lineage.leaves(now.id)
        before = self.covered.get(now.id)
        if before is not None and before.identity.is_same(identity, replaced=lineage.replaced):
            return before.is_right(identity)
        if before is None and lineage.is_added(now):
            return None
        if before is not None or leaves is None:
            return False  # what it is made of is not known
        if not leaves:
            return self._foreign_state(now, lineage)
        states = [self._leaf_state(leaf, now, lineage, ids) for leaf in leaves]
        known = [state for state in states if state is not None]
        return all(known) if known else None

    def _leaf_state(self, leaf: Leaf, now: FragmentMetadata, lineage: Lineage, ids: _Ids) -> bool | None:
        before = self.covered.get(leaf.fragment.id)
        if before is None:
            return self._foreign_state(leaf.fragment, lineage)
        unchanged = leaf.is_unchanged(now, [number for some in ids for number in some])
        return unchanged and before.is_right(fragment_identity(leaf.fragment, *ids))

    def _foreign_state(self, fragment: FragmentMetadata, lineage: Lineage) -> bool | None:
        """Tells whether an update may have moved covered rows to a fragment that is not covered.

        Not one that took rows of other fragments alone.
        """
        if fragment.id in self.others and not lineage.replaced:
            return None
        touched = lineage.moved_from(fragment)
        return False if touched and (lineage.replaced or not touched <= self.others) else None
