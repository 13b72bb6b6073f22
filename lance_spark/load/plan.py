"""What a load would do, for people."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.errors import counted
from lance_spark.words import InWords


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadPlan(InWords):
    """What :meth:`lance_spark.Table.load_columns` would do.

    Attributes:
        table_name: Name of the table.
        table_uri: Its location.
        version: The version that would be read.
        source: The source.
        source_format: `parquet`, `ipc`, `lance`, `DataFrame` or `data`.
        source_rows: Its rows; None where only reading it tells.
        source_bytes: Its bytes; None where they are not known.
        keys: The columns by which rows are matched.
        columns: The columns that are filled.
        new_columns: Those of them that would be added.
        on_missing: What becomes of a row without a match.
        total_rows: Live rows of the table, each of which is looked up.
        total_fragments: Fragments with live rows; each with a match gets a column file.
        shuffles: Whether values are shuffled; not where a sample shows that the table is laid out
            as the source is.
    """

    table_name: str
    table_uri: str
    version: int
    source: str
    source_format: str
    source_rows: int | None
    source_bytes: int | None
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    new_columns: tuple[str, ...]
    on_missing: str
    total_rows: int
    total_fragments: int
    shuffles: bool

    @property
    def job_type(self) -> str:
        """`load_columns`."""
        return "load_columns"

    @property
    def text(self) -> str:
        """What would be done, in words."""
        rows = f"{counted(self.total_rows, 'row')} in {counted(self.total_fragments, 'fragment')}"
        return f"load of {', '.join(self.columns)} into {self.table_name}, version {self.version}: {rows} to look up"

    def explain(self) -> str:
        """Returns the plan as text for people."""
        missing = {"carry": "keep their values", "null": "become NULL", "error": "are an error"}[self.on_missing]
        rows = "" if self.source_rows is None else f", {counted(self.source_rows, 'row')}"
        size = "" if self.source_bytes is None else f", {self.source_bytes / (1 << 20):,.1f} MiB"
        how = (
            "by Spark; values are shuffled"
            if self.shuffles
            else "without a shuffle: keys of neighbouring rows lie in the same row groups of the source"
        )
        lines = [
            f"Load of {', '.join(self.columns)} into {self.table_name}, version {self.version}",
            f"  source       {self.source} ({self.source_format}{rows}{size})",
            f"  key          {', '.join(self.keys)}",
            f"  rows         {counted(self.total_rows, 'row')} in {counted(self.total_fragments, 'fragment')}",
            f"  without      a match: rows {missing}",
            f"  join         {how}",
        ]
        if self.new_columns:
            lines.append(f"  new columns  {', '.join(self.new_columns)}")
        return "\n".join(lines)
