"""Proof by difference: the same queries on the same data with the rule, without the rule, and on Parquet."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_spark.pushdown.filters import translate
from tests.lance_spark.pushdown.datasets import Dataset, datasets, spark_types_agree
from tests.lance_spark.pushdown.mutants import MUTANTS, mutated
from tests.lance_spark.pushdown.predicates import (
    TYPES,
    Predicate,
    operations,
    samples,
    sorted_examples,
    walk,
    with_null,
)
from tests.lance_spark.pushdown.queries import (
    RandomQuery,
    directed,
    fallible_filters,
    filtered,
    random_filters,
    rows_by_query,
    shapes,
    strict,
    union,
)

pytestmark = pytest.mark.sample(1, tests=2)

FEWEST_CASES = 100
PUSHED_SHARE = 0.7
MOST_EXTRA_TURNS = 12
SHAPES = 3

Pairs = Sequence[tuple[str, str]]
"""Types with operations."""


@dataclass(slots=True)
class QueryTally:
    """Counts over all datasets."""

    cases: int = 0
    translatable: int = 0
    fewer_rows: int = 0
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{self.cases} cases, {self.translatable} translatable filters, {self.fewer_rows} of them read fewer rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A scan of the executed plan: its description, and the number of rows for Spark."""

    description: str
    rows: int


def scans_by_query(df: DataFrame) -> dict[int, Scanned]:
    """Returns the scan of each branch of an executed union of filters."""
    scans: dict[int, Scanned] = {}

    def visit(node: Any, number: int | None) -> None:
        name = node.nodeName()
        if name == "Project":
            match = re.search(r"\b(\d+) AS q#", node.simpleString(100))
            number = int(match[1]) if match else number
        if name.startswith("BatchScan") and number is not None:
            rows = node.metrics().apply("numOutputRows").value()
            scans[number] = Scanned(description=node.scan().description(), rows=int(rows))
        children = node.children()
        for i in range(children.size()):
            visit(children.apply(i), number)

    visit(df._jdf.queryExecution().executedPlan(), None)
    return scans


def load(session: SparkSession, folder: Path) -> None:
    session.read.format("lance").load(str(folder / "t.lance")).createOrReplaceTempView("lance_t")


def run(
    session: SparkSession, queries: Sequence[RandomQuery], table: str
) -> tuple[DataFrame, dict[int, list[str]]]:
    df = session.sql(union(queries, table))
    return df, rows_by_query(df.collect())


def assert_same(
    queries: Sequence[RandomQuery],
    got: dict[int, list[str]],
    expected: dict[int, list[str]],
    what: str,
) -> None:
    for number, query in enumerate(queries):
        first, second = Counter(got.get(number, [])), Counter(expected.get(number, []))
        more, fewer = list((first - second).elements())[:3], list((second - first).elements())[:3]
        assert first == second, f"{what} differ, more are {more}, fewer {fewer}, for: {query.sql}"


def compare(
    spark: SparkSession, plain: SparkSession, folder: Path, queries: Sequence[RandomQuery]
) -> DataFrame:
    """Runs queries three times and asserts equal rows; returns the pushed-down DataFrame."""
    load(spark, folder)
    load(plain, folder)
    # Spark's own pushdown into Parquet loses rows: `x <=> NaN` skips row groups by statistics, which exclude NaN.
    plain.conf.set("spark.sql.parquet.filterPushdown", "false")
    plain.read.parquet(str(folder / "t.parquet")).createOrReplaceTempView("parquet_t")
    df, pushed = run(spark, queries, "lance_t")
    _, parquet = run(plain, queries, "parquet_t")
    assert_same(queries, pushed, parquet, "rows with pushdown and rows of Parquet")
    _, unpushed = run(plain, queries, "lance_t")
    assert_same(queries, unpushed, parquet, "rows without pushdown and rows of Parquet")
    return df


def groups(size: int, *, times: int) -> list[Pairs]:
    """Returns all types, in groups, with every operation so many times."""
    names = sorted(TYPES)
    parts = [names[i : i + size] for i in range(0, len(names), size)]
    return [[(name, op) for name in part for op in operations(name)] * times for part in parts]


def count(
    tally: QueryTally, dataset: Dataset, queries: Sequence[RandomQuery], scans: dict[int, Scanned]
) -> None:
    """Counts pushed filters, and the uses of each operation on each type."""
    for number, query in enumerate(queries):
        if query.predicate is None or translate(query.predicate, dataset.table.schema) is None:
            continue
        scan = scans.get(number)
        if scan is None:
            continue  # Spark itself knew that no row can match
        tally.translatable += 1
        is_pushed = "pushed: " in scan.description
        tally.fewer_rows += is_pushed and scan.rows < dataset.live
        for leaf in walk(query.predicate) if is_pushed else ():
            name = _column_of(leaf)
            if (
                name is not None
                and name.startswith("c")
                and translate(leaf, dataset.table.schema) is not None
            ):
                tally.pairs[dataset.names[int(name[1:])], leaf["op"]] += 1


