"""The tables: Lance tables written by pylance and Parquet files written by Spark with its defaults,
with equal files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

NARROW_ROWS = 4_000_000
WIDE_ROWS = 200_000
KEYED_ROWS = 600_000
SMALL_ROWS = 100
WIDTH = 768
SIZES = 1_000_000
FILES = 8


def narrow_table(start: int, rows: int) -> pa.Table:
    """Seven columns of common types. `id` is sorted, and `score` is not."""
    rng = np.random.default_rng(start)
    ids = np.arange(start, start + rows, dtype=np.int64)
    words = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"])
    return pa.table(
        {
            "id": ids,
            "size": rng.integers(0, SIZES, rows, dtype=np.int32),
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
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(rng.random(rows * WIDTH, dtype=np.float32)), WIDTH
    )
    return pa.table({"id": np.arange(start, start + rows, dtype=np.int64), "vector": vectors})


def keyed_table(start: int, rows: int) -> pa.Table:
    """A file of the wide table, with a key in random order."""
    keys = np.random.default_rng(7).permutation(rows * FILES)[start : start + rows]
    return wide_table(start, rows).append_column("key", pa.array(keys, pa.int64()))


TABLES = {"narrow": narrow_table, "wide": wide_table, "keyed": keyed_table, "small": narrow_table}


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The locations and sizes of the tables.

    Attributes:
        folder: The folder of the benchmark.
        scale: Size of the tables, 1.0 = 4 M narrow and 200 k wide rows.
    """

    folder: Path
    scale: float

    def lance(self, name: str) -> str:
        """Returns the location of a Lance table."""
        return str(self.folder / f"{name}.lance")

    def parquet(self, name: str) -> str:
        """Returns the folder of its Parquet files."""
        return str(self.folder / f"{name}.parquet")

    def rows(self, name: str) -> int:
        """Returns the number of rows of a table."""
        if name == "small":
            return SMALL_ROWS
        rows = {"narrow": NARROW_ROWS, "wide": WIDE_ROWS, "keyed": KEYED_ROWS}[name]
        return int(rows * self.scale) // FILES * FILES

    def make(self, spark: SparkSession, *names: str) -> None:
        """Writes tables in both formats. The session must have Spark's default settings."""
        import lance

        plain = self.folder / "plain.parquet"
        for name in names:
            files = 1 if name == "small" else FILES
            rows = self.rows(name) // files
            for number in range(files):
                table, mode = TABLES[name](number * rows, rows), "append" if number else "create"
                lance.write_dataset(table, self.lance(name), mode=mode, enable_stable_row_ids=True)
                pq.write_table(table, plain)
                spark.read.parquet(str(plain)).coalesce(1).write.mode("append").parquet(
                    self.parquet(name)
                )
        plain.unlink()
        if "keyed" in names:
            lance.dataset(self.lance("keyed")).create_scalar_index("key", "BTREE")

    def clear(self, name: str) -> None:
        """Deletes a table if it exists."""
        for location in (self.lance(name), self.parquet(name)):
            shutil.rmtree(location, ignore_errors=True)
