"""A place for a table whose jobs need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.backfill.driver import job
from tests.lance_spark.backfill.review.lab import InlineCluster, Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(job, "Cluster", InlineCluster)
    return Lab(tmp_path)
