"""What a write task tells the commit process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten(WriterCommitMessage):
    """The fragments that one task wrote; they belong to no version yet.

    Attributes:
        fragments: The fragments, in the order of the task's rows. Empty where the task had no rows.
        rows: Number of rows in them.
    """

    fragments: tuple[FragmentMetadata, ...]
    rows: int

    @property
    def file_names(self) -> list[str]:
        """Names in `data/` of the data files."""
        return [str(file.path) for fragment in self.fragments for file in fragment.files]
