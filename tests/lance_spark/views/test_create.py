"""Creation of views, and queries that cannot become a view; columns of all types through two refreshes."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection, RegistrationError, Table
from lance_spark.errors import (
    BackfillIncompleteError,
    ColumnNotFoundError,
    FilterError,
    LanceSparkError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.search.query import Query
from tests.lance_spark.views.views import ID, make_source, nothing_changes, rows_of, rows_shown
from tests.support.logs import Log
from udf_runtime import Columns, UdfDefinitionError, UnpackedUDF, udf

pytestmark = pytest.mark.sample(5, tests=5)


@udf
def negative(x: int) -> int:
    return -x


def check_refused(db: Connection, query: Query, error: type[Exception], match: str) -> None:
    """Asserts that a view of a query is refused, and never created."""
    before = db.table_names()
    with pytest.raises(error, match=match):
        db.create_materialized_view("v", query)
    assert db.table_names() == before


def check_copied(view: Table, source: Table, *columns: str) -> None:
    """Asserts that a view shows columns of all rows of its source, under the same names."""
    rows = source.to_lance().to_table(columns=list(columns), with_row_id=True).to_pylist()
    expected = sorted(((row.pop("_rowid"), row) for row in rows), key=lambda pair: pair[0])
    assert [
        (row.pop(ID), {name: row[name] for name in columns}) for row in rows_shown(view)
    ] == expected


# Refusals


@pytest.mark.parametrize("bound", ["limit", "offset"])
def test_bounds_are_refused_by_name(bound: str, db: Connection) -> None:
    query = getattr(make_source(db).search(None).select(["k"]), bound)(10)
    check_refused(db, query, RegistrationError, rf"{bound}\(10\)")


def test_a_search_is_refused(db: Connection) -> None:
    check_refused(db, make_source(db).search([1.0, 2.0]), RegistrationError, r"search\(None\)")


@pytest.mark.parametrize("columns", [[], {}, "k", None, 3])
def test_a_selection_that_is_none(columns: Any, db: Connection) -> None:
    with pytest.raises(OptionError, match=r"select|columns"):
        make_source(db).search(None).select(columns)


@pytest.mark.parametrize(
    "columns", [{"a": 3}, {"a": None}, [3], {"": "k"}, {3: "k"}, [negative], {"a": (negative, 3)}]
)
def test_a_selection_of_something_other_than_a_column(columns: Any, db: Connection) -> None:
    with pytest.raises((OptionError, RegistrationError), match="column"):
        make_source(db).search(None).select(columns)


@pytest.mark.parametrize("condition", ["", "  ", None, 3])
def test_a_condition_that_is_no_text(condition: Any, db: Connection) -> None:
    with pytest.raises(OptionError, match=r"where|condition"):
        make_source(db).search(None).where(condition)


@pytest.mark.parametrize("condition", ["nothing = 3", "k =", "k + 1", "k = 'a' AND"])
def test_a_condition_that_is_not_valid(condition: str, db: Connection) -> None:
    check_refused(db, make_source(db).search(None).where(condition), FilterError, "k|nothing")


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        (["nothing"], ColumnNotFoundError, "nothing"),
        (["k", "k"], RegistrationError, "Two columns"),
        ({"a": "k", "A": "x"}, RegistrationError, "Two columns"),
        ({"a": "nothing + 1"}, RegistrationError, "nothing"),
        ({"a": "k +"}, RegistrationError, "no valid"),
        ({"a": ""}, RegistrationError, "no valid"),
        ({"_rowid": "k"}, RegistrationError, "_rowid"),
        ({"a.b": "k"}, RegistrationError, "a.b"),
        ({ID: "k"}, RegistrationError, ID),
        ({"a": (negative, ["nothing"])}, (RegistrationError, ColumnNotFoundError), "nothing"),
        ({"a": (negative, ["k", "x"])}, UdfDefinitionError, "negative"),
        (["K"], ColumnNotFoundError, "K"),
    ],
)
def test_columns_that_are_refused(columns: Any, error: Any, match: str, db: Connection) -> None:
    source = make_source(db)
    before = db.table_names()
    with pytest.raises(error, match=match):
        db.create_materialized_view("v", source.search(None).select(columns))
    assert db.table_names() == before


@pytest.mark.parametrize("expression", ["_rowaddr", "_rowaddr + 1", "_rowoffset", "random()"])
def test_expressions_whose_value_no_column_tells_are_refused(
    expression: str, db: Connection
) -> None:
    check_refused(
        db,
        make_source(db).search(None).select({"k": "k", "a": expression}),
        LanceSparkError,
        "expression|condition",
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("condition", ["_rowaddr >= 10", "random() < 0.5"])
def test_conditions_whose_value_no_column_tells_are_refused(condition: str, db: Connection) -> None:
    check_refused(
        db,
        make_source(db).search(None).select(["k"]).where(condition),
        LanceSparkError,
        "expression|condition",
    )


def test_a_view_of_no_query_or_with_a_used_name_is_refused(db: Connection) -> None:
    source = make_source(db)
    with pytest.raises(OptionError, match="query"):
        db.create_materialized_view("v", ["k"])  # type: ignore[arg-type]
    with pytest.raises(TableExistsError):
        db.create_materialized_view("s", source.search(None))
    db.drop_table("s")
    with pytest.raises(TableNotFoundError):
        db.create_materialized_view("v", source.search(None))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options",
    [
        {"src_version": 0},
        {"src_version": True},
        {"src_version": "1"},
        {"max_rows_per_fragment": 0},
        {"concurrency": -1},
        {"intra_applier_concurrency": None},
        {"intra_applier_concurrency": 1.5},
    ],
)
def test_parameters_of_a_refresh_that_are_refused(options: dict[str, Any], db: Connection) -> None:
    view = make_source(db).search(None).create_materialized_view(db, "v")
    with nothing_changes(view), pytest.raises(OptionError, match=next(iter(options))):
        view.refresh(**options)
    with pytest.raises(UnsupportedOperationError, match="where"):
        view.refresh(where="k = 1")


# Forms


@pytest.mark.sample(1)
def test_all_columns_of_all_rows(db: Connection) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", source.search())
    assert view.schema.names == [ID, "k", "x", "p", "u"]
    view.refresh()
    check_copied(view, source, "k", "x", "p", "u")
    source.to_lance().update({"u": "5"}, where="k < 5")
    view.refresh()
    check_copied(view, source, "k", "x", "p", "u")


def test_names_in_any_order(db: Connection) -> None:
    source = make_source(db)
    view = source.search(None).select(["x", "k"]).create_materialized_view(db, "v")
    assert view.schema.names == [ID, "x", "k"]
    view.refresh()
    check_copied(view, source, "x", "k")


def test_a_view_is_a_table_of_its_folder(db: Connection) -> None:
    source = make_source(db)
    view = source.search(None).select(["k"]).create_materialized_view(db, "v")
    assert set(db.table_names()) == {"s", "v"}
    assert view.to_lance().has_stable_row_ids
    view.refresh()
    again = db.open_table("v")
    source.add(rows_of([20]))
    assert again.refresh().rows_added == 1
    assert view.count_rows() == again.to_spark().count() == 21
    db.drop_table("v")
    assert db.table_names() == ["s"]


def test_the_schema_and_what_is_stored(db: Connection) -> None:
    source = make_source(db)
    query = source.search(None).select(
        {"a": "k + 1", "text": "cast(k as string)", "b": (negative, ["x"])}
    )
    view = query.where("u < 3").create_materialized_view(db, "v")
    schema = view.to_lance().schema
    assert [(used.name, used.type, used.nullable) for used in schema] == [
        (ID, pa.int64(), False),
        ("a", pa.int64(), True),
        ("text", pa.string(), True),
        ("b", pa.int64(), True),
    ]
    stored = json.loads(schema.metadata[b"lance-spark:view"])
    assert (stored["source"], stored["where"]) == ("s.lance", "u < 3")
    assert [used["name"] for used in stored["used"]] == ["k", "x", "u"]
    view.refresh()
    assert [(row["a"], row["text"], row["b"]) for row in rows_shown(view)] == [
        (1, "0", 0),
        (2, "1", -10),
        (3, "2", -20),
    ]


def test_a_source_in_another_folder(db: Connection, tmp_path: Path) -> None:
    source = make_source(db)
    other_db = lance_spark.connect(str(tmp_path / "other"), db.spark, progress=False)
    view = (
        source.search(None)
        .select({"k": "k", "b": negative})
        .create_materialized_view(other_db, "v")
    )
    view.refresh()
    check_copied(view, source, "k")


def test_a_folder_that_is_moved_with_both(db: Connection, tmp_path: Path) -> None:
    source = make_source(db)
    source.search(None).select({"k": "k", "b": negative}).create_materialized_view(
        db, "v"
    ).refresh()
    source.add(rows_of([20]))
    (tmp_path / "db").rename(tmp_path / "moved")
    moved_db = lance_spark.connect(str(tmp_path / "moved"), db.spark, progress=False)
    assert moved_db.open_table("v").refresh().rows_added == 1
    check_copied(moved_db.open_table("v"), moved_db.open_table("s"), "k")


def test_unusual_names(db: Connection) -> None:
    names = ["Big", "two words", "a-b", "ünï", "select", "quote'd", 'double"d', "_x"]
    source = db.create_table(
        "s", pa.table({name: pa.array(range(6), pa.int64()) for name in ["k", *names]})
    )
    view = source.search(None).select([*names, "k"]).create_materialized_view(db, "v")
    view.refresh()
    check_copied(view, source, "k", *names)
    for number, name in enumerate(names):
        values = {
            column: pa.array([100 + number if column == name else 2], pa.int64())
            for column in ["k", *names]
        }
        source.to_lance().merge_insert("k").when_matched_update_all().execute(pa.table(values))
    view.refresh()
    check_copied(view, source, "k", *names)


def test_capitals_in_conditions_and_expressions(db: Connection) -> None:
    source = db.create_table(
        "s", pa.table({"Key": pa.array(range(6), pa.int64()), "two words": ["a"] * 6})
    )
    query = (
        source.search(None).select({"Twice": "Key * 2", "W": "upper(`two words`)"}).where("Key > 1")
    )
    view = db.create_materialized_view("v", query)
    view.refresh()
    assert [(row["Twice"], row["W"]) for row in rows_shown(view)] == [
        (4, "A"),
        (6, "A"),
        (8, "A"),
        (10, "A"),
    ]
    source.to_lance().update({"Key": "Key + 1"}, where="Key = 1 OR Key = 5")
    new = pa.table({"Key": pa.array([6, 7], pa.int64()), "two words": ["b", "c"]})
    source.to_lance().merge_insert(
        "Key"
    ).when_matched_update_all().when_not_matched_insert_all().execute(new)
    view.refresh()
    rows = sorted((row["Twice"], row["W"]) for row in rows_shown(view))
    assert rows == [(4, "A"), (4, "A"), (6, "A"), (8, "A"), (12, "B"), (14, "C")]


# UDFs


def test_a_view_of_udfs_alone(db: Connection, log: Log) -> None:
    source = make_source(db)
    view = source.search(None).select({"y": log.doubling()}).create_materialized_view(db, "v")
    view.refresh()
    assert [row["y"] for row in rows_shown(view)] == [20 * k for k in range(20)]
    log.take()
    source.to_lance().update({"x": "1"}, where="k = 3")
    source.to_lance().update({"u": "1"})
    view.refresh()
    assert [row["y"] for row in rows_shown(view)] == [2 if k == 3 else 20 * k for k in range(20)]
    assert log.take() == [1]


class Sizes(NamedTuple):
    height: int
    width: int


@udf
def measure(x: int) -> Columns[Sizes]:
    return Sizes(x + 1, x + 2)


@pytest.mark.parametrize("prefix", [None, "m_"])
def test_a_udf_of_several_columns(prefix: str | None, db: Connection) -> None:
    source = make_source(db)
    udf_or_unpacked = measure if prefix is None else UnpackedUDF(measure, prefix=prefix)
    view = source.search(None).select(["k", udf_or_unpacked]).create_materialized_view(db, "v")
    names = [f"{prefix or ''}height", f"{prefix or ''}width"]
    assert view.schema.names == [ID, "k", *names]
    view.refresh()
    source.to_lance().update({"x": "x + 100"}, where="k = 3")
    source.to_lance().update({"k": "k + 100"}, where="k = 4")
    result = view.refresh()
    assert result.rows_computed == 1
    rows = source.to_lance().to_table(with_row_id=True).to_pylist()
    expected = sorted((row["_rowid"], row["k"], row["x"] + 1, row["x"] + 2) for row in rows)
    assert [
        (row[ID], row["k"], row[names[0]], row[names[1]]) for row in rows_shown(view)
    ] == expected


@pytest.mark.long
def test_a_udf_over_record_batches(db: Connection, log: Log) -> None:
    source = make_source(db)
    view = (
        source.search(None)
        .select({"k": "k", "y": log.batch_doubling()})
        .create_materialized_view(db, "v")
    )
    view.refresh()
    assert [row["y"] for row in rows_shown(view)] == [20 * k for k in range(20)]
    log.take()
    source.to_lance().update({"x": "1"}, where="k = 3")
    view.refresh()
    assert log.take() == [1]
    # All columns of the source are its inputs.
    source.to_lance().update({"u": "1"}, where="k = 5")
    view.refresh()
    assert log.take() == [50]


def test_a_column_of_the_view_that_is_called_like_an_input(db: Connection, log: Log) -> None:
    source = make_source(db)
    view = (
        source.search(None)
        .select({"x": log.doubling(), "k": "x"})
        .create_materialized_view(db, "v")
    )
    view.refresh()
    assert [(row["x"], row["k"]) for row in rows_shown(view)] == [
        (20 * k, 10 * k) for k in range(20)
    ]
    source.to_lance().update({"k": "1"}, where="k = 5")
    log.take()
    view.refresh()
    assert log.take() == []


@pytest.mark.parametrize("kind", ["skip", "fail"])
def test_a_udf_that_fails(kind: str, db: Connection, log: Log, flag: str) -> None:
    path, skipping = log.path, kind == "skip"
    options: dict[str, Any] = {"error_handling": lance_spark.skip_on_error()} if skipping else {}

    def bad(x: int) -> int:
        import os

        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        if x == 40 and os.path.exists(flag):
            raise ValueError("bad")
        return 2 * x

    source = make_source(db)
    view = (
        source.search(None)
        .select({"k": "k", "y": udf(bad, **options)})
        .create_materialized_view(db, "v")
    )
    Path(flag).touch()
    if skipping:
        result = view.refresh()
        assert next(iter(result.backfills.values())).rows_skipped == 1
    else:
        with pytest.raises(BackfillIncompleteError, match="incomplete"):
            view.refresh()
    assert {row["y"] for row in rows_shown(view) if row["k"] == 4} == {None}
    log.take()
    Path(flag).unlink()
    view.refresh()
    assert log.take().count(40) == 1
    assert [row["y"] for row in rows_shown(view)] == [20 * k for k in range(20)]


def test_blobs_as_inputs(db: Connection, log: Log) -> None:
    path = log.path

    @udf
    def size(b: bytes) -> int:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{len(b)}\n")
        return len(b)

    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table([pa.array([b"a" * k for k in range(6)], pa.large_binary()), pa.array(range(6), pa.int64())],
                    schema=pa.schema([field, pa.field("k", pa.int64())]))  # fmt: skip
    source = db.create_table("s", data)
    check_refused(db, source.search(None), RegistrationError, "blobs")
    check_refused(db, source.search(None).select(["b"]), RegistrationError, "blobs")
    view = source.search(None).select({"k": "k", "n": size}).create_materialized_view(db, "v")
    view.refresh()
    assert [(row["k"], row["n"]) for row in rows_shown(view)] == [(k, k) for k in range(6)]
    log.take()
    source.add(
        pa.table(
            [pa.array([b"z" * 9], pa.large_binary()), pa.array([9], pa.int64())], schema=data.schema
        )
    )
    source.to_lance().delete("k = 2")
    view.refresh()
    assert [(row["k"], row["n"]) for row in rows_shown(view)] == [
        (k, k) for k in (0, 1, 3, 4, 5, 9)
    ]
    assert log.take() == [9]


def test_blobs_as_results_are_refused(db: Connection, log: Log) -> None:
    path = log.path

    @udf(data_type=pa.large_binary(), field_metadata={"lance-encoding:blob": "true"})
    def blob(x: int) -> bytes:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        return b"a" * (x + 1)

    source = make_source(db, range(6))
    with pytest.raises(RegistrationError, match="cannot return blobs"):
        source.search(None).select({"k": "k", "b": blob}).create_materialized_view(db, "v")
    assert "v" not in db.table_names()


# Types

VALUES: dict[str, pa.Array[Any]] = {
    "string": pa.array(["a", None, "c"]),
    "large_string": pa.array(["a", None, "c"], pa.large_string()),
    "binary": pa.array([b"a", None, b""]),
    "bool": pa.array([True, None, False]),
    "int8": pa.array([1, None, -1], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "float": pa.array([1.5, None, float("inf")], pa.float32()),
    "half": pa.array([1.5, None, 2.5], pa.float16()),
    "decimal": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-1.00")], pa.decimal128(10, 2)),
    "date": pa.array([dt.date(2020, 1, 1), None, dt.date(1900, 1, 1)]),
    "timestamp": pa.array([1, None, -1], pa.timestamp("us")),
    "zoned": pa.array([1, None, -1], pa.timestamp("us", "UTC")),
    "nanos": pa.array([1, None, -1], pa.timestamp("ns")),
    "duration": pa.array([1, None, -1], pa.duration("us")),
    "time": pa.array([1, None, 2], pa.time64("us")),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
    "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "half_vector": pa.array([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]], pa.list_(pa.float16(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": 2, "b": "y"}]),
    "nested": pa.array([[{"a": [1, 2]}], None, [{"a": None}, {"a": []}]]),
    "deep": pa.array([{"a": {"b": [{"c": 1}]}}, {"a": None}, {"a": {"b": None}}]),
}  # fmt: skip


SOME = ("half_vector", "nested")
"""Types that pass through UDFs in every run."""


def test_columns_of_all_types(db: Connection) -> None:
    data = pa.table({"k": pa.array(range(3), pa.int64()), **VALUES})
    source = db.create_table("s", data)
    view = source.search(None).where("k >= 0").create_materialized_view(db, "v")
    assert view.schema.types == [pa.int64(), *source.schema.types]
    for change in range(3):
        view.refresh()
        check_copied(view, source, "k", *VALUES)
        if change == 0:
            source.to_lance().update({"k": "k + 10"}, where="k < 2")
        source.add(data)


@pytest.mark.parametrize(
    "kind",
    [kind if kind in SOME else pytest.param(kind, marks=pytest.mark.long) for kind in VALUES],
)
def test_values_of_udfs_of_all_types(kind: str, db: Connection, log: Log) -> None:
    path, type_ = log.path, VALUES[kind].type

    def same(value: pa.Array) -> pa.Array:
        with open(path, "a", encoding="utf-8") as file:
            file.write("1\n" * len(value))
        return value

    data = pa.table({"k": pa.array(range(3), pa.int64()), "v": VALUES[kind]})
    source = db.create_table("s", data)
    computed = udf(same, data_type=type_, input_columns=["v"])
    view = (
        source.search(None)
        .select({"k": "k", "v": "v", "w": computed})
        .create_materialized_view(db, "v")
    )
    assert view.schema.field("v").type == source.schema.field("v").type

    def check(calls: int) -> None:
        view.refresh()
        check_copied(view, source, "k", "v")
        assert all(repr(row["v"]) == repr(row["w"]) for row in rows_shown(view))
        assert len(log.take()) == calls

    check(3)
    # The update rewrites rows with unchanged values.
    source.to_lance().update({"k": "k + 10"}, where="k != 1")
    check(0)
    new = pa.table({"k": pa.array([1], pa.int64()), "v": VALUES[kind].take(pa.array([2]))})
    source.to_lance().merge_insert("k").when_matched_update_all().execute(new)
    source.add(data)
    check(4)


def test_expressions_over_nested_columns(db: Connection) -> None:
    data = pa.table(
        {"k": pa.array(range(3), pa.int64()), "s": VALUES["struct"], "l": VALUES["list"]}
    )
    source = db.create_table("s", data)
    query = (
        source.search(None)
        .select({"a": "s.a", "b": "s['b']", "n": "array_length(l)"})
        .where("s.a IS NOT NULL")
    )
    view = query.create_materialized_view(db, "v")
    view.refresh()
    first = rows_shown(view)
    assert [(row["a"], row["b"]) for row in first] == [(1, "x"), (2, "y")]
    assert first[0]["n"] == 2
    values = {
        name: VALUES[kind].take(pa.array([row]))
        for name, kind, row in (("s", "struct", 2), ("l", "list", 0))
    }
    new = pa.table({"k": pa.array([1], pa.int64()), **values})
    source.to_lance().merge_insert("k").when_matched_update_all().execute(new)
    view.refresh()
    assert len(rows_shown(view)) == 3
    assert [row for row in rows_shown(view) if row[ID] != 1] == first
    assert [(row["a"], row["b"]) for row in rows_shown(view)] == [(1, "x"), (2, "y"), (2, "y")]


@pytest.mark.parametrize(
    "expression", ["1", "cast(NULL AS string)", "'text'", "_rowid", "k IS NULL"]
)
def test_expressions_of_no_column(expression: str, db: Connection) -> None:
    source = make_source(db, range(4))
    view = source.search(None).select({"a": expression}).create_materialized_view(db, "v")
    view.refresh()
    values = {"1": 1, "cast(NULL AS string)": None, "'text'": "text", "k IS NULL": False}
    assert [row["a"] for row in rows_shown(view)] == [values.get(expression, k) for k in range(4)]
    source.to_lance().update({"k": "k + 1"}, where="k = 1")
    source.add(rows_of([7]))
    view.refresh()
    assert len(rows_shown(view)) == 5


def test_a_view_of_a_tagged_version_or_a_branch_is_of_the_main_one(db: Connection) -> None:
    source = make_source(db)
    source.to_lance().tags.create("kept", 1)
    source.to_lance().create_branch("other")
    view = source.search(None).select(["k"]).create_materialized_view(db, "v")
    view.refresh()
    branch = lance.dataset(source.uri).checkout_version(("other", None))
    branch.delete("k < 10")
    view.refresh()
    check_copied(view, source, "k")
