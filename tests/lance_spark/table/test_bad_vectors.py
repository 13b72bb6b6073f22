"""Vectors with NaN or of another length, in the forms of data of this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import OptionError, ValueConversionError

SCHEMA = pa.schema({"vector": pa.list_(pa.float32(), 2), "id": pa.int64()})
VECTORS = [[1.0, 2.0], [math.nan, 4.0], [5.0, None], None]
FILLED = [[1.0, 2.0], [0.0, 4.0], [5.0, 0.0], None]
IDS = list(range(len(VECTORS)))


def table_of_arrow() -> pa.Table:
    return pa.table({"vector": pa.array(VECTORS, pa.list_(pa.float32(), 2)), "id": IDS})


FORMS = {
    "rows": lambda: [{"vector": vector, "id": number} for number, vector in enumerate(VECTORS)],
    "columns": lambda: {"vector": VECTORS, "id": IDS},
    "pandas": lambda: pd.DataFrame({"vector": VECTORS, "id": IDS}),
    "arrow": table_of_arrow,
    "batch": lambda: table_of_arrow().to_batches()[0],
    "stream": lambda: table_of_arrow().to_reader(),
    "lists": lambda: pa.table({"vector": pa.array(VECTORS), "id": IDS}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("drop", [(0, [1.0, 2.0]), (3, None)]),
        ("fill", list(enumerate(FILLED))),
        ("null", [(0, [1.0, 2.0]), (1, None), (2, None), (3, None)]),
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
    with pytest.raises(OptionError, match="on_bad_vectors"):
        table.add(iter(table_of_arrow().to_batches()), on_bad_vectors="drop")
