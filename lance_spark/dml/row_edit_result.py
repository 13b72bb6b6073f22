"""The result of a task that changes rows: :class:`RowEditResult`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_spark.commit.changes import StagedColumns
from lance_spark.dml.strategy import UpdateStrategy

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumnFile:
    """A column file of a fragment, and the serialized set of the rows with new values."""

    fragment_id: int
    staged: StagedColumns
    rows: bytes


@dataclass(slots=True, kw_only=True)
class RowEditResult:
    """The changes of a task to the rows of some fragments. No version has the changes yet.

    Attributes:
        fragments: Ids of the fragments of the task.
        counts: Number of matching rows of each fragment with a match. The whole result of a
            counting task.
        updated: Fragments with more deleted rows, as pylance's JSON.
        removed: Ids of fragments without a remaining row.
        new: Fragments of new and moved rows, as pylance's JSON.
        row_ids: The ids of the moved rows of each new fragment, as pylance encodes them.
        columns: Column files with new values.
    """

    fragments: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    updated: list[Any] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    new: list[Any] = field(default_factory=list)
    row_ids: list[bytes] = field(default_factory=list)
    columns: list[WrittenColumnFile] = field(default_factory=list)
    inserted: int = 0
    changed: int = 0
    deleted: int = 0

    @property
    def strategy(self) -> UpdateStrategy | None:
        """The strategy of the task of an update; None if no row changed."""
        return "columns" if self.columns else "rows" if self.new else None

    def add_fragment(self, fragment: FragmentMetadata, ids: pa.UInt64Array | None) -> None:
        """Adds a new fragment, whose first rows have these ids."""
        from lance.fragment import RowIdSequence

        encoded = b"" if ids is None else bytes(json.loads(RowIdSequence(ids).to_inline_metadata().json())["Inline"])
        self.new.append(fragment.to_json())
        self.row_ids.append(encoded)

    def new_fragments(self) -> Iterator[FragmentMetadata]:
        """Yields the new fragments with the row ids of their moved rows."""
        from lance.fragment import FragmentMetadata

        for values, ids in zip(self.new, self.row_ids, strict=True):
            inline = {"Inline": list(ids)} if ids else None
            yield FragmentMetadata.from_json(json.dumps({**values, "row_id_meta": inline}))

    def updated_fragments(self) -> Iterator[FragmentMetadata]:
        """Yields the fragments with more deleted rows."""
        from lance.fragment import FragmentMetadata

        return (FragmentMetadata.from_json(json.dumps(values)) for values in self.updated)
