"""The tables of a history with views: the source, a view of the source, and a view of that view. This module makes and
reads them.

The source is the table of the histories of backfills. A view has the columns `key`, `e` (an expression), and `u` (of a
UDF whose calls are logged). Another writer may add columns. Columns may be renamed, so this module identifies columns
by field id.
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
"""First name of the view column with the row ids of the source."""

COLUMNS = (ID, "key", "e", "u")
"""First names of a view's columns, in the order of their field ids."""

ById = dict[int, Row]
"""Rows by their row ids, `key` among their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A view and its rules.

    Attributes:
        name: Its name.
        source: The name of its source.
        expression: The expression of `e`.
        condition: Its filter.
        input: The source column for the UDF of `u`.
        used: All used columns of its source.
        e: Returns the right `e` for a row of the source.
        selects: Tells whether the view selects a row of the source.
    """

    name: str
    source: str
    expression: str
    condition: str
    input: str
    used: tuple[str, ...]
    e: Callable[[Row], int | None]
    selects: Callable[[Row], bool]

    def same(self, then: Row, current: Row) -> bool:
        """Tells whether all used columns of a row are unchanged."""
        return all(then[name] == current[name] for name in self.used)

    def u(self, row: Row) -> int | None:
        """Returns the right `u` for a row of the source."""
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
    """Returns a UDF that logs each call, after passing a point."""

    def computed(x: int | None) -> int | None:
        from tests.histories.views.refreshes import called

        if x is None:
            return None
        called(name, x)
        return None if x % 7 == 3 else x * 10

    return udf(data_type=pa.int64(), version="1", name=f"computed_{name}")(computed)


def make_tables(
    home: str, spark: SparkSession, fragments: tuple[int, ...], *, chain: bool
) -> Connection:
    """Makes the source with its rows, and the empty views."""
    key = 0
    for number, rows in enumerate(fragments):
        data = [{"key": k, **new_row(k, operations.COLUMNS[1:])} for k in range(key, key + rows)]
        table = pa.Table.from_pylist(
            data, schema=pa.schema([(name, pa.int64()) for name in operations.COLUMNS])
        )
        mode = "append" if number else "create"
        lance.write_dataset(table, f"{home}/t.lance", mode=mode, enable_stable_row_ids=True)
        key += rows
    db = lance_spark.connect(home, spark, progress=False)
    for shape in SHAPES.values() if chain else [SHAPES["v"]]:
        columns: Any = {
            "key": "key",
            "e": shape.expression,
            "u": (noting_udf(shape.name), [shape.input]),
        }
        query = db.open_table(shape.source).search(None).select(columns).where(shape.condition)
        db.create_materialized_view(shape.name, query)
    return db


def open_inline(uri: str) -> Table:
    """Opens a view whose jobs run in this process, without Spark."""
    from tests.histories.views.refreshes import InlineSession

    session: Any = InlineSession()
    return Table(
        DatasetRef.at(uri), "view", lambda: session, query_spark=lambda: session, progress=False
    )


def names_of(name: str, dataset: lance.LanceDataset) -> dict[str, str]:
    """Returns the present names of a table's columns, by their first names."""
    if name == "t":
        return operations.names_of(dataset)
    names = {}
    for column in dataset.lance_schema.fields():
        first = COLUMNS[column.id()] if column.id() < len(COLUMNS) else column.name()
        names[first] = column.name()
    return names


@dataclass(slots=True, kw_only=True)
class Version:
    """A version of a table, with the required contents if the table is a view.

    Attributes:
        number: Its number.
        by: Name of the refresh or the operation that committed the version.
        rows: Its rows.
        places: The fragments of these rows, by key.
        names: Names of its columns, by their first names.
        shows: The version of its source that a view shows; None before the first refresh.
        since: The version of the view in which this became known.
        out: Row ids of source rows whose view rows were deleted, while the source rows stay unchanged.
        doubled: Whether a view has duplicate rows after a second first refresh, which must be taken back.
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
        """Its rows, in the form for operations."""
        return {
            _number(row["key"]): {name: value for name, value in row.items() if name != "key"}
            for row in self.rows.values()
        }

    @property
    def by_source(self) -> ById:
        """The rows of a view, by the row ids of its source."""
        return {_number(row[ID]): row for row in self.rows.values()}

    def like(self, model: Version) -> Version:
        """Returns this version as a view that shows the same source version as `model`."""
        return dataclasses.replace(
            self, shows=model.shows, since=model.since, out=model.out, doubled=model.doubled
        )


def read(name: str, dataset: lance.LanceDataset, by: Any) -> Version:
    """Reads a version of a table."""
    names = names_of(name, dataset)
    scanner = dataset.scanner(columns=list(names.values()), with_row_id=True, with_row_address=True)
    table = scanner.to_table()
    columns = {first: table[current_name].to_pylist() for first, current_name in names.items()}
    ids, addresses = table["_rowid"].to_pylist(), table["_rowaddr"].to_pylist()
    rows = {
        number: {first: values[at] for first, values in columns.items()}
        for at, number in enumerate(ids)
    }
    assert len(rows) == len(ids), "row ids are there twice"
    places = {key: address >> 32 for key, address in zip(columns["key"], addresses, strict=True)}
    return Version(number=dataset.version, by=by, rows=rows, places=places, names=names)
