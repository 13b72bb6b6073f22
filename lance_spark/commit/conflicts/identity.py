"""What a staged result belongs to, which tells at any later version whether it still fits.

Paths, not contents: Lance never changes a data file, so a column whose files and overlays in a
fragment are the same holds the same values in the same physical rows. Field ids alone do not serve:
Lance gives the id of a dropped column to the next column that is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from lance.lance.schema import LanceField
    from lance.schema import LanceSchema

TOKEN_KEY = b"lance-spark:column"
"""Field metadata of a column that a backfill added: a random token that no later column of the same
field id has."""

BINDING_KEY = "lance-spark:udf"
"""Field metadata of a computed column: its UDF, as JSON."""

OUTPUT_KEY = "lance-spark:output"
"""Field metadata of a sibling column: the field of the UDF's result that it holds."""

UNKNOWN_FIELD = -1
"""Field id of a column that the snapshot does not have yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIdentity:
    """A top-level column at some version.

    Attributes:
        ids: Its own and its descendants' field ids, depth first: data files name parents (format
            2.0) or only leaves (2.1, 2.2).
        type: Its Arrow type, as text; equal texts are equal types.
        token: What a backfill put into the field metadata when it added the column; None for other
            people's columns.
        nullable: Whether it may hold NULL; no part of which column it is.
    """

    name: str
    id: int
    ids: tuple[int, ...]
    type: str
    token: str | None = None
    nullable: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentIdentity:
    """The part of one fragment that a result depends on.

    Attributes:
        files: Names of all of its data files: one of them in common tells that a fragment of the
            same id is the same one.
        inputs: Paths of the data files and overlays that hold input fields, in manifest order, each
            with the fields it holds.
        targets: The same for the target fields.
    """

    fragment_id: int
    physical_rows: int
    deleted_rows: int
    files: frozenset[str]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    def is_same(self, now: FragmentIdentity, *, replaced: bool) -> bool:
        """Tells whether a fragment of the same id at a later version is the same fragment.

        It is, whatever was rewritten in place. Where the table was overwritten or restored
        meanwhile (`replaced`), ids may have been given anew.
        """
        if now.physical_rows != self.physical_rows:
            return False
        return not replaced or not self.files.isdisjoint(now.files)


def field_identities(schema: LanceSchema) -> tuple[FieldIdentity, ...]:
    """Returns the identities of a schema's top-level columns, in order."""
    return tuple(_field_identity(column) for column in schema.fields())


def _field_identity(column: LanceField) -> FieldIdentity:
    arrow = column.to_arrow()  # type: ignore[attr-defined]  # pylance's stub lacks it
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
    """Returns the identity of a result for a fragment; ids are those of :func:`ids_of`."""
    return FragmentIdentity(
        fragment_id=fragment.id,
        physical_rows=fragment.physical_rows,
        deleted_rows=fragment.num_deletions,
        files=frozenset(path_of(file) for file in fragment.files),
        inputs=files_of(fragment, input_ids),
        targets=files_of(fragment, target_ids),
    )


def ids_of(columns: Iterable[FieldIdentity]) -> list[int]:
    """Returns the field ids of columns and all that is below them."""
    return [number for column in columns for number in column.ids]


def files_of(fragment: FragmentMetadata, field_ids: Sequence[int]) -> tuple[str, ...]:
    """Returns the files, then overlays, that hold any of the fields, each as `path:field ids`.

    The fields are part of it: a file that stays may lose one of its fields to a newer file.
    """
    wanted = frozenset(field_ids)
    held = []
    for kind, file in [("", file) for file in fragment.files] + [("overlay ", o.data_file) for o in fragment.overlays]:
        fields = [str(i) for i in file.fields if i in wanted]
        if fields:
            base = "" if file.base_id is None else f"{file.base_id}:"
            held.append(f"{kind}{base}{path_of(file)}:{','.join(fields)}")
    return tuple(held)
