"""A driver that runs many jobs keeps its resources."""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.long_life import JobLoop, ResourceUsage

EXACT = ("descriptors", "zombies", "temporary_files", "temporary_views")


@pytest.mark.long
@pytest.mark.classic
def test_jobs_leave_no_thread_file_process_or_view(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    loop = JobLoop(spark, home)
    jobs = len(loop.kinds)
    for number in range(2 * jobs):
        loop.run("mixed", number)
    before, threads = ResourceUsage.measure(spark, temporary), threading.active_count()
    classes = count_classes()
    for number in range(2 * jobs, 6 * jobs):
        loop.run("mixed", number)
    after = ResourceUsage.measure(spark, temporary)
    growth = {name: getattr(after, name) - getattr(before, name) for name in EXACT}
    assert max(growth.values()) <= 0, dataclasses.asdict(after)
    assert threading.active_count() <= threads
    assert count_classes() - classes <= jobs, "pylance makes a class for the path of each file"
    assert after.threads - before.threads <= 4, "Lance starts threads of its pools at need"
    assert after.java_objects - before.java_objects <= jobs
    assert after.resident_mb - before.resident_mb < 30


def count_classes() -> int:
    gc.collect()
    return sum(isinstance(item, type) for item in gc.get_objects())
