"""UDFs on a real GPU: devices of processes, loads of models, memory of the device, deaths. `make test-gpu` runs them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.cluster.conftest import ClusterJob, start_master
from tests.support.device_log import DeviceCalls, device_table
from tests.support.drivers import driver
from tests.support.waiting import eventually
from udf_runtime import UDF, Skip, udf

pytestmark = [pytest.mark.long, pytest.mark.slow]

DEVICE = "0"
"""The only GPU that these tests use, by its number."""

ROW_BYTES = 32 << 20
ROWS = 8192
"""The buffers of all rows together have 256 GiB, more than a GPU of 2026."""


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all GPUs but one, on machines with several."""
    if devices_of_machine() > 1:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", DEVICE)


def devices_of_machine() -> int:
    return len(query_gpu("index"))


def used_mib() -> int:
    """Returns the MiB of device memory that all processes use together."""
    return int(query_gpu("memory.used")[0])


def query_gpu(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def working_udf(log: Path, **options: Any) -> UDF:
    """Returns a UDF that multiplies by ten on the GPU. Each call of a batch adds a line to the log.

    A file `kill` in the folder of the log is removed by a call, and ends the process of the call.
    """
    path = str(log)

    def times_ten(x: pa.Array) -> pa.Array:
        import json
        import os
        import signal
        import time

        import torch

        began_s = time.time()
        values = torch.tensor(x.to_pylist(), device="cuda") * 10
        block = torch.rand(4096, 4096, device="cuda")
        while time.time() < began_s + 0.3:
            block = (block @ block).clamp(0, 1)
            torch.cuda.synchronize()
        try:
            os.unlink(os.path.join(os.path.dirname(path), "kill"))
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        visible = [os.environ["CUDA_VISIBLE_DEVICES"], f"{torch.cuda.device_count()} device"]
        line = json.dumps([began_s, time.time(), os.getpid(), visible, len(x)])
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        return pa.array(values.cpu().tolist(), pa.int64())

    options = {"min_checkpoint_size": 5, "checkpoint_size": 5, "version": "1", **options}
    return udf(data_type=pa.int64(), **options)(times_ten)


def test_a_model_stays_on_the_gpu_over_jobs_and_has_the_values_of_the_bare_model(
    spark: SparkSession, tmp_path: Path
):
    loads = tmp_path / "loads"

    class Layer:
        def setup(self) -> None:
            import torch

            self.weights = torch.arange(12.0).reshape(3, 4).cuda()
            with loads.open("a") as file:
                file.write(f"{torch.cuda.device_count()} of {os.environ['CUDA_VISIBLE_DEVICES']}\n")

        def __call__(self, x: pa.Array) -> pa.Array:
            import torch

            rows = torch.tensor(np.column_stack([x.to_numpy()] * 3), dtype=torch.float32).cuda()
            vectors = (rows @ self.weights).cpu().numpy()
            return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)

    vector = pa.list_(pa.float32(), 4)
    layer = udf(data_type=vector, num_gpus=1, batch_size=64, input_columns=["x"])(Layer)()
    table = device_table(tmp_path, spark, layer, rows=4000, fragments=4)
    for _ in range(3):
        assert table.backfill("v", where="1=1", concurrency=None).rows_computed == 4000
    assert loads.read_text().splitlines() == [f"1 of {DEVICE}"]
    values = table.to_lance().to_table(columns=["x", "v"])
    expected = np.column_stack([values["x"].to_numpy()] * 3) @ np.arange(12.0).reshape(3, 4)
    assert np.array_equal(np.stack(values["v"].to_pylist()), expected)


@pytest.mark.parametrize(("share", "least", "most"), [(1, 1, 1), (0.5, 2, 2), (0.25, 3, 4)])
def test_processes_share_the_gpu_and_the_death_of_one_costs_no_row(
    spark: SparkSession, tmp_path: Path, share: float, least: int, most: int
):
    """Two jobs at once on eight slots, and a process of each is killed in a call. At the end all memory is free."""
    before_mib = used_mib()
    homes = [tmp_path / name for name in "ab"]
    for home in homes:
        home.mkdir()
        device_table(home, spark, working_udf(home / "log", num_gpus=share), rows=160, fragments=8)
        (home / "kill").touch()
    settings = {"task_size": 10, "batch_checkpoint_flush_interval_seconds": 0, "concurrency": None}
    with driver({home.name: (home, settings) for home in homes}, master="local[8]") as started:
        answers = started.answer()
    assert {answer["status"] for answer in answers.values()} == {"DONE"}, answers
    for home in homes:
        table = lance_spark.connect(str(home), spark, progress=False).open_table("t")
        assert table.count_rows("v = 10 * x") == 160
    calls = DeviceCalls.read(*(home / "log" for home in homes))
    assert (calls.rows, calls.visible) == (320, {DEVICE, "1 device"})
    assert least <= calls.most_at_once <= most
    eventually(lambda: used_mib() <= before_mib + 50)


