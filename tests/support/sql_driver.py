"""A process for SQL statements: `python -m tests.support.sql_driver FOLDER POINT STATEMENT...`.

The folder is the catalog `c`. At a point of `tests.support.statement_driver` the process stops until a test kills it.
Without a point (`none`) it makes FOLDER/held after the start of the session, waits for FOLDER/go, runs the statements,
and makes FOLDER/done-PID.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance_spark
from lance_spark.dml import edits, merge_tasks
from tests.support.driver import session
from tests.support.hooks import hold
from tests.support.statement_driver import POINTS


def main(folder: str, point: str, *statements: str) -> None:
    spark = session("local[2]")
    lance_spark.catalog(spark, "c", folder)
    with ExitStack() as stack:
        if point != "none":
            owner, name = POINTS[point]
            real = getattr(owner, name)

            def stopping(*arguments: Any, **more: Any) -> Any:
                hold(folder)
                return real(*arguments, **more)

            stack.enter_context(patch.object(owner, name, stopping))
            stack.enter_context(patch.object(merge_tasks, "delete_rows", edits.delete_rows))
        else:
            spark.sql("SELECT count(*) FROM c.t").collect()
            hold(folder)
        for statement in statements:
            spark.sql(statement).collect()
    Path(folder, f"done-{os.getpid()}").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
