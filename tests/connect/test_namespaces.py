"""Tables of a Lance namespace over Spark Connect: the properties of the client reach the server, and no log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connect.namespace_client import SECRET
from tests.support.processes import environment

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_a_client_uses_the_tables_of_a_namespace(
    connect_url: str, connect_log: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.connect.namespace_client", connect_url, str(tmp_path)]
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
        "rows": [5, 24, 5],
        "secret in plan": False,
        "backfill": [24, 24],
        "update": 1,
        "delete": 1,
        "merge": 2,
        "jobs": ["DONE"],
        "words": 45,
        "unregistered class": True,
    }
    assert SECRET not in connect_log.read_text()
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
