"""What a write or a job gives to a commit of column files, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lance_spark.commit.changes import CommitResult, RebasedColumns, StagedColumns
from lance_spark.commit.conflicts.row_lineage import Lineage

if TYPE_CHECKING:
    import lance


class Stage(Protocol):
    """Stages column files in which no row gets a new value."""

    def restore(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages the values that columns of a version's fragment have, for a commit taken back."""

    def blank(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages NULLs for those target columns of a version's fragment that have no file."""

    def missing(self, names: Sequence[str]) -> Collection[str]:
        """Returns those data files that are not there."""


Rebaser = Callable[["lance.LanceDataset", Lineage, Sequence[int]], Sequence[RebasedColumns]]
"""Stages values of a version's fragments row by row; the lineage is that since the snapshot.

It raises a `CommitConflictError` where the user refuses changed inputs, or that as much is carried
over, and a `CommitImpossibleError` where what tells where rows have moved to was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a commit.

    Attributes:
        result: What was committed.
        conflicts: Why fragments were not committed; only without a :data:`Rebaser`.
        files: Names of the files that the version has of this commit; None where an earlier attempt
            had committed already.
    """

    result: CommitResult
    conflicts: Mapping[int, str] = field(default_factory=dict)
    files: frozenset[str] | None = None
