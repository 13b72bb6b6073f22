"""A configuration in a separate process: `python -m benchmarks.first_look_child cases|data|cold
...`.

`cases` prints each outcome as a line of JSON, `data` makes the tables, and `cold` counts the rows
of one table.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    """Runs the command in the arguments."""
    # Spark and Lance print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, *arguments = sys.argv[1:]
    if kind == "cold":
        _cold(*arguments)
        return
    from benchmarks.first_look_cases import FirstLookCases, make_session
    from benchmarks.first_look_data import Data

    configuration, folder, scale, *rest = arguments
    spark = make_session(configuration)
    data = Data(folder=Path(folder), scale=float(scale))
    if kind == "data":
        data.make(spark, *rest)
    else:
        rounds, *only = rest
        for case in FirstLookCases(spark=spark, configuration=configuration, data=data).cases():
            if any(part in case.name for part in only or [""]):
                print(
                    json.dumps(asdict(case.run(int(rounds), configuration))),
                    file=answers,
                    flush=True,
                )
    spark.stop()


def _cold(configuration: str, format: str, path: str) -> None:
    """Counts rows as a user script would, with the same imports."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config(
        "spark.ui.showConsoleProgress", "false"
    )
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
