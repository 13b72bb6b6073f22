"""Changes of a history's table by other writers: how each kind of change is made, and its effect on the rows.

The table has a column `key`, which never changes, `a` (the input of `v`), `b` (the input of `w`), `other`, and columns
added by writers. Columns may be renamed, so this module identifies columns by field id. An input is `1000 * key` plus
the number of its changes. So an input identifies its row, and no value occurs twice unless a writer sets an old value
back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import lance
import pyarrow as pa

from tests.support import inline_rows
from tests.support.inline_jobs import open_table

Row = dict[str, int | None]
Rows = dict[int, Row]
"""The rows of a version, by key; columns under their first names."""

COLUMNS = ("key", "a", "b", "other", "v", "w")
"""First names, in the order of their field ids."""

INPUT = {"v": "a", "w": "b", "d": "a"}
"""The input of each target. A DataFrame write adds the target `d`."""

NAMED_BY_ID = len(COLUMNS)
RENAMED = "x"
"""Suffix of a new name; the first name of an added column never contains the suffix."""
LEAST_ROWS = 4
"""Number of rows that deletions always leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """State of the table before a writer acts.

    Attributes:
        rows: The rows of the latest version.
        used: Every key so far.
        stable: Whether row ids are stable.
        kept_rows: Rows of each kept version with the targets, by version.
        places: Fragments of the rows.
        oldest: Whether the very first version, without targets, is kept.
    """

    rows: Rows
    used: frozenset[int]
    stable: bool
    kept_rows: Mapping[int, Rows]
    places: Mapping[int, int]
    oldest: bool = True


def names_of(dataset: lance.LanceDataset) -> dict[str, str]:
    """Returns the present names of columns, by their first names."""
    names = {}
    for column in dataset.lance_schema.fields():
        first = column.name().rstrip(RENAMED)
        # After a restore, `d` gets the id of a removed target.
        if column.id() < NAMED_BY_ID and first != "d":
            first = COLUMNS[column.id()]
        names[first] = column.name()
    return names


def read(dataset: lance.LanceDataset) -> tuple[Rows, dict[int, int]]:
    """Returns the rows of a version, and their fragments."""
    names = names_of(dataset)
    table = dataset.scanner(columns=list(names.values()), with_row_address=True).to_table()
    columns = {first: table[current_name].to_pylist() for first, current_name in names.items()}
    keys = columns.pop("key")
    assert len(set(keys)) == len(keys), f"rows are there twice: {sorted(keys)}"
    rows = {
        key: {name: values[at] for name, values in columns.items()} for at, key in enumerate(keys)
    }
    addresses = table["_rowaddr"].to_pylist()
    return rows, {key: address >> 32 for key, address in zip(keys, addresses, strict=True)}


def new_row(key: int, columns: Sequence[str]) -> Row:
    """Returns a row for another writer to add."""
    return {name: {"a": 1000 * key, "b": 1000 * key, "other": key}.get(name) for name in columns}


def source(dataset: lance.LanceDataset, rows: Mapping[int, Row]) -> pa.Table:
    """Returns rows as a table of all columns, under the names of now."""
    first_names = {current_name: first for first, current_name in names_of(dataset).items()}
    values = [
        {
            current_name: {"key": key, **row}.get(first)
            for current_name, first in first_names.items()
        }
        for key, row in rows.items()
    ]
    return pa.Table.from_pylist(
        values, schema=pa.schema([(f.name, f.type) for f in dataset.schema])
    )


def among(keys: Sequence[int]) -> str:
    return f"key IN ({', '.join(map(str, keys))})"


