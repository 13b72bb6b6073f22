"""The planner rule in real Spark sessions: the request of a scan, and unchanged results for unsupported plans."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import lance
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lance_spark.errors import GatewayError, OptionError
from lance_spark.jvm import jar
from lance_spark.pushdown.rule import disable_pushdown, enable_pushdown
from lance_spark.session.configuration import configure

pytestmark = pytest.mark.sample(1, tests=3)

ROWS = 100


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """100 rows in fragments of 30; `d` counts to 10 and has NULLs, `st` is nested and sometimes NULL."""
    target = str(tmp_path_factory.mktemp("rule") / "t.lance")
    nested = [
        {"a": i, "b": {"C": i % 3, "e": f"x{i}"}, "l": [{"k": i, "m": -i}]} if i % 5 else None
        for i in range(ROWS)
    ]
    table = pa.table(
        {
            "id": pa.array(range(ROWS)),
            "d": pa.array([i % 10 if i % 7 else None for i in range(ROWS)], pa.int32()),
            "s": [f"v{i % 4}" for i in range(ROWS)],
            "f": pa.array([float(i) for i in range(ROWS)]),
            "st": pa.array(nested),
        }
    )
    lance.write_dataset(table, target, max_rows_per_file=30)
    return target


@pytest.fixture
def table(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("lance").load(path)


def plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().optimizedPlan().toString())


def scans(df: DataFrame) -> list[Any]:
    """Returns the scans of the optimized plan, including subqueries, as Java objects."""
    scans_found: list[Any] = []

    def visit(node: Any) -> None:
        if node.getClass().getSimpleName() == "DataSourceV2ScanRelation":
            scans_found.append(node.scan())
        for group in (node.children(), node.subqueries()):
            for i in range(group.size()):
                visit(group.apply(i))

    visit(df._jdf.queryExecution().optimizedPlan())
    return scans_found


def descriptions(df: DataFrame) -> list[str]:
    return [scan.description() for scan in scans(df)]


def columns(df: DataFrame) -> list[str]:
    """Returns the types of the only scan's columns."""
    (scan,) = scans(df)
    return [f"{f.name()} {f.dataType().sql()}" for f in scan.readSchema().fields()]


# --- installation ----------------------------------------------------------------------------------------------------------------


def _rules(session: SparkSession) -> int:
    return int(session._jsparkSession.experimental().extraOptimizations().size())


def test_enabling_twice_installs_one_rule_and_disabling_removes_it(spark: SparkSession) -> None:
    session = spark.newSession()
    assert enable_pushdown(session) and enable_pushdown(session)
    assert _rules(session) == 1
    disable_pushdown(session)
    assert _rules(session) == 0


def test_other_rules_of_the_session_stay(spark: SparkSession) -> None:
    session = spark.newSession()
    jvm: Any = session._jvm
    other_rules = jvm.java.util.ArrayList()
    other_rules.add(
        getattr(jvm.org.apache.spark.sql.catalyst.optimizer, "CombineUnions$").__getattr__(
            "MODULE$"
        )
    )
    setter = getattr(session._jsparkSession.experimental(), "extraOptimizations_$eq")
    setter(jvm.scala.jdk.javaapi.CollectionConverters.asScala(other_rules).toSeq())
    enable_pushdown(session)
    assert _rules(session) == 2
    disable_pushdown(session)
    assert _rules(session) == 1


def test_a_session_without_a_jvm_goes_on_without_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    # Replaces the session of Spark Connect, which has no `_jvm`.
    connect_session = type("SparkSession", (), {"version": "4.3.0"})
    with caplog.at_level(logging.INFO, "lance_spark"):
        assert enable_pushdown(connect_session()) is False  # type: ignore[arg-type]
        disable_pushdown(connect_session())  # type: ignore[arg-type]
    assert "A Spark Connect session has no JVM in this process" in caplog.text


@pytest.fixture
def fresh_loader() -> Iterator[None]:
    """Clears this process's cache of the jar, before and after a test."""
    jar._loader.cache_clear()
    yield
    jar._loader.cache_clear()


