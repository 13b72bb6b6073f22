"""`ALTER TABLE t ADD COLUMNS c, ... FROM view` and `UPDATE COLUMNS`: backfills. On the driver."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as sf

from lance_spark.errors import ColumnExistsError, ColumnNotFoundError, OptionError
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.sql.catalog.location import ProcedureCall
from lance_spark.types.fields import quote_identifier

Row = Sequence[object]


def add_columns(call: ProcedureCall, columns: Sequence[str], source: str) -> Row:
    """Adds columns. Rows missing from the view are NULL.

    Raises:
        ColumnExistsError: The table has such a column.
        OptionError: The view lacks a column or the row addresses, or a column is given twice.
        SnapshotError: The row addresses are of another table.
    """
    dataset = call.ref.open_latest()
    present = {name.lower() for name in dataset.schema.names}
    existing = [name for name in columns if name.lower() in present]
    if existing:
        raise ColumnExistsError(
            existing, call.ref.uri, hint="nothing was changed; write UPDATE COLUMNS"
        )
    return _write(call, columns, source)


def update_columns(call: ProcedureCall, columns: Sequence[str], source: str) -> Row:
    """Gives columns new values. Rows missing from the view keep their values.

    Raises:
        ColumnNotFoundError: The table lacks the column.
        OptionError, SnapshotError: As :func:`add_columns`.
    """
    names = call.ref.open_latest().schema.names
    absent = [name for name in columns if name not in names]
    if absent:
        raise ColumnNotFoundError(
            absent[0], call.ref.uri, hint=f"its columns are {', '.join(names)}"
        )
    return _write(call, columns, source)


def _write(call: ProcedureCall, columns: Sequence[str], source: str) -> Row:
    if len({name.lower() for name in columns}) < len(columns):
        raise OptionError("columns", list(columns), "columns that differ")
    frame = call.spark.table(source)
    present = {name.lower() for name in frame.columns}
    if ROW_ADDRESS not in frame.columns:
        raise OptionError(
            "source", source, f"a view of the rows of the table with the column {ROW_ADDRESS}"
        )
    lacking = [name for name in columns if name.lower() not in present]
    if lacking:
        raise OptionError("columns", lacking[0], f"columns of {source}: {', '.join(frame.columns)}")
    values = frame.select(
        ROW_ADDRESS, *(sf.col(quote_identifier(name)).alias(name) for name in columns)
    )
    writer = values.write.format("lance").mode("append").options(**call.ref.storage_settings)
    writer.option("mode", "backfill").save(call.ref.uri)
    return [", ".join(columns), call.table().version]
