"""A process that changes rows and stops at a point: `python -m tests.support.statement_driver SPARK POINT FOLDER
STATEMENT`.

SPARK is a master, or `none` for tasks in this process. The table is FOLDER/t.lance. The process waits until FOLDER/go
exists or a test kills it.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

from lance_spark.commit.rows import row_commit
from lance_spark.dml import edits, merge_tasks, rounds
from lance_spark.staging.column_file import ColumnFile
from lance_spark.staging.data_file import FragmentSink
from tests.support import inline_rows
from tests.support.driver import session
from tests.support.hooks import hold

STATEMENTS: dict[str, Any] = {
    "columns": lambda table: table.update("id % 2 = 0", {"s": "new"}),
    "rows": lambda table: table.update(
        "id IN (2, 13)", {"s": "new", "v": [0.0, 0.0], "t": {"x": 1, "y": "y"}}
    ),
    "delete": lambda table: table.delete("id % 3 = 0"),
    "merge": lambda table: (
        table.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute([{"id": 2, "s": "new"}, {"id": 77, "s": "new"}])
    ),
}

POINTS: dict[str, tuple[Any, str]] = {
    "in a column file": (ColumnFile, "close"),
    "in a fragment": (FragmentSink, "finish"),
    "in a deletion": (edits, "delete_rows"),
    "before the commit": (rounds, "commit_edits"),
    "in the commit": (row_commit, "attempt_commit"),
    "after the commit": (rounds, "finish"),
}


class Inline:
    """Stands for a table, without Spark."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def update(self, where: str, values: dict[str, object]) -> object:
        """Sets columns."""
        return inline_rows.update(self._uri, where, values)

    def delete(self, where: str) -> object:
        """Deletes rows."""
        return inline_rows.delete(self._uri, where)


def main(master: str, point: str, folder: str, statement: str) -> None:
    owner, name = POINTS[point]
    real = getattr(owner, name)

    def stopping(*arguments: Any, **more: Any) -> Any:
        hold(folder)
        return real(*arguments, **more)

    table: Any = Inline(f"{folder}/t.lance")
    if master != "none":
        import lance_spark

        table = lance_spark.connect(folder, session(master), progress=False).open_table("t")
    with (
        patch.object(owner, name, stopping),
        patch.object(merge_tasks, "delete_rows", edits.delete_rows),
    ):
        STATEMENTS[statement](table)


if __name__ == "__main__":
    main(*sys.argv[1:])