def jar_of(tmp_path: Path, properties: str) -> Path:
    with zipfile.ZipFile(tmp_path / "lance-spark.jar", "w") as archive:
        archive.writestr(jar._PROPERTIES, properties)
    return tmp_path


@pytest.mark.usefixtures("fresh_loader")
def test_a_jvm_with_another_jar_of_this_package_gets_no_rule(
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    home = jar_of(tmp_path, "version=9\nsources=another\n")
    monkeypatch.setattr(jar.resources, "files", lambda _: home)
    with caplog.at_level(logging.INFO, "lance_spark"):
        assert enable_pushdown(spark.newSession()) is False
    assert "lance-spark 9 with another jar" in caplog.text and "start the JVM again" in caplog.text


@pytest.mark.usefixtures("fresh_loader")
def test_a_package_without_its_jar_says_how_to_get_it(
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(jar.resources, "files", lambda _: tmp_path)
    with caplog.at_level(logging.INFO, "lance_spark"):
        assert enable_pushdown(spark.newSession()) is False
    assert "run: make jar" in caplog.text
    with pytest.raises(GatewayError, match="run: make jar"):
        configure(SparkSession.builder).getOrCreate()


@pytest.mark.parametrize(
    "end", [".", ". Trace:\npy4j.Py4JException: Method addURL does not exist\n"]
)
def test_an_error_of_py4j_has_a_single_full_stop(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> NoReturn:
        raise Py4JError(f"An error occurred while calling o1.addURL{end}")

    monkeypatch.setattr(jar, "load", load)
    with pytest.raises(
        GatewayError, match=r"accept a jar: An error occurred while calling o1\.addURL\. Nothing"
    ):
        jar.add_jar(None)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_session_without_the_jar_gets_it_while_it_runs(table_path: str) -> None:
    """The JVM is started without `configure`: the driver and a worker JVM of a local cluster both get the classes."""
    lance.write_dataset(pa.table({"id": range(10)}), table_path)
    script = """
import sys
from pyspark.sql import SparkSession
import lance_spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1).count()
assert lance_spark.enable_pushdown(spark)
print(spark.sparkContext._jsc.sc().listJars().size())
df = spark.read.format("lance").load(sys.argv[1]).where("id > 7")
assert "pushed: " in df._jdf.queryExecution().toString() and df.count() == 2
spark.stop()
spark = lance_spark.configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
print(spark.conf.get("spark.sql.extensions"), spark.sparkContext._jsc.sc().listJars().size())
df = spark.newSession().read.format("lance").load(sys.argv[1]).where("id > 7")
assert "pushed: " in df._jdf.queryExecution().toString() and df.count() == 2
"""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    process = subprocess.run(
        [sys.executable, "-c", script, table_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.split("\n")[:2] == ["1", "lancespark.LanceExtensions 1"], process.stderr[
        -3000:
    ]


# --- the request of a scan
# -------------------------------------------------------------------------------------------------------


def test_only_used_columns_are_read(table: DataFrame) -> None:
    df = table.filter("d > 5").select("id")
    assert columns(df) == ["id BIGINT", "d INT"]
    assert columns(table) == ["id BIGINT", "d INT", "s STRING", "f DOUBLE", *columns(table)[4:]]


@pytest.mark.sample(1)
def test_whole_predicates_are_pushed_and_explain_shows_them(
    table: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    df = table.filter("(d > 5 OR s LIKE 'v1%') AND NOT (d IN (7, 8)) AND st.b.C = 1").select("id")
    df.explain()
    plan_text = capsys.readouterr().out
    assert "`d` > 5 OR starts_with(`s`, 'v1')" in plan_text
    assert "`st`.`b`.`C` = 1" in plan_text
    df.explain("formatted")
    assert "`st`.`b`.`C` = 1" in capsys.readouterr().out
    assert sorted(r.id for r in df.collect()) == [
        i
        for i in range(ROWS)
        if i % 7 and (i % 10 > 5 or i % 4 == 1) and i % 10 not in (7, 8) and i % 5 and i % 3 == 1
    ]


@pytest.mark.sample(1)
def test_untranslatable_predicates_are_left_to_spark_and_the_rest_is_pushed(
    table: DataFrame,
) -> None:
    df = table.filter(
        "d = 3 AND length(s) = 2 AND cast(f AS int) > 10 AND s COLLATE UNICODE_CI = 'V3'"
    )
    (description,) = descriptions(df)
    assert "`d` = 3" in description
    assert "length(" not in description and "`f` >" not in description and "V3" not in description
    assert [r.id for r in df.collect()] == [
        i for i in range(11, ROWS) if i % 7 and i % 10 == 3 and i % 4 == 3
    ]


def test_nested_fields_are_pruned_and_read_right(table: DataFrame) -> None:
    df = table.filter("st.b.C = 1").select("st.b.e", "id")
    assert columns(df) == ["id BIGINT", "st STRUCT<b: STRUCT<C: BIGINT, e: STRING>>"]
    assert sorted(r.e for r in df.collect()) == sorted(
        f"x{i}" for i in range(ROWS) if i % 5 and i % 3 == 1
    )


def test_a_filter_is_not_pushed_below_one_that_depends_on_the_rows_that_reach_it(
    table: DataFrame, plain_spark: SparkSession, path: str
) -> None:
    number = F.monotonically_increasing_id() % (1 << 33)

    def numbered_first(df: DataFrame) -> list[DataFrame]:
        return [
            df.where(number < 10).where("s = 'v1'"),
            df.withColumn("n", number).where("n < 10 AND s = 'v1'"),
            df.withColumn("n", number).where("s = 'v1'").where("n < 10"),
        ]

    plain = plain_spark.read.format("lance").load(path)
    for pushed, expected in zip(numbered_first(table), numbered_first(plain), strict=True):
        assert "pushed" not in descriptions(pushed)[0]
        assert [r.id for r in pushed.select("id").collect()] == [
            r.id for r in expected.select("id").collect()
        ]
        assert pushed.limit(2).count() == expected.limit(2).count() == 2

    between = table.where("id >= 10").where(number < 10).where("s = 'v1'")
    assert "`id` >= 10" in descriptions(between)[0]
    assert "v1" not in descriptions(between)[0]
    assert [r.id for r in between.collect() if r.id < 30] == [13, 17]


def test_a_filter_that_comes_before_a_random_one_is_pushed(table: DataFrame) -> None:
    df = table.where("s = 'v1'").where(F.rand(0) >= 0)
    assert "`s` = 'v1'" in descriptions(df)[0]
    assert df.count() == ROWS // 4


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_field_that_is_not_null_is_null_where_its_struct_is(
    spark: SparkSession, table_path: str, version: str
) -> None:
    inner = pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.int32())])
    outer = pa.struct([pa.field("in", inner, False), pa.field("c", pa.int32())])
    schema = pa.schema([("s", inner), ("o", outer), pa.field("r", inner, False)])
    rows = [
        {"s": {"a": 1}, "o": {"in": {"a": 2}}, "r": {"a": 3}},
        {"s": None, "o": None, "r": {"a": 4}},
    ]
    lance.write_dataset(
        pa.Table.from_pylist(rows, schema), table_path, data_storage_version=version
    )
    df = spark.read.format("lance").load(table_path).selectExpr("s.a", "o.in.a", "r.a")
    assert [tuple(row) for row in df.collect()] == [(1, 2, 3), (None, None, 4)]
    assert columns(df) == [
        "s STRUCT<a: INT>",
        "o STRUCT<in: STRUCT<a: INT>>",
        "r STRUCT<a: INT NOT NULL>",
    ]


@pytest.mark.parametrize(
    ("condition", "type_"),
    [
        (
            "st IS NULL",
            "STRUCT<a: BIGINT, b: STRUCT<C: BIGINT, e: STRING>, l: ARRAY<STRUCT<k: BIGINT, m: BIGINT>>>",
        ),
        ("st.b IS NULL", "STRUCT<a: BIGINT, b: STRUCT<C: BIGINT, e: STRING>>"),
        ("st.b.e IS NULL", "STRUCT<a: BIGINT, b: STRUCT<e: STRING>>"),
    ],
)
def test_a_struct_whose_being_null_matters_is_read_whole(
    table: DataFrame, condition: str, type_: str
) -> None:
    df = table.filter(condition).select("id", "st.a", "st.b.e")
    assert columns(df) == ["id BIGINT", f"st {type_}"]
    assert sorted((r.id, r.a, r.e) for r in df.collect()) == [
        (i, None, None) for i in range(0, ROWS, 5)
    ]


def test_elements_of_lists_are_read_whole(table: DataFrame) -> None:
    df = table.select("st.l.k", "st.a")
    assert columns(df) == ["st STRUCT<a: BIGINT, l: ARRAY<STRUCT<k: BIGINT, m: BIGINT>>>"]
    assert [r.k for r in df.filter("a = 7").collect()] == [[7]]


def test_a_struct_that_is_used_whole_is_read_whole(table: DataFrame) -> None:
    df = table.select("st", "st.a")
    assert columns(df) == columns(table.select("st"))
    assert df.filter("a = 1").first() == table.filter("st.a = 1").select("st", "st.a").first()


@pytest.mark.sample(1)
def test_a_limit_is_pushed_unless_spark_drops_rows_below_it(table: DataFrame) -> None:
    assert "limit: 3" in descriptions(table.select("id").limit(3))[0]
    assert "limit: 3" in descriptions(table.filter("d = 3").limit(3))[0]
    assert (
        "limit: 3" in descriptions(table.filter("f < 3 AND s IS NOT NULL").select("id").limit(3))[0]
    )
    assert "limit" not in descriptions(table.filter(F.rand() < 0.5).limit(3))[0]
    assert "limit" not in descriptions(table.filter("d = 3").filter(F.rand() < 0.5).limit(3))[0]
    assert "limit" not in descriptions(table.filter("d + 1 = 3").limit(3))[0]
    assert "limit" not in descriptions(table.filter("s LIKE 'v_'").limit(3))[0]
    assert table.limit(3).count() == 3
    assert table.filter("id >= 90").limit(20).count() == 10
    assert len(table.offset(5).limit(7).collect()) == 7


@pytest.mark.sample(1)
def test_counts_minima_and_maxima_are_answered_by_the_scan(table: DataFrame) -> None:
    df = table.selectExpr("count(*) AS n", "count(d)", "min(d) + 1 AS m", "max(s)", "count(*) * 2")
    assert "aggregates: [count(*), count(d), min(d), max(s)]" in descriptions(df)[0]
    assert df.first() == (ROWS, sum(1 for i in range(ROWS) if i % 7), 1, "v3", 2 * ROWS)
    assert table.count() == ROWS


@pytest.mark.parametrize(
    "expressions",
    [
        ["min(f)"],
        ["count(*)", "sum(f)"],
        ["avg(id)"],
        ["count(DISTINCT d)"],
        ["count(*) FILTER (WHERE d > 3)"],
        ["max(st.a)"],
    ],
)
def test_other_aggregates_read_rows(table: DataFrame, expressions: list[str]) -> None:
    assert "aggregates" not in descriptions(table.selectExpr(*expressions))[0]


def test_aggregates_above_a_filter_are_answered_where_lance_applies_it_exactly(
    table: DataFrame,
) -> None:
    aggregate = table.filter("d = 1 AND s IS NOT NULL").selectExpr("count(*)")
    assert (
        "pushed: `d` = 1" in descriptions(aggregate)[0]
        and "aggregates: [count(*)]" in descriptions(aggregate)[0]
    )
    assert aggregate.first() == (8,)
    assert "grouped by: [s]" in descriptions(table.filter("d = 1").groupBy("s").count())[0]
    for inexact in ("d + 1 = 2", "s LIKE 'v_'", "d = 1 AND hash(s) > 0"):
        assert "aggregates" not in descriptions(table.filter(inexact).selectExpr("count(*)"))[0]
    assert (
        "aggregates"
        not in descriptions(table.filter("d = 1").filter(F.rand() < 0.5).groupBy("s").count())[0]
    )


@pytest.mark.parametrize(
    ("keys", "expressions"),
    [
        (["s"], ["count(*)"]),
        (["s", "d"], ["count(f)", "min(id)", "max(d)", "sum(d) + count(*)"]),
        (["s"], []),
    ],
)
def test_groups_by_columns_are_made_in_the_scan(
    table: DataFrame, plain_spark: SparkSession, keys: list[str], expressions: list[str]
) -> None:
    def query(rows: DataFrame) -> DataFrame:
        return (
            rows.selectExpr(*keys).distinct()
            if not expressions
            else rows.groupBy(*keys).agg(*map(F.expr, expressions))
        )

    (description,) = descriptions(query(table))
    assert f"grouped by: [{', '.join(keys)}]" in description
    plain = plain_spark.createDataFrame(table.collect(), table.schema)
    assert sorted(map(repr, query(table).collect())) == sorted(map(repr, query(plain).collect()))


@pytest.mark.parametrize(
    ("key", "expression"),
    [
        ("f", "count(*)"), ("d % 2", "count(*)"), ("st.a", "count(*)"), ("s", "sum(f)"), ("s", "avg(id)"), ("s", "try_sum(d)"),
        ("s", "avg(f)"), ("s", "min(s)"), ("s", "count(DISTINCT d)"), ("s", "first(d)"),
    ],
)  # fmt: skip
def test_other_groups_read_rows(table: DataFrame, key: str, expression: str) -> None:
    assert "grouped by" not in descriptions(table.groupBy(F.expr(key)).agg(F.expr(expression)))[0]


def test_aggregates_of_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "empty.lance")
    dataset = lance.write_dataset(pa.table({"a": pa.array([1], pa.int64()), "b": ["x"]}), target)
    dataset.delete("a = 1")
    df = (
        spark.read.format("lance")
        .load(target)
        .selectExpr("count(*)", "count(a)", "min(a)", "max(b)")
    )
    assert df.first() == (0, 0, None, None)


@pytest.mark.parametrize("option", [{"limit": 10}, {"filter": "id < 10"}, {"fragments": "0"}])
def test_options_by_hand_and_pushdown_agree(
    spark: SparkSession, plain_spark: SparkSession, path: str, option: dict[str, Any]
) -> None:
    def answers(session: SparkSession) -> list[Any]:
        df = session.read.format("lance").options(**option).load(path)
        return [
            df.count(),
            df.filter("id >= 5").count(),
            df.selectExpr("max(id)").first(),
            df.limit(7).count(),
        ]

    assert answers(spark) == answers(plain_spark)


# --- plans with several uses of a table
# ------------------------------------------------------------------------------------------


def test_every_scan_has_its_own_predicate(table: DataFrame) -> None:
    first, second = table.filter("d = 1").select("id", "d"), table.filter("d = 2").select("id", "d")
    union = first.unionAll(second)
    assert [("`d` = 1" in d, "`d` = 2" in d) for d in descriptions(union)] == [
        (True, False),
        (False, True),
    ]
    assert sorted({r.d for r in union.collect()}) == [1, 2]
    assert table.filter("d = 1").join(table.filter("d = 2").select("id"), "id").count() == 0
    assert table.count() == ROWS


def test_subqueries_get_the_rule_too(spark: SparkSession, table: DataFrame) -> None:
    table.createOrReplaceTempView("rule_t")
    scalar = spark.sql(
        "SELECT id FROM rule_t WHERE d > (SELECT max(d) - 2 FROM rule_t) AND id < 20"
    )
    assert any("aggregates: [max(d)]" in d for d in descriptions(scalar))
    assert [r.id for r in scalar.collect()] == [i for i in range(20) if i % 7 and i % 10 > 7]
    exists = spark.sql(
        "SELECT id FROM rule_t a WHERE EXISTS (SELECT 1 FROM rule_t b WHERE b.id = a.id AND b.s = 'v3' AND b.d = 1)"
    )
    assert any("`s` = 'v3'" in d for d in descriptions(exists))
    assert sorted(r.id for r in exists.collect()) == [
        i for i in range(ROWS) if i % 7 and i % 10 == 1 and i % 4 == 3
    ]


def test_a_cached_dataframe_gives_the_same_rows(table: DataFrame) -> None:
    cached = table.filter("d < 5").cache()
    try:
        assert cached.count() == sum(1 for i in range(ROWS) if i % 7 and i % 10 < 5)
        assert cached.filter("d = 4").select("id").count() == sum(
            1 for i in range(ROWS) if i % 7 and i % 10 == 4
        )
        assert table.count() == ROWS
    finally:
        cached.unpersist()


def test_equal_scans_share_an_exchange(spark: SparkSession, table: DataFrame) -> None:
    table.createOrReplaceTempView("rule_t")
    grouped = "SELECT d, count(*) AS n FROM rule_t WHERE d > 2 GROUP BY d"
    df = spark.sql(f"SELECT * FROM ({grouped}) UNION ALL SELECT * FROM ({grouped})")
    assert len(df.collect()) == 14
    assert "ReusedExchange" in df._jdf.queryExecution().executedPlan().toString()


def test_a_small_lance_table_is_broadcast(table: DataFrame) -> None:
    joined = table.alias("a").join(
        table.filter("d = 1").select(F.col("id").alias("other")).alias("b"),
        F.col("a.id") == F.col("other"),
    )
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().executedPlan().toString()


def test_a_udf_in_the_filter_leaves_the_rest_pushed(table: DataFrame) -> None:
    odd = F.udf(lambda x: x % 2 == 1, "boolean")
    df = table.filter((F.col("d") == 3) & odd("id")).select("id")
    assert "`d` = 3" in descriptions(df)[0]
    assert sorted(r.id for r in df.collect()) == [
        i for i in range(ROWS) if i % 7 and i % 10 == 3 and i % 2
    ]


# --- versions --------------------------------------------------------------------------------------------------------------------


def test_views_made_by_sql_follow_the_latest_version_and_dataframes_do_not(
    spark: SparkSession, table_path: str
) -> None:
    lance.write_dataset(pa.table({"a": [1, 2]}), table_path)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW follows USING lance OPTIONS (path '{table_path}')")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW fixed USING lance OPTIONS (path '{table_path}', version '1')"
    )
    df = spark.read.format("lance").load(table_path)
    df.createOrReplaceTempView("pinned")
    lance.write_dataset(pa.table({"a": [3]}), table_path, mode="append")
    counts = {
        name: spark.sql(f"SELECT count(*), max(a) FROM {name}").first()
        for name in ("follows", "fixed", "pinned")
    }
    assert counts == {"follows": (3, 3), "fixed": (2, 2), "pinned": (2, 2)}
    assert df.count() == 2
    both = descriptions(
        spark.sql(
            "SELECT * FROM follows a JOIN follows b ON a.a = b.a WHERE a.a < (SELECT max(a) FROM follows)"
        )
    )
    assert len(both) >= 3 and all("@2" in d for d in both)


def test_every_dataframe_keeps_the_version_of_its_load(
    spark: SparkSession, table_path: str
) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1]}), table_path)
    dataset.tags.create("first", 1)
    dataset.create_branch("side", 1)
    lance.write_dataset(pa.table({"a": [2]}), table_path, mode="append")
    other_session = spark.newSession()
    versions = {"version": "1", "tag": "first", "branch": "side"}

    def read(session: SparkSession, **options: str) -> DataFrame:
        return session.read.format("lance").options(**options).load(table_path)

    loaded = {
        name: read(spark, **{name.replace("tag", "version"): text})
        for name, text in versions.items()
    }
    loaded |= {"latest": read(spark), "session": read(other_session), "cached": read(spark).cache()}
    loaded["cached"].createOrReplaceTempView("cached_load")
    loaded["view"] = spark.table("cached_load").where("a > 0")
    lance.write_dataset(pa.table({"a": [3]}), table_path, mode="append")
    lance.dataset(table_path).checkout_version(("side", None)).insert(pa.table({"a": [4]}))
    expected = dict.fromkeys(versions, 1) | dict.fromkeys(
        ("latest", "session", "cached", "view"), 3
    )
    assert {name: sum(row.a for row in df.collect()) for name, df in loaded.items()} == expected
    assert all(
        "pushed: `a` > 0" in descriptions(df.where("a > 0"))[0]
        for name, df in loaded.items()
        if name not in ("cached", "view")
    )
    loaded["cached"].unpersist()


