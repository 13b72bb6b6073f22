"""The cases: typical first uses of a table, compared with Parquet files written by Spark with its
defaults."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.first_look_border import ready_made
from benchmarks.first_look_data import FILES, SIZES, WIDTH, Data
from benchmarks.measure import OURS, TimedCase
from lance_spark.types.layout import aligned

CONFIGURATIONS = ("defaults", "enable_pushdown", "configure")

BORDER = "border"
"""The contestant with prepared batches: it measures the JVM-Python transfer alone."""

WRITER = "border, Lance"
"""The contestant of writes that passes transferred batches to Lance's file writer, without a
commit."""

_FEW = 3
"""Rounds of cases that take seconds."""


def make_session(configuration: str) -> SparkSession:
    """Returns a new session: with Spark's defaults, with the planner rule, or from `configure`."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.local.dir", tempfile.gettempdir())
    )
    if configuration == "configure":
        import lance_spark

        builder = lance_spark.configure(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if configuration == "enable_pushdown":
        import lance_spark

        assert lance_spark.enable_pushdown(spark)
    return spark


def everything(df: DataFrame) -> None:
    """Reads all rows and columns into Spark and discards them."""
    df.write.format("noop").mode("overwrite").save()


def show_rows(df: DataFrame) -> None:
    """Shows the first 20 rows, with redirected output."""
    with contextlib.redirect_stdout(io.StringIO()):
        df.show()


def _goals(pushdown: float, configure: float) -> dict[str, float]:
    return {"enable_pushdown": pushdown, "configure": configure}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLookCases:
    """The session and tables of the cases.

    Attributes:
        spark: The session.
        configuration: Configuration of the session, from `CONFIGURATIONS`.
        data: The tables.
    """

    spark: SparkSession
    configuration: str
    data: Data

    def cases(self) -> Iterator[TimedCase]:
        """Yields the cases."""
        yield from self._first_rows()
        yield from self._scans()
        yield from self._aggregates()
        yield from self._selective()
        yield from self._small()
        yield from self._writes()

    def _lance(self, name: str) -> DataFrame:
        return self.spark.read.format("lance").load(self.data.lance(name))

    def _parquet(self, name: str) -> DataFrame:
        return self.spark.read.parquet(self.data.parquet(name))

    def _differing(self, *columns: str, size_below: int = SIZES) -> DataFrame:
        """Returns prepared rows with the distinct values of the narrow table."""
        rows = self.data.rows("narrow")
        return ready_made(self.spark, "narrow", rows, *columns, differ=True, size_below=size_below)

    def _case(
        self,
        name: str,
        note: str,
        table: str,
        query: Callable[[DataFrame], object],
        *,
        border: tuple[str, ...] | None = None,
        border_query: Callable[[], object] | None = None,
        pylance: Callable[[lance.LanceDataset], object] | None = None,
        rounds: int = 100,
        targets: Mapping[str, float],
        cpu_targets: Mapping[str, float] | None = None,
    ) -> TimedCase:
        """Returns a query over both formats, and over prepared batches.

        The prepared batches have the columns `border`. `border_query` replaces the query over
        prepared batches.
        """
        contestants: dict[str, Callable[[], object]] = {
            OURS: lambda: query(self._lance(table)),
            "parquet": lambda: query(self._parquet(table)),
        }
        if border is not None:
            contestants[BORDER] = lambda: query(
                ready_made(self.spark, table, self.data.rows(table), *border)
            )
        if border_query is not None:
            contestants[BORDER] = border_query
        if pylance is not None:
            contestants["pylance"] = lambda: pylance(lance.dataset(self.data.lance(table)))
        return TimedCase(
            name=name,
            note=note,
            contestants=contestants,
            targets=targets,
            cpu_targets=cpu_targets or {},
            rounds=rounds,
        )

    def _first_rows(self) -> Iterator[TimedCase]:
        queries: dict[str, Callable[[DataFrame], object]] = {
            "limit(10)": lambda df: df.limit(10).collect(),
            "show()": show_rows,
            "head(5)": lambda df: df.head(5),
            "first()": lambda df: df.first(),
            "filter, limit(10)": lambda df: df.where("score > 0.99").limit(10).collect(),
            "offset(100), limit(10)": lambda df: df.offset(100).limit(10).collect(),
            "filter, offset, limit": lambda df: (
                df.where("score > 0.99").offset(100).limit(10).collect()
            ),
            "isEmpty()": lambda df: df.isEmpty(),
        }
        rows = f"{self.data.rows('narrow'):,} rows"
        for name, query in queries.items():
            yield self._case(name, rows, "narrow", query, targets=_goals(1.5, 1.2))

    def _scans(self) -> Iterator[TimedCase]:
        def all_batches(dataset: lance.LanceDataset) -> None:
            for _ in dataset.scanner().to_batches():
                pass

        narrow, wide = (
            f"{self.data.rows('narrow'):,} rows x 7 columns",
            f"{self.data.rows('wide'):,} x {WIDTH} floats",
        )
        targets, cpu_targets = _goals(1.3, 0.9), _goals(1.6, 1.4)
        yield self._case(
            "scan, narrow",
            narrow,
            "narrow",
            everything,
            border=(),
            pylance=all_batches,
            targets=targets,
            cpu_targets=cpu_targets,
        )
        yield self._case(
            "scan, wide",
            wide,
            "wide",
            everything,
            border=(),
            pylance=all_batches,
            targets=targets,
            cpu_targets=cpu_targets,
        )
        for name, value in (("vector[0]", "vector[0]"), ("size(vector)", "size(vector)")):
            yield self._case(
                name,
                f"its sum, {wide}",
                "wide",
                lambda df, value=value: df.selectExpr(f"sum({value})").collect(),
                border=("vector",),
                targets=targets,
            )

    def _aggregates(self) -> Iterator[TimedCase]:
        def distinct(df: DataFrame) -> object:
            return df.agg(F.countDistinct("size")).collect()

        rows, targets = f"{self.data.rows('narrow'):,} rows", _goals(1.4, 1.1)
        yield self._case(
            "two of seven columns",
            f"sum(size) grouped by word, {rows}",
            "narrow",
            lambda df: df.groupBy("word").agg(F.sum("size")).collect(),
            border=("size", "word"),
            pylance=lambda dataset: (
                dataset.to_table(columns=["word", "size"])
                .group_by("word")
                .aggregate([("size", "sum")])
            ),
            targets=targets,
        )
        yield self._case(
            "top-k",
            f"the 10 largest scores, all columns, {rows}",
            "narrow",
            lambda df: df.orderBy(F.desc("score")).limit(10).collect(),
            border=(),
            targets=targets,
        )
        yield self._case(
            "count(distinct)",
            f"of size, {rows}",
            "narrow",
            distinct,
            border_query=lambda: distinct(self._differing("size")),
            targets=targets,
        )

    def _selective(self) -> Iterator[TimedCase]:
        narrow, targets = f"{self.data.rows('narrow'):,} rows", _goals(1.0, 0.8)
        yield self._case(
            "one narrow column of a wide table",
            f"id, {self.data.rows('wide'):,} rows",
            "wide",
            lambda df: everything(df.select("id")),
            border=("id",),
            targets=targets,
        )
        yield self._case(
            "count(*)",
            narrow,
            "narrow",
            lambda df: df.count(),
            pylance=lambda dataset: dataset.count_rows(),
            targets=targets,
        )
        yield self._case(
            "filter, 1 % of the rows",
            f"score > 0.99, all columns, {narrow}",
            "narrow",
            lambda df: everything(df.where("score > 0.99")),
            targets=targets,
        )

        few = SIZES // 10

        def self_join(df: DataFrame) -> object:
            return joined(
                df.select("id", "score"), df.where(F.col("size") < few).select("id", "weight")
            )

        def joined(scores: DataFrame, weights: DataFrame) -> object:
            return scores.join(weights, "id").agg(F.sum(F.col("score") * F.col("weight"))).collect()

        yield self._case(
            "self join",
            f"on id, with a tenth of the rows, {narrow}",
            "narrow",
            self_join,
            border_query=lambda: joined(
                self._differing("id", "score"), self._differing("id", "weight", size_below=few)
            ),
            targets=targets,
        )
        numbers = itertools.count(1)

        def key() -> int:
            return (next(numbers) * 7919) % self.data.rows("keyed")

        def look_up(df: DataFrame) -> None:
            assert len(df.where(f"key = {key()}").select("vector").collect()) == 1

        yield self._case(
            "point look-up, indexed",
            f"the vector of one of {self.data.rows('keyed'):,} rows, by a key that is not sorted",
            "keyed",
            look_up,
            pylance=lambda dataset: dataset.to_table(columns=["vector"], filter=f"key = {key()}"),
            targets=_goals(0.2, 0.15),
        )

    def _small(self) -> Iterator[TimedCase]:
        targets = _goals(1.5, 1.2)
        yield self._case(
            "table of 100 rows",
            "load, filter, collect",
            "small",
            lambda df: df.where("size > 500000").select("id", "word").collect(),
            targets=targets,
        )
        views = {OURS: "small_lance", "parquet": "small_parquet"}
        self._lance("small").createOrReplaceTempView(views[OURS])
        self._parquet("small").createOrReplaceTempView(views["parquet"])

        def grouped(view: str) -> object:
            return self.spark.sql(
                f"SELECT word, count(*), max(score) FROM {view} GROUP BY word"
            ).collect()

        yield TimedCase(
            name="table of 100 rows, SQL",
            note="grouped, from a view",
            contestants={name: lambda view=view: grouped(view) for name, view in views.items()},
            targets=targets,
        )
        yield TimedCase(
            name="whole process",
            note="until its first count(*)",
            contestants={
                OURS: lambda: cold(self.configuration, "lance", self.data.lance("narrow")),
                "parquet": lambda: cold("defaults", "parquet", self.data.parquet("narrow")),
            },
            targets=_goals(1.2, 1.1),
            rounds=_FEW,
        )

    def _writes(self) -> Iterator[TimedCase]:
        narrow = self._parquet("narrow")
        yield self._write("write, narrow", narrow, _goals(1.2, 0.8))
        yield self._write("write, no strings", narrow.drop("word"), {"configure": 0.55})
        yield self._write("write, wide", self._parquet("wide"), _goals(0.6, 0.5))
        names = itertools.count()

        def backfill() -> None:
            df = (
                self.spark.read.format("lance")
                .option("with_row_address", True)
                .load(self.data.lance("narrow"))
            )
            (
                df.select(
                    "_rowaddr",
                    (F.col("score") * F.col("size")).alias(f"{self.configuration}_{next(names)}"),
                )
                .write.format("lance")
                .mode("append")
                .option("mode", "backfill")
                .save(self.data.lance("narrow"))
            )

        def rewrite() -> None:
            df = narrow.withColumn("feature", F.col("score") * F.col("size"))
            df.write.mode("overwrite").parquet(self.data.parquet("out"))

        yield TimedCase(
            name="backfill of one column",
            note="score * size; Parquet has to write the table again",
            contestants={OURS: backfill, "parquet": rewrite},
            targets={"configure": 0.3},
            rounds=_FEW,
        )
        columns = [
            name for name in lance.dataset(self.data.lance("narrow")).schema.names if "_" in name
        ]
        lance.dataset(self.data.lance("narrow")).drop_columns(columns)
        self.data.clear("out")

    def _write(self, name: str, rows: DataFrame, targets: Mapping[str, float]) -> TimedCase:
        """Returns the write of a DataFrame that reads Parquet."""
        columns, lance_path, parquet_path = (
            rows.columns,
            self.data.lance("out"),
            self.data.parquet("out"),
        )
        table = "wide" if "vector" in columns else "narrow"
        options = {"vector.arrow.fixed-size-list.size": WIDTH} if table == "wide" else {}

        def throw_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Discards the batches. The transfer to Python is a lower bound for any data source
            written in Python."""
            for _ in batches:
                yield from ()

        def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Passes batches to Lance's file writer, as one file per task without a table."""
            from lance.file import LanceFileWriter

            writer = None
            for batch in batches:
                rows = pa.RecordBatch.from_arrays(
                    [aligned(column) for column in batch.columns], schema=batch.schema
                )
                writer = writer or LanceFileWriter(
                    f"{lance_path}/{uuid.uuid4()}.lance", schema=batch.schema
                )
                writer.write_batch(rows)
                yield from ()
            if writer is not None:
                writer.close()

        def by_pylance() -> None:
            source = pads.dataset(self.data.parquet(table)).scanner(columns=columns)
            lance.write_dataset(source.to_reader(), lance_path)

        return TimedCase(
            name=name,
            note=f"{self.data.rows(table):,} rows of {FILES} Parquet files",
            contestants={
                OURS: lambda: (
                    rows.write.format("lance").options(**options).mode("append").save(lance_path)
                ),
                "parquet": lambda: rows.write.mode("append").parquet(parquet_path),
                "pylance": by_pylance,
                BORDER: lambda: everything(rows.mapInArrow(throw_away, "nothing int")),
                WRITER: lambda: everything(rows.mapInArrow(hand_over, "nothing int")),
            },
            prepare=dict.fromkeys(
                (OURS, "parquet", "pylance", BORDER, WRITER), lambda: self.data.clear("out")
            ),
            targets=targets,
        )


def cold(configuration: str, format: str, path: str) -> None:
    """Runs a separate process up to its first count."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.first_look_child",
        "cold",
        configuration,
        format,
        path,
    ]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": ""},
    )
    if process.returncode:
        raise RuntimeError(f"a process of the benchmark failed: {process.stderr[-3000:]}")
