"""Identities of columns and fragments tell whether a staged result fits a later version.

An identity consists of file paths and ignores file contents. Lance never changes a data file. A
column with the same files and overlays in a fragment therefore holds the same values in the same
physical rows. Field ids alone are insufficient, because Lance gives the id of a dropped column to
the next added column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from lance.lance.schema import LanceField
    from lance.schema import LanceSchema

TOKEN_KEY = b"lance-spark:column"
"""Field metadata of a column added by a backfill: a random token. No later column with the same
field id has this token."""

BINDING_KEY = "lance-spark:udf"
"""Field metadata of a computed column: its UDF, as JSON."""

OUTPUT_KEY = "lance-spark:output"
"""Field metadata of a sibling column: the column's field in the UDF's result."""

UNKNOWN_FIELD = -1
"""Field id of a column not yet in the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIdentity:
    """A top-level column at some version.

    Attributes:
        ids: Field ids of the column and its descendants, depth first. Data files name parents
            (format 2.0) or only leaves (2.1, 2.2).
        type: Arrow type as text. Equal texts are equal types.
        token: Token in the field metadata of a column added by a backfill; None for columns of
            other writers.
        nullable: Whether the column may hold NULL. Not part of the identity.
    """

    name: str
    id: int
    ids: tuple[int, ...]
    type: str
    token: str | None = None
    nullable: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentIdentity:
    """The properties of a fragment relevant to a result.

    Attributes:
        files: Names of all data files of the fragment. A fragment with the same id and a common
            data file is the same fragment.
        inputs: Paths of the data files and overlays with input fields, in manifest order, each with
            its input fields.
        targets: Paths of the data files and overlays with target fields, in the same format.
    """

    fragment_id: int
    physical_rows: int
    deleted_rows: int
    files: frozenset[str]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    def is_same(self, now: FragmentIdentity, *, replaced: bool) -> bool:
        """Tells whether a fragment of the same id at a later version is the same fragment.

        Rewrites in place keep the fragment the same. After a concurrent overwrite or restore
        (`replaced`), the id may belong to a new fragment, so both fragments must share a data file.
        """
        if now.physical_rows != self.physical_rows:
            return False
        return not replaced or not self.files.isdisjoint(now.files)


def field_identities(schema: LanceSchema) -> tuple[FieldIdentity, ...]:
    """Returns the identities of a schema's top-level columns, in order."""
    return tuple(_field_identity(column) for column in schema.fields())


def rebinds_names(
    before: lance.LanceDataset, after: lance.LanceDataset, names: Collection[str] | None = None
) -> bool:
    """Tells whether a column name has other field ids in another version; None checks all names.

    A rename, a new column and a column created again have other field ids. The files of a renamed
    column are the same.
    """
    return _ids_by_name(before, names) != _ids_by_name(after, names)


def _ids_by_name(
    dataset: lance.LanceDataset, names: Collection[str] | None
) -> dict[str, tuple[int, ...]]:
    fields = field_identities(dataset.lance_schema)
    return {field.name: field.ids for field in fields if names is None or field.name in names}


def _field_identity(column: LanceField) -> FieldIdentity:
    arrow = column.to_arrow()  # type: ignore[attr-defined]  # missing in pylance's stub
    token: bytes | None = (arrow.metadata or {}).get(TOKEN_KEY)
    return FieldIdentity(
        name=column.name(),
        id=column.id(),
        ids=tuple(_ids(column)),
        type=str(arrow.type),
        token=None if token is None else token.decode(),
        nullable=bool(arrow.nullable),
    )


def _ids(column: LanceField) -> Iterator[int]:
    yield column.id()
    for child in column.children():
        yield from _ids(child)


def fragment_identity(
    fragment: FragmentMetadata, input_ids: Sequence[int], target_ids: Sequence[int] = ()
) -> FragmentIdentity:
    """Returns a fragment's identity for a result, with field ids from :func:`ids_of`."""
    return FragmentIdentity(
        fragment_id=fragment.id,
        physical_rows=fragment.physical_rows,
        deleted_rows=fragment.num_deletions,
        files=frozenset(path_of(file) for file in fragment.files),
        inputs=files_of(fragment, input_ids),
        targets=files_of(fragment, target_ids),
    )


def ids_of(columns: Iterable[FieldIdentity]) -> list[int]:
    """Returns the field ids of columns and all of their descendants."""
    return [number for column in columns for number in column.ids]


def files_of(fragment: FragmentMetadata, field_ids: Sequence[int]) -> tuple[str, ...]:
    """Returns the files, then overlays, with any of the fields, each as `path:field ids`.

    An entry includes the fields, because an old file may lose a field to a newer file.
    """
    sought_ids = frozenset(field_ids)
    entries = []
    for kind, file in [("", file) for file in fragment.files] + [
        ("overlay ", o.data_file) for o in fragment.overlays
    ]:
        fields = [str(i) for i in file.fields if i in sought_ids]
        if fields:
            base = "" if file.base_id is None else f"{file.base_id}:"
            entries.append(f"{kind}{base}{path_of(file)}:{','.join(fields)}")
    return tuple(entries)
