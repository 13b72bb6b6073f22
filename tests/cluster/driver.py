"""A driver of `tests.support.driver` that first writes, reads and backfills by DataFrames: `python -m
tests.cluster.driver MASTER JOBS`.

Both parts share the JVMs of one application. The first line of JSON reports the first part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lance_spark
from tests.cluster.jobs import walk_through
from tests.support import driver


def main(master: str, jobs: str) -> None:
    spark = driver.session(master)
    lance_spark.enable_pushdown(spark)
    ((home, _),) = json.loads(jobs).values()
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(batch, "100")
    print(json.dumps(walk_through(spark, str(Path(home, "walked.lance")))), flush=True)
    spark.conf.unset(batch)
    driver.main(master, jobs)


if __name__ == "__main__":
    main(*sys.argv[1:])
