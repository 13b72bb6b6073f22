"""Vectors in rows for a table: NaN is an error, and bad vectors are repaired on request.

:func:`repair_vectors` and :func:`refuse_nan`.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import OptionError, ValueConversionError
from lance_spark.ingest.columns import PythonColumns, columns_of
from lance_spark.ingest.streams import is_iterator, is_spark, open_stream, refuse_form
from udf_runtime.execute.conversion.columns import is_data_frame

OnBadVectors = Literal["error", "drop", "fill", "null"]
"""What happens to rows with a bad vector: a vector with NaN, or of another length."""

VECTOR_COLUMN = "vector"
"""The column of vectors by its name, as in LanceDB."""

_LEAST_LENGTH = 10
"""Least length of the vectors of a new table in a column of another name."""

_DROPPED = object()


def refuse_nan(rows: pa.RecordBatchReader, *, is_new: bool) -> pa.RecordBatchReader:
    """Returns the rows, and raises an error for a vector with NaN.

    Args:
        rows: The rows, in the types of the table.
        is_new: Whether the rows make a new table. Then vectors are the column `vector`, and columns
            of lists of 10 or more floating-point numbers of fixed length; else all fixed-size lists
            of floating-point numbers.

    Raises:
        ValueConversionError: A vector has NaN. Raised during the read.
    """
    columns = [
        field.name
        for field in rows.schema
        if _is_vector(field.type)
        and (not is_new or field.name == VECTOR_COLUMN or field.type.list_size >= _LEAST_LENGTH)
    ]
    return (
        pa.RecordBatchReader.from_batches(rows.schema, _refuse_nan_vectors(rows, columns))
        if columns
        else rows
    )


def _refuse_nan_vectors(
    rows: pa.RecordBatchReader, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in rows:
        for name in columns:
            bad = _first_nan(batch.column(name))
            if bad is not None:
                raise ValueConversionError(
                    name,
                    first + bad,
                    "a vector has NaN",
                    hint="Nothing was written. Set on_bad_vectors to drop the row, to fill the number with fill_value, "
                    "or to null the vector",
                    rows="the data",
                )
        first += batch.num_rows
        yield batch


def refuse_other_lengths(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Returns the rows of a new table without a schema, and raises an error for unequal vectors.

    Raises:
        ValueConversionError: Lists of floating-point numbers in the column `vector` have several
            lengths. Raised during the read.
    """
    if VECTOR_COLUMN not in rows.schema.names or not _is_list_of_floats(
        rows.schema.field(VECTOR_COLUMN).type
    ):
        return rows
    return pa.RecordBatchReader.from_batches(rows.schema, _of_one_length(rows))


def _of_one_length(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    first, length = 0, None
    for batch in rows:
        lengths: Any = pc.list_value_length(batch.column(VECTOR_COLUMN))
        for row, row_length in enumerate(lengths.to_pylist()):
            length = row_length if length is None else length
            if row_length not in (None, length):
                raise ValueConversionError(
                    VECTOR_COLUMN,
                    first + row,
                    f"the vector has {row_length} numbers, and the first vector has {length}",
                    hint="Nothing was written. Set on_bad_vectors to drop, fill or null other vectors, or pass a "
                    "schema with lists",
                    rows="the data",
                )
        first += batch.num_rows
        yield batch


def _is_vector(kind: Any) -> bool:  # noqa: ANN401 - Arrow's types have no common attributes
    return pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)


