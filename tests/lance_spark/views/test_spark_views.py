"""Views as queries of Spark: after any change of the source, a view shows Spark's result of the query."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_spark import Connection, Table
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    RegistrationError,
    StableRowIdsError,
    TableExistsError,
    UnsupportedTypeError,
    ViewError,
    ViewSourceError,
)
from lance_spark.jvm.gateway import is_classic
from lance_spark.views.spark.text import parse, shorten_qualifiers, tokens_of
from tests.lance_spark.views.views import (
    ID,
    clean,
    compact,
    forge,
    make_source,
    nothing_changes,
    rows_shown,
)
from tests.support.logs import Log

pytestmark = pytest.mark.sample(8, tests=5)


def with_ids(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: row[ID])


def check(spark: SparkSession, view: Table, query: str) -> None:
    """Asserts that a view shows the result of its query: its SELECT with {source} and {id}, run by Spark on the
    source.
    """
    source = f"{view.uri.rpartition('/')[0]}/s.lance"
    rows = spark.read.format("lance").option("with_row_id", True).load(source)
    rows.createOrReplaceTempView("the_source")
    expected = with_ids(spark.sql(query.format(source="the_source", id=f"_rowid AS {ID},")))
    have = with_ids(spark.read.format("lance").load(view.uri))
    assert have == expected
    assert len({row[ID] for row in have}) == len(have)


# Contents of a view


def test_a_text_over_a_table_of_the_connection(db: Connection, spark: SparkSession) -> None:
    source = make_source(db)
    view = db.create_materialized_view(
        "v", "SELECT k, p * 2 AS p2, concat('k', k) FROM s WHERE k % 2 = 0"
    )
    assert view.schema.names == [ID, "k", "p2", "concat(k, k)"]
    assert view.count_rows() == 0
    result = view.refresh()
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (10, 0, 0)
    query = "SELECT {id} k, p * 2 AS p2, concat('k', k) FROM {source} WHERE k % 2 = 0"
    check(spark, view, query)

    source.to_lance().update({"p": "p + 1"}, where="k < 4")
    source.to_lance().update({"u": "u + 1"})
    source.to_lance().update({"k": "101"}, where="k = 8")
    source.to_lance().delete("k = 10")
    source.add([{"k": 20, "x": 0, "p": 1, "u": 1}, {"k": 21, "x": 0, "p": 1, "u": 1}])
    plan = view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.rows_removed) == (7, 0, 6)
    result = view.refresh()
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (3, 0, 4)
    check(spark, view, query)
    compact(source)
    assert view.refresh().rows_processed == 0


TYPES: dict[str, pa.Array[Any]] = {
    "k": pa.array([1, 2, 3]),
    "Mixed Case": pa.array(["a", None, "it's"]),
    "items": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
    "st": pa.array([{"f": 1, "g h": "x"}, None, {"f": None, "g h": "y"}]),
    "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1900, 1, 1)]),
    "at": pa.array([dt.datetime(2024, 3, 10, 9, 30, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC")),
    "ntz": pa.array([dt.datetime(2024, 3, 10, 9, 30, tzinfo=dt.UTC)] * 3, pa.timestamp("us")),
    "amount": pa.array(
        [decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")], pa.decimal128(10, 2)
    ),
    "vec": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "small": pa.array([1, 255, None], pa.uint8()),
}

EXPRESSIONS = {
    "same": "`Mixed Case`",
    "text": "CASE WHEN `Mixed Case` = 'it''s FROM, WHERE (' THEN 'a\\'b' ELSE upper(`Mixed Case`) END",
    "lambdas": "transform(filter(items, i -> i > 0), (x, i) -> x + i + k)",
    "folded": "aggregate(items, 0L, (acc, x) -> acc + x)",
    "field": "st.`g h`",
    "other": "st['f'] + 1",
    "built": "named_struct('a', k, 'b', array(k, 2))",
    "later": "day + INTERVAL 1 DAY",
    "since": "at > TIMESTAMP '2024-03-10 09:00:00'",
    "hour": "hour(at)",
    "date": "date_trunc('DAY', ntz)",
    "exact": "amount * 1.5BD + CAST(k AS DECIMAL(5, 1))",
    "first": "vec[0]",
    "cast": "try_cast(`Mixed Case` AS INT)",
    "words": "split(`Mixed Case`, '')",
    "between": "k BETWEEN 1 AND 2 OR `Mixed Case` LIKE 'i%' OR `Mixed Case` IN ('a', 'b')",
    "distinct": "k IS DISTINCT FROM small",
    "year": "extract(YEAR FROM day)",
    "nothing": "coalesce(small, nvl(st.f, -1))",
    "vec2": "vec",
}


def typed_source(db: Connection) -> Table:
    return db.create_table("s", pa.table(TYPES))


def test_expressions_of_all_kinds_as_text(db: Connection, spark: SparkSession) -> None:
    source = typed_source(db)
    items = ", ".join(f"{text} AS `{name}`" for name, text in EXPRESSIONS.items())
    view = db.create_materialized_view("v", f"SELECT {items} FROM s -- a comment, FROM WHERE\n")
    view.refresh()
    source.add(source.to_arrow())
    view.refresh()
    check(spark, view, f"SELECT {{id}} {items} FROM {{source}}")
    assert view.schema.field("vec2").type == pa.list_(pa.float32(), 2), "as df.write has it"
    assert all(field.nullable for field in view.schema if field.name != ID)


def test_all_columns_keep_their_types(db: Connection) -> None:
    source = typed_source(db)
    view = db.create_materialized_view("v", "SELECT * FROM s")
    view.refresh()
    assert view.to_arrow(source.schema.names).cast(source.schema).equals(source.to_arrow())
    assert [field.type for field in view.schema if field.name != ID] == [
        field.type for field in source.schema
    ]


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ("SELECT * FROM s", "SELECT {id} k, x, p, u FROM {source}"),
        (
            "SELECT t.*, k + 1 AS l FROM s AS t WHERE t.k > 3;",
            "SELECT {id} k, x, p, u, k + 1 AS l FROM {source} WHERE k > 3",
        ),
        ("select * except (u, x), s.x xx from s", "SELECT {id} k, p, x AS xx FROM {source}"),
        (
            "SELECT y.a, y.b FROM (SELECT *, a + 1 AS b FROM (SELECT k + x AS a, p, u FROM `s` WHERE k > 1) WHERE p < 9) y WHERE y.b > 12",
            "SELECT {id} k + x AS a, k + x + 1 AS b FROM {source} WHERE k > 1 AND p < 9 AND k + x + 1 > 12",
        ),
        (
            "SELECT k + 1 AS a, a * 2 AS b, upper('x') FROM s",
            "SELECT {id} k + 1 AS a, (k + 1) * 2 AS b, upper('x') FROM {source}",
        ),
        (
            "SELECT 1 AS one FROM s WHERE k IS DISTINCT FROM 3",
            "SELECT {id} 1 AS one FROM {source} WHERE k <> 3",
        ),
        ("SELECT K, p AS `from`, x AS `order by` FROM S", None),
        (
            "/* a /* nested */ SELECT */ SELECT ALL k -- FROM x\nFROM s WHERE (k > 2)",
            "SELECT {id} k FROM {source} WHERE k > 2",
        ),
    ],
)
def test_forms_of_a_select(
    query: str, plain: str | None, db: Connection, spark: SparkSession
) -> None:
    source = make_source(db)
    if plain is None:
        query, plain = (
            query.replace("FROM S", "FROM s"),
            "SELECT {id} K, p AS `from`, x AS `order by` FROM {source}",
        )
    view = db.create_materialized_view("v", query)
    view.refresh()
    source.add([{"k": 9, "x": 2, "p": 3, "u": 4}])
    source.to_lance().update({"p": "p + 1", "u": "0"}, where="k % 3 = 0")
    view.refresh()
    check(spark, view, plain)


CHANGES: dict[str, Callable[[Table, random.Random], object]] = {
    "append": lambda s, r: s.add(
        [{"k": r.randrange(40), "x": r.choice([None, 3]), "p": r.randrange(9), "u": 0}] * 3
    ),
    "update": lambda s, r: s.to_lance().update(
        {"p": "p + 1"}, where=f"k % {r.randrange(2, 5)} = 0"
    ),
    "select": lambda s, r: s.to_lance().update(
        {"k": f"k + {r.randrange(3)}"}, where=f"k > {r.randrange(20)}"
    ),
    "unused": lambda s, r: s.to_lance().update({"u": "u + 1"}, where=f"k < {r.randrange(20)}"),
    "delete": lambda s, r: s.to_lance().delete(f"k % 7 = {r.randrange(7)}"),
    "compact": lambda s, _: compact(s),
    "column": lambda s, r: s.to_lance().add_columns({f"c{r.randrange(1 << 30)}": "k + 1"}),
    "restore": lambda s, r: (
        s.to_lance().checkout_version(r.choice(s.to_lance().versions())["version"]).restore()
    ),
    "clean": lambda s, _: clean(s),
}


def check_random_history(db: Connection, spark: SparkSession, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    source = make_source(db)
    query = "SELECT {id} k, x + p AS xp, k * 2 AS k2 FROM {source} WHERE k % 2 = 0 AND p < 12"
    view = db.create_materialized_view("v", query.format(id="", source="s"))
    own = db.create_materialized_view("w", "SELECT k, p * x AS px FROM s WHERE p % 2 = 1")
    for _ in range(steps):
        for name in chance.choices(list(CHANGES), k=chance.randrange(4)):
            CHANGES[name](source, chance)
        view.refresh(max_rows_per_fragment=chance.choice([None, 3]))
        check(spark, view, query)
    own.refresh()
    check(spark, own, "SELECT {id} k, p * x AS px FROM {source} WHERE p % 2 = 1")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1))
def test_random_histories(seed: int, db: Connection, spark: SparkSession) -> None:
    check_random_history(db, spark, seed, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_long_random_histories(seed: int, db: Connection, spark: SparkSession) -> None:
    check_random_history(db, spark, seed, 12)


# Views among tables


@pytest.mark.long
def test_a_view_of_a_view_with_a_computed_column(
    db: Connection, spark: SparkSession, log: Log
) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT k AS x, p FROM s WHERE k < 10")
    view.refresh()
    view.add_columns({"y": log.doubling()})
    view.backfill("y")
    assert log.take() == list(range(10))
    over = db.create_materialized_view("w", "SELECT * FROM v WHERE y > 4")
    over.refresh()
    assert over.schema.names == [ID, "x", "p", "y"]
    source.to_lance().update({"p": "100"}, where="k = 3")
    view.refresh()
    over.refresh()
    assert sorted(row["x"] for row in rows_shown(over)) == [4, 5, 6, 7, 8, 9], (
        "y of a row that was written anew is NULL"
    )
    view.backfill("y")
    over.refresh()
    assert log.take() == [3]
    assert min((row["x"], row["p"], row["y"]) for row in rows_shown(over)) == (3, 100, 6)


def test_columns_of_a_view_may_be_renamed_and_dropped(db: Connection, spark: SparkSession) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT k + 1 AS a, a * 2 AS b, p FROM s")
    view.to_lance().alter_columns({"path": "b", "name": "p2"})
    view.to_lance().drop_columns(["a"])
    view.refresh()
    source.add([{"k": 100, "x": 1, "p": 1, "u": 1}])
    view.refresh()
    check(spark, view, "SELECT {id} (k + 1) * 2 AS p2, p FROM {source}")


def test_a_used_column_that_goes_is_named(db: Connection) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT k + 1 AS a FROM s WHERE p > 3")
    view.refresh()
    source.drop_columns(["u"])
    view.refresh()
    source.drop_columns(["p"])
    with nothing_changes(view), pytest.raises(ViewSourceError, match="'p'"):
        view.refresh()


def test_only_columns_that_are_used_are_kept_in_mind(db: Connection) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT a FROM (SELECT *, k + 1 AS a, u AS b FROM s)")
    view.refresh()
    source.drop_columns(["u", "p"])
    source.add([{"k": 50, "x": 1}])
    assert view.refresh().rows_added == 1


# Settings


def test_settings_are_those_of_the_session_that_made_the_view(
    db: Connection, spark: SparkSession
) -> None:
    db.create_table(
        "s", pa.table({"k": pa.array([1]), "t": pa.array(["no number"]), "at": TYPES["at"][:1]})
    )
    before = {
        name: spark.conf.get(name)
        for name in ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")
    }
    try:
        spark.conf.set("spark.sql.ansi.enabled", "false")
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        view = db.create_materialized_view("v", "SELECT CAST(t AS INT) AS n, hour(at) AS h FROM s")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    if is_classic(spark):
        view.refresh()
        assert [(row["n"], row["h"]) for row in rows_shown(view)] == [(None, 18)]
    else:
        with pytest.raises(
            ViewError, match=r"spark\.conf\.set\('spark\.sql\.ansi\.enabled', 'false'\)"
        ):
            view.refresh()
    assert {name: spark.conf.get(name) for name in before} == before


@pytest.mark.long
def test_a_value_that_fails(db: Connection, spark: SparkSession) -> None:
    make_source(db)
    view = db.create_materialized_view("v", "SELECT 10 / (k - 3) AS q FROM s")
    with nothing_changes(view), pytest.raises(LanceSparkError, match="DIVIDE_BY_ZERO"):
        view.refresh()


# Errors

JOIN = "mode.'overwrite'."


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("SELECT a.k FROM s a JOIN s b ON a.k = b.k", JOIN),
        ("SELECT a.k FROM s a, s b", JOIN),
        ("SELECT max(k) AS m FROM s", JOIN),
        ("SELECT k, count(*) c FROM s GROUP BY k", JOIN),
        ("SELECT count(1) c FROM s", JOIN),
        ("SELECT DISTINCT k FROM s", JOIN),
        ("SELECT k FROM s UNION SELECT x FROM s", JOIN),
        ("SELECT k FROM s LIMIT 3", "limit"),
        ("SELECT k FROM s WHERE k > 1 ORDER BY k", "order"),
        ("SELECT row_number() OVER (ORDER BY k) r FROM s", "window"),
        ("SELECT explode(array(k, x)) e FROM s", "explode"),
        ("SELECT window(timestamp_seconds(k), '10 minutes', '5 minutes') w FROM s", "window"),
        ("SELECT k FROM s LATERAL VIEW explode(array(k)) t AS e", "generator"),
        ("SELECT k FROM s WHERE k IN (SELECT x FROM s)", "subquery"),
        ("SELECT (SELECT max(k) FROM s) AS m FROM s", "subquery"),
        ("SELECT k FROM s TABLESAMPLE (10 PERCENT)", "sample"),
        ("WITH t AS (SELECT k FROM s) SELECT k FROM t", "nested"),
        ("SELECT rand() AS r FROM s", "rand"),
        ("SELECT `uuid`() AS r FROM s", "uuid"),
        ("SELECT k FROM s WHERE at > current_timestamp()", "at"),
        ("SELECT current_date AS d FROM s", "current_date"),
        ("SELECT CAST('now' AS TIMESTAMP) AS d FROM s", "now"),
        ("SELECT unix_timestamp() AS d FROM s", "unix_timestamp"),
        ("SELECT monotonically_increasing_id() AS d FROM s", "monotonically"),
        ("SELECT struct(*) AS d FROM s", "star"),
        ("SELECT k, K FROM s", "two columns|name"),
        ("SELECT k AS _rowid FROM s", "_rowid"),
        ("SELECT k AS `a.b` FROM s", "a.b"),
        ("SELECT nothing FROM s", "nothing"),
        ("SELECT k FROM nowhere", "nowhere"),
        ("SELECT k FROM s WHERE k", "k"),
        ("SELECT k FROM s WHERE '${x}' = k", "variable"),
        ("SELECT 1", "FROM"),
        ("DELETE FROM s", "SELECT"),
        ("", "SELECT"),
        ("SELECT k FROM s /* open", "comment"),
        ("SELECT k FROM s |> WHERE k > 1", "pipe"),
    ],
)
def test_texts_that_are_refused(query: str, match: str, db: Connection) -> None:
    make_source(db)
    with pytest.raises((RegistrationError, LanceSparkError), match=match):
        db.create_materialized_view("v", query)
    assert db.table_names() == ["s"]


@pytest.mark.parametrize("query", [3, ["k"]])
def test_a_query_of_another_type_is_refused(query: object, db: Connection) -> None:
    make_source(db)
    with pytest.raises(OptionError, match="query"):
        db.create_materialized_view("v", query)  # type: ignore[arg-type]
    with pytest.raises(TableExistsError):
        db.create_materialized_view("s", "SELECT k FROM s")


def test_a_dataframe_is_refused_with_what_to_write(db: Connection, spark: SparkSession) -> None:
    frame = spark.read.format("lance").load(make_source(db).uri)
    with pytest.raises(OptionError, match=r"query.*a DataFrame as such a SELECT"):
        db.create_materialized_view("v", frame)  # type: ignore[arg-type]
    assert db.table_names() == ["s"]


def test_a_name_of_the_session_is_no_table_of_the_connection(
    db: Connection, spark: SparkSession
) -> None:
    spark.read.format("lance").load(make_source(db).uri).createOrReplaceTempView("some_rows")
    for name in ("some_rows", "default.s", "lance.`/s`"):
        with pytest.raises(
            RegistrationError,
            match=r"no table of this connection\. Select from one of its tables: s",
        ):
            db.create_materialized_view("v", f"SELECT k FROM {name}")


STORED_STEPS: list[list[dict[str, Any]]] = [
    [
        {"alias": None, "where": "(`k` > 3)", "select": None},
        {"alias": None, "where": None, "select": ["`k`", "(`p` + 1) AS `q`"]},
    ],
    [
        {"alias": None, "where": None, "select": ["`k`", "`p`", "`x`"]},
        {"alias": "f", "where": None, "select": None},
        {"alias": None, "where": "`f`.`k` > 3", "select": None},
        {"alias": None, "where": None, "select": ["`k`", "`p` + 1 AS `q`"]},
    ],
]
"""Queries of CREATE MATERIALIZED VIEW and of DataFrames, classic and over Spark Connect, as earlier commits stored them."""


@pytest.mark.parametrize("blocks", STORED_STEPS)
def test_a_view_whose_query_is_stored_in_steps_is_refreshed(
    blocks: list[dict[str, Any]], db: Connection
) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT k, p + 1 AS q FROM s WHERE k > 3")
    view.refresh()
    forge(view, lambda values: values["spark"].update(blocks=blocks))
    source.add([{"k": 30, "x": 1, "p": 1, "u": 1}, {"k": 2, "x": 1, "p": 1, "u": 1}])
    assert view.refresh().rows_added == 1
    again = db.create_materialized_view("w", "SELECT k, p + 1 AS q FROM s WHERE k > 3")
    again.refresh()
    assert rows_shown(view) == rows_shown(again)


def test_a_text_that_only_this_session_understands(db: Connection, spark: SparkSession) -> None:
    if not is_classic(spark):
        pytest.skip(
            "over Spark Connect a query is checked in its own session, which has the variable"
        )
    make_source(db)
    spark.sql("DECLARE OR REPLACE VARIABLE a_bound INT DEFAULT 5")
    try:
        with pytest.raises(RegistrationError, match="a_bound"):
            db.create_materialized_view("v", "SELECT k FROM s WHERE k > a_bound")
    finally:
        spark.sql("DROP TEMPORARY VARIABLE a_bound")
    spark.udf.register("upper", lambda text: text)
    try:
        with pytest.raises(RegistrationError, match="none of Spark's own functions"):
            db.create_materialized_view("v", "SELECT upper('a') AS u FROM s")
    finally:
        spark.sql("DROP TEMPORARY FUNCTION upper")


def test_a_source_without_stable_row_ids(db: Connection) -> None:
    source = make_source(db, enable_stable_row_ids=False)
    with pytest.warns(UserWarning, match="stable ids"):
        view = db.create_materialized_view("v", "SELECT k FROM s")
    assert view.refresh().rows_added == 20
    source.add([{"k": 1, "x": 1, "p": 1, "u": 1}])
    with pytest.raises(StableRowIdsError):
        view.refresh()


def test_versions_and_what_was_cleaned_up(db: Connection, spark: SparkSession) -> None:
    source = make_source(db)
    view = db.create_materialized_view("v", "SELECT k FROM s WHERE k > 3")
    view.refresh()
    source.to_lance().update({"k": "k + 100"})
    assert view.refresh(src_version=1).rows_processed == 0
    clean(source)
    assert view.plan_refresh().rebuilds
    assert view.refresh(concurrency=1).rows_added == 20
    check(spark, view, "SELECT {id} k FROM {source} WHERE k > 3")


def test_types_that_are_refused(db: Connection) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table(
        [pa.array([1]), pa.array([b"x"], pa.large_binary())],
        schema=pa.schema([pa.field("k", pa.int64()), blob]),
    )
    lance.write_dataset(
        table, f"{db.uri}/s.lance", enable_stable_row_ids=True, data_storage_version="2.1"
    )
    for query in ("SELECT * FROM s", "SELECT length(b) AS n FROM s"):
        with pytest.raises(RegistrationError, match="blobs"):
            db.create_materialized_view("v", query)
    with pytest.raises(UnsupportedTypeError, match="interval"):
        db.create_materialized_view("v", "SELECT INTERVAL 1 MONTH AS m FROM s")
    with pytest.raises(UnsupportedTypeError, match="map"):
        db.create_materialized_view("v", "SELECT map(k, k) AS m FROM s")
    view = db.create_materialized_view("v", "SELECT k FROM s")
    assert view.refresh().rows_added == 1


def test_every_function_whose_value_may_change_is_known(spark: SparkSession) -> None:
    """Spark marks such functions by a trait. Functions that Spark evaluates before the query are listed by name."""
    if not is_classic(spark):
        pytest.skip("over Spark Connect the JVM's classes cannot be asked")
    from lance_spark.views.spark.text import _GENERATORS, _UNSTEADY_CALLS

    jvm: Any = spark._jvm
    catalog = spark._jsparkSession.sessionState().catalog()
    package = "org.apache.spark.sql.catalyst.expressions"
    traits = {
        name: jvm.java.lang.Class.forName(f"{package}.{name}")
        for name in ("Nondeterministic", "Generator", "ExpressionWithRandomSeed")
    }
    unsteady = set()
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if not name.isidentifier() or name == "case":
            continue
        info = catalog.lookupFunctionInfo(
            jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
        )
        kind = jvm.java.lang.Class.forName(info.getClassName())
        if any(trait.isAssignableFrom(kind) for trait in traits.values()) or name.startswith(
            ("current_", "local")
        ):
            unsteady.add(name)
    assert unsteady > {"rand", "uuid", "stack", "current_date"}
    assert unsteady - _UNSTEADY_CALLS - _GENERATORS == set()


def test_texts_are_taken_apart_at_the_right_places() -> None:
    text = "SELECT a, 'x, y FROM z' AS b, trim(BOTH FROM c), /* , */ f(d, e)[0] FROM `t``x`.u AS v WHERE g = \"WHERE\" -- ;"
    (select,), table = parse(text)
    assert select.items == ("a", "'x, y FROM z' AS b", "trim(BOTH FROM c)", "f(d, e)[0]")
    assert (table.parts, select.alias, select.where) == (("t`x", "u"), "v", 'g = "WHERE"')
    assert text[slice(*table.span)] == "`t``x`.u"
    assert [token.text for token in tokens_of(r"r'\' || 'a\'b' -> 1.5BD")] == [
        r"r'\'",
        "|",
        "|",
        r"'a\'b'",
        "->",
        "1.5BD",
    ]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("SELECT c.n.t.id FROM c.n.t", "SELECT t.id FROM c.n.t"),
        ("SELECT n.T.id, t.id, id FROM t", "SELECT T.id, t.id, id FROM t"),
        ("SELECT `c`.`n` . t/* x */.`s`.a AS b FROM t", "SELECT t/* x */.`s`.a AS b FROM t"),
        (
            "SELECT abs(c.n.t.id) FROM t WHERE c.n.t.s['a'] > 1",
            "SELECT abs(t.id) FROM t WHERE t.s['a'] > 1",
        ),
        ("SELECT c.n.t.* FROM t", "SELECT t.* FROM t"),
        ("SELECT n.id, c.n.t.other, s.c.n.t.id, 'c.n.t.id' FROM t", None),
        ("SELECT transform(items, (c, i) -> c.n.t.id) FROM t", None),
        (
            "SELECT f(a, c -> g(c, c.n.t.id), c.n.t.id) FROM t",
            "SELECT f(a, c -> g(c, c.n.t.id), t.id) FROM t",
        ),
        ("SELECT f(a, t -> t.id), c.n.t.id FROM t", "SELECT f(a, t -> t.id), t.id FROM t"),
        (
            "SELECT c.n.t.a FROM (SELECT c.n.t.id AS a FROM t) y",
            "SELECT c.n.t.a FROM (SELECT t.id AS a FROM t) y",
        ),
    ],
)
def test_names_with_catalog_and_namespace_are_shortened_as_spark_reads_them(
    text: str, short: str | None
) -> None:
    span = parse(text)[0][0].span
    assert shorten_qualifiers(text, span, ("c", "n", "t"), ["id", "s", "items"]) == (short or text)


def test_an_argument_of_a_lambda_does_not_hide_the_table() -> None:
    text = "SELECT transform(items, T -> c.n.t.id) FROM t"
    with pytest.raises(RegistrationError, match=r"Rename the argument\.$"):
        shorten_qualifiers(text, parse(text)[0][0].span, ("c", "n", "t"), ["id"])
