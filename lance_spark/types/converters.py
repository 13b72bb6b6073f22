"""Converts Arrow batches from Lance to Spark, and from Spark to Lance.

Converters run on executors, one converter per task and stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_spark.errors import SchemaMismatchError, ValueConversionError
from lance_spark.types.fields import Array
from lance_spark.types.layout import aligned, relabel_batch
from lance_spark.types.leaves import BadValue, TooLarge
from lance_spark.types.mapping import arrow_type, raw_type, spark_arrow_schema
from lance_spark.types.mismatch import side_by_side
from lance_spark.types.tree import UNKNOWN_COLUMN, ChildPlan, ConversionPlanner, are_trivial

_READ_HINT = "leave the column out with option 'columns', or change it in the table"
_WRITE_HINT = "correct the value, or write to a column that can hold it"
_SPLIT_HINT = "read with a smaller option 'batch_size'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConversionPlan:
    """The conversion of batches from one schema to another."""

    source: pa.Schema
    columns: tuple[ChildPlan, ...]
    as_is: bool

    def run(self, columns: list[Array], rows: int) -> list[Array]:
        return [
            column.run(None if column.source is None else columns[column.source], rows)
            for column in self.columns
        ]


def _plan(source: pa.Schema, target: pa.Schema, planner: ConversionPlanner) -> _ConversionPlan:
    columns = planner.plan_children(list(source), target)
    return _ConversionPlan(source=source, columns=columns, as_is=are_trivial(columns, len(source)))


class ReadConverter:
    """Converts batches of a Lance scan to the schema of Spark.

    Columns with the same layout pass through without copies or checks. Runs on executors.
    Picklable, but not thread-safe.
    """

    def __init__(self, source: pa.Schema, target: StructType) -> None:
        """Plans the conversion.

        Args:
            source: Schema of the scan. It may have more columns than `target`, in another order.
            target: Spark's columns. Structs may have fewer fields than in the table.

        Raises:
            SchemaMismatchError: The table lacks a column of Spark's plan, or a column has another
                type now.
        """
        self.schema: pa.Schema = spark_arrow_schema(target)
        self._plan = self._planned(source)
        self._rows = 0

    def _planned(self, source: pa.Schema) -> _ConversionPlan:
        planner = ConversionPlanner(writing=False)
        plan = _plan(source, self.schema, planner)
        if planner.problems:
            raise SchemaMismatchError(
                f"The table no longer has the columns of the DataFrame: {_join_problems(planner)}. Load the table "
                "again. For a catalog table, run REFRESH TABLE. Recreate a temporary view."
            )
        return plan

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with exactly the schema `to_arrow_schema(target, timezone="UTC")`.

        The number of rows is kept, even without columns.

        Raises:
            ValueConversionError: A value does not fit Spark's type, or a column of the batch has
                more than 2 GiB of text (see :meth:`convert_split`).
        """
        try:
            return self._convert(batch)
        except TooLarge as error:
            raise ValueConversionError(
                "*",
                self._rows,
                "a batch has more text or elements in one column than Spark's Arrow types can hold",
                hint=_SPLIT_HINT,
            ) from error

    def convert_split(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the converted batch, in parts if it is too large for Spark's Arrow types.

        The batch is halved until no column has more than 2 GiB of text or 2^31 elements.

        Raises:
            ValueConversionError: As in :meth:`convert`, but for the size only if a single row is
                too large.
        """
        try:
            converted = self._convert(batch)
        except TooLarge:
            half = batch.num_rows // 2
            if half == 0:
                yield self.convert(batch)
                return
            yield from self.convert_split(batch.slice(0, half))
            yield from self.convert_split(batch.slice(half))
        else:
            yield converted

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._plan.source, check_metadata=True):
            self._plan = self._planned(batch.schema)
        if not self._plan.as_is:
            batch = _run(self._plan, batch, self._rows, _READ_HINT)
        self._rows += batch.num_rows
        return relabel_batch(batch, self.schema)


class WriteConverter:
    """Converts batches of a DataFrame, or Arrow data, to the exact types of a Lance table.

    Every value is checked. Columns with the same layout are not copied, except for buffers at
    addresses that make Lance panic. Runs on executors. Picklable, but not thread-safe.
    """

    def __init__(self, source: StructType | pa.Schema, target: pa.Schema) -> None:
        """Plans the conversion.

        Args:
            source: Schema of the DataFrame, or of Arrow data of this process.
            target: Schema of the written columns of the table.

        Raises:
            SchemaMismatchError: As in :func:`check_writable`.
            UnsupportedTypeError: Lance cannot store a column.
        """
        self._rows_of = "the data"
        if isinstance(source, StructType):
            check_writable(source, target)
            source = _written_schema(source)
            self._rows_of = "its task"
        self.schema = target
        self._plan = self._planned(source)
        self._rows = 0

    def convert(self, batch: pa.RecordBatch, *, first_row: int | None = None) -> pa.RecordBatch:
        """Returns the batch with exactly the columns of the target. Absent columns are NULL.

        Args:
            batch: The rows.
            first_row: Position of the first row for errors; by default the position in the stream.

        Raises:
            ValueConversionError: A value does not fit, or a NULL falls into a non-nullable column.
                Names column and row.
        """
        if not batch.schema.equals(self._plan.source, check_metadata=True):
            # The session determines time zones, and its settings determine large types.
            self._plan = self._planned(batch.schema)
        first_row = self._rows if first_row is None else first_row
        batch = _run(self._plan, batch, first_row, _WRITE_HINT, self._rows_of)
        self._rows += batch.num_rows
        return (
            batch
            if batch.schema.equals(self.schema, check_metadata=True)
            else relabel_batch(batch, self.schema)
        )

    def _planned(self, source: pa.Schema) -> _ConversionPlan:
        planner = ConversionPlanner(writing=True)
        plan = _plan(source, self.schema, planner)
        if planner.problems:
            table = self.schema.to_string(show_field_metadata=False, show_schema_metadata=False)
            raise SchemaMismatchError(
                f"The data does not fit the table: {_join_problems(planner)}. Nothing was written. Give the data the "
                f"columns and types of the table:\n{table}"
            )
        return plan


class LengthEnforcer:
    """Enforces `CHAR(n)` and `VARCHAR(n)` for values with the types of the table.

    Runs on executors, one enforcer per stream.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Plans the checks.

        Args:
            schema: The columns of the table. Columns without a length cost nothing.
        """
        declared = [field for field in schema if raw_type(field) is not None]
        self._converter = (
            WriteConverter(pa.schema(declared), pa.schema(declared)) if declared else None
        )

    def enforce(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with padded values of `CHAR(n)` columns.

        Raises:
            ValueConversionError: A text is too long. `row` is the position in the batch.
        """
        if self._converter is None:
            return batch
        names = self._converter.schema.names
        checked = self._converter.convert(batch.select(names), first_row=0)
        columns = [
            checked.column(name) if name in names else batch.column(name)
            for name in batch.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _join_problems(planner: ConversionPlanner) -> str:
    return "; ".join(f"{path}: {text}" for path, text in planner.problems.items())


def check_writable(
    schema: StructType,
    target: pa.Schema,
    *,
    uri: str | None = None,
    takes_new_columns: bool = False,
) -> None:
    """Checks before a write that a table can hold a DataFrame.

    Runs on the driver; pure. Columns are matched by name. Table columns absent from the DataFrame
    must be nullable. A NULL for a non-nullable column, or a value outside of its type, raises an
    error during the write, before the commit.

    Args:
        schema: Schema of the DataFrame.
        target: Schema of the written columns.
        uri: The table, for the message.
        takes_new_columns: Whether the option `mergeSchema` would add unknown columns, for the
            message.

    Raises:
        SchemaMismatchError: A column is unknown, absent, or has a type without a conversion. Shows
            both schemas side by side.
        UnsupportedTypeError: Lance cannot store a column.
    """
    if not schema.fields:
        raise SchemaMismatchError(
            "The DataFrame has no columns. Nothing was written. Select the columns of the table."
        )
    planner = ConversionPlanner(writing=True)
    source = _written_schema(schema)
    _plan(source, target, planner)
    if not planner.problems:
        return
    has_new_columns = takes_new_columns and UNKNOWN_COLUMN in planner.problems.values()
    addition = ", or add new columns with option('mergeSchema', True)" if has_new_columns else ""
    raise SchemaMismatchError(
        f"The DataFrame does not fit the table{'' if uri is None else f' {uri}'}: {_join_problems(planner)}. Nothing "
        f"was written. Select, cast or rename the columns{addition}:\n"
        + side_by_side(schema, target, planner.problems)
    )


def _written_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema of a DataFrame.

    Time zones and names of nested fields may differ from the data, without consequences.
    """
    return pa.schema(
        [pa.field(f.name, arrow_type(f.dataType, f.name), f.nullable) for f in schema.fields]
    )


def _run(
    plan: _ConversionPlan,
    batch: pa.RecordBatch,
    rows_before: int,
    hint: str,
    rows_of: str = "its task",
) -> pa.RecordBatch:
    columns = batch.columns
    try:
        arrays = plan.run(columns, batch.num_rows)
    except BadValue as error:
        row = rows_before + error.index
        raise ValueConversionError(
            error.path or "*", row, error.reason, hint=hint, rows=rows_of
        ) from error
    if not arrays:
        return batch.select([])
    aligned_arrays = [aligned(array) for array in arrays]
    if len(aligned_arrays) == len(columns) and all(
        new is old for new, old in zip(aligned_arrays, columns, strict=True)
    ):
        return batch
    return pa.RecordBatch.from_arrays(
        aligned_arrays, names=[str(i) for i in range(len(aligned_arrays))]
    )
