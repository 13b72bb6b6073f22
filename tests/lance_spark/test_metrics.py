"""Metrics for OpenTelemetry, in processes of their own: a process has one meter provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

WORK = """
import lance_spark
from lance_spark import skip_on_error, udf
from tests.support.inline_jobs import NoSpark, inline_tasks


@udf(on_error=skip_on_error())
def invert(id: int) -> float:
    return 1 / id


with inline_tasks():
    db = lance_spark.connect(sys.argv[1], NoSpark(), progress=False)
    table = db.create_table("t", [{"id": i} for i in range(10)])
    table.add_columns({"inverse": invert})
    table.backfill("inverse")
"""

PROVIDER = """
import json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
"""

REPORT = """
seen = []
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            for point in metric.data.data_points:
                value = getattr(point, "value", None) if hasattr(point, "value") else point.count
                seen.append([metric.name, dict(point.attributes), value])
print(json.dumps(seen))
"""


def run(script: str, folder: Path, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_a_program_with_a_meter_provider_gets_metrics_of_jobs_commits_and_requests(tmp_path: Path):
    out = run(PROVIDER + WORK + REPORT, tmp_path / "db")
    points: list[list[Any]] = json.loads(
        next(line for line in out.splitlines() if line.startswith("[["))
    )
    seen = {(name, *sorted(attributes.values())): value for name, attributes, value in points}
    assert seen["lance_spark.jobs", "DONE", "backfill"] == 1
    assert seen["lance_spark.job.duration", "DONE", "backfill"] == 1
    assert seen["lance_spark.job.rows", "backfill", "computed"] == 9
    assert seen["lance_spark.job.rows", "backfill", "skipped"] == 1
    # Three commits of the table, and none of the history: creation, column, values.
    assert (
        seen["lance_spark.commits", "committed"]
        == seen["lance_spark.commit.duration", "committed"]
        == 3
    )
    assert seen["lance_spark.commit.retries",] == 0
    assert (
        sum(value for name, _, value in points if name == "lance_object_store_requests_total") > 5
    )


@pytest.mark.long
def test_without_a_provider_the_package_is_not_even_imported(tmp_path: Path):
    out = run(
        f"import sys\n{WORK}\nprint([name for name in sys.modules if 'opentelemetry' in name])",
        tmp_path / "db",
    )
    assert "[]" in out.splitlines()


READ = """
import sys
from pyspark.sql import SparkSession

import lance_spark

lance_spark.connect(sys.argv[1]).create_table("t", [{"id": i} for i in range(10)])
spark = lance_spark.configure(SparkSession.builder.master("local[1]")).getOrCreate()
frame = spark.read.format("lance").load(sys.argv[1] + "/t.lance")
import time
for _ in range(4):
    frame.where("id % 3 = 1").foreach(print)
    time.sleep(1)
"""


@pytest.mark.long
def test_python_processes_of_spark_follow_the_environment_variables_of_opentelemetry(
    tmp_path: Path,
):
    variables = {
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_TRACES_EXPORTER": "none",
    }
    assert "lance_object_store_requests_total" in run(READ, tmp_path / "db", **variables)
    assert "lance_object_store_requests_total" not in run(READ, tmp_path / "db2")
