"""Columns that do not fit the table, in every DataFrame write to a path: the error names table and column."""

from __future__ import annotations

import re
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StructType

from lance_spark import SchemaMismatchError
from lance_spark.datasource import LanceDataSource


@pytest.mark.parametrize("mode", ["append", "append with mergeSchema", "backfill"])
def test_a_column_that_does_not_fit_is_an_error_that_names_table_and_column(
    tmp_path: Path, mode: str
) -> None:
    uri = str(tmp_path / "table.lance")
    lance.write_dataset(
        pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([1], pa.int64())}), uri
    )
    schema, options = StructType().add("id", "long").add("n", ArrayType(LongType())), {"path": uri}
    if mode == "backfill":
        address = LanceDataSource({"path": uri, "with_row_address": "true"}).schema()["_rowaddr"]
        schema, options["mode"] = StructType([address, schema["n"]]), mode
    elif mode != "append":
        schema.add("extra", "long")
        options["mergeSchema"] = "true"
    with pytest.raises(SchemaMismatchError, match=f"does not fit the table {re.escape(uri)}: n: "):
        LanceDataSource(options).writer(schema, False)
    assert lance.dataset(uri).version == 1