class Short:
    """Has a `repr` that omits default values and can be evaluated."""

    __slots__ = ()

    def __repr__(self) -> str:
        arguments = []
        for member in fields(self):  # type: ignore[arg-type]
            value = getattr(self, member.name)
            if member.default is MISSING:
                arguments.append(repr(value))
            elif value != member.default:
                arguments.append(f"{member.name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Returns the `repr` for Hypothesis."""
        printer.text(repr(self))


@dataclass(frozen=True, slots=True, repr=False)
class Operation(Short, ABC):
    """A change by another writer."""

    kind: ClassVar[str] = ""
    moves_rows: ClassVar[bool] = False
    """Whether the change is an update that moves rows to new fragments."""

    def fitted(self, world: World) -> Operation | None:
        """Returns the operation fitted to the present table, or None for an operation without effect."""
        return self

    @abstractmethod
    def act(self, uri: str) -> None:
        """Changes the table. Runs in the process of the other writer."""

    def change(self, rows: Rows, world: World) -> Rows:
        """Returns the rows after the change; the argument may be modified."""
        return rows

    @property
    def name(self) -> str:
        """Its kind, under which the tests count operations."""
        return self.kind


@dataclass(frozen=True, slots=True, repr=False)
class _OnRows(Operation):
    """A change of existing rows."""

    keys: tuple[int, ...]

    def fitted(self, world: World) -> Operation | None:
        keys = tuple(sorted({*self.keys} & world.rows.keys()))
        return replace(self, keys=keys) if keys else None


@dataclass(frozen=True, slots=True, repr=False)
class Append(Operation):
    """Adds rows. With `with_value`, the rows have a value of `v`."""

    kind = "append"
    keys: tuple[int, ...]
    with_value: bool = False

    def fitted(self, world: World) -> Operation | None:
        keys = tuple(sorted({*self.keys} - world.used))
        return replace(self, keys=keys) if keys else None

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        rows = self.change({}, None, [*names_of(head)])
        lance.write_dataset(source(head, rows), uri, mode="append")

    def change(self, rows: Rows, world: World | None, columns: Sequence[str] = ()) -> Rows:
        columns = columns or [*next(iter(rows.values()))]
        for key in self.keys:
            rows[key] = new_row(key, [name for name in columns if name != "key"])
            if self.with_value:
                rows[key]["v"] = -key
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class InsertOnly(Append):
    """Adds rows by a merge whose source also has existing rows."""

    kind = "insert"

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        present_keys = head.to_table(columns=["key"], limit=2)["key"].to_pylist()
        columns = [*names_of(head)]
        rows = {
            **self.change({}, None, columns),
            **{key: {"a": 7, "other": 7} for key in present_keys},
        }
        head.merge_insert("key").when_not_matched_insert_all().execute(source(head, rows))


@dataclass(frozen=True, slots=True, repr=False)
class Delete(_OnRows):
    """Deletes rows."""

    kind = "delete rows"
    ours: bool = False
    """Whether this package makes the change."""

    @property
    def name(self) -> str:
        return f"{self.kind}, by us" if self.ours else self.kind

    def fitted(self, world: World) -> Operation | None:
        some = _OnRows.fitted(self, world)
        return some if some is not None and len(world.rows) - len(some.keys) >= LEAST_ROWS else None  # type: ignore[attr-defined]

    def act(self, uri: str) -> None:
        if self.ours:
            inline_rows.delete(uri, among(self.keys))
        else:
            lance.dataset(uri).delete(among(self.keys))

    def change(self, rows: Rows, world: World) -> Rows:
        return {key: row for key, row in rows.items() if key not in self.keys}


@dataclass(frozen=True, slots=True, repr=False)
class DeleteFragment(Delete):
    """Deletes all rows of a fragment: the fragment of the first key that exists."""

    kind = "delete fragment"

    def fitted(self, world: World) -> Operation | None:
        place = next((world.places[key] for key in self.keys if key in world.places), None)
        keys = tuple(sorted(key for key, fragment in world.places.items() if fragment == place))
        return (
            replace(self, keys=keys) if keys and len(world.rows) - len(keys) >= LEAST_ROWS else None
        )


@dataclass(frozen=True, slots=True, repr=False)
class Update(_OnRows):
    """Moves rows with another value of a column, and copies the other columns."""

    moves_rows = True
    column: Literal["a", "b", "other"] = "other"
    ours: bool = False

    @property
    def name(self) -> str:
        return ("update, inputs kept" if self.column == "other" else "update of inputs") + (
            ", by us" if self.ours else ""
        )

    def fitted(self, world: World) -> Operation | None:
        has_column = self.column in next(iter(world.rows.values()))
        return _OnRows.fitted(self, world) if has_column else None

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        name = names_of(head)[self.column]
        if self.ours:
            with inline_rows.only("rows"):
                inline_rows.update(uri, among(self.keys), **{name: f"{name} + 1"})
        else:
            head.update({name: f"{name} + 1"}, where=among(self.keys))

    def change(self, rows: Rows, world: World) -> Rows:
        for key in self.keys:
            rows[key][self.column] += 1  # type: ignore[operator]
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class Upsert(_OnRows):
    """Replaces whole rows by a merge, and adds others.

    Attributes:
        new: Keys of added rows.
        changed: Keys of rows whose inputs change.
        value: The new `v` of the replaced rows: copied, the writer's own value, or NULL.
    """

    kind = "upsert"
    moves_rows = True
    new: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    value: Literal["copied", "given", "null"] = "copied"
    ours: bool = False

    @property
    def name(self) -> str:
        return "upsert, by us" if self.ours else "upsert"

    def fitted(self, world: World) -> Operation | None:
        some = _OnRows.fitted(self, world)
        if some is None:
            return None
        new = tuple(sorted({*self.new} - world.used))
        changed = tuple(sorted({*self.changed} & {*some.keys}))  # type: ignore[attr-defined]
        return replace(some, new=new, changed=changed)

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        rows = self.change(read(head)[0], None)
        data = source(head, {key: rows[key] for key in (*self.keys, *self.new)})
        if self.ours:
            inline_rows.merge(uri, "key", data)
            return
        head.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(
            data
        )

    def change(self, rows: Rows, world: World | None) -> Rows:
        for key in self.keys:
            row = rows[key]
            if key in self.changed:
                row["a"] += 1  # type: ignore[operator]
                row["b"] += 1  # type: ignore[operator]
            if self.value != "copied":
                row["v"] = -1_000_000 - key if self.value == "given" else None
        for key in self.new:
            rows[key] = new_row(key, [*next(iter(rows.values()))])
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class RewriteInput(_OnRows):
    """Writes an input in place: the next value, the very first value, or the present value."""

    kind = "rewrite input"
    column: Literal["a", "b"] = "a"
    to: Literal["next", "first", "same"] = "next"
    ours: bool = False

    @property
    def name(self) -> str:
        name = {
            "next": "rewrite input",
            "first": "set input back",
            "same": "rewrite input as it is",
        }[self.to]
        return f"{name}, by us" if self.ours else name

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        if self.ours:
            name = names_of(head)[self.column]
            text = {"next": f"{name} + 1", "first": "key * 1000", "same": name}[self.to]
            with inline_rows.only("columns"):
                inline_rows.update(uri, among(self.keys), **{name: text})
            return
        rows = self.change(read(head)[0], None)
        _write_in_place(head, self.column, {key: rows[key][self.column] for key in self.keys})

    def change(self, rows: Rows, world: World | None) -> Rows:
        for key in self.keys:
            current: Any = rows[key][self.column]
            rows[key][self.column] = {"next": current + 1, "first": 1000 * key, "same": current}[
                self.to
            ]
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class RewriteTarget(_OnRows):
    """Writes a target in place: values of the writer's own, or NULL."""

    kind = "rewrite target"
    column: Literal["v", "w"] = "v"
    null: bool = False

    @property
    def name(self) -> str:
        return "take values away" if self.null else "rewrite target"

    def act(self, uri: str) -> None:
        values = {key: None if self.null else -2_000_000 - key for key in self.keys}
        _write_in_place(lance.dataset(uri), self.column, values)

    def change(self, rows: Rows, world: World) -> Rows:
        for key in self.keys:
            rows[key][self.column] = None if self.null else -2_000_000 - key
        return rows


def _write_in_place(
    head: lance.LanceDataset, column: str, values: Mapping[int, int | None]
) -> None:
    data = pa.table(
        {"key": list(values), names_of(head)[column]: pa.array(values.values(), pa.int64())}
    )
    head.merge_insert("key").when_matched_update_all().write_mode("rewrite_columns").execute(data)


@dataclass(frozen=True, slots=True, repr=False)
class Compact(Operation):
    """Compacts. `rows` are the rows of a new fragment, `all` includes fragments with few deleted rows, `ours` uses
    `Table.compact_files`.
    """

    rows: int = 1_000_000
    all: bool = False
    deferred: bool = False
    ours: bool = False

    @property
    def name(self) -> str:
        kinds = {
            (True, False): "compaction of all",
            (False, True): "compaction, deferred",
            (True, True): "compaction, deferred",
        }
        return kinds.get((self.all, self.deferred), "compaction")

    def fitted(self, world: World) -> Operation | None:
        # Lance cannot defer the index remap with stable row ids.
        return replace(self, deferred=self.deferred and not world.stable)

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        if self.deferred and not head.describe_indices():
            head.create_scalar_index("key", "BTREE", name="of key")
        threshold = {"materialize_deletions_threshold": 0.0} if self.all else {}
        compact: Any = (
            open_table(uri).compact_files
            if self.ours
            else lance.dataset(uri).optimize.compact_files
        )
        compact(target_rows_per_fragment=self.rows, defer_index_remap=self.deferred, **threshold)
