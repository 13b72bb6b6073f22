"""Rows whose columns are computed, for streams with `ready_columns`: :class:`ReadyRows`.

A row is ready in a version if each of the columns has a value, or if the column file marks the row
as computed as NULL (:mod:`lance_spark.staging.null_marks`). A compaction writes files without
marks. The marks of the next column file name these rows as known before, so the stream does not
report them again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.identity import (
    BINDING_KEY,
    TOKEN_KEY,
    field_identities,
    files_of,
    ids_of,
)
from lance_spark.errors import ColumnNotFoundError, OptionError, TableUnreadableError
from lance_spark.lance_compat import path_of, plain
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.null_marks import NO_MARKS, NullMarks, read_marks
from lance_spark.storage.objects import open_session
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from lance_spark.changes.rows import VersionRows

OPTION = "ready_columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyColumns:
    """The columns of a ready row.

    Attributes:
        names: Their names.
        marked: Whether the rows marked as computed NULLs by a column file are ready. A single
            UDF fills all of the columns.
    """

    names: tuple[str, ...]
    marked: bool

    @staticmethod
    def of(dataset: lance.LanceDataset, names: Sequence[str]) -> ReadyColumns:
        """Checks the columns.

        Raises:
            ColumnNotFoundError: The table has no such column.
            OptionError: Several UDFs compute the columns.
        """
        schema = dataset.schema
        for name in names:
            if name not in schema.names:
                raise ColumnNotFoundError(
                    name, dataset.uri, hint=f"its columns are {', '.join(schema.names)}"
                )
        metadata = [schema.field(name).metadata or {} for name in names]
        tokens = {values.get(TOKEN_KEY) for values in metadata}
        is_group = len(names) == 1 or (len(tokens) == 1 and None not in tokens)
        if not is_group and any(BINDING_KEY.encode() in values for values in metadata):
            raise OptionError(
                OPTION,
                ", ".join(names),
                "the column or the columns of a single UDF, such as the UDF that reads the other columns",
            )
        return ReadyColumns(names=tuple(dict.fromkeys(names)), marked=is_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRows:
    """The ready rows of a fragment.

    Attributes:
        rows: All ready rows.
        new: Subset of `rows` without the NULLs marked by an earlier version.
    """

    rows: RowSet
    new: RowSet


_NONE = ReadyRows(rows=RowSet.empty(), new=RowSet.empty())


def ready_rows(version: VersionRows, fragment_id: int, columns: ReadyColumns) -> ReadyRows:
    """Returns the ready rows of a fragment. Reads the columns, and the metadata of their file.

    Raises:
        TableUnreadableError: A file is missing or damaged.
    """
    fragment = version.rows.existing_fragment(fragment_id).metadata
    if not ready_files(version, fragment, columns):
        return _NONE  # all rows are NULL
    condition = " AND ".join(f"{quote_identifier(name)} IS NOT NULL" for name in columns.names)
    rows = version.matching(fragment_id, condition)
    null_rows = version.live(fragment_id) - rows
    if not null_rows or not columns.marked:
        return ReadyRows(rows=rows, new=rows)
    marks = _marks_of(version, fragment, columns)
    return ReadyRows(rows=rows | (marks.rows & null_rows), new=rows | (marks.new & null_rows))


def ready_files(
    version: VersionRows, fragment: FragmentMetadata, columns: ReadyColumns
) -> tuple[str, ...]:
    """Returns the files and fields of the columns in a fragment; empty without a column."""
    ids = _ids(version.dataset, columns.names)
    return () if ids is None else files_of(fragment, ids)


def _ids(dataset: lance.LanceDataset, names: Collection[str]) -> list[int] | None:
    fields = [field for field in field_identities(dataset.lance_schema) if field.name in names]
    return ids_of(fields) if len(fields) == len(names) else None


def _marks_of(version: VersionRows, fragment: FragmentMetadata, columns: ReadyColumns) -> NullMarks:
    """Returns the marks of the only file with the columns."""
    ids = frozenset(_ids(version.dataset, columns.names) or ())
    files = [file for file in fragment.files if ids.intersection(file.fields)]
    is_overlaid = any(ids.intersection(overlay.data_file.fields) for overlay in fragment.overlays)
    # A file with a base lies in the folder of another table.
    if len(files) != 1 or is_overlaid or files[0].base_id is not None:
        return NO_MARKS
    try:
        return read_marks(
            open_session(version.ref.uri, version.ref.storage_options), path_of(files[0])
        )
    except (OSError, ValueError) as error:
        hint = "check that the files of the version exist"
        raise TableUnreadableError(version.ref.uri, plain(error), hint=hint) from error
