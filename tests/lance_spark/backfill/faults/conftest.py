"""A folder for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import Lab


@pytest.fixture
def lab(jobs: Any, tmp_path: Path) -> Lab:
    return Lab(home=tmp_path, spark=jobs)
