"""A process that casts column `v` of FOLDER/t.lance and stops at a point: `python -m tests.support.cast_driver SPARK
POINT FOLDER`.

SPARK is a master, or `none` for tasks in this process. The process waits until FOLDER/go exists or a test kills it.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import lance_spark
from lance_spark.columns import cast_files, casting
from lance_spark.commit import schema_change
from lance_spark.staging.column_file import ColumnFile
from tests.support.driver import session
from tests.support.hooks import hold

POINTS: dict[str, tuple[Any, str]] = {
    "in a file": (ColumnFile, "close"),
    "before the commit": (casting, "cast_fragments"),
    "in the commit": (schema_change, "attempt_commit"),
    "after the commit": (casting, "finish"),
}


def main(master: str, point: str, folder: str) -> None:
    owner, name = POINTS[point]
    real = getattr(owner, name)

    def stopping(*arguments: Any, **more: Any) -> Any:
        # The history of the table has commits of its own.
        if owner is not schema_change or getattr(arguments[0], "uri", None) == f"{folder}/t.lance":
            hold(folder)
        return real(*arguments, **more)

    spark = None if master == "none" else session(master)
    table = lance_spark.connect(folder, spark, progress=False).open_table("t")
    local_bytes = cast_files._LOCAL_BYTES if spark is None else 0
    with patch.object(owner, name, stopping), patch.object(cast_files, "_LOCAL_BYTES", local_bytes):
        table.alter_columns({"path": "v", "data_type": pa.list_(pa.float32(), 2)})


if __name__ == "__main__":
    main(*sys.argv[1:])
