"""The tables of a history with views: the source, a view of it, and a view of that view; how they are made, and how they are read.

The source is the one that histories of backfills have. A view has the columns `key`, `e` (an expression), and `u` (of a UDF whose calls are
noted); another writer may give it columns of its own. Columns may be renamed, so that here they go by their field ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table
from lance_spark.dataset import DatasetRef
from tests.histories import operations
from tests.histories.jobs import value
from tests.histories.operations import Row, Rows, new_row
from udf_runtime import UDF, udf

ID = "id"
"""First name of a view's column that has the row ids of its source."""

COLUMNS = (ID, "key", "e", "u")
"""First names of a view's columns, in the order of their field ids."""

ById = dict[int, Row]
"""Rows by their row ids, `key` among their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A view, and what is right in it.

    Attributes:
        name: Its name.
        source: That of its source.
        expression: What `e` is.
        condition: Which rows it selects.
        input: The column of its source that the UDF of `u` gets.
        used: The columns of its source that it uses.
        e: Returns what `e` is to be for a row of the source.
        selects: Tells whether the view is to have a row of the source.
    """

    name: str
    source: str
    expression: str
    condition: str
    input: str
    used: tuple[str, ...]
    e: Callable[[Row], int | None]
    selects: Callable[[Row], bool]

    def same(self, then: Row, now: Row) -> bool:
        """Tells whether nothing that the view uses has changed in a row."""
        return all(then[name] == now[name] for name in self.used)

    def u(self, row: Row) -> int | None:
        """Returns what `u` is to be for a row of the source."""
        x = row[self.input]
        return None if x is None else value(x)


def _number(value: int | None) -> int:
    assert value is not None
    return value


SHAPES = {
    "v": Shape(
        name="v",
        source="t",
        expression="b * 2",
        condition="b % 3 <> 1",
        input="a",
        used=("key", "a", "b"),
        e=lambda row: _number(row["b"]) * 2,
        selects=lambda row: _number(row["b"]) % 3 != 1,
    ),
    "w": Shape(
        name="w",
        source="v",
        expression="u + 1",
        condition="key % 4 <> 1",
        input="e",
        used=("key", "e", "u"),
        e=lambda row: None if row["u"] is None else row["u"] + 1,
        selects=lambda row: _number(row["key"]) % 4 != 1,
    ),
}


def noting_udf(name: str) -> UDF:
    """Returns a UDF that notes each call, and passes a point there."""

    def computed(x: int | None) -> int | None:
        from tests.histories.views.refreshes import called

        if x is None:
            return None
        called(name, x)
        return None if x % 7 == 3 else x * 10

    return udf(data_type=pa.int64(), version="1", name=f"computed_{name}")(computed)


def make_tables(home: str, spark: SparkSession, fragments: tuple[int, ...], *, chain: bool) -> Connection:
    """Makes the source with its rows, and the views, which are empty."""
    key = 0
    for number, rows in enumerate(fragments):
        data = [{"key": k, **new_row(k, operations.COLUMNS[1:])} for k in range(key, key + rows)]
        table = pa.Table.from_pylist(data, schema=pa.schema([(name, pa.int64()) for name in operations.COLUMNS]))
        mode = "append" if number else "create"
        lance.write_dataset(table, f"{home}/t.lance", mode=mode, enable_stable_row_ids=True)
        key += rows
    db = lance_spark.connect(home, spark, progress=False)
    for shape in SHAPES.values() if chain else [SHAPES["v"]]:
        columns: Any = {"key": "key", "e": shape.expression, "u": (noting_udf(shape.name), [shape.input])}
        query = db.open_table(shape.source).search(None).select(columns).where(shape.condition)
        db.create_materialized_view(shape.name, query)
    return db


def open_inline(uri: str) -> Table:
    """Opens a view whose jobs run in this process, without Spark."""
    from tests.histories.views.refreshes import Here

    session: Any = Here()
    return Table(DatasetRef.at(uri), "view", lambda: session, query_spark=lambda: session, progress=False)


def names_of(name: str, dataset: lance.LanceDataset) -> dict[str, str]:
    """Returns the names that the columns of a table have now, by their first names."""
    if name == "t":
        return operations.names_of(dataset)
    names = {}
    for column in dataset.lance_schema.fields():
        first = COLUMNS[column.id()] if column.id() < len(COLUMNS) else column.name()
        names[first] = column.name()
    return names


@dataclass(slots=True, kw_only=True)
class Version:
    """A version of a table, and for one of a view what it has to be.

    Attributes:
        number: Its number.
        by: Name of the refresh that made it, or the operation.
        rows: Its rows.
        places: The fragments of these, by key.
        names: Names of its columns, by their first names.
        shows: The version of its source that a view shows; None before the first refresh.
        since: Its version that has been known to show it.
        out: Row ids of the source of which rows were deleted in a view, as long as the source's rows stay as they are.
        doubled: Whether a view has rows twice, because a second first refresh landed, which is to be taken back.
    """

    number: int
    by: Any
    rows: ById
    places: Mapping[int, int]
    names: Mapping[str, str]
    shows: int | None = None
    since: int = 0
    out: frozenset[int] = frozenset()
    doubled: bool = False

    @property
    def by_key(self) -> Rows:
        """Its rows as operations know them."""
        return {
            _number(row["key"]): {name: value for name, value in row.items() if name != "key"}
            for row in self.rows.values()
        }

    @property
    def by_source(self) -> ById:
        """The rows of a view, by the row ids of its source."""
        return {_number(row[ID]): row for row in self.rows.values()}

    def like(self, other: Version) -> Version:
        """Returns it as a view that shows what another version shows."""
        return dataclasses.replace(self, shows=other.shows, since=other.since, out=other.out, doubled=other.doubled)


def read(name: str, dataset: lance.LanceDataset, by: Any) -> Version:
    """Reads a version of a table."""
    names = names_of(name, dataset)
    scanner = dataset.scanner(columns=list(names.values()), with_row_id=True, with_row_address=True)
    table = scanner.to_table()
    columns = {first: table[now].to_pylist() for first, now in names.items()}
    ids, addresses = table["_rowid"].to_pylist(), table["_rowaddr"].to_pylist()
    rows = {number: {first: values[at] for first, values in columns.items()} for at, number in enumerate(ids)}
    assert len(rows) == len(ids), "row ids are there twice"
    places = {key: address >> 32 for key, address in zip(columns["key"], addresses, strict=True)}
    return Version(number=dataset.version, by=by, rows=rows, places=places, names=names)
