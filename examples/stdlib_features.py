"""A tour of lance-spark: Python's standard library becomes a Lance table.

    python examples/stdlib_features.py [--limit N] [--keep DIRECTORY]

Reads the `.py` files of the running interpreter's standard library, without its test cases, into a
Spark DataFrame. Writes the DataFrame
as a Lance table, queries the table, and backfills features computed with Python's `ast`, while a
concurrent writer appends and deletes
rows. Then the table computes two more features with a stored UDF, in jobs that resume where the
previous job ended. At the end, a view of
functions and a view of their vectors follow the changes of the table.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import sys
import sysconfig
import tempfile
import textwrap
import time
import tokenize
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Lance reads this variable on import, and logs each commit of a column file as a warning.
os.environ.setdefault("LANCE_LOG", "error")

import lance
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf, pandas_udf  # type: ignore[attr-defined]  # PySpark has them
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType, StructType

import lance_spark
from udf_runtime import Columns, Skip, chunker, udf

LATE = 20
"""One file in 20 is held back, and arrives during the backfill."""

TINY = 100
"""Files below this size in bytes are deleted during the backfill."""

OUTLINE = (
    StructType()
    .add("functions", IntegerType())
    .add("classes", IntegerType())
    .add("documented", DoubleType())
    .add("nesting", IntegerType())
)


# --- computed features
# -----------------------------------------------------------------------------------------------------


def parse(text: str | None) -> ast.Module | None:
    """Parses a file. Returns None for invalid Python, for example files of the test suite."""
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def outline(text: str | None) -> tuple[int, int, float | None, int] | None:
    """Returns the numbers of functions and classes, the documented share, and the nesting depth."""
    tree = parse(text)
    if tree is None:
        return None
    functions = classes = documented = deepest = 0
    todo: list[tuple[ast.AST, int]] = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
            documented += ast.get_docstring(node, clean=False) is not None
            depth += 1
        elif isinstance(node, ast.ClassDef):
            classes += 1
            depth += 1
        deepest = max(deepest, depth)
        todo.extend((child, depth) for child in ast.iter_child_nodes(node))
    return functions, classes, documented / functions if functions else None, deepest


def imported(text: str | None) -> list[str] | None:
    """Returns the top-level modules that a file imports, sorted."""
    tree = parse(text)
    if tree is None:
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return sorted(names)


def outline_batch(text: pd.Series) -> pd.DataFrame:
    """Outlines a batch of files, pandas in and out."""
    rows = [outline(text) or (None, None, None, None) for text in text]
    return pd.DataFrame(
        rows, columns=["functions", "classes", "documented", "nesting"]
    ).convert_dtypes()


def list_imports(text: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads the annotation
    """Lists the imports of a batch of files, Arrow in and out."""
    return pa.array([imported(text) for text in text.to_pylist()], pa.list_(pa.string()))


# The types of PySpark reject these calls without a functionType.
outline_udf: Callable[[str], Column] = pandas_udf(outline_batch, OUTLINE)  # pyright: ignore[reportArgumentType, reportCallIssue]
imports_udf: Callable[[str], Column] = arrow_udf(list_imports, ArrayType(StringType()))  # pyright: ignore[reportArgumentType, reportCallIssue]


class Flow(NamedTuple):
    """Control flow of a file; one column per field."""

    branches: int
    loops: int


@udf(on_error=Skip(SyntaxError, ValueError, RecursionError))
def flow(text: str | None) -> Columns[Flow] | None:
    """Counts branches and loops, row by row.

    Invalid Python raises an error, and the policy skips the file.
    """
    if text is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = list(ast.walk(ast.parse(text)))
    branches = sum(isinstance(node, ast.If | ast.IfExp | ast.Match) for node in nodes)
    return Flow(
        branches, sum(isinstance(node, ast.For | ast.AsyncFor | ast.While) for node in nodes)
    )


class Function(NamedTuple):
    """A function of a file."""

    name: str
    line: int
    body: str


@chunker(on_error=Skip(SyntaxError, ValueError, RecursionError))
def functions_of(text: str) -> Iterator[Function]:
    """Yields the functions of a file."""
    lines = text.splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(
                node.name, node.lineno, "\n".join(lines[node.lineno - 1 : node.end_lineno])
            )


@udf(data_type=pa.list_(pa.float32(), 32))
def embed(body: str) -> list[float]:
    """Returns a vector of a function: its words, counted by a hash."""
    vector = [0.0] * 32
    for word in body.split():
        vector[zlib.crc32(word.encode()) % 32] += 1
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector] if length else vector


# --- input files
# -----------------------------------------------------------------------------------------------------------


def standard_library(limit: int | None) -> list[str]:
    """Returns the sorted paths of the standard library without test cases.

    `limit` samples the paths evenly.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in ("site-packages", "dist-packages", "__pycache__")
        ]
        paths += [
            str((Path(folder) / name).relative_to(root)) for name in names if name.endswith(".py")
        ]
    paths = sorted(path for path in paths if not path.startswith("test/test_"))
    if limit is None or limit >= len(paths):
        return paths
    return [paths[i * len(paths) // limit] for i in range(limit)]


def read_files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Returns path, package, size and text of the files, read by Spark's workers.

    Undecodable text is NULL.
    """
    root = sysconfig.get_paths()["stdlib"]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = [str(name) for name in batch.column("path").to_pylist()]
            files = [Path(root, name) for name in names]
            texts: list[str | None] = []
            for file in files:
                try:
                    with tokenize.open(file) as stream:  # Honours the declared encoding of a file.
                        texts.append(stream.read())
                except (SyntaxError, UnicodeDecodeError):
                    texts.append(None)
            packages = [name.split("/")[0] if "/" in name else "(single modules)" for name in names]
            columns: dict[str, pa.Array[Any]] = {
                "path": pa.array(names, pa.string()),
                "package": pa.array(packages, pa.string()),
                "size": pa.array([file.stat().st_size for file in files], pa.int32()),
                "text": pa.array(texts, pa.string()),
            }
            yield pa.record_batch(columns)

    names = spark.createDataFrame(pa.table({"path": pa.array(paths, pa.string())}))
    return names.repartition(8).mapInArrow(
        read, "path string, package string, size int, text string"
    )


# --- the report
# ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class StepTimes:
    """Prints steps, and records their times."""

    timings: list[tuple[str, float]] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Prints a heading, runs the body, and records its time."""
        print(f"\n{len(self.timings) + 1}  {title}", flush=True)
        start = time.perf_counter()
        yield
        self.timings.append((title, time.perf_counter() - start))

    def say(self, text: str) -> None:
        """Prints indented lines."""
        for line in text.splitlines():
            print(f"     {line}", flush=True)

    def table(self, rows: list[Row]) -> None:
        """Prints rows in aligned columns, numbers to the right."""
        names = list(rows[0].asDict()) if rows else []
        cells = [
            [
                f"{v:.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v)
                for v in row
            ]
            for row in rows
        ]
        widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
        right = [bool(rows) and isinstance(rows[0][i], int | float) for i in range(len(names))]
        for line in [names, *cells]:
            parts = [
                text.rjust(w) if r else text.ljust(w)
                for text, w, r in zip(line, widths, right, strict=True)
            ]
            self.say("   ".join(parts).rstrip())

    def close(self) -> None:
        """Prints the times as bars."""
        total = sum(seconds for _, seconds in self.timings)
        print(f"\n   {'':70}seconds")
        for number, (title, seconds) in enumerate(self.timings, 1):
            print(f"{number}  {title:59}{'█' * round(10 * seconds / total):11}{seconds:7.1f}")
        print(f"   {'total':59}{'':11}{total:7.1f}", flush=True)


def scan_of(df: DataFrame) -> str:
    """Returns the scan of `df.explain()`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        df.explain()
    return next(
        line.strip(" +-*:()0123456789")
        for line in printed.getvalue().splitlines()
        if "Scan" in line
    )


def data_files(path: str) -> dict[str, tuple[int, int]]:
    """Returns the table's data files with size and modification time."""
    return {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in Path(path, "data").iterdir()}


# --- the tour
# --------------------------------------------------------------------------------------------------------------


def read(spark: SparkSession, path: str, **options: str | int) -> DataFrame:
    """Returns the latest version of the table, or the version in the options."""
    return spark.read.format("lance").options(**options).load(path)


def backfill(df: DataFrame, path: str) -> lance_spark.CommitResult:
    """Writes columns to the rows of `_rowaddr`, and returns the commit result."""
    df.write.format("lance").mode("append").options(mode="backfill", input_columns="text").save(
        path
    )
    commit_result = lance_spark.last_commit(path)
    assert commit_result is not None
    return commit_result


def outlined(df: DataFrame) -> DataFrame:
    """Returns row addresses with the features of `outline`."""
    return df.select("_rowaddr", outline_udf("text").alias("o")).select("_rowaddr", "o.*")


def write_it(spark: SparkSession, path: str, report: StepTimes, files: list[str]) -> None:
    """Step 1."""
    with report.step("Write the standard library as a Lance table"):
        read_files(spark, files).write.format("lance").mode("append").option(
            "max_rows_per_file", 250
        ).save(path)
        fragments = len(lance.dataset(path).get_fragments())
        source = sum(Path(sysconfig.get_paths()["stdlib"], name).stat().st_size for name in files)
        stored = sum(size for size, _ in data_files(path).values())
        report.say(
            f"{len(files):,} files of Python {sys.version.split()[0]}, {source / 1e6:.1f} MB"
        )
        report.say(f"stored in {fragments} fragments, {stored / 1e6:.1f} MB")


def ask(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 2."""
    with report.step("Ask it something"):
        table = read(spark, path)
        table.createOrReplaceTempView("files")
        query = "SELECT package, count(*) AS files, sum(size) AS bytes FROM files GROUP BY package ORDER BY bytes DESC LIMIT 5"
        report.table(spark.sql(query).collect())
        query = "SELECT path, size FROM files WHERE size > 50000 AND package = '(single modules)'"
        report.say(f"\n{query}")
        report.table(spark.sql(f"{query} ORDER BY size DESC LIMIT 3").collect())
        report.say(
            textwrap.fill(
                f"explain: {scan_of(spark.sql(query))}",
                90,
                subsequent_indent=" " * 9,
                break_on_hyphens=False,
            )
        )
        undecodable = table.filter("text IS NULL").count()
        report.say(
            f"\n{table.count():,} files; {undecodable} of them in no encoding that can be read: their text is NULL"
        )


def backfill_while_others_write(
    spark: SparkSession, path: str, report: StepTimes, late: list[str]
) -> int:
    """Step 3. Returns the version that the backfill read."""
    with report.step("Backfill four features, a pandas_udf, while others write"):
        before = data_files(path)
        snapshot = read(spark, path, with_row_address=True)
        version = lance.dataset(path).version

        def write_concurrently() -> int:
            read_files(spark, late).write.format("lance").mode("append").save(path)
            return int(lance.dataset(path).delete(f"size < {TINY}")["num_deleted_rows"])

        with ThreadPoolExecutor(1) as pool:
            concurrent_write = pool.submit(write_concurrently)
            commit_result = backfill(outlined(snapshot), path)
            deleted = concurrent_write.result()
        report.say(f"computed from version {version}, committed as version {commit_result.version}")
        report.say(
            f"{commit_result.rows:,} rows in {commit_result.fragments} fragments have values; {commit_result.rows_gone} more were deleted before"
        )
        report.say(
            f"meanwhile {len(late)} rows were appended and {deleted} deleted, those of files below {TINY} bytes"
        )
        after = data_files(path)
        same = sum(after.get(name) == facts for name, facts in before.items())
        report.say(f"{same} of the {len(before)} data files that were there before are untouched")
        return version


def fill_the_rest(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 4."""
    with report.step("Fill rows that came late; add imports, an arrow_udf"):
        rows_without_features = read(spark, path, with_row_address=True).filter(
            "functions IS NULL AND text IS NOT NULL"
        )
        commit_result = backfill(outlined(rows_without_features), path)
        report.say(
            f"{commit_result.rows:,} rows had no features yet: version {commit_result.version}"
        )
        every = read(spark, path, with_row_address=True)
        commit_result = backfill(
            every.select("_rowaddr", imports_udf("text").alias("imports")), path
        )
        report.say(
            f"{commit_result.rows:,} rows got the list of their imports: version {commit_result.version}"
        )


def read_back(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 5."""
    with report.step("Read it back"):
        enriched = read(spark, path)
        enriched.createOrReplaceTempView("files")
        share = "sum(functions * documented) / sum(functions) AS documented"
        query = f"SELECT count(*) AS files, sum(functions) AS functions, sum(classes) AS classes, {share}, max(nesting) AS deepest FROM files"
        report.table(spark.sql(query).collect())
        report.say("\nthe best documented packages of 200 functions or more")
        query = f"SELECT package, sum(functions) AS functions, {share} FROM files GROUP BY package HAVING functions >= 200"
        report.table(spark.sql(f"{query} ORDER BY documented DESC, package LIMIT 5").collect())
        report.say("\nwhat most files import")
        query = "SELECT module, count(*) AS files FROM (SELECT explode(imports) AS module FROM files) GROUP BY module"
        report.table(spark.sql(f"{query} ORDER BY files DESC, module LIMIT 5").collect())
        sample = enriched.orderBy(F.xxhash64("path")).limit(50).collect()
        right = sum(
            (row.functions, row.classes, row.documented, row.nesting)
            == (outline(row.text) or (None,) * 4)
            and row.imports == imported(row.text)
            for row in sample
        )
        report.say(
            f"\n{right} of {len(sample)} rows, picked by a hash, hold exactly what ast gives in this process"
        )


def let_the_table_compute(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 6."""
    with report.step("Let the table compute: a stored UDF, jobs that go on"):
        folder, name = os.path.split(path)
        table = lance_spark.connect(folder, spark, progress=False).open_table(
            name.removesuffix(".lance")
        )
        table.add_columns(flow)  # Adds two columns of NULLs, and stores the UDF with them.
        report.say(table.plan_backfill("branches").explain())
        report.say("")
        for title, fragments in (("two fragments, to have a look", 2), ("the rest", None)):
            job_result = table.backfill("branches", num_frags=fragments)
            report.say(
                f"{title}: {job_result.rows_computed:,} rows computed, {job_result.rows_skipped} skipped, version {job_result.versions[-1]}"
            )
        failed = table.get_errors(column_name="branches")
        kinds = Counter(error.error_type for error in failed).most_common()
        report.say(f"recorded: {', '.join(f'{kind} of {count} files' for kind, count in kinds)}")
        addresses = [error.row_address for error in failed]
        rows = read(spark, path, with_row_address=True).filter(F.col("_rowaddr").isin(addresses))
        for row in rows.orderBy("path").limit(2).collect():
            report.say(
                f"  such as {row.path}, which is no Python {sys.version_info.major}.{sys.version_info.minor}"
            )
        report.say("\nthe most branches per line of the larger modules")
        lines = "size(split(text, '\\n'))"
        read(spark, path).createOrReplaceTempView("files")
        query = f"SELECT path, branches, loops, branches / {lines} AS share FROM files WHERE size > 20000"
        report.table(spark.sql(f"{query} ORDER BY share DESC, path LIMIT 3").collect())


def follow_with_views(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 7."""
    with report.step("Chunk modules by function, embed these, follow changes"):
        db = lance_spark.connect(os.path.dirname(path), spark, progress=False)
        files = read(spark, path).filter("text IS NOT NULL").select("path", "package", "text")
        modules = db.create_table("modules", files.filter("package = '(single modules)'"))
        functions = db.create_udtf_view(
            "functions", source=modules.search(None).select(["path"]), udtf=functions_of
        )
        query = functions.search(None).select({"path": "path", "name": "name", "vector": embed})
        vectors = db.create_materialized_view("vectors", query)

        def refresh(title: str) -> None:
            chunked, embedded = functions.refresh(), vectors.refresh()
            calls = f"{chunked.rows_chunked:,} files chunked, {embedded.rows_computed:,} functions embedded"
            report.say(f"{title}: {calls}; {vectors.count_rows():,} vectors")

        refresh("first")
        modules.add(files.filter("package = 'email'"))
        refresh("a package was appended")
        names = sorted(map(str, modules.to_arrow(["path"])["path"].to_pylist()))
        modules.to_lance().update(
            {"text": "'def one():\n    return 1\n'"}, where=f"path = '{names[0]}'"
        )
        modules.to_lance().delete(f"path = '{names[-1]}'")
        refresh("one file was changed, one deleted")
        modules.to_lance().optimize.compact_files()
        refresh("the table was compacted")


def work_in_sql(spark: SparkSession, path: str, report: StepTimes) -> None:
    """Step 8."""
    with report.step("In SQL alone: make, add, update, delete, look back"):
        lance_spark.catalog(spark, "tables", os.path.dirname(path))
        name = os.path.basename(path).removesuffix(".lance")
        for statement in (
            f"CREATE TABLE tables.packages AS SELECT package, count(*) AS files, sum(size) AS bytes FROM tables.{name} GROUP BY package",
            "ALTER TABLE tables.packages ADD COLUMN mean BIGINT COMMENT 'bytes of a file'",
            "UPDATE tables.packages SET mean = bytes div files",
            "DELETE FROM tables.packages WHERE files < (SELECT avg(files) FROM tables.packages)",
        ):
            report.say(statement)
            spark.sql(statement)
        then = "(SELECT count(*) FROM tables.packages VERSION AS OF 3) AS all_packages"
        report.table(
            spark.sql(
                f"SELECT {then}, count(*) AS large_ones, max(mean) AS mean FROM tables.packages"
            ).collect()
        )
        report.say("")
        versions = "SELECT version, operation, rows_added, rows_removed FROM tables.packages.versions ORDER BY version"
        report.table(spark.sql(versions).collect())


def travel_back(spark: SparkSession, path: str, report: StepTimes, version: int) -> None:
    """Step 9."""
    with report.step("Travel back"):
        for title, number in (("before", version), ("now", lance.dataset(path).version)):
            then = read(spark, path, version=number)
            report.say(
                f"{title}: version {number}, {then.count():,} rows, {', '.join(then.columns)}"
            )


def tour(spark: SparkSession, path: str, limit: int | None) -> None:
    """Runs the tour on a new table at `path`."""
    report = StepTimes()
    paths = standard_library(limit)
    late = paths[LATE - 1 :: LATE]
    write_it(spark, path, report, sorted(set(paths) - set(late)))
    ask(spark, path, report)
    version = backfill_while_others_write(spark, path, report, late)
    fill_the_rest(spark, path, report)
    read_back(spark, path, report)
    let_the_table_compute(spark, path, report)
    follow_with_views(spark, path, report)
    work_in_sql(spark, path, report)
    travel_back(spark, path, report, version)
    report.close()


def start_spark(scratch: str) -> tuple[SparkSession, tuple[float, float]]:
    """Starts Spark on all cores without its logs.

    Also returns the start times of Spark and lance-spark.
    """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Starting the JVM forks this process once, before Lance does anything.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    quiet = Path(lance_spark.__file__).with_name("log4j2.properties").as_uri()
    builder = lance_spark.configure(
        SparkSession.builder.master("local[*]")
        .appName("lance-spark demo")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", scratch)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    start = time.perf_counter()
    # `builder.getOrCreate()` does both steps; separate steps have separate times.
    spark = SparkSession.Builder.getOrCreate(builder)
    session_started = time.perf_counter()
    lance_spark.enable_pushdown(spark)
    return spark, (session_started - start, time.perf_counter() - session_started)


def main() -> None:
    """Starts Spark, and runs the tour in a temporary folder."""
    arguments = argparse.ArgumentParser(description="Tour of lance-spark on the standard library.")
    arguments.add_argument("--limit", type=int, help="use so many files instead of all")
    arguments.add_argument(
        "--keep", metavar="DIRECTORY", help="make the table in this directory and leave it there"
    )
    options = arguments.parse_args()

    with tempfile.TemporaryDirectory(prefix="lance-spark-demo-") as scratch:
        spark, seconds = start_spark(scratch)
        versions = (
            f"Spark {spark.version}, pylance {lance.__version__}, Python {sys.version.split()[0]}"
        )
        print(
            f"{versions}; started in {sum(seconds):.1f} s: Spark {seconds[0]:.1f}, the planner rule {seconds[1]:.1f}"
        )
        try:
            tour(spark, os.path.join(options.keep or scratch, "stdlib.lance"), options.limit)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
