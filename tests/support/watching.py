"""A process that watches columns of a table until its end: arguments are the folder, the table and the columns."""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta

import lance_spark
from lance_spark.session.sessions import make_session

if __name__ == "__main__":
    folder, name, *columns = sys.argv[1:]
    table = lance_spark.connect(folder, make_session("local[2,4]"), progress=False).open_table(name)
    with contextlib.ExitStack() as watches:
        for column in columns:
            watches.enter_context(table.watch(column, trigger=timedelta(seconds=0.5)))
        print("watching", flush=True)
        sys.stdin.read()
