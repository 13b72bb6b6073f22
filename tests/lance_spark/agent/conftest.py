"""A connection to an empty folder, whose jobs run without Spark unless a test is marked `spark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lance_spark
from lance_spark import Connection


@pytest.fixture
def db(tmp_path: Path, jobs: Any) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), jobs, progress=False)
