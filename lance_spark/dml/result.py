"""What a statement did to rows: :class:`ChangeResult`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.commit.changes import CommitResult
from lance_spark.errors import counted
from lance_spark.words import InWords


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChangeResult(InWords):
    """What an update, a deletion or a merge did.

    Attributes:
        version: The version that it made; where no row was concerned, the one that it read.
        rows_inserted: Rows that a merge added.
        rows_updated: Rows that were set, also to the values that they had.
        rows_deleted: Rows that were deleted.
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0

    @property
    def text(self) -> str:
        """What it did, in words: `10 rows updated, version 3`."""
        done = {"inserted": self.rows_inserted, "updated": self.rows_updated, "deleted": self.rows_deleted}
        said = [f"{counted(rows, 'row')} {what}" for what, rows in done.items() if rows]
        return f"{', '.join(said) or 'no row concerned'}, version {self.version}"


def result_of(result: CommitResult) -> ChangeResult:
    """Returns what a commit did to rows."""
    return ChangeResult(
        version=result.version,
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        rows_deleted=result.rows_deleted,
    )
