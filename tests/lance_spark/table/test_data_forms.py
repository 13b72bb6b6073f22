"""Every form of data in every method that takes data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pydantic import BaseModel
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table

ROWS = [{"id": 1, "n": 10}, {"id": 2, "n": None}, {"id": 3, "n": 30}]
DATA = pa.table({"id": [1, 2, 3], "n": pa.array([10, None, 30], pa.int64())})


class Row(BaseModel):
    id: int
    n: int | None


class Stream:
    """Rows with nothing but an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return DATA.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Array:
    """Rows with nothing but an Arrow array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return DATA.to_batches()[0].__arrow_c_array__(requested_schema)  # type: ignore[no-untyped-call]


def numpy_array() -> Any:
    return np.array([(1, 10), (2, None), (3, 30)], dtype=[("id", "i8"), ("n", object)])


def stored(folder: Path) -> Table:
    """Returns a table of another database with the rows."""
    others = lance_spark.connect(folder / "others")
    return others["t"] if "t" in others else others.create_table("t", DATA)


FORMS: dict[str, Callable[[Path], Any]] = {
    "table": lambda _: DATA,
    "record batch": lambda _: DATA.to_batches()[0],
    "reader": lambda _: DATA.to_reader(max_chunksize=2),
    "object with a stream": lambda _: Stream(),
    "object with an array": lambda _: Array(),
    "array of structs": lambda _: DATA.to_struct_array().combine_chunks(),
    "pyarrow dataset": lambda _: ds.dataset(DATA),
    "pyarrow scanner": lambda _: ds.dataset(DATA).scanner(),
    "pylance dataset": lambda folder: stored(folder).to_lance(),
    "pylance scanner": lambda folder: stored(folder).to_lance().scanner(),
    "polars": lambda _: pl.DataFrame(DATA),
    "lazy polars": lambda _: pl.DataFrame(DATA).lazy(),
    "duckdb": lambda _: duckdb.sql("SELECT * FROM DATA"),
    "pandas": lambda _: pd.DataFrame({"id": [1, 2, 3], "n": pd.array([10, None, 30], "Int64")}),
    "numpy": lambda _: numpy_array(),
    "dicts": lambda _: ROWS,
    "models": lambda _: [Row(**row) for row in ROWS],
    "columns": lambda _: {"id": [1, 2, 3], "n": [10, None, 30]},
    "iterator of batches": lambda _: iter(DATA.to_batches(max_chunksize=1)),
    "iterator of frames": lambda _: (
        pl.DataFrame(batch) for batch in DATA.to_batches(max_chunksize=2)
    ),
    "iterator of rows": lambda _: iter([ROWS[:1], ROWS[1:]]),
    "our table": stored,
    "our query": lambda folder: stored(folder).search().where("id > 0"),
    "our stream": lambda folder: stored(folder).to_batches(),
    "our lazy frame": lambda folder: stored(folder).to_polars(),
}
"""Each form of the rows, made anew by each call with a folder for tables."""


def content(table: Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return lance_spark.connect(tmp_path_factory.mktemp("forms"))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_makes_a_table_and_adds_rows(form: str, db: Connection, tmp_path: Path) -> None:
    table = db.create_table(form, FORMS[form](tmp_path))
    table.add(FORMS[form](tmp_path))
    assert content(table) == [row for row in ROWS for _ in range(2)]
    schema = pa.schema({"id": pa.int32(), "n": pa.float32()})
    assert (
        db.create_table(form, FORMS[form](tmp_path), schema=schema, mode="overwrite").schema
        == schema
    )


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_merged_and_loaded(form: str, tmp_path: Path, spark: SparkSession) -> None:
    table = lance_spark.connect(tmp_path, spark).create_table(
        "t", [{"id": 1}, {"id": 2}, {"id": 9}]
    )
    table.load_columns(FORMS[form](tmp_path), pk="id", columns=["n"])
    assert content(table) == [{"id": 1, "n": 10}, {"id": 2, "n": None}, {"id": 9, "n": None}]
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    result = merge.execute(FORMS[form](tmp_path))
    assert (result.rows_inserted, result.rows_updated) == (1, 2)
    assert content(table) == [*ROWS, {"id": 9, "n": None}]
