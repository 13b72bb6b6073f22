"""The older versions of a table, the origin of the latest values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lance_spark.commit.conflicts.history import Change, event_of
from lance_spark.commit.conflicts.row_lineage import Lineage

if TYPE_CHECKING:
    import lance

MAX_COST = 1_000_000
"""Maximum number of fragments of all open versions, at 190 bytes for each.

The transaction of a version counts as much as 1,000 fragments.
"""

_KEEPS_VALUES = ("BaseOperation", "CreateIndex", "Delete", "Project", "ReserveFragments", "Rewrite", "UpdateConfig")
"""Operations that keep the values of every remaining row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """An older version and what happened to rows since.

    Attributes:
        base: The version; None if no older version exists.
        lineage: Origins of rows since the version.
        is_gap: Whether a cleanup deleted a version between this step and the step before.
        inputs_at: The version with the inputs of the step's values; None for the inputs of the
            version that the step made.
    """

    base: lance.LanceDataset | None
    lineage: Lineage
    is_gap: bool
    inputs_at: int | None = None


@dataclass(slots=True)
class _Stretch:
    """The changes between two steps.

    Attributes:
        changes_values: Whether a change may have written values.
        is_gap: As in :class:`Step`.
        inputs_at: As in :class:`Step`.
    """

    changes_values: bool = False
    is_gap: bool = False
    inputs_at: int | None = None

    def add(self, change: Change) -> None:
        """Adds the next older change."""
        if change.inputs_at is not None and change.inputs_at < change.version - 1:
            self.inputs_at = change.inputs_at
        self.is_gap |= change.operation is None
        self.changes_values |= change.restored is None and change.operation not in _KEEPS_VALUES


class Ancestry:
    """The older versions of a table, the newest first, without versions undone by a restore.

    Only versions before a commit that may have changed values. The walk opens each version once.
    """

    def __init__(
        self, dataset: lance.LanceDataset, open_version: Callable[[int], lance.LanceDataset | None], *, bound_at: int
    ) -> None:
        """Takes the latest version. The walk ends at version `bound_at`."""
        self.end: Literal["first version", "UDF bound", "cleaned up"] = "cleaned up"
        self._dataset = dataset
        self._open = open_version
        self._bound_at = bound_at
        self._steps: list[Step] = []
        self._later = self._walk()

    def __iter__(self) -> Iterator[Step]:
        """Yields the steps. Each step is read once."""
        number = 0
        while True:
            if number == len(self._steps):
                step = next(self._later, None)
                if step is None:
                    return
                self._steps.append(step)
            yield self._steps[number]
            number += 1

    def _walk(self) -> Iterator[Step]:
        dataset, changes, cost = self._dataset, list[Change](), 0
        readable_versions = {version["version"] for version in dataset.version_refs()}
        at, stretch = dataset.version, _Stretch()
        while at > self._bound_at:
            change = self._change(at, there=at in readable_versions)
            if change.operation == "Overwrite":
                break
            if change.operation == "Clone":
                return
            changes.append(change)
            stretch.add(change)
            cost += 1000 * (at in readable_versions)
            at = at - 1 if change.restored is None else change.restored
            if stretch.changes_values and (at in readable_versions or not at):
                cost += len(dataset.fragment_ids())
                base = self._open(at) if at and cost <= MAX_COST else None
                lineage = Lineage(dataset, at, dataset.version, changes)
                yield Step(base=base, lineage=lineage, is_gap=stretch.is_gap, inputs_at=stretch.inputs_at)
                if base is None:
                    return
                stretch = _Stretch()
        self.end = "UDF bound" if 0 < at <= self._bound_at else "first version"

    def _change(self, version: int, *, there: bool) -> Change:
        if not there:
            return Change(version=version, operation=None)
        return Change.of(event_of(self._dataset, version))
