"""Spark Connect: no planner rule, so slower, and the same results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lance
import pytest

from tests.support.processes import environment

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_read_write_and_backfill_from_a_client(
    connect_url: str, connect_log: Path, table_path: str
):
    command = [sys.executable, "-m", "tests.connect.client", connect_url, table_path]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "pushdown": False,
        "rows": 1000,
        "filtered": [107],
        "by hand": [[0], [1], [2]],
        "sql": 999,
        "columns": ["id", "text", "length"],
        "wrong": 0,
        "error": True,
        "pinned": [1000, 1000, 1005],
        "streamed": [1000, 1000],
    }
    assert lance.dataset(table_path).version >= 2
    assert (
        connect_log.read_text().count(
            "UserWarning: Spark reads Lance tables without the jar of lance-spark."
        )
        == 1
    )
