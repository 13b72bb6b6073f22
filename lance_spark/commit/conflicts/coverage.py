"""Finds the fragments of a version where values of a job are missing or out of date.

Pure functions over manifests, without access to storage. A job covers fragments of its snapshot.
Concurrent compactions and row-rewriting updates move covered rows to new fragments. Other commits
rewrite the inputs of covered rows in place. Unchanged fragments need no work, or take the job's
values as they are. All other covered fragments must be checked row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.identity import FragmentIdentity, fragment_identity

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import Lineage, LineageStep

_Ids = tuple[Sequence[int], Sequence[int]]
"""Field ids of inputs and of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A fragment with rows of a job, at some version.

    Attributes:
        done: Whether the table holds the job's values for the fragment's rows. Committed values
            move together with their rows.
        committed: Name of the column file committed by the job for this fragment since then. The
            column file is then the fragment's target file.
    """

    identity: FragmentIdentity
    done: bool
    committed: str | None = None

    def is_right(self, now: FragmentIdentity) -> bool:
        """Tells whether the fragment still has the job's values and the same inputs."""
        if not self.done or now.inputs != self.identity.inputs:
            return False
        if self.committed is None:
            return now.targets == self.identity.targets
        return len(now.targets) == 1 and now.targets[0].startswith(f"{self.committed}:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Covered fragments of a job at some version, by fragment id.

    Attributes:
        others: Ids of all fragments without covered rows.
        new: Ids of uncovered fragments with rows added since the version of the previous coverage.
    """

    version: int
    covered: Mapping[int, Covered]
    others: frozenset[int]
    new: frozenset[int] = frozenset()

    @property
    def open(self) -> tuple[int, ...]:
        """Ids of covered fragments whose rows may lack a value or have an outdated value."""
        return tuple(sorted(number for number, fragment in self.covered.items() if not fragment.done))

    def look(
        self,
        version: int,
        fragments: Iterable[FragmentMetadata],
        lineage: Lineage,
        input_ids: Sequence[int],
        target_ids: Sequence[int] = (),
    ) -> Coverage:
        """Follows the covered rows to a later version.

        `lineage` spans the changes between the two versions. Without `target_ids`, the job replaces
        all existing values of the target columns.
        """
        covered, uncovered_ids, new_ids = dict[int, Covered](), set[int](), set[int]()
        for fragment in fragments:
            identity = fragment_identity(fragment, input_ids, target_ids)
            state = self._state(fragment, identity, lineage, (input_ids, target_ids))
            if state is None:
                uncovered_ids.add(fragment.id)
                origin_ids = {fragment.id, *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ())}
                if origin_ids.isdisjoint(self.others):
                    new_ids.add(fragment.id)
            else:
                covered[fragment.id] = Covered(identity=identity, done=state)
        return Coverage(version=version, covered=covered, others=frozenset(uncovered_ids), new=frozenset(new_ids))

    def settled(self, done: Mapping[int, str | None]) -> Coverage:
        """Returns a copy of the coverage with more fragments marked as done.

        Args:
            done: Committed column file by fragment id; None for a fragment without work.
        """
        covered = dict(self.covered)
        for number in done.keys() & covered.keys():
            covered[number] = replace(covered[number], done=True, committed=done[number])
        return replace(self, covered=covered)

    def _state(self, now: FragmentMetadata, identity: FragmentIdentity, lineage: Lineage, ids: _Ids) -> bool | None:
        """Tells whether all covered rows of a fragment are done; None without covered rows."""
        before = self.covered.get(now.id)
        if before is not None:
            return before.identity.is_same(identity, replaced=lineage.replaced) and before.is_right(identity)
        if lineage.is_added(now):
            return None
        leaves = lineage.leaves(now.id)
        if leaves is None:
            return False  # The origin of the rows is unknown.
        if not leaves:
            return self._foreign_state(now, lineage)
        states = [self._leaf_state(leaf, now, lineage, ids) for leaf in leaves]
        covered_states = [state for state in states if state is not None]
        return all(covered_states) if covered_states else None

    def _leaf_state(self, leaf: LineageStep, now: FragmentMetadata, lineage: Lineage, ids: _Ids) -> bool | None:
        before = self.covered.get(leaf.fragment.id)
        if before is None:
            return self._foreign_state(leaf.fragment, lineage)
        unchanged = leaf.is_unchanged(now, [number for field_ids in ids for number in field_ids])
        return unchanged and before.is_right(fragment_identity(leaf.fragment, *ids))

    def _foreign_state(self, fragment: FragmentMetadata, lineage: Lineage) -> bool | None:
        """Returns False if an update may have moved covered rows to the fragment, else None.

        An update of fragments without covered rows moves no covered rows.
        """
        if fragment.id in self.others and not lineage.replaced:
            return None
        touched = lineage.moved_from(fragment)
        return False if touched and (lineage.replaced or not touched <= self.others) else None
