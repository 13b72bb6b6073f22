"""The plan of a load, for users."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.display import Displayable
from lance_spark.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadPlan(Displayable):
    """The plan of :meth:`lance_spark.Table.load_columns`.

    Attributes:
        table_name: Name of the table.
        table_uri: Location of the table.
        version: The version to read.
        source: The source.
        source_format: `parquet`, `ipc`, `lance`, `DataFrame` or `data`.
        source_rows: Number of rows of the source; None if only a read finds out.
        source_bytes: Bytes of the source; None if unknown.
        keys: The columns of the key.
        columns: The columns to fill.
        new_columns: The columns to add.
        on_missing: Handling of rows without a match.
        total_rows: Live rows of the table. The load looks up each of them.
        total_fragments: Fragments with live rows. Each fragment with a match gets a column file.
        shuffles: Whether the load shuffles values. A load without a shuffle needs the same order of
            keys in table and source, by a sample.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        titles = [{"id": i, "title": f"Book {i}"} for i in range(10)]
        plan = books.plan_load_columns(titles, pk="id", columns=["title"])
        print(plan.source_rows, plan.new_columns, plan.shuffles)
        ```
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
        """Summary of the plan."""
        rows = f"{counted(self.total_rows, 'row')} in {counted(self.total_fragments, 'fragment')}"
        return f"load of {', '.join(self.columns)} into {self.table_name}, version {self.version}: {rows} to look up"

    def explain(self) -> str:
        """Returns the plan as readable text."""
        effect = {"carry": "keep their values", "null": "become NULL", "error": "are an error"}[
            self.on_missing
        ]
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
            f"  without      a match: rows {effect}",
            f"  join         {how}",
        ]
        if self.new_columns:
            lines.append(f"  new columns  {', '.join(self.new_columns)}")
        return "\n".join(lines)
