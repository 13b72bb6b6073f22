"""UDFs that run in processes with devices."""

from __future__ import annotations

import uuid

import pyarrow as pa

from udf_runtime import UDF, udf
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.devices import DeviceRequest
from udf_runtime.execute.isolation.process import ProcessSpec

ROWS = pa.record_batch([pa.array([1, 2, 3, 4], pa.int64())], names=["x"])


def make_udf(number: int) -> UDF:
    """Returns a UDF with the process and its visible devices as value."""

    def place(x: int) -> str:
        import os
        import time

        time.sleep(0.05)
        return (
            f"{os.getpid()}:{os.environ['CUDA_VISIBLE_DEVICES']}:{os.environ['ZE_AFFINITY_MASK']}"
        )

    return udf(
        data_type=pa.string(), input_columns=["x"], version=str(number), name=f"place{number}"
    )(place)


def request_of(share: float = 1) -> DeviceRequest:
    """Returns a request for a device that no other test has."""
    return DeviceRequest(candidates=(f"made-up-{uuid.uuid4()}",), share=share)


def run(function: UDF, devices: DeviceRequest) -> int:
    """Returns the process of a run. All rows have the same process, and see the device alone."""
    with UdfRunner(function, processes=ProcessSpec(devices=devices)) as runner:
        (result,) = runner.run([ROWS])
    ((pid, *visible),) = {tuple(value.split(":")) for value in result.values.to_pylist()}
    assert tuple(visible) == 2 * devices.candidates
    return int(pid)
