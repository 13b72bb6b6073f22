"""The arguments and the outcome of a commit of column files, for writes and jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lance_spark.commit.changes import CommitResult, RebasedColumns, StagedColumns
from lance_spark.commit.conflicts.row_lineage import Lineage

if TYPE_CHECKING:
    import lance


class Stage(Protocol):
    """Stages column files without new values for any row."""

    def restore(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages the values of columns in a version's fragment, to undo a commit."""

    def blank(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages NULLs for the target columns without a file in a version's fragment."""

    def missing(self, names: Sequence[str]) -> Collection[str]:
        """Returns the names of the data files that do not exist."""


Rebaser = Callable[["lance.LanceDataset", Lineage, Sequence[int]], Sequence[RebasedColumns]]
"""Stages values of a version's fragments row by row. The lineage begins at the snapshot.

Raises a `CommitConflictError` if the user refuses changed inputs, or if the carried values exceed
the user's limit. Raises a `CommitImpossibleError` if the history of row moves was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a commit.

    Attributes:
        result: The committed result.
        conflicts: Reasons for fragments left out; only without a :data:`Rebaser`.
        files: Names of the files of this commit in the version; None if an earlier attempt had
            already committed.
    """

    result: CommitResult
    conflicts: Mapping[int, str] = field(default_factory=dict)
    files: frozenset[str] | None = None
