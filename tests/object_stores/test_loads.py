"""Loads of columns with both the table and the files in object stores, with Lance's options."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.file import LanceFileSession
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import SourceError
from tests.object_stores.stores import Store

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("store", ["s3", pytest.param("az", marks=pytest.mark.long)], indirect=True)
def test_files_of_a_store_are_loaded_with_the_options_of_the_table(
    store: Store, spark: SparkSession, tmp_path: Path
) -> None:
    place = store.place()
    lance.write_dataset(
        pa.table({"id": range(100)}), place.uri, max_rows_per_file=40, storage_options=place.storage
    )
    folder = LanceFileSession(place.folder, place.storage)
    for number in range(2):
        ids = range(number * 30, (number + 1) * 30)
        pq.write_table(
            pa.table({"id": ids, "v": [i * 10 for i in ids]}),
            tmp_path / "x.parquet",
            row_group_size=10,
        )
        folder.upload_file(str(tmp_path / "x.parquet"), f"{place.name}-source/{number}.parquet")
    table = lance_spark.connect(place.folder, spark, place.storage, progress=False).open_table(
        place.name
    )
    table.load_columns(f"{place.folder}/{place.name}-source", "id", ["v"])
    table.load_columns(f"{place.folder}/{place.name}-source/*.parquet", "id", ["v"])
    assert table.to_arrow(["v"])["v"].to_pylist() == [
        i * 10 if i < 60 else None for i in range(100)
    ]
    with pytest.raises(SourceError, match="no file to load"):
        table.load_columns(
            f"{place.folder}/{place.name}-other", "id", ["v"], source_format="parquet"
        )
