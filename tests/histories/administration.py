"""Changes of columns, indexes and versions by other writers, and changes that end a target for good."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import lance
import pyarrow as pa

from tests.histories.operations import INPUT, RENAMED, Operation, Rows, World, names_of


@dataclass(frozen=True, slots=True, repr=False)
class AddColumn(Operation):
    """Adds a column: of an expression, or all NULL."""

    kind = "add column"
    column: str
    null: bool = False

    def fitted(self, world: World) -> Operation | None:
        return None if self.column in next(iter(world.rows.values())) else self

    def act(self, uri: str) -> None:
        new: Any = pa.schema([(self.column, pa.int64())]) if self.null else {self.column: "key + 7"}
        lance.dataset(uri).add_columns(new)

    def change(self, rows: Rows, world: World) -> Rows:
        for key, row in rows.items():
            row[self.column] = None if self.null else key + 7
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class DropColumn(Operation):
    """Drops a column other than inputs and targets."""

    kind = "drop column"
    column: str

    def fitted(self, world: World) -> Operation | None:
        return self if self.column in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        head.drop_columns([names_of(head)[self.column]])

    def change(self, rows: Rows, world: World) -> Rows:
        for row in rows.values():
            del row[self.column]
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class Rename(Operation):
    """Gives a column another name."""

    column: str

    @property
    def name(self) -> str:
        return {"a": "rename input", "b": "rename input", "other": "rename column"}.get(
            self.column, "rename target"
        )

    def fitted(self, world: World) -> Operation | None:
        return self if self.column in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        current_name = names_of(head)[self.column]
        head.alter_columns(
            {
                "path": current_name,
                "name": f"{current_name}{RENAMED}" if len(current_name) < 9 else self.column,
            }
        )


@dataclass(frozen=True, slots=True, repr=False)
class Index(Operation):
    """Creates, drops or optimizes an index of a column."""

    column: str
    what: Literal["create", "drop", "optimize"] = "create"

    @property
    def name(self) -> str:
        return f"{self.what} index"

    def fitted(self, world: World) -> Operation | None:
        return self if self.column in next(iter(world.rows.values())) else None

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        name, index_names = f"of {self.column}", {index.name for index in head.describe_indices()}
        if self.what == "create":
            head.create_scalar_index(names_of(head)[self.column], "BTREE", name=name, replace=True)
        elif self.what == "drop" and name in index_names:
            head.drop_index(name)
        elif self.what == "optimize":
            head.optimize.optimize_indices()


@dataclass(frozen=True, slots=True, repr=False)
class Configure(Operation):
    """Sets the table's configuration and metadata, and tags a version."""

    kind = "config and tags"

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        head.update_config({"somebody": "else"})
        head.update_metadata({"about": "numbers"})
        tags = lance.dataset(uri).tags
        (tags.update if "theirs" in tags.list() else tags.create)(
            "theirs", lance.dataset(uri).version
        )


@dataclass(frozen=True, slots=True, repr=False)
class Restore(Operation):
    """Restores an older version with the targets: `back` versions before the latest."""

    kind = "restore"
    back: int = 1
    version: int | None = None

    def fitted(self, world: World) -> Operation | None:
        older = sorted(world.kept_rows)[:-1]
        return replace(self, version=older[-min(self.back, len(older))]) if older else None

    def act(self, uri: str) -> None:
        lance.dataset(uri, version=self.version).restore()

    def change(self, rows: Rows, world: World) -> Rows:
        assert self.version is not None
        return {key: dict(row) for key, row in world.kept_rows[self.version].items()}


@dataclass(frozen=True, slots=True, repr=False)
class CleanUp(Operation):
    """Removes all versions but the latest, and optionally every unreferenced file."""

    kind = "cleanup"
    files: bool = False

    @property
    def name(self) -> str:
        return "cleanup of files" if self.files else "cleanup"

    def act(self, uri: str) -> None:
        lance.dataset(uri).update_config({"cleaned": "up"})
        lance.dataset(uri).cleanup_old_versions(
            older_than=timedelta(0),
            delete_unverified=self.files,
            error_if_tagged_old_versions=False,
        )


RUINS = ("drop", "reuse", "cast", "overwrite", "past", "table")
Ruins = Literal["drop", "reuse", "cast", "overwrite", "past", "table"]


@dataclass(frozen=True, slots=True, repr=False)
class Ruin(Operation):
    """Destroys a target while a backfill fills it. The history ends after this step."""

    column: Literal["v", "w"]
    how: Ruins

    @property
    def name(self) -> str:
        return f"ruin: {self.how}"

    @property
    def targets(self) -> frozenset[str]:
        """The columns that no backfill can fill after this step."""
        return frozenset([self.column] if self.how in ("drop", "reuse", "cast") else INPUT)

    def fitted(self, world: World) -> Operation | None:
        return None if self.how == "past" and not world.oldest else self

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        current_name = names_of(head)[self.column]
        if self.how in ("drop", "reuse"):
            head.drop_columns([current_name])
        if self.how == "reuse":
            lance.dataset(uri).add_columns(pa.schema([("innocent", pa.int64())]))
        if self.how == "cast":
            if f"of {self.column}" in {index.name for index in head.describe_indices()}:
                head.drop_index(f"of {self.column}")  # Lance cannot cast an indexed column
            lance.dataset(uri).alter_columns({"path": current_name, "data_type": pa.int32()})
        if self.how == "overwrite":
            lance.write_dataset(head.to_table(), uri, mode="overwrite")
        if self.how == "past":
            lance.dataset(uri, version=1).restore()
        if self.how == "table":
            shutil.rmtree(uri)
