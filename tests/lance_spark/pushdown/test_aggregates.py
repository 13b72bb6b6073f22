"""Sums, averages and counts answered by the scan, compared with the same queries without the planner rule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lance_spark.errors import ValueConversionError
from lance_spark.read.aggregates.grouped import grouped
from lance_spark.read.aggregates.terms import Arithmetic, Column, Constant, Term
from lance_spark.read.aggregates.ungrouped import PartialAggregates
from lance_spark.read.planning.pushdown_request import AggregateCall

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 300
_WIDE = Context(prec=100)
_DECIMALS = {"small": (7, 2), "price": (15, 2), "rate": (18, 6), "whole": (18, 0)}

SUMS = [
    "sum(price)", "sum(small)", "sum(rate)", "sum(whole)", "sum(n)", "sum(id)", "sum(price * n)", "sum(price * (1 - small))",
    "sum(price * (1 - small) * (1 + small))", "sum(-1.5 * rate + price)", "sum(CAST(price AS DECIMAL(20, 4)))", "sum(price - 0.5 - n)",
]  # fmt: skip
ANSI_ALONE = {"sum(id)", "sum(price * (1 - small) * (1 + small))"}
"""Sums that may be NULL or wrap around without ANSI: `sum(id)` for ungrouped rows."""

AVERAGES = ["avg(price)", "avg(rate)", "avg(whole)", "avg(n)", "avg(small)"]
COUNTS = ["count(*)", "count(price)", "count(1) + sum(n) / 2", "max(n)"]


def _decimal(i: int, precision: int, scale: int) -> Decimal | None:
    """Returns a number of the type, including its limits, or None."""
    if i % 11 == 0:
        return None
    most = 10**precision - 1
    unscaled = most * (i % 3 - 1) if i % 17 == 0 else (i * 7919) % 100_003 - 40_000
    return Decimal(unscaled).scaleb(-scale)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of numbers, in fragments of 40, some deleted; `key` has NULLs."""
    target = str(tmp_path_factory.mktemp("aggregates") / "t.lance")
    columns: dict[str, pa.Array] = {
        name: pa.array([_decimal(i + p, p, s) for i in range(ROWS)], pa.decimal128(p, s))
        for name, (p, s) in _DECIMALS.items()
    }
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "n": pa.array([i % 13 - 5 if i % 5 else None for i in range(ROWS)], pa.int32()),
            "key": [None if i % 9 == 0 else f"k{i % 4}" for i in range(ROWS)],
            "day": pa.array([dt.date(2024, 1, 1 + i % 28) for i in range(ROWS)]),
            **columns,
        }
    )
    lance.write_dataset(table, target, max_rows_per_file=40).delete("id % 37 = 0")
    return target


@pytest.fixture(params=["true", "false"], ids=["ansi", "no ansi"])
def ansi(
    request: pytest.FixtureRequest, spark: SparkSession, plain_spark: SparkSession
) -> Iterator[bool]:
    for session in (spark, plain_spark):
        session.conf.set("spark.sql.ansi.enabled", request.param)
    yield request.param == "true"
    for session in (spark, plain_spark):
        session.conf.unset("spark.sql.ansi.enabled")


def described(df: DataFrame) -> str:
    return (
        str(df._jdf.queryExecution().optimizedPlan().toString())
        + df._jdf.queryExecution().executedPlan().toString()
    )


def answers(
    session: SparkSession, path: str, keys: list[str], where: str | None, expressions: list[str]
) -> tuple[object, list[Row], str]:
    rows = session.read.format("lance").load(path)
    rows = rows if where is None else rows.filter(where)
    df = rows.groupBy(*keys).agg(*map(F.expr, expressions))
    return df.schema, sorted(df.collect(), key=str), described(df)


@pytest.mark.sample(9)
@pytest.mark.parametrize("keys", [[], ["key"], ["key", "day"]], ids=str)
@pytest.mark.parametrize("where", [None, "day >= DATE '2024-01-10' AND n IS NOT NULL", "id < 0"])
def test_sums_averages_and_counts_are_those_of_spark(
    spark: SparkSession,
    plain_spark: SparkSession,
    path: str,
    ansi: bool,
    keys: list[str],
    where: str | None,
) -> None:
    sums = SUMS if ansi else [s for s in SUMS if s not in ANSI_ALONE]
    expressions = sums + AVERAGES + COUNTS
    schema, rows, plan = answers(spark, path, keys, where, expressions)
    wanted_schema, expected, plain = answers(plain_spark, path, keys, where, expressions)
    assert (schema, rows) == (wanted_schema, expected)
    assert "aggregates: [" not in plain
    assert (
        "aggregates: [sum(price), " in plan
        and ("sum(((price * (1 - small)) * (1 + small)))" in plan) == ansi
    )


