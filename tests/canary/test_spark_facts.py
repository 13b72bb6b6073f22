"""Facts of Spark that the design rests on. docs/canary.md lists the code behind each fact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from java.build import compile_sources, installed_jars, installed_release, source_folders, sources


@pytest.mark.long
def test_the_java_compiles_for_the_installed_release(tmp_path: Path) -> None:
    files = list(sources(source_folders(installed_release())).values())
    compile_sources(files, installed_jars(), tmp_path)
    assert (tmp_path / "lancespark" / "LanceCatalog.class").exists()


def test_a_package_with_the_prefix_pyspark_is_a_data_source() -> None:
    import pyspark_lance

    assert pyspark_lance.DefaultSource.name() == "lance"


def test_metadata_of_columns_survives_a_query(plain_spark: SparkSession) -> None:
    frame = plain_spark.range(4).withMetadata("id", {"lance.field": "kept"})
    joined = frame.where("id > 1").select("id").join(plain_spark.range(4), "id")
    assert json.loads(joined.schema.json())["fields"][0]["metadata"] == {"lance.field": "kept"}
    assert frame.selectExpr("CAST(id AS INT) AS id").schema["id"].metadata == {}


def test_modes_other_than_append_and_overwrite_do_not_reach_a_python_source(
    plain_spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        plain_spark.range(1).write.format("lance").mode("ignore").save(str(tmp_path / "t.lance"))
