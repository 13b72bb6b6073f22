"""What other writers do to the table of a history: for each kind of change, how it is done and what it makes of the rows.

The table has a column `key`, which never changes, `a` (the input of `v`), `b` (the input of `w`), `other`, and what writers add. Columns may
be renamed, so that here they go by their field ids. An input is `1000 * key` plus how often it was changed: it tells its row, and no value
comes twice but where somebody sets one back.
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
"""The input of each target; `d` is one that a DataFrame write adds."""

NAMED_BY_ID = len(COLUMNS)
RENAMED = "x"
"""What a new name has at its end; no column that writers add has it in its first name."""
LEAST_ROWS = 4
"""Live rows that deletions leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is there when somebody is about to act.

    Attributes:
        rows: The rows of the latest version.
        used: Every key that there ever was.
        stable: Whether row ids are stable.
        kept: Contents of the versions that are kept and have the targets, by version.
        places: Fragments of the rows.
        oldest: Whether the very first version, which has no targets, is kept.
    """

    rows: Rows
    used: frozenset[int]
    stable: bool
    kept: Mapping[int, Rows]
    places: Mapping[int, int]
    oldest: bool = True


def names_of(dataset: lance.LanceDataset) -> dict[str, str]:
    """Returns the names that columns have now, by their first names."""
    names = {}
    for column in dataset.lance_schema.fields():
        first = column.name().rstrip(RENAMED)
        # `d` gets the id of a target that a restore took away.
        if column.id() < NAMED_BY_ID and first != "d":
            first = COLUMNS[column.id()]
        names[first] = column.name()
    return names


def read(dataset: lance.LanceDataset) -> tuple[Rows, dict[int, int]]:
    """Returns the rows of a version, and the fragments that they are in."""
    names = names_of(dataset)
    table = dataset.scanner(columns=list(names.values()), with_row_address=True).to_table()
    columns = {first: table[now].to_pylist() for first, now in names.items()}
    keys = columns.pop("key")
    assert len(set(keys)) == len(keys), f"rows are there twice: {sorted(keys)}"
    rows = {key: {name: values[at] for name, values in columns.items()} for at, key in enumerate(keys)}
    addresses = table["_rowaddr"].to_pylist()
    return rows, {key: address >> 32 for key, address in zip(keys, addresses, strict=True)}


def new_row(key: int, columns: Sequence[str]) -> Row:
    """Returns a row that another writer adds."""
    return {name: {"a": 1000 * key, "b": 1000 * key, "other": key}.get(name) for name in columns}


def source(dataset: lance.LanceDataset, rows: Mapping[int, Row]) -> pa.Table:
    """Returns rows as a table of all columns, under the names of now."""
    first_names = {now: first for first, now in names_of(dataset).items()}
    values = [{now: {"key": key, **row}.get(first) for now, first in first_names.items()} for key, row in rows.items()]
    return pa.Table.from_pylist(values, schema=pa.schema([(f.name, f.type) for f in dataset.schema]))


def among(keys: Sequence[int]) -> str:
    return f"key IN ({', '.join(map(str, keys))})"


class Short:
    """Shown as the call that makes it, without what goes without saying."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if one.default is MISSING:
                shown.append(repr(value))
            elif value != one.default:
                shown.append(f"{one.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """How Hypothesis shows it."""
        printer.text(repr(self))


@dataclass(frozen=True, slots=True, repr=False)
class Operation(Short, ABC):
    """Something that another writer does."""

    kind: ClassVar[str] = ""
    moves_rows: ClassVar[bool] = False
    """Whether it is an update that writes rows anew."""

    def fitted(self, world: World) -> Operation | None:
        """Returns it as it can be done now; None if it has nothing to do."""
        return self

    @abstractmethod
    def act(self, uri: str) -> None:
        """Does it. Runs in a process of the other writer."""

    def change(self, rows: Rows, world: World) -> Rows:
        """Returns what it makes of rows; those that are given may be changed."""
        return rows

    @property
    def name(self) -> str:
        """Its kind, by which the tests count."""
        return self.kind


@dataclass(frozen=True, slots=True, repr=False)
class _OnRows(Operation):
    """Something that is done to rows that are there."""

    keys: tuple[int, ...]

    def fitted(self, world: World) -> Operation | None:
        keys = tuple(sorted({*self.keys} & world.rows.keys()))
        return replace(self, keys=keys) if keys else None


@dataclass(frozen=True, slots=True, repr=False)
class Append(Operation):
    """Adds rows. With `given`, they have a value of `v`."""

    kind = "append"
    keys: tuple[int, ...]
    given: bool = False

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
            if self.given:
                rows[key]["v"] = -key
        return rows


@dataclass(frozen=True, slots=True, repr=False)
class InsertOnly(Append):
    """Adds rows by a merge whose source has rows that are there already, too."""

    kind = "insert"

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        there = head.to_table(columns=["key"], limit=2)["key"].to_pylist()
        columns = [*names_of(head)]
        rows = {**self.change({}, None, columns), **{key: {"a": 7, "other": 7} for key in there}}
        head.merge_insert("key").when_not_matched_insert_all().execute(source(head, rows))


@dataclass(frozen=True, slots=True, repr=False)
class Delete(_OnRows):
    """Deletes rows."""

    kind = "delete rows"
    ours: bool = False
    """Whether it is done by this package."""

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
    """Deletes all rows of the fragment in which the first of some rows is."""

    kind = "delete fragment"

    def fitted(self, world: World) -> Operation | None:
        place = next((world.places[key] for key in self.keys if key in world.places), None)
        keys = tuple(sorted(key for key, there in world.places.items() if there == place))
        return replace(self, keys=keys) if keys and len(world.rows) - len(keys) >= LEAST_ROWS else None


@dataclass(frozen=True, slots=True, repr=False)
class Update(_OnRows):
    """Writes rows anew with another value of a column; all else is copied along."""

    moves_rows = True
    column: Literal["a", "b", "other"] = "other"
    ours: bool = False

    @property
    def name(self) -> str:
        return ("update, inputs kept" if self.column == "other" else "update of inputs") + (
            ", by us" if self.ours else ""
        )

    def fitted(self, world: World) -> Operation | None:
        there = self.column in next(iter(world.rows.values()))
        return _OnRows.fitted(self, world) if there else None

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
        new: Keys of rows that it adds.
        changed: Keys of rows whose inputs it changes.
        value: What it gives the replaced rows in `v`: what they had, a value of its own, or NULL.
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
        head.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(data)

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
    """Writes an input in place: the value after the one it has, its very first one, or the one that it has."""

    kind = "rewrite input"
    column: Literal["a", "b"] = "a"
    to: Literal["next", "first", "same"] = "next"
    ours: bool = False

    @property
    def name(self) -> str:
        name = {"next": "rewrite input", "first": "set input back", "same": "rewrite input as it is"}[self.to]
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
            now: Any = rows[key][self.column]
            rows[key][self.column] = {"next": now + 1, "first": 1000 * key, "same": now}[self.to]
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


def _write_in_place(head: lance.LanceDataset, column: str, values: Mapping[int, int | None]) -> None:
    data = pa.table({"key": list(values), names_of(head)[column]: pa.array(values.values(), pa.int64())})
    head.merge_insert("key").when_matched_update_all().write_mode("rewrite_columns").execute(data)


@dataclass(frozen=True, slots=True, repr=False)
class Compact(Operation):
    """Compacts. `rows` are the rows of a new fragment, `all` takes fragments with few deleted rows too, `ours` is `Table.compact_files`."""

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
        # Lance cannot defer it with stable row ids.
        return replace(self, deferred=self.deferred and not world.stable)

    def act(self, uri: str) -> None:
        head = lance.dataset(uri)
        if self.deferred and not head.describe_indices():
            head.create_scalar_index("key", "BTREE", name="of key")
        threshold = {"materialize_deletions_threshold": 0.0} if self.all else {}
        compact: Any = open_table(uri).compact_files if self.ours else lance.dataset(uri).optimize.compact_files
        compact(target_rows_per_fragment=self.rows, defer_index_remap=self.deferred, **threshold)