def test_sums_of_more_digits_than_64_bits_are_exact(
    spark: SparkSession, plain_spark: SparkSession, tmp_path: Path
) -> None:
    large = pa.decimal128(18, 2)
    table = pa.table(
        {
            "k": [1, 1, 2, 2],
            "a": pa.array([Decimal("9999999999999999.99")] * 3 + [None], large),
            "b": pa.array(
                [
                    Decimal("-9999999999999999.99"),
                    Decimal("1.01"),
                    Decimal("7777777777777777.77"),
                    None,
                ],
                large,
            ),
            "n": pa.array([2**63 - 1, -(2**63), 5, None], pa.int64()),
        }
    )
    target = str(tmp_path / "t.lance")
    lance.write_dataset(table, target, max_rows_per_file=2)

    def collect(session: SparkSession) -> list[Row]:
        df = session.read.format("lance").load(target)
        whole = df.selectExpr("sum(a)", "sum(a * b)", "sum(a + b)", "avg(a)", "sum(n)")
        return whole.collect() + sorted(
            df.groupBy("k")
            .agg(F.expr("sum(a * b)"), F.expr("sum(b)"), F.expr("avg(b)"), F.expr("sum(n)"))
            .collect()
        )

    assert collect(spark) == collect(plain_spark)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("expression", "keys"),
    [("sum(n)", []), ("sum(n)", ["k"]), ("sum(a * a * a)", []), ("sum(a * a * a)", ["k"])],
)
def test_sums_that_overflow_in_spark_are_an_error_or_null_as_without_the_rule(
    spark: SparkSession,
    plain_spark: SparkSession,
    tmp_path: Path,
    ansi: bool,
    expression: str,
    keys: list[str],
) -> None:
    table = pa.table(
        {
            "k": [1] * 4,
            "n": pa.array([2**63 - 1] * 4, pa.int64()),
            "a": pa.array([Decimal("99999999999999.9999")] * 4, pa.decimal128(18, 4)),
        }
    )
    target = str(tmp_path / "t.lance")
    lance.write_dataset(table, target)

    def outcome(session: SparkSession) -> object:
        df = session.read.format("lance").load(target).groupBy(*keys).agg(F.expr(expression))
        try:
            return df.collect()
        except (ArithmeticException, PythonException):
            return "raises"

    assert outcome(spark) == outcome(plain_spark)
    assert outcome(spark) == "raises" or not ansi


@pytest.mark.parametrize(
    "expression",
    ["sum(price * small * rate)", "sum(rate * rate * rate)", "sum(id + n)", "sum(price / 2)"],
)
def test_aggregates_that_spark_rounds_are_left_to_spark(
    spark: SparkSession, path: str, expression: str
) -> None:
    assert "aggregates: [" not in described(
        spark.read.format("lance").load(path).selectExpr(expression)
    )


def test_products_of_more_than_38_digits_by_their_types_are_added_up_where_that_is_an_error_or_right(
    spark: SparkSession, plain_spark: SparkSession, path: str, ansi: bool
) -> None:
    def collect(session: SparkSession) -> tuple[Row, bool]:
        table = session.read.format("lance").load(path).filter("id > 20 AND id < 30")
        df = table.selectExpr("sum(price * price * small)")
        return df.collect()[0], "aggregates: [" in described(df)

    row, pushed = collect(spark)
    assert pushed == ansi and (row, False) == collect(plain_spark)


def test_averages_of_integers_are_left_to_spark_where_their_sum_may_not_fit_a_double(
    spark: SparkSession, tmp_path: Path
) -> None:
    def plan(rows: int) -> str:
        target = str(tmp_path / f"{rows}.lance")
        lance.write_dataset(pa.table({"n": pa.repeat(pa.scalar(1, pa.int32()), rows)}), target)
        return described(spark.read.format("lance").load(target).selectExpr("avg(n)"))

    assert "aggregates: [sum(n), count(n)]" in plan(1 << 22)
    assert "aggregates: [" not in plan((1 << 22) + 1)