def allocating_udf(log: Path, library: str, *, huge: int = -1, **options: Any) -> UDF:
    """Returns a UDF with a buffer of `ROW_BYTES` on the GPU for each row, and `ROWS` more for the value `huge`.

    Each call adds a line to the log at its begin and at its end.
    """
    path, row_bytes, all_rows = str(log), ROW_BYTES, ROWS

    def allocate(x: pa.Array) -> pa.Array:
        import json
        import os

        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        values = x.to_pylist()
        buffers = len(values) + all_rows * values.count(huge)

        def write(text: str) -> None:
            with open(path, "a") as file:
                file.write(f"{json.dumps([text, len(x)])}\n")

        write("begin")
        if library == "torch":
            import torch

            block: Any = torch.ones((buffers, row_bytes), dtype=torch.uint8, device="cuda")
        elif library == "cupy":
            import cupy

            block = cupy.ones((buffers, row_bytes), dtype=cupy.uint8)
        else:
            import jax.numpy

            block = jax.numpy.ones((buffers, row_bytes), jax.numpy.uint8).block_until_ready()
        last = int(block[-1, -1])
        write("end")
        return pa.array([value + last for value in values])

    options = {"checkpoint_size": ROWS, "version": "1", **options}
    return udf(data_type=pa.int64(), num_gpus=1, batch_size=4096, input_columns=["x"], **options)(
        allocate
    )


def read_calls(log: Path) -> dict[str, list[int]]:
    """Returns the rows of each call that began, and of each call that ended."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {name: [rows for text, rows in lines if text == name] for name in ("begin", "end")}


@pytest.fixture(params=["torch", "cupy", "jax"])
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    pytest.importorskip(request.param)
    return request.param


def test_a_batch_that_does_not_fit_the_gpu_is_halved_until_every_row_has_its_value(
    spark: SparkSession, tmp_path: Path, library: str
):
    table = device_table(
        tmp_path, spark, allocating_udf(tmp_path / "log", library), rows=ROWS, fragments=1
    )
    result = table.backfill("v", task_size=ROWS)
    assert (result.status, result.rows_computed) == ("DONE", ROWS)
    assert table.count_rows("v = x + 1") == ROWS
    calls = read_calls(tmp_path / "log")
    assert sum(calls["end"]) == ROWS
    assert result.batch_rows == max(calls["end"]) < 4096
    failed = len(calls["begin"]) - len(calls["end"])
    assert calls["begin"][: failed + 1] == [4096 >> halving for halving in range(failed + 1)]


def test_a_row_that_does_not_fit_the_gpu_alone_is_skipped_and_the_others_have_values(
    spark: SparkSession, tmp_path: Path, library: str
):
    table = device_table(
        tmp_path,
        spark,
        allocating_udf(tmp_path / "log", library, huge=40, on_error=[Skip(Exception)]),
        rows=64,
        fragments=1,
    )
    result = table.backfill("v")
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    assert table.count_rows("v = x + 1") == 63


@pytest.mark.cluster
def test_a_cluster_gives_the_gpu_of_a_discovery_script_to_the_processes(tmp_path: Path):
    script = tmp_path / "discover.sh"
    script.write_text(
        """#!/bin/sh\necho '{"name": "gpu", "addresses": ["'"$(nvidia-smi --query-gpu=index """
        """--format=csv,noheader | head -n 1)"'"]}'\n"""
    )
    script.chmod(0o755)
    settings = (
        f"-Dspark.worker.resource.gpu.amount=1 -Dspark.worker.resource.gpu.discoveryScript={script}"
    )
    with start_master(tmp_path) as cluster:
        cluster.add_worker(cores=4, settings=settings)
        job = ClusterJob("devices", cluster, str(tmp_path / "db"))
        try:
            assert job.result() == {"right": [80, 80]}
        finally:
            job.end()
    for name, most in (("shares", 2), ("whole", 1)):
        calls = DeviceCalls.read(tmp_path / "db" / name / "log")
        assert (calls.rows, calls.visible) == (80, {DEVICE})
        assert calls.most_at_once <= most