def test_the_row_addresses_of_a_following_view_name_the_version_that_was_read(
    spark: SparkSession, table_path: str
) -> None:
    lance.write_dataset(pa.table({"a": [1, 2]}), table_path)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW addresses USING lance OPTIONS (path '{table_path}', with_row_address 'true')"
    )
    lance.write_dataset(pa.table({"a": [3]}), table_path, mode="append")
    spark.sql("SELECT _rowaddr, a + 1 AS b FROM addresses").write.format("lance").mode(
        "append"
    ).option("mode", "backfill").save(table_path)
    assert lance.dataset(table_path).to_table().to_pylist() == [
        {"a": 1, "b": 2},
        {"a": 2, "b": 3},
        {"a": 3, "b": 4},
    ]


# --- failures --------------------------------------------------------------------------------------------------------------------


def fails(error: Exception) -> Callable[[dict[str, Any]], NoReturn]:
    def plan_scan(arguments: dict[str, Any]) -> NoReturn:
        raise error

    return plan_scan


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes the command behind the rule fail."""

    def fail(error: Exception) -> None:
        monkeypatch.setattr("lance_spark.sql.reads.plan_scan", fails(error))

    return fail


@pytest.mark.sample(1)
def test_an_unexpected_failure_leaves_the_query_unpushed_and_right(
    table: DataFrame, planning: Callable[[Exception], None]
) -> None:
    planning(RuntimeError("unexpected"))
    df = table.filter("d = 3").select("id")
    assert sorted(r.id for r in df.collect()) == [i for i in range(ROWS) if i % 7 and i % 10 == 3]
    assert "pushed" not in plan(df)


def test_a_typed_error_of_this_package_reaches_the_user(
    table: DataFrame, planning: Callable[[Exception], None]
) -> None:
    planning(OptionError("batch_size", "x", "a number"))
    with pytest.raises(PySparkException, match="Option 'batch_size' = 'x' is not valid"):
        table.filter("d = 3").collect()


def test_a_table_that_vanished_is_an_error_that_names_it(
    spark: SparkSession, table_path: str
) -> None:
    import shutil

    lance.write_dataset(pa.table({"a": [1, 2]}), table_path)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW gone USING lance OPTIONS (path '{table_path}')")
    shutil.rmtree(table_path)
    with pytest.raises(PySparkException, match="No Lance table was found"):
        spark.sql("SELECT * FROM gone").collect()


@pytest.mark.parametrize(
    ("first_filter", "second_filter", "same"),
    [
        ("s = 'v1' OR s = 'v2'", "s = 'v2' OR s = 'v1'", True),
        ("s IN ('v1', 'v2', 'v3')", "s IN ('v3', 'v1', 'v2')", True),
        ("d > 3 AND (s = 'v1' OR f < 3)", "(f < 3 OR s = 'v1') AND d > 3", True),
        ("d > 3 AND (s = 'v1' OR f < 3)", "(d > 3 OR f < 3) AND s = 'v1'", False),
        ("s = 'v1' OR s = 'v2'", "s = 'v1' OR s = 'v3'", False),
    ],
)
def test_an_exchange_above_the_same_scan_is_reused(
    table: DataFrame, first_filter: str, second_filter: str, same: bool
) -> None:
    left_side, right_side = (
        table.where(condition).groupBy("d").count().hint("merge")
        for condition in (first_filter, second_filter)
    )
    joined = left_side.join(right_side, "d")
    expected = {row.d: row["count"] for row in left_side.collect()}
    got = joined.collect()
    reused = "ReusedExchange" in str(joined._jdf.queryExecution().executedPlan().toString())
    assert reused == same
    assert not same or {row[0]: row[1] for row in got} == {
        d: n for d, n in expected.items() if d is not None
    }
