"""Vectors with NaN or of another length, in the forms of data of this process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import OptionError, SchemaMismatchError, ValueConversionError
from lance_spark.ingest.rows import to_reader

SCHEMA = pa.schema({"vector": pa.list_(pa.float32(), 2), "id": pa.int64()})
VECTORS = [[1.0, 2.0], [math.nan, 4.0], [5.0, None], None]
FILLED = [[1.0, 2.0], [0.0, 4.0], [5.0, 0.0], None]
IDS = list(range(len(VECTORS)))


class Row(BaseModel):
    vector: list[float | None] | None
    id: int


def table_of_arrow() -> pa.Table:
    return pa.table({"vector": pa.array(VECTORS, pa.list_(pa.float32(), 2)), "id": IDS})


def rows_of_python() -> list[dict[str, Any]]:
    return [{"vector": vector, "id": number} for number, vector in enumerate(VECTORS)]


def array_of_numpy() -> Any:
    return np.array(list(zip(VECTORS, IDS, strict=True)), dtype=[("vector", object), ("id", "i8")])


FORMS = {
    "rows": rows_of_python,
    "models": lambda: [Row(**row) for row in rows_of_python()],
    "numpy": array_of_numpy,
    "columns of arrow": lambda: {"vector": pa.array(VECTORS), "id": pa.array(IDS)},
    "lists of rows": lambda: iter(
        [rows_of_python()[:1], rows_of_python()[1:3], rows_of_python()[3:]]
    ),
    "frames of pandas": lambda: iter(
        [pd.DataFrame({"vector": VECTORS[i : i + 2], "id": IDS[i : i + 2]}) for i in (0, 2)]
    ),
    "parts of all kinds": lambda: iter(
        [rows_of_python()[:1], table_of_arrow()[1:3], [Row(**rows_of_python()[3])]]
    ),
    "parts of several types": lambda: iter(
        [table_of_arrow()[:2], pa.table({"id": [2, 3], "vector": VECTORS[2:]})]
    ),
    "tables and readers": lambda: iter(
        [table_of_arrow()[:2], table_of_arrow()[2:].to_reader(max_chunksize=1)]
    ),
    "columns": lambda: {"vector": VECTORS, "id": IDS},
    "pandas": lambda: pd.DataFrame({"vector": VECTORS, "id": IDS}),
    "arrow": table_of_arrow,
    "batch": lambda: table_of_arrow().to_batches()[0],
    "stream": lambda: table_of_arrow().to_reader(),
    "iterator": lambda: iter(table_of_arrow().to_batches(max_chunksize=1)),
    "polars": lambda: pl.DataFrame(table_of_arrow()),
    "lazy frame": lambda: pl.DataFrame(table_of_arrow()).lazy(),
    "short batches": lambda: table_of_arrow().to_reader(max_chunksize=1),
    "lists": lambda: pa.table({"vector": pa.array(VECTORS), "id": IDS}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("drop", [(0, [1.0, 2.0]), (3, None)]),
        pytest.param("fill", list(enumerate(FILLED)), marks=pytest.mark.long),
        pytest.param(
            "null", [(0, [1.0, 2.0]), (1, None), (2, None), (3, None)], marks=pytest.mark.long
        ),
    ],
)
def test_bad_vectors_are_repaired(form: str, way: Any, expected: list[Any], tmp_path: Path):
    table = lance_spark.connect(tmp_path).create_table("t", schema=SCHEMA)
    table.add(FORMS[form](), on_bad_vectors=way)
    assert [(row["id"], row["vector"]) for row in table.to_arrow().to_pylist()] == expected


def test_nan_is_an_error_with_its_row_and_nothing_is_written(tmp_path: Path):
    db = lance_spark.connect(tmp_path)
    table = db.create_table("t", schema=SCHEMA)
    for data in (FORMS["arrow"](), FORMS["stream"]()):
        with pytest.raises(ValueConversionError, match="on_bad_vectors") as error:
            table.add(data)
        assert (error.value.column, error.value.row) == ("vector", 1)
    with pytest.raises(ValueConversionError):
        db.create_table("new", FORMS["arrow"]())
    assert (len(table), table.version, db.table_names()) == (0, 1, ["t"])


def test_a_stream_for_a_new_table_takes_the_length_of_its_first_vectors(tmp_path: Path):
    vectors: list[Any] = [None, [1.0, 2.0], [3.0], [4.0, 5.0], [math.nan, 7.0]]
    batches = (
        pa.record_batch({"vector": pa.array([v], pa.list_(pa.float32())), "id": [i]})
        for i, v in enumerate(vectors)
    )
    table = lance_spark.connect(tmp_path).create_table("t", batches, on_bad_vectors="drop")
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert [row["id"] for row in table.to_arrow().to_pylist()] == [1, 3]


def test_parts_for_a_new_table_take_the_length_of_the_first_vectors(tmp_path: Path):
    vectors: list[Any] = [[math.nan], None, [1.0, 2.0], [3.0], [4.0, 5.0]]
    parts = ([{"vector": vector, "id": number}] for number, vector in enumerate(vectors))
    table = lance_spark.connect(tmp_path).create_table("t", parts, on_bad_vectors="drop")
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert [row["id"] for row in table.to_arrow().to_pylist()] == [2, 4]


def test_parts_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    waiting: list[int] = []

    def parts(column: str) -> Iterator[list[dict[str, Any]]]:
        for number in range(4):
            read.append(number)
            yield [{column: [1.0, 2.0], "id": number}]

    def observed(data: Any, *arguments: Any, **named: Any) -> Any:
        waiting.append(len(read))
        return to_reader(data, *arguments, **named)

    monkeypatch.setattr("lance_spark.ingest.rows.to_reader", observed)
    db = lance_spark.connect(tmp_path)
    db.create_table("t", schema=SCHEMA)
    for act in (
        lambda: db["t"].add(parts("vector"), on_bad_vectors="drop"),
        lambda: db.create_table("new", parts("vector"), on_bad_vectors="drop"),
        lambda: db.create_table("other", parts("numbers"), on_bad_vectors="drop"),
    ):
        read.clear(), waiting.clear()
        act()
        assert waiting == [0, 1, 2, 3, 4], "each part is converted before the next part is read"


@pytest.mark.parametrize(
    ("first", "expected"),
    [([[], []], [[1.0, 2.0]]), ([[math.nan] * 3], [[1.0, 2.0]]), ([None], [None, [1.0, 2.0]])],
)
def test_a_stream_may_begin_without_a_complete_vector(
    first: list[Any], expected: list[Any], tmp_path: Path
):
    batches = [pa.record_batch({"vector": vectors}) for vectors in (first, [[1.0, 2.0]])]
    table = lance_spark.connect(tmp_path).create_table(
        "t", schema=pa.schema({"vector": pa.list_(pa.float32())})
    )
    table.add(pa.RecordBatchReader.from_batches(batches[0].schema, batches), on_bad_vectors="drop")
    assert table.to_arrow()["vector"].to_pylist() == expected


def test_lists_of_a_schema_are_repaired_and_all_rows_may_be_dropped(tmp_path: Path):
    table = lance_spark.connect(tmp_path).create_table(
        "t", schema=pa.schema({"vector": pa.list_(pa.float32())})
    )
    table.add(
        [{"vector": [math.nan] * 3}, {"vector": [1.0, 2.0]}, {"vector": [3.0, 4.0]}],
        on_bad_vectors="drop",
    )
    for data in (
        [{"vector": [math.nan, 5.0]}],
        {"vector": [[]]},
        pa.table({"vector": [[math.nan]]}).to_reader(),
    ):
        fixed = lance_spark.connect(tmp_path).create_table("fixed", schema=SCHEMA, mode="overwrite")
        fixed.add(data, on_bad_vectors="drop")
        assert len(fixed) == 0
    assert table.to_arrow()["vector"].to_pylist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.long
@pytest.mark.parametrize("way", ["drop", "fill", "null"])
def test_tasks_of_spark_repair_a_dataframe(way: Any, tmp_path: Path, spark: SparkSession):
    db = lance_spark.connect(tmp_path, spark)
    table, same = (db.create_table(name, schema=SCHEMA) for name in ("t", "same"))
    vectors = [[1.0, 2.0], [math.nan, 4.0], [5.0], [6.0, 7.0, 8.0], None]
    rows = [{"vector": vector, "id": number} for number, vector in enumerate(vectors)]
    frame = spark.createDataFrame(rows, "vector array<float>, id long")
    table.add(frame, on_bad_vectors=way)
    same.add(rows, on_bad_vectors=way)
    by_id = [sorted(t.to_arrow().to_pylist(), key=lambda row: row["id"]) for t in (table, same)]
    assert by_id[0] == by_id[1] and len(by_id[0]) == (2 if way == "drop" else 5)
    with pytest.raises(OptionError, match="on_bad_vectors"):
        db.create_table("new", frame, on_bad_vectors=way)
    lists = db.create_table(
        "lists", schema=pa.schema([("vector", pa.list_(pa.float32())), ("id", pa.int64())])
    )
    with pytest.raises(OptionError, match="one length"):
        lists.add(frame, on_bad_vectors=way)


def test_nan_in_short_lists_of_another_name_makes_a_table(tmp_path: Path):
    rows = pa.table({"point": pa.array([[math.nan, 1.0]], pa.list_(pa.float32(), 2))})
    assert len(lance_spark.connect(tmp_path).create_table("t", rows)) == 1


@pytest.mark.parametrize(("name", "value"), [("on_bad_vectors", "skip"), ("fill_value", "0")])
def test_a_wrong_repair_is_refused(name: str, value: Any, tmp_path: Path):
    table = lance_spark.connect(tmp_path).create_table("t", schema=SCHEMA)
    with pytest.raises(OptionError, match=name):
        table.add([], **{"on_bad_vectors": "fill", name: value})


def test_data_of_another_form_is_refused(tmp_path: Path):
    table = lance_spark.connect(tmp_path).create_table("t", schema=SCHEMA)
    with pytest.raises(SchemaMismatchError, match="no data"):
        table.add([1], on_bad_vectors="drop")  # type: ignore[list-item]
    with pytest.raises(SchemaMismatchError, match="Pass a list"):
        table.add({"vector": "a", "id": 1}, on_bad_vectors="drop")
    with pytest.raises(SchemaMismatchError, match="A single Row"):
        table.add(Row(vector=None, id=1), on_bad_vectors="drop")  # type: ignore[arg-type]