def _first_nan(vectors: Any) -> int | None:  # noqa: ANN401 - an array of fixed-size lists
    """Returns the number of the first present vector with NaN."""
    size = vectors.type.list_size
    numbers = vectors.values.slice(vectors.offset * size, len(vectors) * size)
    if pa.types.is_float16(numbers.type):
        numbers = numbers.cast(pa.float32())  # Arrow has no functions for half floats
    total = pc.sum(numbers).as_py()
    if total is None or not math.isnan(total):  # a sum is fast, and NaN if a number is NaN
        return None
    has_nan = pc.is_nan(numbers).fill_null(False)
    is_bad = np.asarray(has_nan).reshape(len(vectors), size).any(axis=1)
    is_bad &= vectors.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(is_bad)
    return int(places[0]) if len(places) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRepair:
    """The repair of bad vectors.

    Attributes:
        on_bad_vectors: `drop` leaves out the row, `fill` replaces NaN and missing numbers by
            `fill_value` and cuts long vectors, `null` makes the vector NULL.
        fill_value: The number for `fill`.
        lengths: Length of the vectors by column; None is the most frequent length of the data.
        is_new: Whether the rows make a new table. Then a NULL vector is bad, too.
    """

    on_bad_vectors: OnBadVectors
    fill_value: float
    lengths: Mapping[str, int | None]
    is_new: bool

    @staticmethod
    def of(
        on_bad_vectors: OnBadVectors, fill_value: float, schema: pa.Schema | None, *, is_new: bool
    ) -> VectorRepair | None:
        """Returns the repair for the columns of a table; None for `error`.

        Raises:
            OptionError: An argument is not valid.
        """
        if on_bad_vectors not in ("error", "drop", "fill", "null"):
            raise OptionError("on_bad_vectors", on_bad_vectors, "error, drop, fill or null")
        if isinstance(fill_value, bool) or not isinstance(fill_value, (int, float)):
            raise OptionError("fill_value", fill_value, "a number")
        if on_bad_vectors == "error":
            return None
        lengths: dict[str, int | None] = {VECTOR_COLUMN: None}
        if schema is not None:
            lengths = {
                field.name: field.type.list_size for field in schema if _is_vector(field.type)
            }
            if VECTOR_COLUMN in schema.names and _is_list_of_floats(
                schema.field(VECTOR_COLUMN).type
            ):
                lengths.setdefault(VECTOR_COLUMN, None)
        return VectorRepair(
            on_bad_vectors=on_bad_vectors,
            fill_value=float(fill_value),
            lengths=lengths,
            is_new=is_new,
        )

    def repair(self, data: object) -> Any:  # noqa: ANN401 - data of any form
        """Returns data with repaired vectors.

        Args:
            data: Rows of Python, a dict of columns, pandas, Arrow of any library, also a stream, an
                iterator over these, or a Spark DataFrame. Streams and iterators are repaired part
                by part.

        Raises:
            OptionError: A Spark DataFrame makes a new table.
            SchemaMismatchError: The data has another form.
        """
        if is_spark(data):
            return self._spark_frame(data)
        if is_iterator(data):
            return self._parts(cast("Iterator[object]", data))
        rows = open_stream(data)
        if rows is not None:
            return self._with_vectors_of(rows.schema).repair_arrow(rows)
        if is_data_frame(data):
            return self._frame(data)
        return self._columns(columns_of(data))

    def repair_arrow(
        self, rows: pa.Table | pa.RecordBatchReader
    ) -> pa.Table | pa.RecordBatchReader:
        """Returns Arrow data with repaired vectors. A stream is repaired batch by batch."""
        return self._table(rows) if isinstance(rows, pa.Table) else self._stream(rows)

    def _with_vectors_of(self, schema: pa.Schema) -> VectorRepair:
        """Returns the repair that includes vectors of the data in columns of lists."""
        lengths = {field.name: field.type.list_size for field in schema if _is_vector(field.type)}
        least = _LEAST_LENGTH if self.is_new else 1
        return replace(
            self,
            lengths={name: size for name, size in lengths.items() if size >= least}
            | dict(self.lengths),
        )

    def _columns(self, columns: PythonColumns) -> PythonColumns:
        repaired = dict(columns.values)
        for name in self.lengths:
            if name in repaired:
                values = self._values(name, _to_list(repaired[name]))
                keep = [value is not _DROPPED for value in values]
                if not all(keep):
                    repaired = {label: _keep(column, keep) for label, column in repaired.items()}
                repaired[name] = [value for value in values if value is not _DROPPED]
        return replace(columns, values=repaired)

    def _parts(self, parts: Iterator[object]) -> Iterator[Any]:
        """Yields the repaired parts of an iterator that have rows, else the last part.

        The most frequent length in the first part with vectors is the length of all vectors. Parts
        before it wait in memory.
        """
        empty, has_rows = None, False
        for part in self._repaired_parts(_split_streams(parts)):
            if _has_rows(part):
                has_rows = True
                yield part
            else:
                empty = part
        if not has_rows and empty is not None:
            yield empty

    def _repaired_parts(self, parts: Iterator[object]) -> Iterator[Any]:
        repair, waiting, names = self, deque[object](), set[str]()
        for part in parts:
            waiting.append(part)
            vectors = repair._vectors_of_unknown_length(part)
            names |= vectors.keys()
            lengths = {name: repair._length(name, values) for name, values in vectors.items()}
            repair = replace(repair, lengths={**repair.lengths, **lengths})
            if all(repair.lengths[name] is not None for name in names):
                while waiting:
                    yield repair.repair(waiting.popleft())
        yield from map(repair.repair, waiting)

    def _vectors_of_unknown_length(self, part: Any) -> dict[str, list[Any]]:  # noqa: ANN401 - a part of any form
        """Returns the columns of a part whose vectors have no known length."""
        names = [name for name, length in self.lengths.items() if length is None]
        if not names:
            return {}
        is_arrow = isinstance(part, pa.Table)
        columns = (
            {name: part[name] for name in part.schema.names}
            if is_arrow
            else columns_of(part).values
        )
        return {name: _to_list(columns[name]) for name in names if name in columns}

    def _table(self, table: pa.Table) -> pa.Table:
        for name in self.lengths:
            if name not in table.schema.names or not _is_list(table.schema.field(name).type):
                continue
            values = self._values(name, table.column(name).to_pylist())
            keep = [value is not _DROPPED for value in values]
            remaining = table if all(keep) else table.filter(pa.array(keep))
            field: Any = table.schema.field(name)
            vectors = [value for value in values if value is not _DROPPED]
            length = self._length(name, vectors)
            numbers = (
                pa.float64() if pa.types.is_null(field.type.value_type) else field.type.value_type
            )
            kind = pa.list_(numbers, length) if length else field.type
            table = remaining.set_column(
                remaining.schema.get_field_index(name),
                field.with_type(kind),
                pa.array(vectors, kind),
            )
        return table

    def _stream(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Repairs a stream batch by batch, as :meth:`_parts`."""
        parts = self._parts(iter(rows))
        first = next(parts, self._table(rows.schema.empty_table()))
        batches = (
            batch for table in itertools.chain([first], parts) for batch in table.to_batches()
        )
        return pa.RecordBatchReader.from_batches(first.schema, batches)

    def _spark_frame(self, frame: Any) -> Any:  # noqa: ANN401 - classic Spark or Connect
        """Repairs the vectors in Spark's tasks."""
        if self.is_new:
            raise OptionError(
                "on_bad_vectors",
                self.on_bad_vectors,
                "error, for a new table of a Spark DataFrame: create the table with a schema first",
            )
        lengths = {name: length for name, length in self.lengths.items() if name in frame.columns}
        if not lengths:
            return frame
        # Tasks see parts of the rows, so the most frequent length differs by task.
        if None in lengths.values():
            raise OptionError(
                "on_bad_vectors",
                self.on_bad_vectors,
                "error, for a Spark DataFrame and a table with vectors of any length: give the column one length "
                "first, with alter_columns and pyarrow.list_(type, length)",
            )
        return frame.mapInArrow(replace(self, lengths=lengths).repair_batches, frame.schema)

    def repair_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields repaired batches with the same types. Runs in a task of Spark."""
        for batch in batches:
            yield from self._table(pa.Table.from_batches([batch])).cast(batch.schema).to_batches()

    def _frame(self, frame: Any) -> Any:  # noqa: ANN401 - pandas is not imported here
        for name in self.lengths:
            if name in frame.columns:
                values = self._values(name, list(frame[name]))
                keep = [value is not _DROPPED for value in values]
                frame = frame[keep].copy()
                frame[name] = [value for value in values if value is not _DROPPED]
        return frame

    def _values(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Returns the repaired vectors of a column, and a mark for rows to drop."""
        length = self._length(name, values)
        if length is None:
            return list(values)
        return [self._repaired(value, length) for value in values]

    def _repaired(self, value: Any, length: int) -> Any:  # noqa: ANN401 - a vector of any class
        if value is None and not self.is_new:
            return None
        numbers = (
            [] if value is None else [np.nan if number is None else number for number in value]
        )
        is_bad = len(numbers) != length or any(number != number for number in numbers)  # noqa: PLR0124 - NaN
        if not is_bad:
            return value
        if self.on_bad_vectors == "drop":
            return _DROPPED
        if self.on_bad_vectors == "null":
            return None
        filled = [self.fill_value if number != number else number for number in numbers[:length]]  # noqa: PLR0124
        return filled + [self.fill_value] * (length - len(filled))

    def _length(self, name: str, values: Sequence[Any]) -> int | None:
        """Returns the length of the vectors of a column, else the most frequent one without NaN."""
        if self.lengths[name] is not None:
            return self.lengths[name]
        counts = collections.Counter(len(value) for value in values if _is_complete(value))
        return counts.most_common(1)[0][0] if counts else None


def _split_streams(parts: Iterator[object]) -> Iterator[object]:
    """Yields parts of Arrow batch by batch, as tables, and other parts unchanged."""
    for part in parts:
        if is_iterator(part):
            raise refuse_form(part)
        rows = open_stream(part)
        if rows is None:
            yield part if is_data_frame(part) else columns_of(part)
            continue
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            yield pa.Table.from_batches([batch])


def _has_rows(part: Any) -> bool:  # noqa: ANN401 - a table, a data frame, or columns
    return any(map(len, part.values.values())) if isinstance(part, PythonColumns) else len(part) > 0


def _to_list(column: Any) -> list[Any]:  # noqa: ANN401 - a column of any class
    return column.to_pylist() if isinstance(column, (pa.Array, pa.ChunkedArray)) else list(column)


def _keep(column: Any, keep: Sequence[bool]) -> Any:  # noqa: ANN401 - a column of any class
    """Returns the values of a column at the true places of a mask."""
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return column.filter(pa.array(keep))
    return list(itertools.compress(column, keep))


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - Arrow's types have no common attributes
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_complete(vector: Any) -> bool:  # noqa: ANN401 - a value of any class
    """Tells whether a value is a vector of one number or more, all of them present."""
    if not hasattr(vector, "__len__") or isinstance(vector, str) or len(vector) == 0:
        return False
    return not any(number is None or number != number for number in vector)  # noqa: PLR0124 - NaN


def _is_list_of_floats(kind: Any) -> bool:  # noqa: ANN401 - Arrow's types have no common attributes
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_floating(
        kind.value_type
    )
