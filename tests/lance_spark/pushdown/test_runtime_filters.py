"""Conditions that become known while a query runs: join keys of the other side, values of scalar subqueries."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from pyspark.version import __version__ as release

import lance_spark
from lance_spark.read import filtering
from lance_spark.sql import reads

DISTINCT = 400
UNINDEXED_ROWS = 300
GROUPS = 40

Value = Callable[[int], Any]

KEYS: dict[str, tuple[pa.DataType, Value]] = {
    "i": (pa.int64(), lambda n: n * 10**12 - 7),
    "n": (pa.int32(), lambda n: n - 200),
    "s": (pa.string(), lambda n: f"it's {n}"),
    "b": (pa.binary(), lambda n: bytes([n % 256, n // 256])),
    "d": (pa.date32(), lambda n: dt.date(1960, 1, 1) + dt.timedelta(days=n * 50)),
    "t": (pa.timestamp("us", "UTC"), lambda n: dt.datetime.fromtimestamp(n * 1234.5678, dt.UTC)),
    "w": (pa.decimal128(30, 3), lambda n: decimal.Decimal(n * 10**15 + 1).scaleb(-3)),
    "u": (pa.uint32(), lambda n: n + 2**31),
}
"""Types of keys whose values a join passes to the scan."""

CONVERTED: dict[str, tuple[pa.DataType, Value]] = {
    "m": (pa.decimal128(10, 2), lambda n: decimal.Decimal(n).scaleb(-2)),
    "fd": (pa.float64(), lambda n: {0: -0.0, 1: math.nan, 2: 0.0}.get(n, n / 4)),
    "ff": (pa.float32(), lambda n: {0: 0.0, 1: math.nan}.get(n, n / 2)),
}
"""Types of keys that a join converts, or that the scan returns in another form."""

ALL = KEYS | CONVERTED


def rows_of(numbers: list[int], first_id: int) -> pa.Table:
    """Returns rows with one key per type by numbers; NULL for numbers below 0."""
    columns = {
        name: pa.array([None if n < 0 else value(n) for n in numbers], kind)
        for name, (kind, value) in ALL.items()
    }
    ids = pa.array(range(first_id, first_id + len(numbers)), pa.int64())
    return pa.table({"id": ids, **columns, "x": pa.array([n % 5 for n in numbers], pa.int32())})


@pytest.fixture(scope="module")
def home(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Facts with indexes, deleted rows and rows since the indexes, and a dimension; as Lance and as Parquet."""
    home = tmp_path_factory.mktemp("star")
    indexed = rows_of([n if n % 23 else -1 for n in range(DISTINCT)] * 6, 0)
    facts = str(home / "facts.lance")
    lance.write_dataset(indexed, facts, max_rows_per_file=500)
    dataset = lance.dataset(facts)
    for name in ALL:
        dataset.create_scalar_index(name, "BTREE")
    dataset.delete("id % 7 = 3")
    new = rows_of([n % DISTINCT for n in range(UNINDEXED_ROWS)], indexed.num_rows)
    lance.write_dataset(new, facts, mode="append")
    live = lance.dataset(facts).to_table()
    # Spark reads an unsigned column of Parquet as another type than of Lance.
    live = live.set_column(live.schema.get_field_index("u"), "u", live["u"].cast(pa.int64()))
    pq.write_table(live, str(home / "facts.parquet"))
    dimension = rows_of([-1, *range(DISTINCT + 50)], 0)
    dimension = dimension.append_column(
        "g", pa.array([i % GROUPS for i in range(dimension.num_rows)], pa.int32())
    )
    dimension = dimension.set_column(
        dimension.schema.get_field_index("u"), "u", dimension["u"].cast(pa.int64())
    )
    lance.write_dataset(dimension, str(home / "dimension.lance"))
    pq.write_table(dimension, str(home / "dimension.parquet"))
    for name in ("facts", "dimension"):
        spark.read.format("lance").load(str(home / f"{name}.lance")).createOrReplaceTempView(
            f"lance_{name}"
        )
        spark.read.parquet(str(home / f"{name}.parquet")).createOrReplaceTempView(f"parquet_{name}")
    return home


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Lets joins select rows of the small tables of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "MIN_ROWS_OF_KEYS", 1)
        yield


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Plans of scans that received a condition while the query ran."""
    answers: list[dict[str, Any]] = []
    plan_scan = reads.plan_scan

    def plan(arguments: dict[str, Any]) -> dict[str, Any]:
        answer = plan_scan(arguments)
        if arguments["spec"].get("runtime") is not None:
            answers.append(answer)
        return answer

    monkeypatch.setattr(reads, "plan_scan", plan)
    return answers


def rows(spark: SparkSession, query: str, prefix: str) -> Counter[str]:
    """Returns the rows of a query over `{facts}` and `{dimension}`."""
    text = query.replace("{facts}", f"{prefix}_facts").replace("{dimension}", f"{prefix}_dimension")
    return Counter(map(str, spark.sql(text).collect()))


def check(spark: SparkSession, query: str) -> Counter[str]:
    """Checks that a query has the rows of Parquet, and returns them."""
    ours = rows(spark, query, "lance")
    assert ours == rows(spark, query, "parquet")
    return ours


@contextmanager
def settings_of(spark: SparkSession, **values: str) -> Iterator[None]:
    """Sets settings of Spark SQL for a block."""
    names = {name: "spark.sql." + name.replace("__", ".") for name in values}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(names[name])


JOIN = "SELECT f.id, f.{key}, d.id AS other FROM {facts} f JOIN {dimension} d ON f.{key} = d.{key} WHERE d.g = 3"


@pytest.mark.sample(6)
@pytest.mark.parametrize("key", KEYS)
def test_a_join_reads_the_rows_of_its_keys(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]], key: str
):
    rows_found = check(spark, JOIN.replace("{key}", key))
    # All unindexed rows are read, and from the indexed fragments only rows with the keys.
    matches = sum(rows_found.values())
    assert matches > 0
    assert len(planned) == 1 and matches <= planned[0]["rows"] <= matches + UNINDEXED_ROWS


@pytest.mark.sample(6)
@pytest.mark.parametrize("key", CONVERTED)
def test_a_join_reads_all_rows_for_keys_that_spark_changes(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]], key: str
):
    check(spark, JOIN.replace("{key}", key))
    check(spark, JOIN.replace("{key}", key).replace("d.g = 3", "d.g < 3"))
    assert planned == []


OTHER_JOINS = {
    "in a list": "SELECT id, x FROM {facts} WHERE n IN (SELECT n FROM {dimension} WHERE g = 3)",
    "exists": "SELECT id FROM {facts} f WHERE EXISTS (SELECT 1 FROM {dimension} d WHERE d.s = f.s AND d.g = 3) AND x > 1",
    "not in": "SELECT id FROM {facts} f WHERE NOT EXISTS (SELECT 1 FROM {dimension} d WHERE d.n = f.n AND d.g = 3)",
    "right": "SELECT f.id, d.id AS o FROM {facts} f RIGHT JOIN (SELECT * FROM {dimension} WHERE g = 3) d ON f.n = d.n",
    "left": "SELECT f.id, d.id AS o FROM {facts} f LEFT JOIN (SELECT * FROM {dimension} WHERE g = 3) d ON f.n = d.n",
    "full": "SELECT f.id, d.id AS o FROM {facts} f FULL JOIN (SELECT * FROM {dimension} WHERE g = 3) d ON f.n = d.n",
    "null-safe": "SELECT f.id, d.id AS o FROM {facts} f JOIN {dimension} d ON f.n <=> d.n WHERE d.g < 4",
    "cast": "SELECT f.id FROM {facts} f JOIN {dimension} d ON CAST(f.n AS BIGINT) + 0 = d.id WHERE d.g = 3",
    "wider type": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.id WHERE d.g = 3",
    "two keys": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n AND f.s = d.s WHERE d.g = 3",
    "no keys": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.g = 3 AND d.x = 77",
    "null keys": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.id = 0",
    "groups": "SELECT f.x, count(*), sum(f.id) FROM {facts} f JOIN {dimension} d ON f.d = d.d WHERE d.g = 3 GROUP BY f.x",
    "groups below": "SELECT f.* FROM (SELECT n, count(*) c, max(id) m FROM {facts} GROUP BY n) f "
    "JOIN {dimension} d ON f.n = d.n WHERE d.g = 3",
    "limit below": "SELECT count(*) FROM (SELECT * FROM {facts} WHERE n = 5 LIMIT 2) f "
    "JOIN {dimension} d ON f.n = d.n WHERE d.g = 6",
    "first rows below": "SELECT f.id FROM (SELECT * FROM {facts} ORDER BY id LIMIT 300) f "
    "JOIN {dimension} d ON f.n = d.n WHERE d.g = 3",
    "twice": "SELECT f.id, d.id AS a, e.id AS b FROM {facts} f JOIN {dimension} d ON f.n = d.n "
    "JOIN {dimension} e ON f.s = e.s WHERE d.g = 3 AND e.g < 9",
    "all rows beside": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.g = 3 UNION ALL "
    "SELECT id FROM {facts}",
    "same join twice": "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.g = 3 UNION ALL "
    "SELECT f.id FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.g = 3",
    "filtered": "SELECT f.id, f.m FROM {facts} f JOIN {dimension} d ON f.n = d.n WHERE d.g = 3 AND f.x < 3 AND f.s <> 'it''s 2'",
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", OTHER_JOINS)
def test_joins_have_the_rows_of_parquet(spark: SparkSession, home: Path, name: str):
    check(spark, OTHER_JOINS[name])


PLANS = [
    {"adaptive__enabled": "false"},
    {"autoBroadcastJoinThreshold": "-1"},
    {
        "autoBroadcastJoinThreshold": "-1",
        "optimizer__dynamicPartitionPruning__reuseBroadcastOnly": "false",
    },
    {
        "adaptive__enabled": "false",
        "autoBroadcastJoinThreshold": "-1",
        "optimizer__dynamicPartitionPruning__reuseBroadcastOnly": "false",
    },
    {"exchange__reuse": "false"},
    {"optimizer__nestedSchemaPruning__enabled": "false"},
    {"optimizer__dynamicPartitionPruning__enabled": "false"},
]


@pytest.mark.sample(16)
@pytest.mark.parametrize("plan", PLANS, ids=" ".join)
def test_plans_of_joins_have_the_rows_of_parquet(
    spark: SparkSession, home: Path, plan: dict[str, str]
):
    with settings_of(spark, **plan):
        check(spark, JOIN.replace("{key}", "n"))
        check(spark, OTHER_JOINS["same join twice"])


@pytest.mark.long
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_random_joins_have_the_rows_of_parquet(
    spark: SparkSession, home: Path, data: st.DataObject
):
    key, other_key = data.draw(st.sampled_from(list(ALL))), data.draw(st.sampled_from(list(ALL)))
    group = data.draw(
        st.sampled_from(
            ["g = 3", "g < 2", "g IN (5, 6)", "x = 1", "id = 0", "g > 100", "g = 3 OR id = 0"]
        )
    )
    condition = data.draw(
        st.sampled_from(
            [
                f"f.{key} = d.{key}",
                f"f.{key} <=> d.{key}",
                f"f.{key} = d.{key} AND f.{other_key} = d.{other_key}",
            ]
        )
    )
    kind = data.draw(
        st.sampled_from(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        )
    )
    filtered = data.draw(
        st.sampled_from(["", "WHERE x > 1", "WHERE n > 0", "WHERE s IS NOT NULL AND id % 3 = 0"])
    )
    swapped = data.draw(st.booleans())
    facts, dimension = (
        f"(SELECT * FROM {{facts}} {filtered})",
        f"(SELECT * FROM {{dimension}} WHERE {group})",
    )
    left_table, right_table = (
        (f"{dimension} d", f"{facts} f") if swapped else (f"{facts} f", f"{dimension} d")
    )
    select_list = (
        ("d.id" if swapped else "f.id")
        if "SEMI" in kind or "ANTI" in kind
        else "f.id, d.id AS o, f.x"
    )
    with settings_of(spark, **data.draw(st.sampled_from([{}, *PLANS]))):
        check(spark, f"SELECT {select_list} FROM {left_table} {kind} {right_table} ON {condition}")


def test_a_join_on_a_column_without_an_index_reads_all_rows(
    spark: SparkSession, table_path: str, home: Path, planned: list[dict[str, Any]]
):
    lance.write_dataset(pa.table({"n": pa.array(range(-200, 5000), pa.int32())}), table_path)
    spark.read.format("lance").load(table_path).createOrReplaceTempView("without_index")
    query = "SELECT /*+ BROADCAST(d) */ f.n FROM without_index f JOIN lance_dimension d ON f.n = d.n WHERE d.g = 3"
    assert {row.n for row in spark.sql(query).collect()} == {*range(-198, 250, GROUPS)}
    assert planned == []


@pytest.mark.parametrize(
    ("share", "description"), [(3, "index: n_idx"), (20, "`n` IN"), (40, "`n` IS NOT NULL")]
)
def test_a_join_reads_rows_by_the_cheapest_way(
    spark: SparkSession,
    home: Path,
    planned: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    share: int,
    description: str,
):
    monkeypatch.setattr(filtering, "MIN_LISTED_ROWS", 200)
    check(spark, JOIN.replace("{key}", "n").replace("d.g = 3", f"d.g BETWEEN 0 AND {share}"))
    assert description in planned[0]["description"] and ("`n` IN" in planned[0]["description"]) == (
        share < 40
    )


def test_groups_below_a_join_are_partial_results_of_the_scan(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]]
):
    rows_found = check(spark, OTHER_JOINS["groups below"])
    assert sum(rows_found.values()) > 0
    assert "grouped by: [n]" in planned[0]["description"] and "`n` IN" in planned[0]["description"]


def test_a_side_of_about_the_same_size_selects_no_rows(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]]
):
    check(spark, "SELECT f.id FROM {facts} f JOIN {facts} d ON f.n = d.n WHERE d.x = 77")
    assert planned == []


def test_a_limited_read_gives_its_rows_to_a_join(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]]
):
    facts = spark.read.format("lance").option("limit", 300).load(str(home / "facts.lance"))
    dimension = spark.table("lance_dimension").where("g = 3")
    keys = {row.n for row in dimension.collect()}
    expected = Counter(row.n for row in facts.collect() if row.n in keys)
    assert (
        Counter(row.n for row in facts.join(dimension, "n").select("n").collect()) == expected
        and len(expected) > 0
    )
    assert planned == []


def test_a_join_without_the_rule_reads_all_rows(
    plain_spark: SparkSession, home: Path, planned: list[dict[str, Any]]
):
    for name in ("facts", "dimension"):
        plain_spark.read.format("lance").load(str(home / f"{name}.lance")).createOrReplaceTempView(
            f"lance_{name}"
        )
        plain_spark.read.parquet(str(home / f"{name}.parquet")).createOrReplaceTempView(
            f"parquet_{name}"
        )
    assert sum(check(plain_spark, JOIN.replace("{key}", "n")).values()) > 0
    assert planned == []


@pytest.mark.skipif(
    release.startswith("4.1."),
    reason="Spark gives scans the values of scalar subqueries from 4.2 on",
)
def test_the_value_of_a_scalar_subquery_selects_rows(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]]
):
    rows_found = check(
        spark, "SELECT id, s FROM {facts} WHERE n = (SELECT min(n) FROM {dimension} WHERE g = 3)"
    )
    rows_read = planned[0]["rows"]
    assert (
        len(planned) == 1
        and 0 < sum(rows_found.values()) <= rows_read <= sum(rows_found.values()) + UNINDEXED_ROWS
    )


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_scan_of_one_partition_stays_one(table_path: str, partitions: int):
    lance.write_dataset(pa.table({"n": pa.array(range(1000), pa.int32())}), table_path)
    lance.dataset(table_path).create_scalar_index("n", "BTREE")
    lance.write_dataset(pa.table({"n": pa.array(range(10), pa.int32())}), table_path, mode="append")
    key = {"op": "col", "name": ["n"], "type": "int"}
    predicate = {
        "op": "in",
        "args": [key, *({"op": "lit", "type": "int", "value": str(n)} for n in (5, 500))],
    }
    runtime = {"predicate": predicate, "partitions": partitions}
    answer = reads.plan_scan(
        {"options": {"path": table_path}, "pin": None, "spec": {"runtime": runtime}}
    )
    # The index covers one of the two fragments.
    assert f"partitions: {partitions}, rows: 12" in answer["description"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "serves"),
    [("BTREE", True), ("BITMAP", True), ("ZONEMAP", True), ("BLOOMFILTER", True), ("NGRAM", False)],
)
def test_indexes_of_values_serve_joins(
    spark: SparkSession,
    table_path: str,
    home: Path,
    planned: list[dict[str, Any]],
    kind: str,
    serves: bool,
):
    lance.write_dataset(pa.table({"s": [f"it's {n}" for n in range(5000)]}), table_path)
    lance.dataset(table_path).create_scalar_index("s", kind)
    spark.read.format("lance").load(table_path).createOrReplaceTempView("one_index")
    query = "SELECT /*+ BROADCAST(d) */ f.s FROM one_index f JOIN lance_dimension d ON f.s = d.s WHERE d.g = 3"
    assert Counter(spark.sql(query).collect()) == Counter(
        spark.sql(query.replace("f.s =", "concat(f.s, '') =")).collect()
    )
    assert any("index: s_idx" in answer["description"] for answer in planned) == serves


def test_a_small_table_is_read_as_a_whole(
    spark: SparkSession, home: Path, planned: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reads, "MIN_ROWS_OF_KEYS", 100_000)
    check(spark, JOIN.replace("{key}", "i"))
    assert planned == []


def test_names_that_differ_in_case_alone_select_no_rows(table_path: str):
    lance.write_dataset(pa.table({"k": [1], "K": [2], "o": [3]}), table_path)
    for name in ("k", "o"):
        lance.dataset(table_path).create_scalar_index(name, "BTREE")
    columns = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": "long", "nullable": True, "metadata": {}}
                for n in ("k", "K", "o")
            ],
        }
    )
    assert reads.columns_of_keys(lance.dataset(table_path), columns) == ["o"]


@pytest.mark.long
def test_statements_on_catalog_tables_read_the_rows_of_the_keys(
    spark: SparkSession, home: Path, tmp_path: Path, planned: list[dict[str, Any]]
):
    lance_spark.catalog(spark, "star", str(tmp_path))
    spark.sql("CREATE TABLE star.facts AS SELECT * FROM lance_facts")
    lance.dataset(str(tmp_path / "facts.lance")).create_scalar_index("n", "BTREE")
    spark.sql("REFRESH TABLE star.facts")
    query = (
        "SELECT f.id, f._rowid FROM star.facts f JOIN lance_dimension d ON f.n = d.n WHERE d.g = 3"
    )
    matches = {row.id for row in spark.sql(query).collect()}
    assert matches == {
        row.id
        for row in spark.sql(
            JOIN.replace("{key}", "n")
            .replace("{facts}", "lance_facts")
            .replace("{dimension}", "lance_dimension")
        ).collect()
    }
    assert planned[0]["rows"] == len(matches)
    spark.sql("UPDATE star.facts SET x = -1 WHERE n IN (SELECT n FROM lance_dimension WHERE g = 3)")
    assert {
        row.id for row in spark.sql("SELECT id FROM star.facts WHERE x = -1").collect()
    } == matches
    spark.sql(
        "MERGE INTO star.facts f USING (SELECT n, min(id) AS id FROM lance_dimension WHERE g = 3 GROUP BY n) d ON f.n = d.n "
        "WHEN MATCHED THEN UPDATE SET x = -2"
    )
    assert {
        row.id for row in spark.sql("SELECT id FROM star.facts WHERE x = -2").collect()
    } == matches
    spark.sql("DELETE FROM star.facts WHERE n IN (SELECT n FROM lance_dimension WHERE g = 3)")
    assert spark.sql(query).collect() == []
