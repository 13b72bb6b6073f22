"""The cases: scans, projections, filters, look-ups, counts, writes, backfills and planning."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lance_spark
from benchmarks.measure import Case

NARROW_ROWS = 4_000_000
WIDE_ROWS = 200_000
KEYED_ROWS = 600_000
WIDTH = 768
FILES = 8


def narrow_table(start: int, rows: int) -> pa.Table:
    """Seven columns of common types; `score` is not sorted, `id` is."""
    rng = np.random.default_rng(start)
    ids = np.arange(start, start + rows, dtype=np.int64)
    words = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"])
    return pa.table(
        {
            "id": ids,
            "size": rng.integers(0, 1_000_000, rows, dtype=np.int32),
            "score": rng.random(rows),
            "weight": rng.random(rows, dtype=np.float32),
            "word": pa.array(words[rng.integers(0, len(words), rows)]),
            "at": pa.array(ids * 1_000_000 + 1_600_000_000_000_000, pa.timestamp("us", "UTC")),
            "flag": pa.array(rng.integers(0, 2, rows).astype(bool)),
        }
    )


def wide_table(start: int, rows: int) -> pa.Table:
    """A number and a vector of 768 floats."""
    rng = np.random.default_rng(start)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * WIDTH, dtype=np.float32)), WIDTH)
    return pa.table({"id": np.arange(start, start + rows, dtype=np.int64), "vector": vectors})


def write_both(folder: Path, name: str, tables: Iterator[pa.Table]) -> tuple[str, str]:
    """Writes the same tables as a Lance table and as a folder of Parquet files; returns both locations."""
    lance_path, parquet_path = str(folder / f"{name}.lance"), folder / f"{name}.parquet"
    parquet_path.mkdir()
    for number, table in enumerate(tables):
        lance.write_dataset(table, lance_path, mode="append" if number else "create", enable_stable_row_ids=True)
        pq.write_table(table, parquet_path / f"part-{number}.parquet", compression="snappy")
    return lance_path, str(parquet_path)


def everything(df: DataFrame) -> None:
    """Reads all rows and columns into Spark and throws them away."""
    df.write.format("noop").mode("overwrite").save()


def pylance_scan(path: str, **options: object) -> None:
    """Reads with pylance alone, batch by batch."""
    for _ in lance.dataset(path).scanner(**options).to_batches():
        pass


def cases(spark: SparkSession, folder: Path, scale: float) -> Iterator[Case]:
    """Makes the data and yields the cases one by one; the data of a case lies in `folder`."""
    lance_spark.enable_pushdown(spark)
    narrow_rows, wide_rows = int(NARROW_ROWS * scale) // FILES, int(WIDE_ROWS * scale) // FILES
    narrow, narrow_pq = write_both(folder, "narrow", (narrow_table(i * narrow_rows, narrow_rows) for i in range(FILES)))
    wide, wide_pq = write_both(folder, "wide", (wide_table(i * wide_rows, wide_rows) for i in range(FILES)))

    def from_lance(path: str) -> DataFrame:
        return spark.read.format("lance").load(path)

    def from_parquet(path: str) -> DataFrame:
        return spark.read.parquet(path)

    yield Case(
        name="scan, narrow",
        note=f"{narrow_rows * FILES:,} rows x 7 columns",
        target=1.5,
        contestants={
            "lance-spark": lambda: everything(from_lance(narrow)),
            "parquet": lambda: everything(from_parquet(narrow_pq)),
            "pylance": lambda: pylance_scan(narrow),
        },
    )
    yield Case(
        name="scan, wide",
        note=f"{wide_rows * FILES:,} rows x {WIDTH} floats",
        target=1.2,
        contestants={
            "lance-spark": lambda: everything(from_lance(wide)),
            "parquet": lambda: everything(from_parquet(wide_pq)),
            "pylance": lambda: pylance_scan(wide),
        },
    )
    yield Case(
        name="one narrow column of a wide table",
        note=f"id of {wide_rows * FILES:,} rows",
        target=1.5,
        contestants={
            "lance-spark": lambda: everything(from_lance(wide).select("id")),
            "parquet": lambda: everything(from_parquet(wide_pq).select("id")),
            "pylance": lambda: pylance_scan(wide, columns=["id"]),
        },
    )
    yield Case(
        name="two of seven columns",
        note="sum(size) grouped by word",
        contestants={
            "lance-spark": lambda: from_lance(narrow).groupBy("word").agg(F.sum("size")).collect(),
            "parquet": lambda: from_parquet(narrow_pq).groupBy("word").agg(F.sum("size")).collect(),
            "pylance": lambda: (
                lance.dataset(narrow).to_table(columns=["word", "size"]).group_by("word").aggregate([("size", "sum")])
            ),
        },
    )
    yield Case(
        name="filter, 1 % of the rows",
        note="score > 0.99, all columns",
        contestants={
            "lance-spark": lambda: everything(from_lance(narrow).where("score > 0.99")),
            "parquet": lambda: everything(from_parquet(narrow_pq).where("score > 0.99")),
            "pylance": lambda: pylance_scan(narrow, filter="score > 0.99"),
        },
    )
    yield Case(
        name="count(*)",
        note=f"{narrow_rows * FILES:,} rows",
        target=1.5,
        contestants={
            "lance-spark": lambda: from_lance(narrow).count(),
            "parquet": lambda: from_parquet(narrow_pq).count(),
            "pylance": lambda: lance.dataset(narrow).count_rows(),
        },
    )
    keyed_rows = int(KEYED_ROWS * scale) // FILES
    keyed, keyed_pq = write_both(folder, "keyed", (keyed_table(i, keyed_rows) for i in range(FILES)))
    lance.dataset(keyed).create_scalar_index("key", "BTREE")
    wanted = itertools.count(1)

    def next_key() -> int:
        return (next(wanted) * 7919) % (keyed_rows * FILES)

    def look_up(df: DataFrame) -> None:
        assert len(df.where(f"key = {next_key()}").select("vector").collect()) == 1

    yield Case(
        name="point look-up, indexed",
        note=f"the vector of one of {keyed_rows * FILES:,} rows, by a BTREE-indexed key that is not sorted",
        target=0.2,
        contestants={
            "lance-spark": lambda: look_up(from_lance(keyed)),
            "parquet": lambda: look_up(from_parquet(keyed_pq)),
            "pylance": lambda: lance.dataset(keyed).to_table(columns=["vector"], filter=f"key = {next_key()}"),
        },
    )
    yield Case(
        name="planning a scan, seconds",
        note="two columns and a filter, warm, until the physical plan",
        target=0.15,
        versus="seconds",
        contestants={
            "lance-spark": lambda: plan(from_lance(narrow)),
            "parquet": lambda: plan(from_parquet(narrow_pq)),
        },
    )
    yield from write_cases(spark, folder, narrow, narrow_pq)


def plan(df: DataFrame) -> None:
    """Plans a query down to its physical plan and input partitions."""
    query = df.where("size > 10").select("id", "size")
    query._jdf.queryExecution().executedPlan().toString()


def keyed_table(number: int, rows: int) -> pa.Table:
    """The wide table, one of its files, with a key in random order."""
    keys = np.random.default_rng(7).permutation(rows * FILES)[number * rows : (number + 1) * rows]
    return wide_table(number * rows, rows).append_column("key", pa.array(keys, pa.int64()))


def write_cases(spark: SparkSession, folder: Path, narrow: str, narrow_pq: str) -> Iterator[Case]:
    """Writes and backfills."""
    source = spark.read.parquet(narrow_pq)
    out_lance, out_pq, out_py = folder / "out.lance", folder / "out.parquet", folder / "out-pylance.lance"

    def clear(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def throw_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives nothing back: bringing rows to Python is the least that any data source written in Python costs."""
        for _ in batches:
            yield from ()

    def write(name: str, note: str, columns: list[str]) -> Case:
        rows = source.select(columns)
        return Case(
            name=name,
            note=note,
            target=1.0,
            contestants={
                "lance-spark": lambda: rows.write.format("lance").mode("append").save(str(out_lance)),
                "parquet": lambda: rows.write.mode("append").parquet(str(out_pq)),
                "pylance": lambda: lance.write_dataset(
                    pads.dataset(narrow_pq).scanner(columns=columns).to_reader(), str(out_py)
                ),
                "thrown away": lambda: everything(rows.mapInArrow(throw_away, "nothing int")),
            },
            prepare={
                "lance-spark": lambda: clear(out_lance),
                "parquet": lambda: clear(out_pq),
                "pylance": lambda: clear(out_py),
            },
        )

    yield write("write, narrow", "the same Parquet source written again", source.columns)
    yield write("write, no strings", "the same without its string", [c for c in source.columns if c != "word"])
    clear(out_lance)
    names = itertools.count()

    def backfill() -> None:
        df = spark.read.format("lance").option("with_row_address", True).load(narrow)
        (
            df.select("_rowaddr", (F.col("score") * F.col("size")).alias(f"ours_{next(names)}"))
            .write.format("lance")
            .mode("append")
            .option("mode", "backfill")
            .save(narrow)
        )

    def rewrite() -> None:
        df = spark.read.parquet(narrow_pq)
        df.withColumn("feature", F.col("score") * F.col("size")).write.mode("overwrite").parquet(str(out_pq))

    yield Case(
        name="backfill of one column",
        note="score * size; Parquet has to write the table again",
        contestants={
            "lance-spark": backfill,
            "parquet": rewrite,
            "pylance": lambda: lance.dataset(narrow).add_columns({f"theirs_{next(names)}": "score * size"}),
        },
    )
