"""Numbers of a write's commit in Spark's web UI: rows, fragments, attempts, and rows with conflicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.commit import CommitConflictError
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from tests.support.sql_metrics import sql_metrics

pytestmark = [pytest.mark.classic, pytest.mark.long]

NAMES = ("rows committed", "fragments written", "commit attempts", "rows with conflicts")


def metrics_of(spark: SparkSession, act: Callable[[], object]) -> list[int | None]:
    shown = sql_metrics(spark, act)
    return [shown.get(name) for name in NAMES]


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("id", "id AS v")


def lose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets another writer win the next commit."""
    commit, lost = lance.LanceDataset.commit, []

    def commit_later(*arguments: Any, **options: Any) -> lance.LanceDataset:
        if lost:
            return commit(*arguments, **options)
        lost.append(True)
        raise CommitConflictError("another writer was faster")

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(commit_later))


def test_the_web_ui_shows_the_commit_of_a_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = str(tmp_path / "t.lance")

    def append(rows: DataFrame) -> None:
        rows.write.format("lance").mode("append").option("max_rows_per_file", 10).save(path)

    assert metrics_of(spark, lambda: append(rows_of(spark, 40))) == [40, 4, 1, 0]
    lose_once(monkeypatch)
    assert metrics_of(spark, lambda: append(rows_of(spark, 10))) == [10, 2, 2, 0]
    assert metrics_of(spark, lambda: append(rows_of(spark, 0)))[0] in (None, 0)

    read = spark.read.format("lance").option("with_row_address", True).load(path)
    backfill = (
        read.selectExpr("_rowaddr", "v + 1 AS w")
        .write.format("lance")
        .mode("append")
        .option("mode", "backfill")
    )
    lance.dataset(path).delete("id = 15")
    committed, fragments, attempts, conflicting = metrics_of(spark, lambda: backfill.save(path))
    assert (committed, fragments, attempts) == (49, 6, 1) and conflicting == 1


def test_the_web_ui_shows_the_rows_and_attempts_of_a_statement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lance_spark.catalog(spark, "measured", str(tmp_path))
    spark.sql("CREATE TABLE measured.t AS SELECT id, 0 AS v FROM range(10)").collect()
    merge = (
        "MERGE INTO measured.t USING (SELECT id FROM range(8, 13)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 8 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 1 "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 2)"
    )
    shown = sql_metrics(spark, lambda: spark.sql(merge).collect())
    assert [shown[f"rows {change}"] for change in ("inserted", "updated", "deleted")] == [3, 1, 1]
    assert shown["commit attempts"] == 1
    lose_once(monkeypatch)
    shown = sql_metrics(
        spark,
        lambda: spark.sql("UPDATE measured.t SET v = 3 WHERE id < 2 AND id % 1 = 0").collect(),
    )
    assert (shown["rows updated"], shown["commit attempts"]) == (2, 2)
