"""Logs the calls of UDFs in any process: one line per row, appended to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from udf_runtime import UDF, udf


@dataclass(frozen=True)
class CallLog:
    """A log of calls. Its UDFs are nested functions, so they are pickled by value and need no module of the tests.

    Attributes:
        path: The file.
    """

    path: str

    def noter(self) -> Callable[[object], None]:
        """Returns a function that logs a row, or every row of a list."""
        path = self.path

        def note(rows: object) -> None:
            import os

            lines = "".join(f"{row}\n" for row in (rows if isinstance(rows, list) else [rows]))
            # A single write with O_APPEND, so that lines of several processes never mix.
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(file, lines.encode())
            finally:
                os.close(file)

        return note

    def take(self) -> list[int]:
        """Returns the rows logged since the last call, sorted."""
        try:
            with open(self.path, encoding="utf-8") as file:
                rows = sorted(int(line) for line in file)
        except FileNotFoundError:
            return []
        open(self.path, "w", encoding="utf-8").close()
        return rows

    def times(self, factor: int, *, name: str = "times") -> UDF:
        """Returns a UDF over `id` that logs and multiplies its rows. Another factor gives another version."""
        note = self.noter()

        @udf(data_type=pa.int64(), name=name, input_columns=["id"])
        def times(id: int) -> int:
            note(id)
            return id * factor

        return times
