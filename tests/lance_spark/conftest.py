"""A log for UDFs, a file for messages between tests and UDFs, and a session for jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OVER_CONNECT
from tests.support.inline_jobs import NoSpark, inline_tasks
from tests.support.logs import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "seen"))


@pytest.fixture
def flag(tmp_path: Path) -> str:
    """Path of a file for messages between tests and UDFs."""
    return str(tmp_path / "flag")


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session for jobs: tasks run in this process, or on Spark for tests marked `spark` and over Connect."""
    if os.environ.get(OVER_CONNECT) or request.node.get_closest_marker("spark"):
        yield request.getfixturevalue("spark")
        return
    with inline_tasks():
        yield NoSpark()
