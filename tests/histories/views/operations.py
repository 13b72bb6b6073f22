"""Changes of a view by other writers, in addition to the changes of any table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import lance
import pyarrow as pa

from tests.histories.jobs import SETTINGS, value
from tests.histories.operations import Operation, Rows, World
from tests.histories.views.tables import ID, names_of, noting_udf, open_inline

OWN = "own"
"""A computed column outside the view's definition; its UDF gets `e`."""


@dataclass(frozen=True, slots=True, repr=False)
class ViewIndex(Operation):
    """Creates, drops or optimizes an index of a view's column."""

    column: Literal["id", "e", "u"] = ID
    what: Literal["create", "drop", "optimize"] = "create"

    @property
    def name(self) -> str:
        return f"{self.what} index"

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        name, index_names = f"of {self.column}", {index.name for index in head.describe_indices()}
        if self.what == "create":
            head.create_scalar_index(
                names_of("v", head)[self.column], "BTREE", name=name, replace=True
            )
        elif self.what == "drop" and name in index_names:
            head.drop_index(name)
        elif self.what == "optimize":
            head.optimize.optimize_indices()


@dataclass(frozen=True, slots=True, repr=False)
class ViewRename(Operation):
    """Gives a view's column another name."""

    kind = "rename column"
    column: Literal["e", "u"] = "u"

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        current_name = names_of("v", head)[self.column]
        head.alter_columns(
            {
                "path": current_name,
                "name": self.column if current_name != self.column else f"{current_name}x",
            }
        )


@dataclass(frozen=True, slots=True, repr=False)
class AddOwn(Operation):
    """Adds a computed column outside the view's definition."""

    kind = "own computed column"

    def fitted(self, world: World) -> Operation | None:
        return self if world.rows and OWN not in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        name = names_of("v", lance.dataset(uri))["e"]
        open_inline(uri).add_columns({OWN: (noting_udf(OWN), [name])})

    def change(self, rows: Rows, world: World) -> Rows:
        for row in rows.values():
            row[OWN] = None
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class FillOwn(Operation):
    """Backfills the column of :class:`AddOwn`."""

    kind = "backfill of an own column"

    def fitted(self, world: World) -> Operation | None:
        return self if world.rows and OWN in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        assert open_inline(uri).backfill(OWN, **SETTINGS).status == "DONE"

    def change(self, rows: Rows, world: World) -> Rows:
        for row in rows.values():
            e = row["e"]
            if row[OWN] is None and e is not None:
                row[OWN] = value(e)
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class Spoil(Operation):
    """Drops, casts or replaces a used column, or overwrites the table. Refreshes fail afterwards."""

    how: Literal["drop", "cast", "reuse", "overwrite"] = "drop"
    column: Literal["a", "b"] = "a"

    @property
    def name(self) -> str:
        return f"spoil: {self.how}"

    def fitted(self, world: World) -> Operation | None:
        return self if world.rows and self.column in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        from tests.histories.operations import names_of as names_of_source

        head = lance.dataset(uri)
        current_name = names_of_source(head)[self.column]
        if self.how in ("drop", "reuse"):
            head.drop_columns([current_name])
        if self.how == "reuse":
            lance.dataset(uri).add_columns({current_name: "key + 1"})
        if self.how == "cast":
            if f"of {self.column}" in {index.name for index in head.describe_indices()}:
                head.drop_index(f"of {self.column}")
            lance.dataset(uri).alter_columns({"path": current_name, "data_type": pa.int32()})
        if self.how == "overwrite":
            lance.write_dataset(head.to_table(), uri, mode="overwrite")


def fitted(operation: Operation, world: World) -> Operation | None:
    """Returns the operation fitted to a table, which may be empty, or None for an operation without effect."""
    empty_too = (
        "restore",
        "cleanup",
        "cleanup of files",
        "compaction",
        "compaction of all",
        "config and tags",
    )
    if not world.rows and operation.name not in empty_too:
        return None
    fitted_operation: Any = operation.fitted(world)
    if fitted_operation is not None and hasattr(fitted_operation, "with_value"):
        return replace(fitted_operation, with_value=False)
    return fitted_operation
