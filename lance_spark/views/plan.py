"""What a refresh would do, for people."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPlan:
    """What a refresh would do.

    Attributes:
        table_name: Name of the view.
        table_uri: Its location.
        source_uri: Location of its source.
        source_version: Version of the source that the view would show.
        previous_version: The one that it shows; None before the first refresh.
        rebuilds: Whether all rows are made anew, because the version that the view shows was
            cleaned up in the source, so that nothing tells what changed.
        rows_added: Rows that would be added.
        rows_recomputed: Rows that would be written anew.
        rows_removed: Rows that would be taken out, at most: of those that the view has.
        rows_pending: Rows that have no value yet in columns of UDFs, summed over UDFs.
        new_source_fragments: Fragments of the source that the version shown does not have.
        untouched_fragments: Fragments of the source that need no look.
    """

    table_name: str
    table_uri: str
    source_uri: str
    source_version: int
    previous_version: int | None
    rebuilds: bool
    rows_added: int
    rows_recomputed: int
    rows_removed: int
    rows_pending: int
    new_source_fragments: int
    untouched_fragments: int

    @property
    def has_work(self) -> bool:
        """Whether a refresh would change a row."""
        return bool(self.rows_added or self.rows_recomputed or self.rows_removed or self.rows_pending)

    def __str__(self) -> str:
        before = "nothing" if self.previous_version is None else f"version {self.previous_version}"
        return (
            f"refresh of {self.table_name} from {before} to version {self.source_version} of {self.source_uri}: "
            f"{counted(self.rows_added, 'row')} to add, {self.rows_recomputed} to compute again, {self.rows_removed} "
            f"to remove, {counted(self.rows_pending, 'value')} of UDFs pending"
        )
