"""A client of a server with a catalog: `python -m tests.connect.sql_client URL PATH`. Prints one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lance_spark
from tests.support.processes import environment

MERGE = (
    "MERGE INTO lance.t t USING (SELECT 1L AS id UNION ALL SELECT 1000L) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 0)"
)


REPORT = {
    "pushed": [True, True],
    "rows": [92, sum(range(0, 91, 2)) * 2 - 1, -1],
    "before": 0,
    "missing": "TABLE_OR_VIEW_NOT_FOUND",
    "statements": [["v", 4], ["v", "main", 4], ["more", 6], ["seven", 3, 1]],
    "changed": True,
    "manifest": True,
    "code": True,
    "searched": [3, 4, 5],
}
"""The report of a client of a server with an empty catalog."""


def seen_by_client(url: str, path: str) -> dict[str, object]:
    """Runs a client, and returns its report."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.connect.sql_client", url, path],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
        env=environment(),
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    report: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    assert "Start the server" in str(report.pop("refused"))
    return report


@lance_spark.udf(data_type=pa.int64())
def twice(id: int) -> int:
    return id * 2


def refused(spark: SparkSession, setting: str, value: str, act: Callable[[], object]) -> bool:
    """Tells whether a setting of this session is an error, and no error after RESET."""
    spark.conf.set(setting, value)
    try:
        act()
    except (PySparkException, lance_spark.OptionError) as error:
        return "was SET in the session" in str(error)
    finally:
        spark.sql(f"RESET {setting}").collect()
    return False


def main(url: str, path: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    report: dict[str, object] = {}
    try:
        lance_spark.catalog(spark, "mine", path)
    except lance_spark.UnsupportedOperationError as error:
        report["refused"] = str(error)
    spark.range(1000).selectExpr("id", "concat('text ', id) AS text").write.format("lance").mode(
        "append"
    ).save(path)
    plan = spark.sql(f"EXPLAIN SELECT text FROM lance.`{path}` WHERE id = 7").first()[0]
    by_path = spark.read.format("lance").load(path).filter("id = 7").select("text")
    report["pushed"] = ["`id` = 7" in text for text in (plan, by_path._explain_string())]  # type: ignore[operator]
    for statement in (
        "CREATE TABLE lance.t AS SELECT id, 0L AS n FROM range(100)",
        "UPDATE lance.t SET n = id * 2 WHERE id IN (SELECT id FROM lance.t WHERE id % 2 = 0)",
        "DELETE FROM lance.t WHERE id > 90",
        MERGE,
    ):
        spark.sql(statement).collect()
    report["rows"] = list(spark.sql("SELECT count(*), sum(n), min(n) FROM lance.t").first())
    report["before"] = spark.sql("SELECT sum(n) FROM lance.t VERSION AS OF 1").first()[0]
    spark.sql(
        "CREATE TEMPORARY VIEW made AS SELECT _rowaddr, id + 1 AS more FROM lance.t"
    ).collect()
    report["statements"] = [
        list(spark.sql(statement).first())
        for statement in (
            "ALTER TABLE lance.t CREATE TAG v",
            "SHOW TAGS FROM lance.t",
            "ALTER TABLE lance.t ADD COLUMNS more FROM made",
            "CREATE MATERIALIZED VIEW lance.seven AS SELECT id FROM lance.t WHERE more = 8 WITH DATA",
        )
    ]
    try:
        spark.sql("SELECT * FROM lance.a.nix").collect()
    except PySparkException as error:
        report["missing"] = error.getCondition()
    report["changed"] = refused(
        spark,
        "spark.sql.catalog.lance.root",
        path,
        lambda: spark.sql("SELECT * FROM lance.t").collect(),
    )
    folder, _, name = path.removesuffix(".lance").rpartition("/")
    by_path_table = lance_spark.connect(folder, spark).open_table(name)
    manifest = lance_spark.Manifest.create_pip("m").pip(["packaging==24.2"]).build()
    add = lambda: by_path_table.add_columns({"twice": twice})  # noqa: E731 - as above
    report["manifest"] = refused(spark, "spark.lance.manifest", manifest.to_json(), add)
    by_path_table.add_columns({"twice": twice})
    try:
        spark.sql(f"CALL lance.system.backfill('{path}', 'twice')").collect()
    except PySparkException as error:
        report["code"] = "allow_stored_code" in str(error)
    vectors = (
        spark.range(100)
        .selectExpr("id", "array(CAST(id AS FLOAT), CAST(0 AS FLOAT)) AS e")
        .write.format("lance")
    )
    vectors.mode("append").option("e.arrow.fixed-size-list.size", 2).save(f"{path}.vectors")
    hits = spark.sql(
        f"SELECT id FROM lance_vector_search('{path}.vectors', array(4.0, 0.0), k => 3)"
    )
    report["searched"] = sorted(row.id for row in hits.collect())
    spark.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
