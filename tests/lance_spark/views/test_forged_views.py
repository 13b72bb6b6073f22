"""Metadata of a view are data: a refresh accepts the same queries as the creation, over the same source table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    StoredUdfError,
    ViewError,
    ViewSourceError,
)
from lance_spark.views.spark.text import check_expression
from tests.lance_spark.views.views import Change, forge, make_source, nothing_changes
from tests.support.logs import Log

pytestmark = pytest.mark.sample(1, tests=2)

QUERY = "SELECT k, p + 1 AS q FROM s WHERE k < 15"


def check_refused(
    view: Table, error: type[Exception] = ViewError, match: str = "no view can have"
) -> None:
    with nothing_changes(view), pytest.raises(error, match=match):
        view.refresh()


def selected(text: str) -> Change:
    def change(values: dict[str, Any]) -> None:
        values["spark"]["blocks"][-1]["select"][1] = f"{text} AS q"

    return change


def where(text: str) -> Change:
    return lambda values: values["spark"]["blocks"][0].update(where=text)


def setting(name: str, value: str) -> Change:
    return lambda values: values["spark"]["settings"].append([name, value])


HOSTILE = [
    "reflect('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "java_method('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "`reflect`('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "try_reflect /* ( */ ('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "system.builtin.reflect('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "IDENTIFIER('reflect')('java.lang.System', 'setProperty', 'lance.pwned', 'yes')",
    "(SELECT max(id) FROM parquet.`{secret}`)",
    "(TABLE parquet.`{secret}`)",
    "(FROM parquet.`{secret}` |> AGGREGATE max(id))",
    "EXISTS(TABLE parquet.`{secret}`)",
    "k IN (TABLE parquet.`{secret}`)",
    "(WITH t AS (TABLE parquet.`{secret}`) TABLE t)",
    "(MAP k USING 'touch {secret}/ran' AS x FROM parquet.`{secret}`)",
    "current_user()",
    "rand()",
    "session_function(k)",
    "sum(p) OVER ()",
    "1 -- \\\n ' \n + (TABLE parquet.`{secret}`) -- '",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_expression_that_runs_or_reads_something_else_is_refused_as_text(text: str) -> None:
    columns = {"k": "bigint", "p": "bigint"}
    with pytest.raises(RegistrationError):
        check_expression(
            text,
            is_own=lambda name: name in ("max", "sum", "rand", "current_user"),
            columns=columns,
        )


@pytest.mark.parametrize(
    "text",
    [
        "(table IS NULL)",
        "map(k, p)",
        "(map AND k)",
        "trim(FROM p)",
        "`from` + 1",
        "values + 1",
        "(with LIKE 'x')",
    ],
)
def test_words_that_may_begin_a_query_are_names_elsewhere(text: str) -> None:
    check_expression(text, is_own=lambda name: name in ("map", "trim"), columns={"k": "bigint"})


@pytest.mark.classic
def test_a_refresh_checks_the_stored_query_as_creation_does(
    db: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    secret = str(tmp_path / "secret")
    spark.range(3).write.parquet(secret)
    make_source(db)
    view = db.create_materialized_view("v", QUERY)
    good = {k.decode(): v.decode() for k, v in lance.dataset(view.uri).schema.metadata.items()}
    changes = [selected(text.format(secret=secret)) for text in HOSTILE]
    changes += [
        where(f"k IN (TABLE parquet.`{secret}`)"),
        where("reflect('java.lang.System', 'nanoTime') > 0"),
    ]
    for change in changes:
        forge(view, change)
        check_refused(view)
        lance.dataset(view.uri).update_schema_metadata(good, replace=True)
    forge(view, setting("spark.sql.warehouse.dir", "/tmp"))
    check_refused(view, match="damaged.*spark.sql.warehouse.dir")
    lance.dataset(view.uri).update_schema_metadata(good, replace=True)
    # A column of a view is the name of a column of the query.
    for expression, accepted in (("reflect('java.lang.System', 'nanoTime')", False), ("`q`", True)):
        lance.dataset(view.uri).update_field_metadata({"q": {"lance-spark:expression": expression}})
        if not accepted:
            check_refused(view)
    assert spark._jvm.java.lang.System.getProperty("lance.pwned") is None  # type: ignore[union-attr]
    assert not (tmp_path / "secret" / "ran").exists()
    assert view.refresh().rows_added == 15


@pytest.mark.sample(1)
@pytest.mark.classic
def test_the_plan_of_a_stored_query_is_checked_too(
    db: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark's parser sees a query even where the check of its text does not."""
    spark.range(3).write.parquet(str(tmp_path / "secret"))
    make_source(db)
    view = db.create_materialized_view("v", QUERY)
    monkeypatch.setattr("lance_spark.views.spark.query.check_expression", lambda *_, **__: None)
    for text in (
        "reflect('java.lang.System', 'nanoTime')",
        f"(SELECT max(id) FROM parquet.`{tmp_path}/secret`)",
    ):
        forge(view, selected(text))
        check_refused(view, match="reads another table")


