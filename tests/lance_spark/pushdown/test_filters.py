"""The translation of predicates, against real Lance tables: the translated filter selects every row that Spark's logic
selects.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_spark.pushdown import filters
from lance_spark.pushdown.filters import MAX_IN_VALUES, is_exact, translate
from tests.lance_spark.pushdown.mutants import MUTANTS, mutated
from tests.lance_spark.pushdown.predicates import (
    TYPES,
    Predicate,
    column,
    judge,
    leaves,
    literal,
    operations,
    samples,
    sorted_examples,
    stored_values,
    trees,
    walk,
    with_null,
)
from tests.strategies import arrays, facts

pytestmark = pytest.mark.sample(4)

_NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
_SOME = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)


def select(table: pa.Table, sql: str | None, **options: Any) -> list[int]:
    dataset = lance.write_dataset(
        table, "memory://", data_storage_version="2.2", max_rows_per_file=7, **options
    )
    return sorted(dataset.scanner(columns=["id"], filter=sql).to_table()["id"].to_pylist())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        values = table[name].combine_chunks()
        columns[name] = facts(values)
        if pa.types.is_struct(values.type):
            for i, field in enumerate(values.type):
                columns[f"{name}.{field.name}"] = [
                    None if v is None else v[i] for v in facts(values)
                ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def kinds_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    kinds = {field.name: field.type for field in schema}
    for field in schema:
        if pa.types.is_struct(field.type):
            kinds |= {f"{field.name}.{inner.name}": inner.type for inner in field.type}
    return kinds


def check(table: pa.Table, predicate: Predicate) -> str | None:
    """Asserts that no row is lost, and, for exact translations, that no extra row is selected."""
    sql = translate(predicate, table.schema)
    expected_ids = [
        row["id"] for row in rows_of(table) if judge(predicate, row, kinds_of(table.schema))
    ]
    got = select(table, sql)
    assert set(expected_ids) <= set(got), (
        f"{sql} loses {set(expected_ids) - set(got)} of {predicate}"
    )
    assert not is_exact(predicate, table.schema) or set(expected_ids) == set(got), (
        f"{sql} is not exact: {predicate}"
    )
    return sql


@st.composite
def typed_tables(draw: st.DrawFn, name: str, rows: int = 20) -> pa.Table:
    values = draw(arrays(pa.field("c", TYPES[name]), rows))
    return pa.table({"id": pa.array(range(rows)), "c": values})


PAIRS = [(name, op) for name in TYPES for op in operations(name)]


@pytest.mark.parametrize(("name", "op"), PAIRS)
@given(data=st.data())
@settings(_SOME, max_examples=3)
def test_each_operation_on_each_type_selects_what_spark_would(
    name: str, op: str, data: st.DataObject
) -> None:
    table = data.draw(typed_tables(name))
    present = [value for value in stored_values(table["c"].combine_chunks()) if value is not None]
    predicate = data.draw(leaves(["c"], name, op, present=present))
    for chosen in (predicate, {"op": "not", "args": [predicate]}):
        sql = check(table, chosen)
        may_stay = (
            (chosen["op"] == "not" and op == "like")
            or name in ("float16", "fixed_size_binary")
            or _says_nothing(chosen)
        )
        assert sql is not None or may_stay, f"{chosen} is not pushed"


def _says_nothing(predicate: Predicate) -> bool:
    return any(
        leaf["op"] == "like" and leaf["args"][1]["value"][:1] in ("", "%", "_")
        for leaf in walk(predicate)
    )


@given(data=st.data())
@settings(_SOME, max_examples=75)
def test_trees_of_and_or_not_never_lose_a_row(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3, unique=True))
    arrays_ = [
        data.draw(arrays(pa.field(f"c{i}", TYPES[name]), 12)) for i, name in enumerate(names)
    ]
    table = pa.table({"id": pa.array(range(12)), **{f"c{i}": a for i, a in enumerate(arrays_)}})
    each = [
        leaves([f"c{i}"], name, present=[v for v in stored_values(arrays_[i]) if v is not None])
        for i, name in enumerate(names)
    ]
    check(table, data.draw(trees(st.one_of(*each))))


@given(data=st.data())
@settings(_SOME)
def test_fields_of_structs_are_reached_and_null_structs_have_null_fields(
    data: st.DataObject,
) -> None:
    name = data.draw(st.sampled_from(sorted(set(TYPES) - {"dictionary<string>"})))
    inner = pa.struct([pa.field("a", TYPES[name]), pa.field("x y", pa.int32())])
    table = pa.table({"id": pa.array(range(12)), "s": data.draw(arrays(pa.field("s", inner), 12))})
    predicate = data.draw(trees(leaves(["s", "a"], name)))
    check(table, predicate)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 5e-324])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("index", [None, "BTREE", "ZONEMAP"])
def test_every_nan_and_both_zeros_are_kept_with_and_without_an_index(
    kind: str, value: float, index: Any, tmp_path: Path
) -> None:
    if index is not None and kind == "float16":
        index = None
    dtype = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[kind]
    values = np.array(
        [0.0, -0.0, 1.0, -1.0, math.nan, _NEGATIVE_NAN, math.inf, -math.inf, 5e-324], dtype
    )
    table = pa.table(
        {
            "id": pa.array(range(len(values) + 1)),
            "c": pa.concat_arrays([pa.array(values), pa.array([None], TYPES[kind])]),
        }
    )
    dataset = lance.write_dataset(table, str(tmp_path / "t.lance"))
    if index is not None:
        dataset.create_scalar_index("c", index)
    for op in ("=", "<=>", "<", "<=", ">", ">=", "in"):
        predicate = {"op": op, "args": [column(["c"], TYPES[kind]), literal(TYPES[kind], value)]}
        for chosen in (predicate, {"op": "not", "args": [predicate]}):
            sql = translate(chosen, table.schema)
            got = dataset.scanner(columns=["id"], filter=sql).to_table()["id"].to_pylist()
            expected_ids = {r["id"] for r in rows_of(table) if judge(chosen, r, {"c": TYPES[kind]})}
            assert expected_ids <= set(got), (sql, index)
            assert not is_exact(chosen, table.schema) or expected_ids == set(got), (sql, index)


@pytest.mark.parametrize(
    "name", ["Upper", "sp ace", 'do"uble', "qu'ote", "select", "ünï", "123", "a-b", "%", "NULL"]
)
def test_any_name_can_be_pushed(name: str) -> None:
    table = pa.table({"id": [0, 1, 2], name: [0, 1, None]})
    predicate = {"op": "=", "args": [column([name], pa.int64()), literal(pa.int64(), 1)]}
    assert select(table, check(table, predicate)) == [1]


def test_a_name_with_a_backtick_is_left_to_spark() -> None:
    schema = pa.schema([("a`b", pa.int64())])
    assert translate({"op": "is_null", "args": [column(["a`b"], pa.int64())]}, schema) is None


@pytest.mark.parametrize("name", ["_rowaddr", "_rowid"])
def test_row_addresses_and_ids_can_be_filtered(name: str) -> None:
    table = pa.table({"id": pa.array(range(20))})
    address = {"op": "col", "name": [name], "type": "bigint"}
    low = {"op": ">=", "args": [address, literal(pa.int64(), 1 << 32)]}
    high = {"op": "<", "args": [address, literal(pa.int64(), (1 << 32) + 3)]}
    sql = translate({"op": "and", "args": [low, high]}, table.schema)
    assert select(table, sql) == [7, 8, 9]
    assert (
        translate({"op": "<", "args": [address, literal(pa.int64(), 0)]}, table.schema) == "FALSE"
    )


def test_a_column_of_that_name_comes_before_the_row_address() -> None:
    table = pa.table({"id": [0, 1], "_rowaddr": ["x", "y"]})
    predicate = {"op": "=", "args": [column(["_rowaddr"], pa.string()), literal(pa.string(), "y")]}
    assert translate(predicate, table.schema) == "`_rowaddr` = 'y'"


def _in(count: int, kind: pa.DataType = pa.int64()) -> Predicate:  # noqa: B008 - a constant
    values = [literal(kind, i * 3 if kind == pa.int64() else f"v{i}") for i in range(count)]
    return {"op": "in", "args": [column(["c"], kind), *values]}


def test_a_long_list_of_integers_becomes_a_range_and_one_of_strings_is_left_to_spark() -> None:
    numbers = pa.schema([("c", pa.int64())])
    assert (
        translate(_in(MAX_IN_VALUES), numbers)
        == f"`c` IN ({', '.join(str(i * 3) for i in range(MAX_IN_VALUES))})"
    )
    assert translate(_in(MAX_IN_VALUES + 1), numbers) == f"`c` >= 0 AND `c` <= {MAX_IN_VALUES * 3}"
    assert translate({"op": "not", "args": [_in(MAX_IN_VALUES + 1)]}, numbers) is None
    assert translate(_in(MAX_IN_VALUES + 1, pa.string()), pa.schema([("c", pa.string())])) is None


def test_thousands_of_disjuncts_and_deep_nesting_parse_or_are_left_to_spark() -> None:
    table = pa.table({"id": pa.array(range(5)), "c": pa.array(range(5))})
    equal = [
        {"op": "=", "args": [column(["c"], pa.int64()), literal(pa.int64(), i)]}
        for i in range(3000)
    ]
    assert check(table, {"op": "or", "args": equal}) is not None
    tree = equal[0]
    for depth in range(60):
        tree = {"op": "or" if depth % 2 else "and", "args": [tree, equal[depth % 5]]}
        check(table, tree)


@pytest.mark.parametrize(
    ("predicate", "sql"),
    [
        (
            {"op": "and", "args": [{"op": "unknown"}, {"op": "is_null", "args": ["c"]}]},
            "`c` IS NULL",
        ),
        ({"op": "or", "args": [{"op": "unknown"}, {"op": "is_null", "args": ["c"]}]}, None),
        (
            {
                "op": "not",
                "args": [
                    {"op": "or", "args": [{"op": "unknown"}, {"op": "is_null", "args": ["c"]}]}
                ],
            },
            "`c` IS NOT NULL",
        ),
        (
            {
                "op": "not",
                "args": [
                    {"op": "and", "args": [{"op": "unknown"}, {"op": "is_null", "args": ["c"]}]}
                ],
            },
            None,
        ),
        ({"op": "not", "args": [{"op": "unknown"}]}, None),
        ({"op": "unknown"}, None),
        ({"op": "from a later release", "args": ["c"]}, None),
        ({"op": "lit", "type": "boolean", "value": True}, None),
        ({"op": "lit", "type": "boolean", "value": False}, "FALSE"),
        ({"op": "lit", "type": "boolean", "value": None}, "FALSE"),
    ],
)
def test_unknown_predicates_select_all_rows(predicate: Predicate, sql: str | None) -> None:
    reference = column(["c"], pa.int64())

    def fill(p: Predicate) -> Predicate:
        return (
            {**p, "args": [reference if a == "c" else fill(a) for a in p["args"]]}
            if "args" in p
            else p
        )

    assert translate(fill(predicate), pa.schema([("c", pa.int64())])) == sql


@pytest.mark.parametrize(
    "field",
    [
        pa.field("c", pa.date64()),
        pa.field("c", pa.decimal256(40, 2)),
        pa.field("c", pa.time64("us")),
        pa.field("c", pa.duration("us")),
        pa.field("c", pa.list_(pa.int64())),
        pa.field("c", pa.dictionary(pa.int8(), pa.int64())),
    ],
)
def test_comparisons_of_other_types_are_left_to_spark(field: pa.Field) -> None:  # type: ignore[type-arg]
    schema = pa.schema([field])
    reference = {"op": "col", "name": ["c"], "type": "bigint"}
    assert translate({"op": "=", "args": [reference, literal(pa.int64(), 1)]}, schema) is None
    assert translate({"op": "is_null", "args": [reference]}, schema) == "`c` IS NULL"


@pytest.mark.parametrize("key", [b"ARROW:extension:name", b"lance-encoding:blob"])
def test_extension_types_and_blobs_are_left_to_spark_altogether(key: bytes) -> None:
    schema = pa.schema([pa.field("c", pa.large_binary(), metadata={key: b"x"})])
    assert translate({"op": "is_null", "args": [column(["c"], pa.large_binary())]}, schema) is None


@pytest.mark.parametrize("spark", ["string collate UNICODE_CI", "char(3)", "timestamp"])
def test_a_literal_or_column_of_an_unexpected_spark_type_is_left_to_spark(spark: str) -> None:
    schema = pa.schema([("c", pa.string())])
    reference = {"op": "col", "name": ["c"], "type": spark}
    assert (
        translate(
            {"op": "=", "args": [reference, {"op": "lit", "type": spark, "value": "a"}]}, schema
        )
        is None
    )
    assert (
        translate({"op": "starts_with", "args": [reference, literal(pa.string(), "a")]}, schema)
        is None
    )


def test_elements_of_lists_are_left_to_spark() -> None:
    schema = pa.schema([("c", pa.list_(pa.struct([("a", pa.int64())])))])
    assert translate({"op": "is_null", "args": [column(["c", "a"], pa.int64())]}, schema) is None


@pytest.mark.parametrize(
    ("kind", "value", "op", "sql"),
    [
        (pa.uint8(), 255, ">", "FALSE"),
        (pa.uint8(), 300, "<", "`c` IS NOT NULL"),
        (pa.uint8(), -1, "<=", "FALSE"),
        (pa.uint8(), -1, "<>", None),
        (pa.int64(), -(2**63), ">=", "`c` IS NOT NULL"),
        (pa.int64(), -(2**63), "=", "`c` = arrow_cast('-9223372036854775808', 'Int64')"),
        (pa.uint64(), 2**64 - 1, "=", "`c` = 18446744073709551615"),
        (
            pa.decimal128(38, 10),
            Decimal("-0.0000000001"),
            "=",
            "`c` = CAST('-0.0000000001' AS decimal(38,10))",
        ),
        (pa.timestamp("s"), -1, ">=", "`c` >= arrow_cast(-1, 'Timestamp(Second, None)')"),
    ],
)
def test_literals_at_the_edges_of_the_stored_type(
    kind: pa.DataType, value: Any, op: str, sql: str | None
) -> None:
    predicate = {"op": op, "args": [column(["c"], kind), literal(kind, value)]}
    assert translate(predicate, pa.schema([("c", kind)])) == sql


def test_a_moment_between_two_stored_ones_moves_to_the_neighbour() -> None:
    schema = pa.schema([("c", pa.timestamp("s", "UTC"))])
    moment = {"op": "lit", "type": "timestamp", "value": "-1500000"}

    def sql(op: str) -> str | None:
        return translate(
            {"op": op, "args": [column(["c"], schema.field("c").type), moment]}, schema
        )

    second = "arrow_cast({}, 'Timestamp(Second, Some(\"UTC\"))')"
    assert sql("<") == f"`c` < {second.format(-1)}"
    assert sql("<=") == f"`c` <= {second.format(-2)}"
    assert sql(">") == f"`c` > {second.format(-2)}"
    assert sql(">=") == f"`c` >= {second.format(-1)}"
    assert sql("=") == "FALSE"


def test_a_null_test_that_follows_from_a_comparison_is_not_sent() -> None:
    schema = pa.schema([("c", pa.int64()), ("d", pa.int64())])
    present = {"op": "is_not_null", "args": [column(["c"], pa.int64())]}
    equal = {"op": "=", "args": [column(["c"], pa.int64()), literal(pa.int64(), 1)]}
    equality = {"op": "=", "args": [column(["d"], pa.int64()), literal(pa.int64(), 1)]}
    assert translate({"op": "and", "args": [present, equal]}, schema) == "`c` = 1"
    assert (
        translate({"op": "and", "args": [present, equality]}, schema)
        == "`c` IS NOT NULL AND `d` = 1"
    )


def test_two_columns_of_one_stored_type_are_compared_by_lance() -> None:
    table = pa.table(
        {
            "id": pa.array(range(4)),
            "a": [1, 2, None, 3],
            "b": [1, 1, None, 4],
            "f": [1.0, 2.0, 3.0, 4.0],
        }
    )
    for op in ("=", "<", "<=", ">", ">=", "<=>"):
        assert (
            check(table, {"op": op, "args": [column(["a"], pa.int64()), column(["b"], pa.int64())]})
            is not None
        )
    assert translate({"op": "=", "args": [column(["f"], pa.float64())] * 2}, table.schema) is None


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_wrong_translation_of_any_operation_is_noticed(mutant: str) -> None:
    op = MUTANTS[mutant][0]
    with mutated(mutant), pytest.raises(AssertionError, match=r"loses|is not exact"):
        check_samples(op)
    assert filters.LEAVES[op].__module__ == filters.__name__


def check_samples(op: str) -> None:
    for name in (name for name in TYPES if op in operations(name)):
        present = sorted_examples(name)
        table = pa.table(
            {"id": pa.array(range(len(present) + 1)), "c": with_null(present, TYPES[name])}
        )
        for value in present:
            for predicate in samples(name, op, value, present[-1]):
                check(table, predicate)
                check(table, {"op": "not", "args": [predicate]})
