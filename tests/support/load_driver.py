"""Driver process for loads: `python -m tests.support.load_driver MASTER JOBS`.

JOBS is JSON: the folder and the settings of each load, by job id. Each load fills `v` of a table `t` from the file
`x.parquet` in the same folder. The loads run concurrently. A job with the name of a point as its id stops there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from lance_spark.load import join
from lance_spark.load.join import CheckpointSink
from tests.support.driver import session, table_of
from tests.support.hooks import hooked, in_checkpoint

IN_JOIN = "in_join"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSink:
    """Work for Spark in place of the product's own, with a stop after two checkpoints, before the rename of the
    third.
    """

    sink: CheckpointSink
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_checkpoint(self.folder):
            yield from self.sink(batches)


def main(master: str, jobs: str) -> None:
    spark = session(master)
    orders = json.loads(jobs)
    homes = {job_id: home for job_id, (home, _) in orders.items()}

    def sink(**values: Any) -> CheckpointSink | HeldSink:
        real_sink = CheckpointSink(**values)
        return (
            HeldSink(sink=real_sink, folder=homes[IN_JOIN])
            if real_sink.spec.job_id == IN_JOIN
            else real_sink
        )

    try:
        hooked_homes = {job_id: home for job_id, home in homes.items() if job_id != IN_JOIN}
        with hooked(hooked_homes), patch.object(join, "CheckpointSink", sink):
            started = [
                table_of(spark, home).load_columns_async(
                    f"{home}/x.parquet", "id", ["v"], job_id=job_id, **settings
                )
                for job_id, (home, settings) in orders.items()
            ]
            for job in started:
                job.result()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