def test_a_refresh_checks_stored_texts_in_lance_sql(db: Connection) -> None:
    source = make_source(db)
    view = db.create_materialized_view(
        "v", source.search(None).where("k < 5").select({"k": "k", "q": "p + 1"})
    )
    forge(view, lambda values: values.update(where="k < random() * 100"))
    check_refused(view)
    forge(view, lambda values: values.update(where="k < 5) OR (nonsense"))
    check_refused(view)
    forge(view, lambda values: values.update(where="k < 5"))
    lance.dataset(view.uri).update_field_metadata({"q": {"lance-spark:expression": "uuid()"}})
    check_refused(view)
    for version in (1 << 64, -1, "main:1", 1.5, None):
        forge(
            view,
            lambda values, version=version: values.update(
                pin={"version": version, "incarnation": "x"}
            ),
        )
        check_refused(view, match="damaged")


def unpinned(values: dict[str, Any]) -> None:
    """Restores the stored form of an older release."""
    assert values.pop("pin") is not None


def kinds(db: Connection, source: Table, log: Log) -> list[Table]:
    query = source.search(None).select({"k": "k", "y": log.doubling()})
    chunks = source.search(None).select(["k"])
    return [
        db.create_materialized_view("text", QUERY),
        db.create_materialized_view("lance", query),
        db.create_udtf_view("chunks", chunks, chunks_of),
        db.create_udtf_view("table", chunks, table_of),
    ]


class Part(NamedTuple):
    part: int


@lance_spark.chunker
def chunks_of(x: int) -> Iterator[Part]:
    yield Part(x)


@lance_spark.udtf(output_schema=pa.schema([("total", pa.int64())]))
def table_of(rows: Any) -> Iterator[pa.Table]:
    yield pa.table({"total": [rows.count_rows()]})


def test_a_view_reads_the_table_that_it_was_made_of(
    db: Connection, tmp_path: Path, log: Log, spark: SparkSession
) -> None:
    """A refresh of a more powerful user copies no other table into the view."""
    elsewhere = lance_spark.connect(str(tmp_path / "elsewhere"), spark, progress=False)
    private = make_source(elsewhere, range(100, 120), name="private")
    for view in kinds(db, make_source(db), log):
        for make_old in (False, True):
            forge(view, lambda values: values.update(source=private.uri))
            if make_old:
                forge(view, unpinned)
            for act in (view.refresh, view.plan_refresh):
                with (
                    nothing_changes(view),
                    pytest.raises(ViewSourceError, match=r"another table|another folder"),
                ):
                    act()
    assert log.take() == []


def test_a_view_of_an_older_release_goes_on(
    db: Connection, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(db)
    new_view = db.create_materialized_view("v", QUERY)
    forge(new_view, unpinned)
    assert new_view.refresh().rows_added == 15
    elsewhere = lance_spark.connect(str(tmp_path / "elsewhere"), spark, progress=False)
    far = elsewhere.create_materialized_view("v", source.search(None).select(["k"]))
    forge(far, unpinned)
    check_refused(far, ViewSourceError, "LANCE_SPARK_ALLOW_UNPINNED_VIEWS=1")
    monkeypatch.setenv("LANCE_SPARK_ALLOW_UNPINNED_VIEWS", "perhaps")
    check_refused(far, OptionError, "LANCE_SPARK_ALLOW_UNPINNED_VIEWS")
    monkeypatch.setenv("LANCE_SPARK_ALLOW_UNPINNED_VIEWS", "1")
    assert far.refresh().rows_added == 20
    monkeypatch.delenv("LANCE_SPARK_ALLOW_UNPINNED_VIEWS")
    source.add([{"k": 50, "x": 1, "p": 1, "u": 1}])
    assert far.refresh().rows_added == 1, "the refresh noted which table it was"


@pytest.mark.sample(1)
def test_stored_code_of_views_can_be_forbidden(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = kinds(db, make_source(db), log)
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", "0")
    assert views[0].refresh().rows_added == 15, "the query runs no stored code"
    for view in views[1:]:
        check_refused(view, StoredUdfError, "forbidden by LANCE_SPARK_ALLOW_STORED_UDFS")
    assert log.take() == []
