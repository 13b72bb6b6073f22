"""Errors of rows: their places, and their records in the table of errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lance_spark.display import Displayable
from lance_spark.stored_json import Kinds, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """The place and the class of an error, without values.

    Attributes:
        fragment_id: The fragment.
        row_address: The row's address, or None if only the fragment is known.
        table_version: The version of the address.
        outcome: As in :class:`ErrorRecord`.
        error_type: Qualified name of the exception.
    """

    fragment_id: int
    row_address: int | None
    table_version: int
    outcome: str
    error_type: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorRecord(Displayable):
    """A failed row, or a range of failed rows.

    Attributes:
        error_id: Id of the error.
        job_id: The job.
        table_uri: The table.
        table_version: The version read by the job; the address is of this version.
        columns: The computed columns.
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        input_columns: The UDF's inputs.
        fragment_id: The fragment.
        row_address: The row's address, or None if only the range is known.
        outcome: `skipped` by a policy, `crashed`: the row killed its process, `failed`: the row
            ended the range.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        error_trace: Trace of the exception, or None after too many traces.
        attempt: Number of calls for the row so far.
        max_attempts: Limit of calls for the row.
        bisect_depth: How often the batch was halved to isolate the row.
        timestamp: Time of the error.

    Example:
        ```python
        import lance_spark
        from lance_spark import skip_on_error, udf


        @udf(on_error=skip_on_error())
        def invert(price: int) -> float:
            return 1 / price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"inverse": invert})
        books.backfill("inverse")
        for error in books.get_errors():
            print(error.row_address, error.error_type, error.error_message)
        ```
    """

    error_id: str
    job_id: str
    table_uri: str
    table_version: int
    columns: tuple[str, ...]
    udf_name: str
    udf_version: str
    input_columns: tuple[str, ...]
    fragment_id: int
    row_address: int | None
    outcome: str
    error_type: str
    error_message: str
    error_trace: str | None
    attempt: int
    max_attempts: int
    bisect_depth: int
    timestamp: datetime

    @property
    def text(self) -> str:
        """Summary of the error and its row."""
        row = "some rows" if self.row_address is None else f"row address {self.row_address}"
        where = f"{row} of {', '.join(self.columns)}, version {self.table_version}"
        return f"{self.error_type}: {self.error_message} ({where}, {self.outcome})"

    @property
    def column_name(self) -> str:
        """The column, or the first of several siblings."""
        return self.columns[0]

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> ErrorRecord:
        """Returns the record of a row of the table of errors.

        Raises:
            ValueError: The row is damaged or forged.
        """
        check_fields(row, _ERROR_KINDS)
        if not row["columns"] or None in (*row["columns"], *row["input_columns"]):
            raise ValueError("a list of columns is empty or holds NULL")
        return ErrorRecord(
            **{
                **row,
                "columns": tuple(row["columns"]),
                "input_columns": tuple(row["input_columns"]),
            }
        )


_ERROR_TEXTS = (
    "error_id",
    "job_id",
    "table_uri",
    "udf_name",
    "udf_version",
    "outcome",
    "error_type",
    "error_message",
)
_ERROR_KINDS: Kinds = {
    **dict.fromkeys(_ERROR_TEXTS, str),
    **dict.fromkeys(
        ("table_version", "fragment_id", "attempt", "max_attempts", "bisect_depth"), int
    ),
    **dict.fromkeys(("columns", "input_columns"), list),
    "row_address": (int, type(None)),
    "error_trace": (str, type(None)),
    "timestamp": datetime,
}
