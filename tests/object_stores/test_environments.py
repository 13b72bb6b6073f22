"""Environments of tables on an object store: manifests by name, and archives sent through the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Manifest, udf
from tests.lance_spark.write.backfills import make_table
from tests.object_stores.stores import Store

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_modules_reach_a_udf_through_the_store(s3: Store, spark: SparkSession, tmp_path: Path):
    place = s3.place()
    make_table(place.uri, storage=place.storage)
    (tmp_path / "stored_module.py").write_text("def double(x):\n    return 2 * x\n")
    manifest = (
        Manifest.create_pip("stored").py_modules([str(tmp_path / "stored_module.py")]).build()
    )
    db = lance_spark.connect(
        place.folder, spark, place.storage, progress=False, default_manifest="stored"
    )
    db.define_manifest("stored", manifest)
    (tmp_path / "stored_module.py").unlink()

    @udf(data_type=pa.int64())
    def double(id: int) -> int:
        import stored_module  # type: ignore[import-not-found]

        return int(stored_module.double(id))

    table = db.open_table(place.name)
    table.add_columns({"double": double})
    assert (
        table.backfill("double").rows_computed
        == table.count_rows()
        == table.count_rows("double = 2 * id")
    )
    assert db.list_manifests() == {"stored": manifest} and place.name in db.table_names()
