"""The results of a change of rows: of a task, of all tasks for the commit, and for the user.

:class:`RowEditResult`, :func:`edits_of` and :class:`ChangeResult`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from lance_spark.commit.changes import CommitResult, RowEdits, StagedColumns
from lance_spark.commit.conflicts.identity import field_identities, ids_of
from lance_spark.commit.verify import same_columns
from lance_spark.dataset import DatasetRef
from lance_spark.display import Displayable
from lance_spark.dml.strategy import UpdateStrategy
from lance_spark.errors import UnsupportedOperationError, counted
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.file_layout import FileLayout

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import DataFile, FragmentMetadata


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

        encoded = (
            b""
            if ids is None
            else bytes(json.loads(RowIdSequence(ids).to_inline_metadata().json())["Inline"])
        )
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


def _add_up(results: Iterable[RowEditResult]) -> RowEditResult:
    """Returns the changes of all tasks, without the counts of counting tasks."""
    total = RowEditResult()
    for result in results:
        total.updated += result.updated
        total.removed += result.removed
        total.new += result.new
        total.row_ids += result.row_ids
        total.columns += result.columns
        total.inserted += result.inserted
        total.changed += result.changed
        total.deleted += result.deleted
    return total


def edits_of(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    results: Sequence[RowEditResult],
    operation: Literal["delete", "update", "merge"] = "merge",
    columns: Collection[str] = (),
) -> RowEdits | None:
    """Returns the edits of a statement for the commit; None without edits.

    Args:
        ref: The version of the statement.
        dataset: The open version.
        results: The results of the tasks.
        operation: The operation of the commit.
        columns: The columns of column files.
    """
    total = _add_up(results)
    files = {file.fragment_id: file for file in total.columns}
    updated = tuple(total.updated_fragments())
    rows = SnapshotRows(dataset)
    touched = {
        number: rows.fragment(number)
        for number in (*(part.id for part in updated), *total.removed, *files)
    }
    edits = RowEdits(
        operation=operation,
        read_version=ref.version or 0,
        fields=field_identities(dataset.lance_schema),
        before={
            number: fragment.metadata
            for number, fragment in touched.items()
            if fragment is not None
        },
        updated=updated,
        removed=tuple(total.removed),
        new=tuple(total.new_fragments()),
        rows_inserted=total.inserted,
        rows_updated=total.changed,
        rows_deleted=total.deleted,
    )
    if not edits.new and not edits.before:
        return None
    return _with_files(edits, dataset, list(files.values()), columns) if files else edits


def _with_files(
    edits: RowEdits,
    dataset: lance.LanceDataset,
    files: Sequence[WrittenColumnFile],
    columns: Collection[str],
) -> RowEdits:
    """Returns edits with column files of fragments."""
    modified = frozenset(ids_of(field for field in edits.fields if field.name in columns))
    entry = FileLayout.of_table(dataset, columns).file
    updated = [
        _with_file(edits.before[file.fragment_id], same_columns(entry, file.staged), modified)
        for file in files
    ]
    offsets = {file.fragment_id: file.rows for file in files} if dataset.has_stable_row_ids else {}
    return replace(
        edits, updated=(*edits.updated, *updated), modified=tuple(sorted(modified)), offsets=offsets
    )


def _with_file(
    fragment: FragmentMetadata, file: DataFile, modified: frozenset[int]
) -> FragmentMetadata:
    """Returns a fragment with a new file for the modified fields, in place of earlier files.

    Raises:
        UnsupportedOperationError: Overlays of the fragment would hide the new values.
    """
    from lance.fragment import DataFile

    if fragment.overlays:
        raise UnsupportedOperationError(
            f"Fragment {fragment.id} has overlays of another tool, which would hide new column files. Nothing was "
            "changed. Compact the table first: compact_files()."
        )
    files = []
    for old in fragment.files:
        fields = [_REPLACED if number in modified else number for number in old.fields]
        if any(number != _REPLACED for number in fields):
            files.append(
                old if fields == list(old.fields) else DataFile(
                    str(old.path), fields, list(old.column_indices), old.file_major_version, old.file_minor_version,
                    old.file_size_bytes, old.base_id,
                )
            )  # fmt: skip
    return replace(fragment, files=[*files, file])


_REPLACED = -2
"""In place of the id of a field with a newer file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChangeResult(Displayable):
    """The result of a change of rows or columns.

    LanceDB's names of the counts are attributes, too: `num_inserted_rows`, `num_updated_rows`,
    `num_deleted_rows` and `num_rows`.

    Attributes:
        version: The version of the commit. If no row changed, the version that was read.
        rows_inserted: Number of added rows.
        rows_updated: Number of updated rows, including rows with equal values.
        rows_deleted: Number of deleted rows.
        retries: Number of retries because other writers committed first.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        result = books.update(where="id < 3", values={"price": 1})
        print(result.version, result.rows_updated)  # 2 3
        ```
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    retries: int = 0

    @property
    def num_inserted_rows(self) -> int:
        """The number of added rows, by LanceDB's name."""
        return self.rows_inserted

    @property
    def num_updated_rows(self) -> int:
        """The number of updated rows, by LanceDB's name."""
        return self.rows_updated

    @property
    def num_deleted_rows(self) -> int:
        """The number of deleted rows, by LanceDB's name."""
        return self.rows_deleted

    @property
    def num_rows(self) -> int:
        """The number of added, updated and deleted rows."""
        return self.rows_inserted + self.rows_updated + self.rows_deleted

    @property
    def text(self) -> str:
        """Summary of the result: `10 rows updated, version 3`."""
        row_counts = {
            "inserted": self.rows_inserted,
            "updated": self.rows_updated,
            "deleted": self.rows_deleted,
        }
        phrases = [f"{counted(rows, 'row')} {what}" for what, rows in row_counts.items() if rows]
        return f"{', '.join(phrases) or 'no row concerned'}, version {self.version}"


def result_of(result: CommitResult) -> ChangeResult:
    """Returns the result of a commit."""
    return ChangeResult(
        version=result.version,
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        rows_deleted=result.rows_deleted,
        retries=result.retries,
    )
