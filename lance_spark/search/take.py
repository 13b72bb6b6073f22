"""Rows of a table by their numbers: :class:`TakeQuery`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.lance_compat import take_known_rows
from lance_spark.read.columns import ROW_ID
from lance_spark.read.ranking.ranking import search_errors
from lance_spark.search.query import Query

if TYPE_CHECKING:
    import lance


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class TakeQuery(Query):
    """Rows of a table by their offsets or row ids, read by Lance in this process.

    :meth:`lance_spark.Table.take_offsets` and :meth:`lance_spark.Table.take_row_ids` start the
    query. It selects columns, and has neither a condition nor an order.

    Attributes:
        kind: Offsets in the version, or row ids.
        numbers: The offsets or row ids.

    Example:
        ```python
        import lance_spark

        docs = lance_spark.connect("tables").open_table("docs")
        sample = docs.take_offsets([4, 0, 4]).select(["id", "text"]).to_list()
        ```
    """

    kind: Literal["offsets", "row_ids"]
    numbers: tuple[int, ...]

    def to_spark(self) -> DataFrame:
        """Raises an error: Spark tasks read no rows by number.

        Raises:
            UnsupportedOperationError: Always.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            try:
                docs.take_offsets([0]).to_spark()
            except lance_spark.UnsupportedOperationError as error:
                print(error)
            ```
        """
        raise UnsupportedOperationError(
            "to_spark() cannot take rows by number. Call spark.createDataFrame(query.to_arrow())."
        )

    def check_view(self) -> None:
        """Raises an error: a materialized view cannot follow rows by number.

        Raises:
            UnsupportedOperationError: Always.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            try:
                docs.take_offsets([0]).check_view()
            except lance_spark.UnsupportedOperationError as error:
                print(error)
            ```
        """
        raise UnsupportedOperationError(
            f"A materialized view of {self.source.uri} cannot follow rows by number. Begin with search(None)."
        )

    def _opened(self) -> lance.LanceDataset:
        if self.condition is not None or self.ordering:
            raise UnsupportedOperationError(
                "Rows by number have neither a condition nor an order. Begin with search(None), or filter and sort "
                "the result."
            )
        return Query._opened(self)  # noqa: SLF001 - its own

    def _batches(
        self, dataset: lance.LanceDataset, batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        columns = {**self._projection(dataset), ROW_ID: ROW_ID}
        with search_errors(dataset, None):
            if self.kind == "row_ids":
                rows = take_known_rows(dataset, list(self.numbers), columns)
            else:
                offsets = self._existing_offsets(dataset)
                rows = dataset.take(offsets, columns=columns)
        stop = None if self.most_rows is None else self.skipped_rows + self.most_rows
        chosen = rows.select(self._schema(dataset).names).slice(0, stop).slice(self.skipped_rows)
        yield from chosen.to_batches(max_chunksize=batch_size)

    def _existing_offsets(self, dataset: lance.LanceDataset) -> list[int]:
        rows = dataset.count_rows()
        return [number for number in self.numbers if number < rows]


def row_numbers(option: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Returns row numbers as a tuple of integers.

    Raises:
        OptionError: A number is not an integer, or is negative.
    """
    try:
        array = np.asarray(list(numbers) or np.empty(0, np.int64))
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise OptionError(option, numbers, "a list of whole numbers, 0 or more")
    return tuple(array.tolist())
