"""A log for UDFs, and a file by which tests and UDFs talk to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "seen"))


@pytest.fixture
def flag(tmp_path: Path) -> str:
    """Path of a file that tests and UDFs tell each other something with."""
    return str(tmp_path / "flag")
