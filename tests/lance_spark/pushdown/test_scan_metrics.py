"""Numbers of a scan's plan in Spark's web UI: fragments read and skipped, and indexes used."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.sql_metrics import sql_metrics

FRAGMENTS = 4


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Four fragments of ten rows with an index of `id`."""
    path = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(
        pa.table({"id": range(40), "v": range(40)}), path, max_rows_per_file=10
    )
    dataset.create_scalar_index("id", "BTREE")
    assert len(lance.dataset(path).get_fragments()) == FRAGMENTS
    return path


def metrics_of(df: DataFrame) -> dict[str, int]:
    """Executes a query, and returns the numbers of its scan."""
    shown = sql_metrics(df.sparkSession, df.collect)
    return {name: shown[name] for name in ("fragments read", "fragments skipped", "indexes used")}


def test_the_web_ui_shows_the_fragments_and_the_indexes_of_a_scan(spark: SparkSession, path: str):
    df = spark.read.format("lance").load(path)
    assert metrics_of(df.where("id = 13")) == {
        "fragments read": 1,
        "fragments skipped": 3,
        "indexes used": 1,
    }
    assert metrics_of(df.where("v = 13")) == {
        "fragments read": 4,
        "fragments skipped": 0,
        "indexes used": 0,
    }
