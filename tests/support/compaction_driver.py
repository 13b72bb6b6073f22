"""Driver process for a compaction: `python -m tests.support.compaction_driver MASTER JOBS`.

JOBS is JSON: the folder and the settings of each compaction of a table, by the table's name. The process stops before
its second commit.
"""

from __future__ import annotations

import itertools
import json
import sys

import lance_spark
from lance_spark.upkeep.compaction import CompactionJob
from tests.support.driver import session
from tests.support.hooks import _before, hold


def main(master: str, jobs: str) -> None:
    spark = session(master)
    for name, (home, settings) in json.loads(jobs).items():
        commits = itertools.count(1)

        def hold_the_second(home: str = home, commits: itertools.count[int] = commits) -> None:
            if next(commits) == 2:
                hold(home)

        with _before(CompactionJob, "_commit", hold_the_second):
            lance_spark.connect(home, spark, progress=False).open_table(name).compact_files(
                **settings
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
