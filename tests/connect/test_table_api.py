"""The table API over Spark Connect: no JVM, no RDD and no accumulators in the client's reach, and the same results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_tables_columns_and_backfills_from_a_client(connect_url: str, tmp_path: Path):
    command = [sys.executable, "-m", "tests.connect.table_client", connect_url, str(tmp_path)]
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
    print(process.stderr[-4000:])
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "spark rows": [10, 41, 5, 3],
        "filled": [40, 40, 40, 40, 40],
        "counted": [5, 35, 0, 0, True, False],
        "quick": True,
        "jobs": [["DONE", 35], ["DONE", 5]],
        "skipped": ["DONE", 4, ["bad 13", "bad 23", "bad 3", "bad 33"], 4],
        "repaired": 4,
        "altered": [40, 0],
        "fourfold": 40,
        "timeout": True,
        "ran": ["DONE", 50],
        "visible": [40, False, True],
        "cancelled": ["CANCELLED", True, 40],
        "resumed": ["DONE", 50],
        "refused": [
            ["ResourcesUnavailableError", "FilterError", "OptionError", "OptionError"],
            50,
            1,
        ],
        "deadly": ["PARTIAL", 1, 49],
        "environments": [50, 50, 50],
        "names": ["words"],
    }
