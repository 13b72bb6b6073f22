"""UDFs with a log of their rows, and tables for these UDFs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_spark import Connection, Table
from udf_runtime import UDF, udf


@dataclass(frozen=True)
class Log:
    """A file to which UDFs append one line per row, in any process.

    Functions made here are pickled by value, so they must not use this module on an executor.
    """

    path: str

    def lines(self) -> list[str]:
        """Returns all lines, in the order of their writing."""
        return (
            Path(self.path).read_text(encoding="utf-8").split() if os.path.exists(self.path) else []
        )

    def rows(self) -> list[int]:
        """Returns all lines as numbers, ascending."""
        return sorted(map(int, self.lines()))

    def take(self) -> list[int]:
        """Returns the rows logged since the last call, ascending."""
        rows = self.rows()
        Path(self.path).unlink(missing_ok=True)
        return rows

    def doubling(self, *, factor: int = 2, **options: Any) -> UDF:
        """A scalar UDF over `x` that logs x and returns `factor * x`."""
        path = self.path

        def double(x: int) -> int:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{x}\n")
            return factor * x

        return udf(double, **options)

    def batch_doubling(self, **options: Any) -> UDF:
        """A UDF over record batches that logs the x of each row and returns `2 * x`."""
        path = self.path

        def double(batch: pa.RecordBatch) -> pa.Array:
            values = batch.column("x").to_pylist()
            with open(path, "a", encoding="utf-8") as file:
                file.write("".join(f"{x}\n" for x in values))
            return pa.array([2 * x for x in values], pa.int64())

        return udf(double, data_type=pa.int64(), **options)

    def sizes(self, **options: Any) -> UDF:
        """A UDF over Arrow arrays that logs the number of rows of each batch."""
        path = self.path

        def same(x: pa.Array) -> pa.Array:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{len(x)}\n")
            return x

        return udf(same, data_type=pa.int64(), **options)

    def breaking(self, row: int, flag: str, **options: Any) -> UDF:
        """Doubles, and raises ValueError at one row while a file exists."""
        path = self.path

        def double(x: int) -> int:
            import os

            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{x}\n")
            if x == row and os.path.exists(flag):
                raise ValueError(f"row {x} is bad")
            return 2 * x

        return udf(double, **options)

    def waiting(self, row: int, flag: str, **options: Any) -> UDF:
        """Doubles, and waits at one row while a file exists."""
        path = self.path

        def double(x: int) -> int:
            import os
            import time

            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{x}\n")
            deadline = time.monotonic() + 120
            while x == row and os.path.exists(flag) and time.monotonic() < deadline:
                time.sleep(0.01)
            return 2 * x

        return udf(double, **options)


def most_at_once(log: Log) -> int:
    """Returns the highest number of concurrent calls, from logged pairs `began:ended`."""
    events = []
    for line in log.lines():
        began, ended = map(float, line.split(":"))
        events += [(began, 1), (ended, -1)]
    running = most = 0
    for _, step in sorted(events):
        running += step
        most = max(most, running)
    return most


@contextmanager
def flag_file(flag: str) -> Iterator[None]:
    """Keeps a file while the block runs, and removes the file even after an error, so that no call waits for ever."""
    Path(flag).touch()
    try:
        yield
    finally:
        Path(flag).unlink(missing_ok=True)


def make(
    db: Connection,
    *,
    rows: int = 40,
    fragments: int = 4,
    name: str = "t",
    **more: Callable[[int], Any],
) -> Table:
    """Makes a table with `x` 0, 1, ... in fragments of equal size, and other columns as functions of x."""
    each = rows // fragments
    table: Table | None = None
    for first in range(0, rows, each):
        values = range(first, first + each)
        data = pa.table(
            {"x": list(values), **{key: [value(x) for x in values] for key, value in more.items()}}
        )
        if table is None:
            table = db.create_table(name, data)
        else:
            table.add(data)
    assert table is not None
    return table


def with_column(db: Connection, column: UDF, **shape: Any) -> Table:
    """Makes a table, and adds a computed column `y`."""
    table = make(db, **shape)
    table.add_columns({"y": column})
    return table


def values(table: Table, column: str = "y", *, key: str = "x") -> dict[Any, Any]:
    """Returns a column's values by key."""
    data = table.to_arrow([key, column])
    keys = data[key].to_pylist()
    assert len(keys) == len(set(keys))
    return dict(zip(keys, data[column].to_pylist(), strict=True))


def doubled(rows: range | list[int]) -> dict[int, int]:
    """Returns the results of a doubling UDF for rows."""
    return {x: 2 * x for x in rows}
