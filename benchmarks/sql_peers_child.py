"""Bytes written by SQL statements with a JVM connector: `python -m benchmarks.sql_peers_child PEER
FOLDER CLASSPATH`.

Run by `benchmarks.sql` in an environment with PySpark 3.5. PEER is one of `PEERS`. Reads statements
by case as a line of JSON, and prints
bytes by case as a line of JSON. Each case has a fresh copy of the table FOLDER/parquet.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

_ICEBERG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.peer.type": "hadoop",
}
_JVM = {
    "spark.sql.extensions": "org.lance.spark.extensions.LanceSparkSessionExtensions",
    "spark.sql.catalog.peer": "org.lance.spark.LanceNamespaceSparkCatalog",
    "spark.sql.catalog.peer.impl": "dir",
}
_MODES = ("write.update.mode", "write.delete.mode", "write.merge.mode")

PEERS = {
    "Iceberg, copy-on-write": (_ICEBERG, "warehouse", dict.fromkeys(_MODES, "copy-on-write")),
    "Iceberg, merge-on-read": (
        _ICEBERG,
        "warehouse",
        dict.fromkeys(_MODES, "merge-on-read") | {"format-version": "2"},
    ),
    "JVM connector": (_JVM, "root", {}),
}
"""Settings of a session, the catalog property for its folder, and table properties."""


def main() -> None:
    """Answers one question."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer, folder, classpath = sys.argv[1:]
    settings, root, properties = PEERS[peer]
    home = Path(folder, "peers", peer.replace(" ", "_").replace(",", ""))
    home.mkdir(parents=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .config(map=settings)
        .config(f"spark.sql.catalog.peer.{root}", str(home))
        .config("spark.driver.extraClassPath", classpath)
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    written_bytes = {}
    spark.sql("CREATE NAMESPACE IF NOT EXISTS peer.default")
    for number, (case, statement) in enumerate(json.loads(sys.stdin.readline()).items()):
        table = f"peer.default.t{number}"
        texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        table_properties = f" TBLPROPERTIES ({texts})" if texts else ""
        spark.sql(
            f"CREATE TABLE {table}{table_properties} AS SELECT * FROM parquet.`{folder}/parquet`"
        )
        before = _size(home)
        spark.sql(statement.replace("{t}", table).replace("{n}", "7"))
        written_bytes[case] = _size(home) - before
    print(json.dumps(written_bytes), file=answers, flush=True)
    spark.stop()


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
