"""Locations of tables on a local file system and on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.staging import area
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import STORES


@pytest.fixture(params=STORES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location without a table, on a local file system and on an object store."""
    monkeypatch.setattr(appends, "prefix", STORES[request.param])
    # Attempts check the job after each file, as on a local file system.
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    return tmp_path / "folder" / "table.lance"


@pytest.fixture
def local_path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "table.lance"
