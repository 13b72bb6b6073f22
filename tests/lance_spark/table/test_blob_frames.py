"""Blobs in pandas DataFrames: file objects, bytes or places, as in LanceDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import ColumnNotFoundError, OptionError, Query, Table

BLOBS = [b"one", None, b"", b"four"]
VECTORS = pa.array([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]], pa.list_(pa.float32(), 2))


@pytest.fixture(scope="module", params=["v1", "v2"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    db = lance_spark.connect(tmp_path_factory.mktemp("tables"))
    if request.param == "v1":
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    else:
        blob = lance.blob_field("blob")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("vector", VECTORS.type),
            blob,
            ("place", pa.struct({"x": pa.int64()})),
        ]
    )
    version = "2.2" if request.param == "v2" else None
    table = db.create_table("t", schema=schema, data_storage_version=version)
    rows = [
        {"id": i, "vector": v, "blob": b, "place": {"x": i}}
        for i, (v, b) in enumerate(zip(VECTORS.to_pylist(), BLOBS, strict=True))
    ]
    table.add(rows[:2])
    table.add(rows[2:])
    return table


def contents(values: Any, mode: str) -> list[Any]:
    if mode == "lazy":
        return [None if value is None else value.readall() for value in values]
    return list(values)


@pytest.mark.parametrize("mode", ["lazy", "bytes"])
def test_blobs_of_a_table(table: Table, mode: Any) -> None:
    frame = table.to_pandas(blob_mode=mode)
    assert list(frame.columns) == ["id", "vector", "blob", "place"] and frame["id"].tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert contents(frame["blob"], mode) == BLOBS
    part = table.to_pandas(["blob", "_rowid"], "id > 1", blob_mode=mode)
    assert list(part.columns) == ["blob", "_rowid"] and contents(part["blob"], mode) == BLOBS[2:]


@pytest.mark.parametrize("mode", ["lazy", "bytes"])
def test_blobs_of_queries_and_searches(table: Table, mode: Any) -> None:
    queries: dict[str, tuple[Query, list[bytes | None]]] = {
        "condition": (
            table.search().where("id <> 2").select(["id", "blob"]),
            [BLOBS[0], BLOBS[1], BLOBS[3]],
        ),
        "expressions": (
            table.search().select({"id": "id * 2", "blob": "blob"}).limit(2).offset(1),
            BLOBS[1:3],
        ),
        "row ids": (table.search().with_row_id().where("id = 3"), BLOBS[3:]),
        "none": (table.search().where("id > 9"), []),
        "nearest": (table.search([0.0, 0.0]).limit(3), [BLOBS[3], BLOBS[2], BLOBS[1]]),
        "several": (
            table.search([[0.0, 0.0], [1.0, 0.0]]).limit(1).select(["blob"]),
            [BLOBS[3], BLOBS[3]],
        ),
        "offsets": (table.take_offsets([3, 0, 3]), [BLOBS[3], BLOBS[0], BLOBS[3]]),
    }
    for name, (query, expected) in queries.items():
        frame = query.to_pandas(blob_mode=mode)
        assert contents(frame["blob"], mode) == expected, name
        assert list(frame.columns) == query.to_arrow().schema.names, name


@pytest.mark.long
@pytest.mark.parametrize("mode", ["lazy", "bytes"])
def test_blobs_of_a_search_for_many_vectors(table: Table, mode: Any, spark: SparkSession) -> None:
    queries = spark.createDataFrame([([0.0, 0.0],), ([5.0, 0.0],)], "query array<float>")
    frame = table.search(queries).select(["id", "blob"]).limit(1).to_pandas(blob_mode=mode)
    assert list(frame.columns) == ["query", "id", "blob", "_distance"]
    assert dict(zip(frame["id"], contents(frame["blob"], mode), strict=True)) == {
        3: BLOBS[3],
        0: BLOBS[0],
    }


def test_files_are_the_default_and_other_forms_are_places(table: Table) -> None:
    assert (
        contents(table.to_pandas()["blob"], "lazy")
        == contents(table.search().to_pandas()["blob"], "lazy")
        == BLOBS
    )
    for frame in (
        table.to_pandas(blob_mode="descriptions"),
        table.to_pandas(blob_handling="descriptor"),
    ):
        assert set(frame["blob"][0]) >= {"position", "size"}
    assert set(table.search().to_pandas(blob_mode="descriptions")["blob"][0]) >= {
        "position",
        "size",
    }
    assert table.to_pandas(blob_handling="bytes")["blob"].tolist() == BLOBS
    flat = table.search().to_pandas(True)
    assert (
        list(flat.columns) == ["id", "vector", "blob", "place.x"]
        and contents(flat["blob"], "lazy") == BLOBS
    )


def test_arguments_reach_pyarrow(table: Table) -> None:
    for frame in (
        table.to_pandas(types_mapper=pd.ArrowDtype),
        table.search().to_pandas(types_mapper=pd.ArrowDtype),
    ):
        assert (
            str(frame["id"].dtype) == "int64[pyarrow]" and contents(frame["blob"], "lazy") == BLOBS
        )
    with pytest.raises(TypeError, match="no_argument"):
        table.to_pandas(no_argument=True)


def test_blobs_are_fetched_by_row_id(table: Table) -> None:
    hits = table.search([0.0, 0.0]).with_row_id().select(["id"]).to_arrow()
    assert hits["id"].to_pylist() == [3, 2, 1, 0]
    fetched = table.fetch_blobs("blob", hits)
    assert fetched.type == pa.large_binary() and fetched.to_pylist() == BLOBS[::-1]
    ids = hits["_rowid"].to_pylist()
    assert contents(table.fetch_blob_files("blob", [ids[0], ids[2], ids[0]]), "lazy") == [
        BLOBS[3],
        BLOBS[1],
        BLOBS[3],
    ]
    assert table.fetch_blobs("blob", []).to_pylist() == []
    refused: list[tuple[type[Exception], str, str, Any]] = [
        (OptionError, "row_ids.*99", "blob", [ids[0], 99]),
        (OptionError, "with_row_id", "blob", hits.select(["id"])),
        (OptionError, "int64", "id", ids),
        (ColumnNotFoundError, "none", "none", ids),
    ]
    for kind, text, column, row_ids in refused:
        for fetch in (table.fetch_blobs, table.fetch_blob_files):
            with pytest.raises(kind, match=text):
                fetch(column, row_ids)
    table.checkout(2)
    assert table.fetch_blobs("blob", [ids[3]]).to_pylist() == BLOBS[:1]
    table.checkout_latest()


def test_wrong_modes_are_refused(table: Table, tmp_path: Path) -> None:
    plain = lance_spark.connect(tmp_path).create_table("t", [{"id": 1}])
    for read in (table.to_pandas, table.search().to_pandas, plain.to_pandas):
        with pytest.raises(OptionError, match="blob_mode"):
            read(blob_mode="invalid")
    with pytest.raises(OptionError, match="blob_handling"):
        table.to_pandas(blob_mode="lazy", blob_handling="bytes")
