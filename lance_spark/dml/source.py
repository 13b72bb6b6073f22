"""The source of a merge, as a DataFrame: :class:`MergeSource`. Belongs to the driver."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, SchemaMismatchError
from lance_spark.ingest.rows import Data, to_reader
from lance_spark.ingest.staging import LocalRows, stage
from lance_spark.ingest.streams import is_spark
from lance_spark.ingest.vectors import refuse_nan
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import row_field
from lance_spark.types import check_writable, to_spark_schema
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SENT_BYTES = 1 << 20
"""Maximum bytes of rows that travel with a task. Spark sends larger tasks as a broadcast."""

_LISTED_KEYS = 10_000
"""Maximum keys of a source in this process for a filter on the table."""


class MergeSource:
    """The source of a merge: a Spark DataFrame, or rows of this process.

    Few rows of this process travel with their task. Other rows are staged next to the table, batch
    by batch. Python values get the types of the table's columns.

    Attributes:
        names: Names of the columns.
        values: Spark's schema of sent or staged rows.
    """

    values: StructType

    def __init__(self, spark: SparkSession, data: Data, table: pa.Schema) -> None:
        self._frame = cast("DataFrame", data) if is_spark(data) else None
        self._local: LocalRows | None = None
        if self._frame is None:
            self._local = LocalRows(
                refuse_nan(to_reader(data, None, table=_as_python_rows(table)), is_new=False)
            )
            self.names: list[str] = self._local.schema.names
        else:
            self.names = list(self._frame.columns)
        self.spark = spark if self._frame is None else self._frame.sparkSession
        self._columns = table
        self._place: str | None = None

    @property
    def _rows(self) -> pa.Table | None:
        """The rows of this process, if they are few."""
        return None if self._local is None else self._local.table

    def check(self, rows: pa.Schema, on: Sequence[str]) -> None:
        """Validates the columns against `rows`, the table's columns, and the keys.

        Raises:
            ColumnNotFoundError: The source lacks a key.
            SchemaMismatchError: The table lacks a column, or its type does not fit.
        """
        for name in on:
            if name not in self.names:
                raise ColumnNotFoundError(
                    name, "the source", hint=f"its columns are {', '.join(self.names)}"
                )
        unknown = [name for name in self.names if name not in rows.names]
        if unknown:
            raise SchemaMismatchError(
                f"The source of the merge has columns that the table lacks: {', '.join(map(repr, unknown))}. Nothing "
                f"was changed. Columns of the table: {', '.join(rows.names)}."
            )
        self._columns = pa.schema([field for field in rows if field.name in self.names])
        if self._frame is not None:
            check_writable(self._frame.schema, self._columns)

    def sent(self, ref: DatasetRef, staging: Staging) -> bytes | str:
        """Returns the rows of this process for a task: a stream of Arrow, or a staged table."""
        if (
            self._rows is None
            or self._rows.nbytes > _SENT_BYTES
            or any(isinstance(f.type, pa.BaseExtensionType) for f in self._rows.schema)
        ):
            return self._staged(ref, staging)
        self._check_values(self._rows.schema)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, self._rows.schema) as writer:
            writer.write_table(self._rows)
        return sink.getvalue()

    def _staged(self, ref: DatasetRef, staging: Staging) -> str:
        """Returns the location of the staged rows of this process.

        The end of the job deletes the rows with the job's files.
        """
        if self._place is None:
            assert self._local is not None, "a DataFrame is not staged"
            place, columns = stage(self._local.take(), ref, staging)
            self._check_values(columns)
            self._place = place
        return self._place

    def _check_values(self, rows: pa.Schema) -> None:
        self.values = to_spark_schema(rows)
        check_writable(self.values, self._columns)

    def frame(self, ref: DatasetRef, staging: Staging) -> DataFrame:
        """Returns the rows as a DataFrame. Stages rows of this process."""
        if self._frame is None:
            self._frame = read_table(self.spark, ref, self._staged(ref, staging), {})
        return self._frame

    def list_values(self, key: str) -> list[str] | None:
        """Returns the values of a key as literals of Lance SQL; None for too many values.

        Only for integers or texts on both sides, in rows of this process.
        """
        if self._rows is None or self._rows.num_rows > _LISTED_KEYS:
            return None
        keys = self._rows.column(key).unique()
        kind = plain_key(keys.type)
        if kind is None or kind != plain_key(self._columns.field(key).type):
            return None
        return sorted(_literal(value) for value in keys.to_pylist() if value is not None)


def plain_key(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type for comparisons of keys; None if Spark compares the keys."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_string()
    return pa.int64() if pa.types.is_integer(kind) and kind != pa.uint64() else None


def read_table(
    spark: SparkSession, ref: DatasetRef, uri: str, options: Mapping[str, str]
) -> DataFrame:
    """Returns a table in the same store as another one, as a DataFrame."""
    return spark.read.format("lance").options(**ref.storage_settings, **options).load(uri)


def _as_python_rows(table: pa.Schema) -> pa.Schema:
    """Returns a table's columns as rows of this process have them: blobs are bytes."""
    return pa.schema(
        [row_field(field).remove_metadata() if is_blob(field) else field for field in table]
    )


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
