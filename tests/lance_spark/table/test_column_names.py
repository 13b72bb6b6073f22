"""Names of columns: the same check by every way to make or rename a column, and reads of odd names of other writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark import ColumnNameError, Connection, LanceSparkError, Table, UnsupportedTypeError
from lance_spark.datasource import LanceDataSource
from tests.lance_spark.read.scans import read
from udf_runtime import udf

BAD = (
    "*",
    "a\0b",
    "a`b",
    "a.b",
    ".",
    "",
    "_rowid",
    "_RowAddr",
    "_rowoffset",
    "_row_created_at_version",
    "\ud800",
)

Way = Callable[[Connection, Table, str], object]


@udf(data_type=pa.int64())
def same(id: int) -> int:
    return id


@udf(data_type=pa.int64())
def twice(n: int | None) -> int:
    return -1 if n is None else 2 * n


def _rows(name: str) -> dict[str, list[int]]:
    return {"id": [1], name: [2]}


def _spark_schema(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


def _spark_write(uri: str, name: str, **options: str) -> object:
    return LanceDataSource({"path": uri, **options}).writer(_spark_schema("id", name), False)


def _backfill_write(table: Table, name: str) -> object:
    read = LanceDataSource({"path": table.uri, "with_row_address": "true"}).schema()
    schema = StructType([read["_rowaddr"], StructField(name, LongType())])
    return LanceDataSource({"path": table.uri, "mode": "backfill"}).writer(schema, False)


WAYS: dict[str, Way] = {
    "create_table of Python rows": lambda db, t, name: db.create_table("new", [{"id": 1, name: 2}]),
    "create_table of Python columns": lambda db, t, name: db.create_table(
        "new", {"id": [1], name: [2]}
    ),
    "add of Python rows": lambda db, t, name: t.add([{"id": 1, name: 2}]),
    "merge_insert of Python rows": lambda db, t, name: (
        t.merge_insert("id").when_not_matched_insert_all().execute([{"id": 1, name: 2}])
    ),
    "update": lambda db, t, name: t.update("id = 1", {name: 2}),
    "update of SQL": lambda db, t, name: t.update("id = 1", values_sql={name: "2"}),
    "create_table of Arrow data": lambda db, t, name: db.create_table("new", pa.table(_rows(name))),
    "create_table of a schema": lambda db, t, name: db.create_table(
        "new", schema=pa.schema([(name, pa.int64())])
    ),
    "an overwrite": lambda db, t, name: db.create_table(
        "words", pa.table(_rows(name)), mode="overwrite"
    ),
    "a DataFrame of a new table": lambda db, t, name: _spark_write(db.uri + "/new.lance", name),
    "mergeSchema": lambda db, t, name: _spark_write(t.uri, name, mergeSchema="true"),
    "a DataFrame backfill": lambda db, t, name: _backfill_write(t, name),
    "add_columns of SQL": lambda db, t, name: t.add_columns({name: "id + 1"}),
    "add_columns of a UDF": lambda db, t, name: t.add_columns({name: same}),
    "a new name": lambda db, t, name: t.alter_columns({"path": "text", "name": name}),
    "a new name with a cast": lambda db, t, name: t.alter_columns(
        {"path": "text", "name": name, "data_type": pa.large_string()}
    ),
    "a view": lambda db, t, name: db.create_materialized_view(
        "view", t.search(None).select({name: "id"})
    ),
    "a view with a UDF": lambda db, t, name: db.create_materialized_view(
        "view", t.search(None).select({name: same})
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_cannot_be_read_back_is_refused_before_anything_changes(
    db: Connection, table: Table, way: str
) -> None:
    version, names = table.version, table.schema.names
    for name in BAD:
        with pytest.raises((LanceSparkError, UnicodeEncodeError)) as caught:
            WAYS[way](db, table, name)
        if isinstance(caught.value, UnicodeEncodeError):
            # PyArrow itself refuses half of a surrogate pair in every schema and in data.
            assert name == "\ud800" and way != "create_table of Python rows"
            continue
        # A backfill counts the columns `_rowaddr` and `_rowid` first.
        assert repr(name) in str(caught.value) or name == "_rowid", (name, str(caught.value))
    reopened = db.open_table("words")
    assert (reopened.version, reopened.schema.names, db.table_names()) == (
        version,
        names,
        ["words"],
    )


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_field_of_a_struct_that_cannot_be_read_back_is_refused(db: Connection, name: str) -> None:
    table = db.create_table("t", pa.table({"s": [{"x": 1, "y": 2}], "l": [[{"x": 1}]]}))
    if name:
        for rows in ([{"s": {name: 1}}], {"s": [[{name: 1}]]}):
            with pytest.raises(ColumnNameError, match=r"The column name 's[.]"):
                db.create_table("other", rows)
    with pytest.raises(ColumnNameError) as caught:
        table.alter_columns({"path": "s.x", "name": name})
    assert caught.value.column == f"s.{name}"
    if name != "\ud800":
        for kind, path in (
            (pa.struct([(name, pa.int32())]), "new"),
            (pa.list_(pa.struct([(name, pa.int32())])), "new.element"),
        ):
            with pytest.raises(ColumnNameError) as caught:
                db.create_table("other", schema=pa.schema([("new", kind)]))
            assert caught.value.column == f"{path}.{name}"
    assert table.version == db.open_table("t").version == 1 and db.table_names() == ["t"]


def test_a_column_named_star_of_another_writer_is_read_and_changed_as_itself(
    db: Connection, tmp_path: Path
) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "*": pa.array([10, 20, None, 40], pa.int64()),
            "z": [0] * 4,
        }
    )
    path = f"{db.uri}/star.lance"
    lance.write_dataset(rows, path, max_rows_per_file=2, enable_stable_row_ids=True)
    assert read(path, columns="*").to_pydict() == {"*": [10, 20, None, 40]}
    both = read(path, columns="*", with_row_address=True)
    assert both.to_pydict() == {"*": [10, 20, None, 40], "_rowaddr": [0, 1, 1 << 32, (1 << 32) + 1]}
    table = db.open_table("star")
    assert table.to_arrow(["*"]).to_pydict() == {"*": [10, 20, None, 40]}
    assert table.search(None).select(["*"]).to_arrow().to_pydict() == {"*": [10, 20, None, 40]}
    table.add_columns({"double": (twice, ["*"])})
    table.backfill("double")
    assert table.to_arrow(["double"])["double"].to_pylist() == [20, 40, -1, 80]
    table.update("id = 1", values_sql={"*": "`*` + 1"})
    table.delete("`*` = 10")
    assert sorted(table.to_arrow(["id", "*"]).to_pylist(), key=str) == [
        {"id": 1, "*": 21}, {"id": 2, "*": None}, {"id": 3, "*": 40},
    ]  # fmt: skip
    table.alter_columns({"path": "*", "name": "star"})
    assert sorted(table.to_arrow(["star"])["star"].to_pylist(), key=str) == [21, 40, None]


@pytest.mark.parametrize("name", ["", "a`b"])
def test_a_column_of_another_writer_that_lance_cannot_read_is_refused_by_name(
    db: Connection, name: str
) -> None:
    path = f"{db.uri}/odd.lance"
    lance.write_dataset(pa.table({name: [1], "c": [2]}), path)
    with pytest.raises(UnsupportedTypeError, match=r"which may name c\.$") as caught:
        read(path)
    assert caught.value.column == name
    assert read(path, columns="c").to_pydict() == {"c": [2]}
    table = db.open_table("odd")
    for columns in (None, [name]):
        with pytest.raises(UnsupportedTypeError, match=r"name is empty or holds a backtick"):
            table.to_arrow(columns)
    if name:
        table.alter_columns({"path": name, "name": "mended"})
        assert read(path).to_pydict() == {"mended": [1], "c": [2]}
