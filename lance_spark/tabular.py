"""Data that people hand over for a table: a Spark DataFrame, Arrow, pandas, or a list of dicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, Union

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame

Data: TypeAlias = Union[
    "DataFrame",
    "ConnectDataFrame",
    pa.Table,
    pa.RecordBatch,
    pa.RecordBatchReader,
    "pd.DataFrame",
    "list[dict[str, object]]",
]


def is_spark(data: object) -> bool:
    """Tells whether data is a Spark DataFrame, classic or of Connect."""
    return isinstance(data, DataFrame) or type(data).__module__.startswith("pyspark.sql.connect")


def to_reader(data: object, schema: pa.Schema | None, *, table: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Returns data as a stream of Arrow batches.

    Args:
        data: Arrow, pandas, or a list of dicts.
        schema: Schema that it is to have; by default the data's own.
        table: Schema of the table that it is added to: Python values get the types of its columns, some of which may be left out.

    Raises:
        SchemaMismatchError: It is none of these, or does not fit the schema.
    """
    wanted = schema
    try:
        if table is not None and (_is_pandas(data) or _is_rows(data)):
            names = _names(data)
            wanted = pa.schema([field for field in table if field.name in names])
        if wanted is not None:
            _refuse_others(_names(data), wanted if table is None else table)
        if isinstance(data, pa.RecordBatchReader):
            return data if wanted is None or data.schema.equals(wanted) else data.cast(wanted)
        if _is_pandas(data):
            found = pa.Table.from_pandas(data, schema=wanted, preserve_index=False)
        elif _is_rows(data):
            found = pa.Table.from_pylist(list(data), schema=wanted)  # type: ignore[call-overload]
        elif isinstance(data, pa.RecordBatch):
            found = pa.Table.from_batches([data])
        elif isinstance(data, pa.Table):
            found = data
        else:
            raise SchemaMismatchError(
                f"{type(data).__name__} is no data for a table - nothing was written - give a Spark or pandas DataFrame, Arrow, or a list of dicts"
            )
        if wanted is not None and not found.schema.equals(wanted):
            found = found.select(wanted.names).cast(wanted)
    except (pa.ArrowException, KeyError, ValueError) as error:
        if isinstance(error, SchemaMismatchError):
            raise
        raise SchemaMismatchError(
            f"the data does not fit: {error} - nothing was written - give it the columns and types of {wanted}"
        ) from error
    return found.to_reader()


def _is_pandas(data: object) -> TypeGuard[pd.DataFrame]:
    # Whoever has such data has imported pandas; nobody else should wait for it.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _is_rows(data: object) -> bool:
    return isinstance(data, (list, tuple)) and all(isinstance(row, Mapping) for row in data)


def _names(data: object) -> list[str]:
    """Returns the columns of data, as far as it is of a form that has any."""
    if _is_pandas(data):
        return [str(name) for name in data.columns]
    if isinstance(data, (list, tuple)):
        return list(dict.fromkeys(str(name) for row in data if isinstance(row, Mapping) for name in row))
    return list(getattr(getattr(data, "schema", None), "names", ()))


def _refuse_others(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses columns that the schema lacks: Arrow would leave them out without a word."""
    others = [name for name in names if name not in schema.names]
    if others:
        raise SchemaMismatchError(
            f"the data has columns that are not there: {', '.join(map(repr, others))} - nothing was written - its columns may be "
            f"{', '.join(map(repr, schema.names))}"
        )
