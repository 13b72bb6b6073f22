"""Data that people hand over for a table: a Spark DataFrame, Arrow, pandas, or a list of dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, Union

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame

Data: TypeAlias = Union[
    "DataFrame",
    "ConnectDataFrame",
    pa.Table,
    pa.RecordBatch,
    pa.RecordBatchReader,
    pd.DataFrame,
    "list[dict[str, object]]",
]


def is_spark(data: object) -> bool:
    """Tells whether data is a Spark DataFrame, classic or of Connect."""
    return isinstance(data, DataFrame) or type(data).__module__.startswith("pyspark.sql.connect")


def to_reader(data: object, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Returns data as a stream of Arrow batches.

    Args:
        data: Arrow, pandas, or a list of dicts.
        schema: Schema that it is to have; by default the data's own.

    Raises:
        SchemaMismatchError: It is none of these, or does not fit the schema.
    """
    try:
        if isinstance(data, pa.RecordBatchReader):
            return data if schema is None or data.schema.equals(schema) else data.cast(schema)
        if isinstance(data, pd.DataFrame):
            table = pa.Table.from_pandas(data, schema=schema, preserve_index=False)
        elif isinstance(data, (list, tuple)) and all(isinstance(row, Mapping) for row in data):
            table = pa.Table.from_pylist(list(data), schema=schema)
        elif isinstance(data, pa.RecordBatch):
            table = pa.Table.from_batches([data])
        elif isinstance(data, pa.Table):
            table = data
        else:
            raise SchemaMismatchError(
                f"{type(data).__name__} is no data for a table - nothing was written - give a Spark or pandas DataFrame, Arrow, or a list of dicts"
            )
        if schema is not None and not table.schema.equals(schema):
            table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        if isinstance(error, SchemaMismatchError):
            raise
        raise SchemaMismatchError(
            f"the data does not fit: {error} - nothing was written - give it the columns and types of {schema}"
        ) from error
    return table.to_reader()
