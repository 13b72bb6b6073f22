"""A Spark Connect server started by the command line: its clients have the rule and catalogs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import lance
import pytest

from tests.connect.sql_client import REPORT, seen_by_client
from tests.support.processes import environment, free_port

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_clients_have_the_rule_and_the_catalog(tmp_path: Path):
    program = [
        sys.executable,
        "-m",
        "lance_spark.cli",
        "connect-server",
        "--port",
        str(port := free_port()),
    ]
    settings = [
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.sql.shuffle.partitions=2",
    ]
    command = [*program, *settings, "--catalog", f"lance={tmp_path}/tables"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"Spark Connect server at sc://127.0.0.1:{port}\n"
            for n in range(2):  # each client has a session of its own
                assert (
                    seen_by_client(f"sc://127.0.0.1:{port}", f"{tmp_path}/by_path_{n}.lance")
                    == REPORT
                )
                assert lance.dataset(f"{tmp_path}/tables/t.lance").count_rows() == 92
                # The next client makes the table and its view again.
                Path(f"{tmp_path}/tables").rename(tmp_path / f"tables_{n}")
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
