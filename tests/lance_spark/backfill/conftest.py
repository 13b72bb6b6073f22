"""A connection to an empty folder, for jobs on Spark, and a table whose jobs need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lance_spark
from tests.support.inline_jobs import InlineLab, without_spark


@pytest.fixture
def db(jobs: Any, tmp_path: Path) -> lance_spark.Connection:
    return lance_spark.connect(str(tmp_path / "db"), jobs, progress=False)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InlineLab]:
    """A folder for a table whose jobs need no Spark."""
    with without_spark(tmp_path) as lab:
        yield lab
