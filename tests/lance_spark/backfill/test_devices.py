"""Devices of a local session: no device has more processes than fit, over all tasks and jobs of the machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.support.device_log import DeviceCalls, device_table, device_udf
from tests.support.drivers import driver
from udf_runtime import chunker

pytestmark = pytest.mark.spark

SETTINGS: dict[str, Any] = {"task_size": 10, "batch_checkpoint_flush_interval_seconds": 0}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """The only device of this machine, which no other test has."""
    name = f"made-up-{uuid.uuid4()}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    return name


class Piece(NamedTuple):
    piece: int


def right_values(table: lance_spark.Table) -> bool:
    columns = table.to_lance().to_table(columns=["x", "v"]).to_pydict()
    return bool(columns["v"] == [10 * x for x in columns["x"]])


def folders(home: Path, names: str) -> list[Path]:
    for name in names:
        (home / name).mkdir()
    return [home / name for name in names]


@pytest.mark.long
def test_two_jobs_at_once_take_turns_on_a_device_and_their_processes_see_no_other(
    spark: SparkSession, tmp_path: Path, device: str
):
    homes = folders(tmp_path, "ab")
    tables = [
        device_table(
            home, spark, device_udf(home / "log", num_gpus=share, seconds=0.7), rows=20, fragments=2
        )
        for home, share in zip(homes, (1, 0.75), strict=True)
    ]
    (homes[0] / "kill").touch()
    jobs = [table.backfill_async("v", **SETTINGS) for table in tables]
    assert [job.result().status for job in jobs] == ["DONE", "DONE"]
    assert all(map(right_values, tables))
    calls = DeviceCalls.read(*(home / "log" for home in homes))
    assert (calls.visible, calls.rows, calls.most_at_once) == ({device}, 40, 1)


@pytest.mark.long
def test_the_processes_of_a_chunker_take_turns_on_a_device(
    spark: SparkSession, tmp_path: Path, device: str
):
    log = str(tmp_path / "log")

    @chunker(num_gpus=1, task_size=5)
    def pieces(x: int) -> Iterator[Piece]:
        import json
        import os
        import time

        began_s = time.time()
        time.sleep(0.1)
        line = json.dumps(
            [began_s, time.time(), os.getpid(), [os.environ.get("CUDA_VISIBLE_DEVICES")], 1]
        )
        with open(log, "a") as file:
            file.write(f"{line}\n")
        yield Piece(x)

    db = lance_spark.connect(str(tmp_path / "db"), spark, progress=False)
    source = db.create_table("s", pa.table({"x": range(20)}))
    view = db.create_udtf_view("v", source.search(None).select(["x"]), pieces)
    assert view.refresh(concurrency=None).rows_added == 20
    calls = DeviceCalls.read(Path(log))
    assert (calls.rows, calls.visible, calls.most_at_once) == (20, {device}, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_discovery_script_of_the_driver_names_the_devices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    device = f"made-up-{uuid.uuid4()}"
    script = tmp_path / "find-devices"
    script.write_text(f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": ["{device}"]}}'\n""")
    script.chmod(0o755)
    settings = {"amount": "1", "discoveryScript": str(script)}
    arguments = " ".join(
        f"--conf spark.driver.resource.gpu.{key}={value}" for key, value in settings.items()
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} pyspark-shell")
    (home,) = folders(tmp_path, "a")
    device_table(
        home, spark, device_udf(home / "log", num_gpus=0.5, seconds=0.3), rows=40, fragments=4
    )
    with driver({"a": (home, {**SETTINGS, "concurrency": None})}, master="local[4]") as started:
        assert started.answer()["a"]["status"] == "DONE"
    calls = DeviceCalls.read(home / "log")
    assert (calls.rows, calls.visible) == (40, {device})
    assert calls.most_at_once <= 2


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "task_size"), [(240, 240), (160, None)])
def test_a_slow_udf_over_one_fragment_uses_all_slots(
    spark: SparkSession, tmp_path: Path, rows: int, task_size: int | None
):
    """A task of all rows leaves rows to the other slots; without a size, each slot has tasks from the start."""
    (home,) = folders(tmp_path, "a")
    function = device_udf(home / "log", seconds=0.25, batch_size=5)
    table = device_table(home, spark, function, rows=rows, fragments=1)
    settings = {**SETTINGS, "task_size": task_size, "concurrency": None}
    with driver({"a": (home, settings)}, master="local[4]") as started:
        assert started.answer()["a"]["status"] == "DONE"
    assert right_values(table)
    calls = DeviceCalls.read(home / "log")
    assert (calls.rows, len(calls.processes)) == (rows, 4)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "devices", "least", "most"), [(1, 1, 1, 1), (0.25, 1, 2, 4), (2, 5, 2, 2)]
)
def test_eight_slots_never_have_more_processes_on_a_device_than_fit(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    devices: int,
    least: int,
    most: int,
):
    ids = [f"made-up-{uuid.uuid4()}" for _ in range(devices)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(ids))
    homes = folders(tmp_path, "ab")
    for home in homes:
        function = device_udf(home / "log", num_gpus=share, seconds=0.3)
        device_table(home, spark, function, rows=160, fragments=16)
        (home / "kill").touch()
    jobs = {home.name: (home, {**SETTINGS, "concurrency": None}) for home in homes}
    with driver(jobs, master="local[8]") as started:
        answers = started.answer()
    assert {answer["status"] for answer in answers.values()} == {"DONE"}
    calls = DeviceCalls.read(*(home / "log" for home in homes))
    assert calls.rows == 320
    assert least <= calls.most_at_once <= most
    used = {visible for visible in calls.visible for visible in visible.split(",")}
    assert used <= set(ids)
    assert {len(visible.split(",")) for visible in calls.visible} == {max(1, share)}
