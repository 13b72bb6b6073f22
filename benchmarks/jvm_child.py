"""A connector and Parquet in a separate process: `python -m benchmarks.jvm_child KIND FOLDER
[CLASSPATH]`.

KIND is `jvm`, `enable_pushdown` or `configure`. Answers questions, a line of JSON each, until its
input ends. Runs in the
environment of the connector, so it imports nothing but PySpark.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH = 768

Contestants = dict[str, Callable[[], object]]

_JVM = {
    "spark.sql.catalog.lance": "org.lance.spark.LanceNamespaceSparkCatalog",
    "spark.sql.catalog.lance.impl": "dir",
    "spark.sql.extensions": "org.lance.spark.extensions.LanceSparkSessionExtensions",
}


def main() -> None:
    """Lists the cases, and times requested cases."""
    # Spark and Lance print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, folder, *jars = sys.argv[1:]
    if folder == "cold":
        _cold(kind, *jars)
        return
    from benchmarks.measure import TimedCase

    connector = Connector(kind, Path(folder), *jars)
    cases = {
        name: TimedCase(
            name=name,
            note="",
            contestants=contestants,
            prepare=dict.fromkeys(contestants, connector.clear),
        )
        for name, contestants in connector.cases().items()
    }
    print(
        json.dumps({"pyspark": connector.spark.version, "cases": list(cases)}),
        file=answers,
        flush=True,
    )
    for line in sys.stdin:
        question: dict[str, str] = json.loads(line)
        print(
            json.dumps(cases[question["case"]].once(question["contestant"])),
            file=answers,
            flush=True,
        )
    connector.spark.stop()


def make_session(kind: str, classpath: str = "") -> Any:
    """Returns a session with a connector."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", tempfile.gettempdir())
    )
    if kind == "jvm":
        # In front of Spark's own jars: the Arrow of Spark 3.5 is too old for the connector.
        builder = builder.config(map={**_JVM, "spark.driver.extraClassPath": classpath})
        builder = builder.config("spark.sql.catalog.lance.root", tempfile.gettempdir())
    if kind == "configure":
        import lance_spark

        builder = lance_spark.configure(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if kind == "enable_pushdown":
        import lance_spark

        lance_spark.enable_pushdown(spark)
    return spark


def _cold(kind: str, format: str, path: str, *classpath: str) -> None:
    """Counts rows as a user script would."""
    spark = make_session(kind, *classpath)
    assert spark.read.format(format).load(path).count()
    spark.stop()


class Connector:
    """A session, with the same work on Lance and on Parquet.

    The tables are in `folder`. Each connector adds columns to its own copy of the narrow table.
    """

    def __init__(self, kind: str, folder: Path, *classpath: str) -> None:
        self.kind, self.folder, self.classpath = kind, folder, classpath
        self.spark = make_session(kind, *classpath)
        self.out = folder / f"out-{kind}"
        self._numbers = itertools.count(1)
        self.grown = folder / f"grown-{kind}.lance"
        shutil.rmtree(self.grown, ignore_errors=True)
        shutil.copytree(folder / "narrow.lance", self.grown)

    def clear(self) -> None:
        """Deletes the output of an earlier run."""
        shutil.rmtree(self.out, ignore_errors=True)

    def cases(self) -> dict[str, Contestants]:
        """Returns the cases by name."""

        def sums(df: Any) -> None:
            df.selectExpr(
                "sum(id)",
                "sum(size)",
                "sum(score)",
                "sum(weight)",
                "count(word)",
                "count(at)",
                "count(flag)",
            ).collect()

        queries: dict[str, tuple[str, Callable[[Any], object]]] = {
            "narrow, sums and counts": ("narrow", sums),
            "wide, sum(size(vector))": (
                "wide",
                lambda df: df.selectExpr("sum(size(vector))").collect(),
            ),
            "wide, sum(vector[0])": ("wide", lambda df: df.selectExpr("sum(vector[0])").collect()),
            "wide, all to noop": ("wide", _everything),
            "sum(id) of the wide table": ("wide", lambda df: df.selectExpr("sum(id)").collect()),
            "count(*)": ("narrow", lambda df: df.count()),
            "filter, 1 % of the rows": ("narrow", lambda df: _everything(df.where("score > 0.99"))),
            "point look-up, indexed": ("keyed", self._look_up),
            "group by a string, count": ("narrow", lambda df: df.groupBy("word").count().collect()),
        }
        return {
            **{name: self._both(table, query) for name, (table, query) in queries.items()},
            "write, narrow": self._writes("narrow"),
            "write, wide": self._writes("wide"),
            "add a column": {"lance": self._add_column, "parquet": self._rewrite},
            "whole process, count(*)": {
                "lance": lambda: self._run_cold("lance", "narrow.lance"),
                "parquet": lambda: self._run_cold("parquet", "narrow.parquet"),
            },
        }

    def _lance(self, table: str) -> Any:
        return self.spark.read.format("lance").load(str(self.folder / f"{table}.lance"))

    def _parquet(self, table: str) -> Any:
        return self.spark.read.parquet(str(self.folder / f"{table}.parquet"))

    def _both(self, table: str, query: Callable[[Any], object]) -> Contestants:
        return {
            "lance": lambda: query(self._lance(table)),
            "parquet": lambda: query(self._parquet(table)),
        }

    def _look_up(self, df: Any) -> None:
        assert (
            len(df.where(f"key = {next(self._numbers) * 7919 % 1000}").select("vector").collect())
            == 1
        )

    def _writes(self, table: str) -> Contestants:
        def lance() -> None:
            rows, options = self._parquet(table), {}
            if table == "wide" and self.kind == "jvm":
                # For a write by path, the connector takes the vector size from the metadata of the
                # column only.
                rows = rows.withMetadata("vector", {"arrow.fixed-size-list.size": WIDTH})
            elif table == "wide":
                options = {"vector.arrow.fixed-size-list.size": WIDTH}
            # In its default mode, the JVM connector creates a table. lance-spark creates tables in
            # append mode only.
            mode = "error" if self.kind == "jvm" else "append"
            rows.write.format("lance").options(**options).mode(mode).save(str(self.out))

        return {
            "lance": lance,
            "parquet": lambda: self._parquet(table).write.parquet(str(self.out)),
        }

    def _add_column(self) -> None:
        name = f"feature_{next(self._numbers)}"
        if self.kind == "jvm":
            table = f"lance.`{self.grown}`"
            view = f"SELECT _rowaddr, _fragid, score * id AS {name} FROM {table}"
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW feature AS {view}")
            self.spark.sql(f"ALTER TABLE {table} ADD COLUMNS {name} FROM feature")
            return
        rows = (
            self.spark.read.format("lance").option("with_row_address", True).load(str(self.grown))
        )
        values = rows.selectExpr("_rowaddr", f"score * id AS {name}")
        values.write.format("lance").mode("append").option("mode", "backfill").save(str(self.grown))

    def _rewrite(self) -> None:
        self._parquet("narrow").selectExpr("*", "score * id AS feature").write.parquet(
            str(self.out)
        )

    def _run_cold(self, format: str, table: str) -> None:
        import subprocess

        # A script that reads Parquet has no connector to load.
        kind = self.kind if format == "lance" else "plain"
        arguments = [kind, "cold", format, str(self.folder / table), *self.classpath]
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.jvm_child", *arguments],
            capture_output=True,
            check=False,
        )
        if process.returncode:
            raise RuntimeError(process.stderr[-3000:].decode(errors="replace"))


def _everything(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