# --- arithmetic ------------------------------------------------------------------------------------------------------------------

_SCALES = {"a": 2, "b": 4, "i": 0}
_TERMS: st.SearchStrategy[Term] = st.recursive(
    st.sampled_from([Column("a"), Column("b"), Column("i"), Column("a", unscaled=True)])
    | st.builds(Constant, st.integers(-(10**6), 10**6), st.integers(0, 3)),
    lambda inner: st.builds(Arithmetic, st.sampled_from(["+", "-", "*"]), inner, inner),
    max_leaves=3,
)
_NUMBER = st.one_of(st.none(), st.integers(-(10**18) + 1, 10**18 - 1), st.integers(-100, 100))


def _exactly(term: Term, row: dict[str, int | None]) -> tuple[int | None, int]:
    """Returns a term's unscaled value and its scale, in Python's integers."""
    if isinstance(term, Column):
        return row[term.name], 0 if term.unscaled else _SCALES[term.name]
    if isinstance(term, Constant):
        return term.unscaled, term.scale
    (left_value, p), (right_value, q) = _exactly(term.left, row), _exactly(term.right, row)
    scale = p + q if term.op == "*" else max(p, q)
    if left_value is None or right_value is None:
        return None, scale
    if term.op == "*":
        return left_value * right_value, scale
    left_value, right_value = left_value * 10 ** (scale - p), right_value * 10 ** (scale - q)
    return left_value + right_value if term.op == "+" else left_value - right_value, scale


@given(
    term=_TERMS,
    rows=st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER, st.integers(0, 2)), min_size=1, max_size=12),
    batch_rows=st.integers(1, 5),
)
def test_terms_are_added_up_exactly(
    term: Term, rows: list[tuple[int | None, int | None, int | None, int]], batch_rows: int
) -> None:
    scale = _exactly(term, {"a": 0, "b": 0, "i": 0})[1]
    values: dict[int, list[int]] = {}
    for a, b, i, key in rows:
        value = _exactly(term, {"a": a, "b": b, "i": i})[0]
        values.setdefault(key, []).extend([] if value is None else [value])
    table = pa.table(
        {
            "k": pa.array([row[3] for row in rows], pa.int64()),
            "a": _decimals([row[0] for row in rows], _SCALES["a"]),
            "b": _decimals([row[1] for row in rows], _SCALES["b"]),
            "i": pa.array([row[2] for row in rows], pa.int64()),
        }
    )
    calls = [
        AggregateCall(fn="group", column="k", name="k"),
        AggregateCall(fn="sum", column=None, term=term, scale=scale, name="s"),
    ]
    kind = pa.decimal128(38, scale)
    batches = table.to_batches(batch_rows)

    def in_groups() -> dict[int, int]:
        sums: dict[int, int] = {}
        for batch in grouped(batches, calls, pa.schema([("k", pa.int64()), ("s", kind)])):
            for row in batch.to_pylist():
                sums[row["k"]] = sums.get(row["k"], 0) + int(
                    (row["s"] or Decimal(0)).scaleb(scale, _WIDE)
                )
        return sums

    def as_a_whole() -> int:
        partial = PartialAggregates(calls[1:])
        for batch in batches:
            partial.add(batch)
        (row,) = partial.row(pa.schema([("s", kind)])).to_pylist()
        return int((row["s"] or Decimal(0)).scaleb(scale, _WIDE))

    whole = sum(map(sum, values.values()))
    holds = max(abs(whole), *(abs(sum(some)) for some in values.values()), 0) < 10**38
    try:
        assert (
            in_groups() == {key: sum(some) for key, some in values.items()}
            and as_a_whole() == whole
        )
    except ValueConversionError:
        assert not holds or max(_magnitudes(term, rows)) >= 10**38
    else:
        assert holds


def _magnitudes(
    term: Term, rows: list[tuple[int | None, int | None, int | None, int]]
) -> Iterator[int]:
    """Yields the absolute values of a term and its parts."""
    yield from (abs(_exactly(term, dict(zip("abi", row, strict=False)))[0] or 0) for row in rows)
    if isinstance(term, Arithmetic):
        yield from _magnitudes(term.left, rows)
        yield from _magnitudes(term.right, rows)


def _decimals(unscaled: list[int | None], scale: int) -> pa.Array:
    return pa.array(
        [None if n is None else Decimal(n).scaleb(-scale) for n in unscaled],
        pa.decimal128(18, scale),
    )
