"""`Table.merge`: the columns of other rows, with LanceDB's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import OptionError, SourceKeysError

ROWS = [{"id": i, "price": 10 * i} for i in range(4)]


@pytest.mark.parametrize(
    ("other", "right_on", "option"),
    [
        ([{"id": 1, "price": 2}], None, "other_table"),
        ([{"id": 1}], None, "other_table"),
        ([{"number": 1, "stock": 2}], None, "right_on"),
        ([{"number": 1, "id": 2}], "number", "right_on"),
    ],
)
def test_wrong_rows_are_refused_before_a_change(
    tmp_path: Path, other: Any, right_on: str | None, option: str
) -> None:
    table = lance_spark.connect(str(tmp_path)).create_table("t", ROWS)
    with pytest.raises(OptionError, match=option):
        table.merge(other, "id", right_on)
    assert table.version == 1


@pytest.mark.long
def test_tables_and_frames_are_merged(tmp_path: Path, spark: SparkSession) -> None:
    db = lance_spark.connect(str(tmp_path), spark, progress=False)
    table, other = db.create_table("t", ROWS), db.create_table("other", [{"number": 2, "stock": 7}])
    table.merge(other, "id", "number")
    table.merge(
        spark.range(2, 9).selectExpr("id AS number", "concat('n', id) AS name"), "id", "number"
    )
    table.merge(
        [{"id": 0, "size": 5}], "id", schema=pa.schema({"id": pa.int64(), "size": pa.int16()})
    )
    assert table.schema.field("size").type == pa.int16()
    assert [list(row.values())[2:] for row in table.to_arrow().to_pylist()] == [
        [None, None, 5],
        [None, None, None],
        [7, "n2", None],
        [None, "n3", None],
    ]
    with pytest.raises(SourceKeysError):
        table.merge([{"id": 1, "x": 1}, {"id": 1, "x": 2}], "id")
