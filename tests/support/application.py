"""A separate Spark application with settings that a running application cannot get: `python -m
tests.support.application FOLDER`.

Prints a line of JSON about the effect of its settings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lance_spark
from tests.support.processes import environment

SECRETS = {
    "aws_secret_access_key": "SECRETkey",
    "azure_storage_sas_key": "SECRETsas",
    "headers": "SECREThead",
    "account_key": "SECRETaccount",
}
ROOT = Path(__file__).parents[2]


def described(folder: Path) -> dict[str, Any]:
    """Returns the report of the application."""
    command = [sys.executable, "-m", "tests.support.application", str(folder)]
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return dict(json.loads(process.stdout.splitlines()[-1]))


def builder(folder: str) -> SparkSession.Builder:
    spark_builder = SparkSession.builder.master("local[1]").config(
        "spark.sql.shuffle.partitions", "1"
    )
    spark_builder = spark_builder.config("spark.ui.showConsoleProgress", "false").config(
        "spark.sql.warehouse.dir", f"{folder}/warehouse"
    )
    spark_builder = spark_builder.config(
        map={f"spark.sql.catalog.lance.storage.{key}": value for key, value in SECRETS.items()}
    )
    return spark_builder.config("spark.driver.host", "127.0.0.1").config(
        "spark.driver.bindAddress", "127.0.0.1"
    )


@lance_spark.udf(data_type=pa.int64())
def twice(id: int) -> int:
    return id * 2


def main(folder: str) -> None:
    report: dict[str, Any] = {}
    stock = (
        builder(folder)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.catalog.lance.root", f"{folder}/t")
    )
    spark = stock.config("spark.sql.catalog.lance", "lancespark.LanceCatalog").getOrCreate()
    lance_spark.enable_pushdown(spark)
    try:
        spark.sql("SHOW TABLES IN lance").collect()
    except AnalysisException as error:
        report["stock"] = str(error)
    spark.stop()

    SparkSession.builder._options.clear()
    manifest = (
        lance_spark.Manifest.create_pip("of the application").pip(["packaging==24.2"]).build()
    )
    Path(folder, "events").mkdir()
    own = (
        builder(folder)
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", f"file://{folder}/events")
    )
    own = (
        own.config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.lance.manifest", manifest.to_json())
    )
    spark = lance_spark.configure(own, catalogs={"lance": f"{folder}/tables"}).getOrCreate()
    spark.sql("CREATE TABLE lance.t AS SELECT 1L AS id").collect()
    report["tables"] = [list(row) for row in spark.sql("SHOW TABLES IN lance").collect()]
    table = lance_spark.connect(f"{folder}/tables", spark).open_table("t")
    table.add_columns({"x": twice})
    stored_manifest = table.get_manifest("x")
    report["manifest"] = None if stored_manifest is None else stored_manifest.name
    spark.sql("SET spark.lance.environments.dir=/tmp/x").collect()
    try:
        table.backfill("x")
    except lance_spark.OptionError as error:
        report["folder_set"] = "was SET" if "was SET" in str(error) else str(error)

    by_path = f"path '{folder}/tables/t.lance', 'storage.headers' 'SECREThead'"
    spark.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS ({by_path})").collect()
    texts = [
        str(spark.sql(text).collect())
        for text in ("SET", "SET -v", "EXPLAIN EXTENDED SELECT * FROM lance.t")
    ]
    texts += [str(spark.sql("EXPLAIN EXTENDED SELECT * FROM v").collect())]
    sas = "spark.sql.catalog.lance.storage.azure_storage_sas_key"
    report["set"] = spark.sql(f"SET {sas}").first()["value"]  # type: ignore[index]
    web, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    for page in ("/environment/", f"/api/v1/applications/{application}/environment", "/SQL/"):
        texts.append(urllib.request.urlopen(f"{web}{page}", timeout=60).read().decode())
    spark.stop()
    texts += [
        path.read_text(errors="replace")
        for path in Path(folder, "events").rglob("*")
        if path.is_file()
    ]
    report["shown"] = [
        text[text.index("SECRET") - 200 :][:300] for text in texts if "SECRET" in text
    ]
    report["redacted"] = sum(text.count("(redacted)") for text in texts)
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
