"""A streaming query over files of numbers, and its lost commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
from pyspark.sql import DataFrame, SparkSession


class NumberStream:
    """A streaming query over files of numbers, whose checkpoint a test can damage."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.table = str(home / "t.lance")
        (home / "in").mkdir()

    def feed(self, number: int) -> None:
        """Adds a file with ten rows, which becomes a micro-batch."""
        (self.home / "in" / f"{number}.csv").write_text(
            "".join(f"{10 * number + i}\n" for i in range(10))
        )

    def source(self) -> DataFrame:
        files = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
        return files.csv(str(self.home / "in"))

    def run(self, mode: str = "append", **options: str) -> None:
        """Runs the query over all files."""
        rows = self.source() if mode == "append" else self.source().groupBy("id").count()
        write = (
            rows.writeStream.format("lance")
            .outputMode(mode)
            .options(**options)
            .trigger(availableNow=True)
        )
        write = write.option("checkpointLocation", str(self.home / "checkpoint")).queryName(
            "numbers"
        )
        assert write.start(self.table).awaitTermination(120)

    def lose_commits(self, number: int) -> None:
        """Makes Spark repeat the last batches."""
        lose_commits(self.home / "checkpoint", number)

    def ids(self) -> list[int]:
        ids: list[Any] = lance.dataset(self.table).to_table()["id"].to_pylist()
        return sorted(ids)


def lose_commits(checkpoint: Path, number: int) -> None:
    """Makes Spark repeat the last batches, as after a crash between the commit of the table and Spark's log."""
    commits = checkpoint / "commits"
    batch_ids = sorted(
        (int(path.name) for path in commits.iterdir() if path.name.isdigit()), reverse=True
    )
    for batch_id in batch_ids[:number]:
        for path in (commits / str(batch_id), commits / f".{batch_id}.crc"):
            path.unlink(missing_ok=True)
