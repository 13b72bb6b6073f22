"""The tab "Lance" of an application's web UI, and of the history server with and without the jar."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lance_spark
from tests.support.processes import Daemons, daemons, environment, free_port
from tests.support.web_ui import fetch, wait_for_text

pytestmark = [pytest.mark.long, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]


def history_server(
    started: Daemons, name: str, events: Path, *, jar: str | None, store: Path | None = None
) -> str:
    port = free_port()
    options = {"spark.history.fs.logDirectory": events.as_uri(), "spark.history.ui.port": str(port)}
    if store is not None:
        store.mkdir()
        options["spark.history.store.path"] = str(store)
    java = " ".join(f"-D{key}={value}" for key, value in options.items())
    variables = {"SPARK_HISTORY_OPTS": java} | (
        {} if jar is None else {"SPARK_DAEMON_CLASSPATH": jar}
    )
    started.start(
        name,
        "org.apache.spark.deploy.history.HistoryServer",
        ready="started at",
        variables=variables,
    )
    return f"http://127.0.0.1:{port}"


def test_a_history_server_with_the_jar_shows_the_jobs_and_one_without_skips_them(tmp_path: Path):
    (tmp_path / "events").mkdir()
    command = [sys.executable, "-m", "tests.support.web_ui_application", str(tmp_path)]
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    report = json.loads(process.stdout.splitlines()[-1])
    assert "No job of this application has begun" in report["empty"]
    shown = ["ValueError", "2 @", "1 skipped", "compact_files", "DONE"]
    assert [text for text in shown if text not in report["page"]] == []
    logs = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert '"Event":"lancespark.LanceJobEvent"' in logs
    events = "".join(line for line in logs.splitlines() if "LanceJobEvent" in line)
    assert "secret" not in report["page"] + events
    application = report["application"]
    with daemons(tmp_path) as started:
        for number, store in enumerate((None, tmp_path / "store")):
            url = history_server(
                started, f"with-{number}", tmp_path / "events", jar=lance_spark.jar(), store=store
            )
            wait_for_text(f"{url}/api/v1/applications", application)
            page = fetch(f"{url}/history/{application}/lance/")
            assert [text for text in shown if text not in page] == []
            assert f"/history/{application}/lance" in fetch(f"{url}/history/{application}/jobs/")
        plain = history_server(started, "without", tmp_path / "events", jar=None)
        wait_for_text(f"{plain}/api/v1/applications", application)
        jobs = fetch(f"{plain}/history/{application}/jobs/")
        assert "Spark Jobs" in jobs and f"{application}/lance" not in jobs
        assert "lance-job" not in fetch(f"{plain}/history/{application}/lance/")
        assert (
            "Drop unrecognized event: lancespark.LanceJobEvent"
            in (tmp_path / "without.log").read_text()
        )
