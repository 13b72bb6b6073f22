"""What a UDF was called with, whichever process called it: one line per row, appended to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from udf_runtime import UDF, udf


@dataclass(frozen=True)
class Seen:
    """A log of calls. Functions that it returns are nested ones, so that they are pickled by value and need no module of the tests.

    Attributes:
        path: The file.
    """

    path: str

    def noter(self) -> Callable[[object], None]:
        """Returns a function that notes a row, or every row of a list."""
        path = self.path

        def note(rows: object) -> None:
            import os

            lines = "".join(f"{row}\n" for row in (rows if isinstance(rows, list) else [rows]))
            # One write of O_APPEND: lines of several processes do not mix.
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(file, lines.encode())
            finally:
                os.close(file)

        return note

    def take(self) -> list[int]:
        """Returns the rows that were noted since the last look, sorted."""
        try:
            with open(self.path, encoding="utf-8") as file:
                rows = sorted(int(line) for line in file)
        except FileNotFoundError:
            return []
        open(self.path, "w", encoding="utf-8").close()
        return rows

    def times(self, factor: int, *, name: str = "times") -> UDF:
        """Returns a UDF over `id` that notes its rows and multiplies them. Other factors are other versions."""
        note = self.noter()

        @udf(data_type=pa.int64(), name=name, input_columns=["id"])
        def times(id: int) -> int:
            note(id)
            return id * factor

        return times
