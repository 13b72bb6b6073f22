"""The result of a statement: :class:`ChangeResult`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.commit.changes import CommitResult
from lance_spark.errors import counted
from lance_spark.words import InWords


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChangeResult(InWords):
    """The result of an update, a deletion or a merge.

    Attributes:
        version: The version of the commit. If no row changed, the version that was read.
        rows_inserted: Number of rows added by a merge.
        rows_updated: Number of updated rows, including rows with equal values.
        rows_deleted: Number of deleted rows.
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0

    @property
    def text(self) -> str:
        """Summary of the result: `10 rows updated, version 3`."""
        row_counts = {"inserted": self.rows_inserted, "updated": self.rows_updated, "deleted": self.rows_deleted}
        phrases = [f"{counted(rows, 'row')} {what}" for what, rows in row_counts.items() if rows]
        return f"{', '.join(phrases) or 'no row concerned'}, version {self.version}"


def result_of(result: CommitResult) -> ChangeResult:
    """Returns the result of a commit."""
    return ChangeResult(
        version=result.version,
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        rows_deleted=result.rows_deleted,
    )
