"""Measures SQL statements: `python -m benchmarks.sql [--rows 200000] [--home FOLDER]`.

The statements set a narrow column of a wide table (vectors of 768) in 1 %, 10 % and all of the
rows, delete 1 % of the rows, and merge 1 %.
Parquet, for comparison, is rewritten as a whole. Seconds are measured in turns. Bytes are the bytes
added to the folder, compared also
with Iceberg and the JVM connector if PySpark 3.5 and their jars are available (below `--home`; a
named home is kept).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lance_spark
from benchmarks.jvm import JvmConnector, LeftOutError, install_iceberg
from benchmarks.measure import OURS, TimedCase
from benchmarks.pictures import plot_bars
from benchmarks.report import make_parser, write_report
from benchmarks.sql_peers_child import PEERS

_TURNS = 3
_PARQUET = "Parquet"

WHERE = {"1 %": "id % 100 = {n}", "10 %": "id % 10 = {n}", "100 %": "true"}


def main() -> None:
    """Runs all cases in sequence, and writes `sql.json` and `sql.png`."""
    parser = make_parser("sql", __doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument(
        "--home", type=Path, help="folder of PySpark 3.5 and the jars; a temporary one by default"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        results = measure(folder, arguments.rows)
        home = arguments.home or Path(folder, "home")
        for peer, sizes in bytes_of_peers(folder, home.absolute(), cases(arguments.rows)).items():
            for case in results:
                case["bytes"][peer] = sizes[case["case"]]
            print(peer, sizes, flush=True)
    report = {"rows": arguments.rows, "cpus": os.cpu_count(), "cases": results}
    write_report(arguments, "sql", report)
    plot(results, arguments.out / "sql.png")


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draws the bytes added by each statement, with each contestant."""
    megabytes = {
        case["case"]: {name: size / 1e6 for name, size in case["bytes"].items()} for case in results
    }
    plot_bars(megabytes, path, label="megabytes that a statement writes", unit="MB")


def cases(rows: int) -> dict[str, str]:
    """Returns the statements by the names of their cases."""
    updates = {
        f"UPDATE of {share}": f"UPDATE {{t}} SET k = k + 1 WHERE {where}"
        for share, where in WHERE.items()
    }
    return updates | {
        "DELETE of 1 %": "DELETE FROM {t} WHERE id % 100 = {n}",
        "MERGE of 1 %": f"MERGE INTO {{t}} t USING (SELECT id * 100 + {{n}} AS id, -1L AS k FROM range({rows // 100})) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT (id, k) VALUES (s.id, s.k)",
    }


def bytes_of_peers(
    folder: str, home: Path, statements: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Returns the bytes written by each case with other connectors, or none if they are not
    available."""
    try:
        jvm = JvmConnector.install(home)
        iceberg = str(install_iceberg(home))
    except LeftOutError as reason:
        print(f"Iceberg and the JVM connector: left out, {reason}")
        return {}
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYSPARK_", "SPARK_"))
    }
    bytes_by_peer = {}
    for peer in PEERS:
        classpath = iceberg if "Iceberg" in peer else jvm.classpath
        process = subprocess.run(
            [jvm.python, "-m", "benchmarks.sql_peers_child", peer, folder, classpath],
            input=json.dumps(statements) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**environment, "PYSPARK_PYTHON": jvm.python},
        )
        bytes_by_peer[peer] = json.loads(process.stdout)
    return bytes_by_peer


def measure(folder: str, rows: int) -> list[dict[str, Any]]:
    """Returns seconds and bytes of each case."""
    builder = (
        SparkSession.builder.master("local[2]").appName("sql").config("spark.ui.enabled", "false")
    )
    builder = builder.config("spark.ui.showConsoleProgress", "false").config(
        "spark.driver.memory", "3g"
    )
    spark = lance_spark.configure(builder, catalogs={"lance": folder}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    vector = "transform(sequence(1, 768), x -> cast(rand(7) AS float)) AS v"
    spark.range(0, rows, 1, 4).selectExpr("id", "id % 100 AS k", vector).write.parquet(
        f"{folder}/parquet"
    )
    statements = Statements(spark, folder)
    values = {"UPDATE": "k + 1", "DELETE": None, "MERGE": "-1"}
    results = [
        statements.run(
            name, text, WHERE[name.partition(" of ")[2]], values[name.partition(" of ")[0]]
        )
        for name, text in cases(rows).items()
    ]
    spark.stop()
    return results


class Statements:
    """A table in Parquet, and fresh copies in Lance."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder
        self._made = 0

    def run(self, name: str, statement: str, where: str, value: str | None) -> dict[str, Any]:
        """Returns the cost of a statement, and of rewriting the remaining rows."""
        self._made += 1
        table = f"t{self._made}"
        self._spark.sql(
            f"CREATE TABLE lance.{table} AS SELECT * FROM parquet.`{self._folder}/parquet`"
        )
        numbers = iter(range(7, 99, 3))
        added: dict[str, list[int]] = {OURS: [], _PARQUET: []}

        def ours() -> None:
            text = statement.replace("{t}", f"lance.{table}").replace(
                "{n}", str(next(numbers) % 10)
            )
            added[OURS].append(self._added(f"{table}.lance", lambda: self._spark.sql(text)))

        def parquet() -> None:
            condition = where.replace("{n}", "7")
            rows = self._spark.read.parquet(f"{self._folder}/parquet")
            if value is None:
                rows = rows.filter(f"NOT ({condition})")
            else:
                rows = rows.selectExpr(
                    "id", f"CASE WHEN {condition} THEN {value} ELSE k END AS k", "v"
                )
            shutil.rmtree(f"{self._folder}/copy", ignore_errors=True)
            added[_PARQUET].append(
                self._added("copy", lambda: rows.write.parquet(f"{self._folder}/copy"))
            )

        case = TimedCase(
            name=name,
            contestants={OURS: ours, _PARQUET: parquet},
            note="beside Parquet rewritten",
            versus=_PARQUET,
        )
        outcome = case.run(_TURNS)
        shutil.rmtree(f"{self._folder}/{table}.lance")
        summary = {
            "case": name,
            "medians": {
                contestant: round(value, 3) for contestant, value in outcome.medians.items()
            },
            "ratio": round(outcome.ratios[_PARQUET], 3),
            "bytes": {
                contestant: sorted(sizes)[len(sizes) // 2] for contestant, sizes in added.items()
            },
        }
        print(summary, flush=True)
        return summary

    def _added(self, name: str, act: Callable[[], object]) -> int:
        before = self._size(name)
        act()
        return self._size(name) - before

    def _size(self, name: str) -> int:
        files = Path(self._folder, name).rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main()
