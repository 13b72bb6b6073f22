"""One configuration in a process of its own: `python -m benchmarks.first_look_child cases|data|cold ...`.

`cases` prints each outcome as a line of JSON, `data` makes the tables, and `cold` counts the rows of one table.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    """Runs what the arguments say."""
    # Spark and Lance print; the answers go where they cannot be disturbed.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, *arguments = sys.argv[1:]
    if kind == "cold":
        _cold(*arguments)
        return
    from benchmarks.first_look_cases import Stage, make_session
    from benchmarks.first_look_data import Data

    configuration, folder, scale, *rest = arguments
    spark = make_session(configuration)
    data = Data(folder=Path(folder), scale=float(scale))
    if kind == "data":
        data.make(spark, *rest)
    else:
        rounds, *only = rest
        for case in Stage(spark=spark, configuration=configuration, data=data).cases():
            if any(part in case.name for part in only or [""]):
                print(json.dumps(asdict(case.run(int(rounds), configuration))), file=answers, flush=True)
    spark.stop()


def _cold(configuration: str, format: str, path: str) -> None:
    """Does what a script does that counts rows; what it imports is what such a script imports."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    if configuration == "configure":
        import lance_spark

        builder = lance_spark.configure(builder)
    spark = builder.getOrCreate()
    if configuration == "enable_pushdown":
        import lance_spark

        lance_spark.enable_pushdown(spark)
    assert spark.read.format(format).load(path).count()
    spark.stop()


if __name__ == "__main__":
    main()