def _column_of(leaf: Predicate) -> str | None:
    for value in (leaf, *leaf.get("args", ())):
        if value.get("op") == "col":
            return str(value["name"][0])
    return None


def differ(
    spark: SparkSession, plain: SparkSession, home: Path, turns: Sequence[Pairs], *, first_seed: int
) -> QueryTally:
    """Compares drawn queries on drawn data, with one dataset for each group."""
    tally = QueryTally()
    for number, pairs in enumerate(turns):
        _take_turn(spark, plain, home / f"d{number}", pairs, tally, first_seed + number)
    return tally


def _take_turn(
    spark: SparkSession,
    plain: SparkSession,
    home: Path,
    pairs: Pairs,
    tally: QueryTally,
    number: int,
    *,
    extra: bool = False,
) -> None:
    """Compares filters with these operations on one dataset, and queries of other shapes except in an extra turn."""
    attempts = itertools.count()
    chosen = sorted({name for name, _ in pairs})

    @seed(number)
    @settings(
        max_examples=1,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def turn(data: st.DataObject) -> None:
        # Hypothesis begins with the simplest data, which is useless here.
        assume(data.draw(st.integers(0, 1 << 20)) > 0)
        other_types = data.draw(
            st.lists(st.sampled_from(sorted(set(TYPES) - set(chosen))), max_size=2, unique=True)
        )
        dataset = data.draw(datasets([*chosen, *other_types]))
        filters = [
            *data.draw(directed(dataset, pairs)),
            *data.draw(random_filters(dataset, 0 if extra else 3)),
        ]
        ansi = data.draw(st.booleans())
        shaped = data.draw(shapes(dataset, 0 if extra else SHAPES, ansi=ansi))
        folder = home / f"attempt{next(attempts)}"
        dataset.write(folder)
        count(tally, dataset, filters, scans_by_query(compare(spark, plain, folder, filters)))
        if shaped:
            with ansi_mode(ansi, spark, plain):
                compare(spark, plain, folder, shaped)
        tally.cases += len(filters) + len(shaped)

    turn()


@pytest.fixture(scope="module")
def calm(spark: SparkSession, plain_spark: SparkSession) -> Iterator[None]:
    """Reads old dates of foreign Parquet files unchanged, and interprets the plans of the comparison.

    Compilation of a query with forty branches takes longer than its execution.
    """
    settings_ = {
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for key, value in settings_.items():
        plain_spark.conf.set(key, value)
    yield
    for key in settings_:
        plain_spark.conf.unset(key)


@contextmanager
def ansi_mode(on: bool, *sessions: SparkSession) -> Iterator[None]:
    """Turns ANSI mode on or off; Spark's default is on."""
    for session in sessions:
        session.conf.set("spark.sql.ansi.enabled", on)
    yield
    for session in sessions:
        session.conf.unset("spark.sql.ansi.enabled")


def check(tally: QueryTally, times: int) -> None:
    assert tally.cases >= FEWEST_CASES, tally
    assert tally.fewer_rows >= PUSHED_SHARE * tally.translatable, tally
    rare = {f"{op} on {name}": tally.pairs[name, op] for name, op in rare_pairs(tally, times)}
    assert not rare, f"too seldom pushed: {rare}"


def rare_pairs(tally: QueryTally, times: int) -> list[tuple[str, str]]:
    """Returns pairs of type and operation with fewer pushed filters than `times`."""
    return [
        (name, op)
        for name in sorted(TYPES)
        for op in operations(name)
        if tally.pairs[name, op] < times
    ]


def test_the_reference_conversion_gives_the_types_that_the_package_gives() -> None:
    assert spark_types_agree()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("calm")
def test_rows_are_the_same_with_pushdown_without_it_and_from_parquet(
    spark: SparkSession, plain_spark: SparkSession, tmp_path: Path
) -> None:
    tally = differ(spark, plain_spark, tmp_path, groups(6, times=1), first_seed=1)
    # Spark answers some of the drawn filters without a scan. Pairs that were never pushed get more turns.
    for turn in range(MOST_EXTRA_TURNS):
        pairs = rare_pairs(tally, 1)
        if not pairs:
            break
        _take_turn(
            spark, plain_spark, tmp_path / f"extra{turn}", pairs, tally, 1000 + turn, extra=True
        )
    check(tally, 1)


def answered(session: SparkSession, query: RandomQuery, table: str) -> dict[int, list[str]] | str:
    """Returns a query's rows, or the name of its error."""
    try:
        return run(session, [RandomQuery(sql=strict(query.sql))], table)[1]
    except PySparkException as error:
        return str(error.getCondition())


@pytest.mark.slow
@pytest.mark.usefixtures("calm")
def test_queries_raise_exactly_where_they_raise_on_parquet(
    spark: SparkSession, plain_spark: SparkSession, tmp_path: Path
) -> None:
    raised: Counter[str] = Counter()
    attempts = itertools.count()

    @seed(7)
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def turn(data: st.DataObject) -> None:
        assume(data.draw(st.integers(0, 1 << 20)) > 0)
        dataset = data.draw(datasets(["int64", "string", "date32"]))
        queries = data.draw(fallible_filters(dataset, 4))
        folder = tmp_path / f"attempt{next(attempts)}"
        dataset.write(folder)
        compare(spark, plain_spark, folder, queries)
        _, expected = run(plain_spark, queries, "parquet_t")
        for number, query in enumerate(queries):
            got = answered(spark, query, "lance_t")
            if isinstance(got, str):
                raised["on both"] += 1
                assert answered(plain_spark, query, "parquet_t") == got, query.sql
            else:
                raised["not"] += 1
                assert got.get(0, []) == expected.get(number, []), query.sql

    turn()
    assert min(raised["on both"], raised["not"]) > 1, raised


@pytest.mark.long
@pytest.mark.usefixtures("calm")
def test_rows_are_the_same_in_thousands_of_cases(
    spark: SparkSession, plain_spark: SparkSession, tmp_path: Path
) -> None:
    start = random.randrange(1 << 32)
    print(f"first seed: {start}")
    tally = differ(spark, plain_spark, tmp_path, groups(3, times=2) * 25, first_seed=start)
    check(tally, 30)
    assert tally.cases >= 3000, tally


# --- the test can fail
# -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small fixed table with columns of a few types, as Lance and as Parquet."""
    folder = tmp_path_factory.mktemp("mutants") / "d"
    names = ("bool", "int64", "string", "float64")
    columns = {
        f"c{i}": with_null((sorted_examples(n) * 2)[:3], TYPES[n]) for i, n in enumerate(names)
    }
    table = pa.table({"id": pa.array(range(4)), **columns})
    Dataset(table=table, names=names, deleted=()).write(folder)
    return folder


def queries_for(op: str) -> list[RandomQuery]:
    """A few filters with one operation, plain and negated."""
    queries: list[RandomQuery] = []
    for i, name in enumerate(("bool", "int64", "string", "float64")):
        if op not in operations(name):
            continue
        values = sorted_examples(name)
        for value in values:
            for predicate in samples(name, op, value, values[-1]):
                renamed = _with_column(predicate, f"c{i}")
                queries += [
                    filtered(p, "CAST(id AS STRING)")
                    for p in (renamed, {"op": "not", "args": [renamed]})
                ]
    return queries


def _with_column(predicate: Predicate, name: str) -> Predicate:
    if predicate["op"] == "col":
        return {**predicate, "name": [name]}
    return (
        {**predicate, "args": [_with_column(a, name) for a in predicate["args"]]}
        if "args" in predicate
        else predicate
    )


QUICK_MUTANTS = ("< for <=",)
"""Without Spark, test_filters detects all of them."""


@pytest.mark.slow
@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    "mutant",
    [
        "",
        *QUICK_MUTANTS,
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in sorted(MUTANTS)
            if name not in QUICK_MUTANTS
        ),
    ],
)
def test_a_wrong_translation_of_any_operation_makes_the_comparison_fail(
    mutant: str, spark: SparkSession, plain_spark: SparkSession, example: Path
) -> None:
    queries = queries_for(MUTANTS[mutant][0] if mutant else "=")
    if not mutant:
        compare(spark, plain_spark, example, queries)
        return
    with mutated(mutant), pytest.raises(AssertionError, match="with pushdown"):
        compare(spark, plain_spark, example, queries)


def test_the_documentation_lists_exactly_what_is_checked_here() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text(encoding="utf-8")
    table = text.split("<!-- pushed -->")[1].split("\n\n")[0]
    listed: set[tuple[str, str]] = set()
    for line in table.strip().splitlines()[2:]:
        types, pushed = line.split("|")[1:3]
        groups_ = {
            "compared": operations("int64"),
            "matched": ("starts_with", "ends_with", "contains", "like"),
            "itself": ("col",),
        }
        for name in re.findall(r"`([^`]+)`", types):
            listed |= {(name, op) for word, ops in groups_.items() if word in pushed for op in ops}
    documented = {(re.sub(r"\(.*\)", "", name), op) for name in TYPES for op in operations(name)}
    assert listed == documented


def test_the_example_is_a_real_table(example: Path) -> None:
    assert lance.dataset(str(example / "t.lance")).count_rows() == 4
