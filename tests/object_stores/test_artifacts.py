"""Artifacts of UDFs on an object store: listed with ETags, copied by executors with the options of the table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from lance.file import LanceFileSession
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import ArtifactError, udf
from lance_spark.environments.artifacts import TaskArtifacts, list_artifacts
from tests.lance_spark.write.backfills import make_table
from tests.object_stores.stores import Store, StorePlace
from udf_runtime import UDF
from udf_runtime.environments import artifact_cache
from udf_runtime.environments.artifact_cache import ArtifactCache

pytestmark = [pytest.mark.cluster, pytest.mark.long]


class Adder:
    """Adds the number in a file."""

    number = 0

    def setup(self, artifacts: Mapping[str, str]) -> None:
        self.number = int(Path(artifacts["weights"], "deep", "number").read_text())

    def __call__(self, id: int) -> int:
        return id + self.number


def put_number(place: StorePlace, number: str, tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text(number)
    LanceFileSession(place.folder, place.storage).upload_file(str(file), "model/deep/number")


def adding(location: str) -> UDF:
    adder = udf(data_type=pa.int64(), artifacts={"weights": location})(Adder)()
    assert isinstance(adder, UDF)
    return adder


def test_executors_copy_a_folder_of_the_store_and_refuse_another_content(
    store: Store, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = store.place()
    make_table(place.uri, storage=place.storage)
    put_number(place, "100", tmp_path)
    function = adding(f"{place.folder}/model/")
    (artifact,) = list_artifacts(function, place.ref).artifacts
    assert [(file.path, file.size, file.sha256) for file in artifact.files] == [
        ("deep/number", 3, None)
    ]
    assert artifact.files[0].etag
    (single,) = list_artifacts(adding(f"{place.folder}/model/deep/number"), place.ref).artifacts
    assert single.files[0].path == "number" and not single.is_folder
    monkeypatch.setattr(artifact_cache, "_PART_BYTES", 1)
    copies = TaskArtifacts(table=place.ref, cache=ArtifactCache(folder=str(tmp_path / "cache")))
    (copy,) = copies.open(function.with_artifacts((single,)))
    assert Path(copy.path).read_text() == "100"  # in three parts

    table = lance_spark.connect(place.folder, spark, place.storage, progress=False).open_table(
        place.name
    )
    table.add_columns({"v": function})
    rows = table.count_rows()
    assert table.backfill("v").rows_computed == rows == table.count_rows("v = id + 100")
    put_number(place, "200", tmp_path)
    table.add_columns({"w": function})
    assert table.backfill("w").rows_computed == rows == table.count_rows("w = id + 200")
    table.alter_columns({"path": "v", "udf": function})
    put_number(place, "300", tmp_path)
    table.add_columns({"x": function})
    put_number(place, "400", tmp_path)
    with pytest.raises(
        ArtifactError, match=r"the file 'deep/number' has another content.*Location: .*/model/"
    ):
        table.backfill("x")
    assert (
        table.backfill("v", stale=True).rows_computed == rows == table.count_rows("v = id + 200")
    )  # the copy is there
