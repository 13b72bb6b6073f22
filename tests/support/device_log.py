"""A UDF with devices that records what its processes see, and how many calls a device has at once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import SparkSession

import lance_spark
from udf_runtime import UDF, udf

NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class ValueAtLoad:
    """Has the value of a variable when a process loads the UDF, before any code of the UDF runs."""

    def __init__(self) -> None:
        self.value = os.environ.get(NAMES[0])

    def __reduce__(self) -> tuple[type[ValueAtLoad], tuple[()]]:
        return ValueAtLoad, ()


def device_udf(log: Path, *, seconds: float = 0.1, **options: Any) -> UDF:
    """Returns a UDF that multiplies by ten. Each call of a batch adds a line to the log.

    A file `kill` in the folder of the log is removed by a call, and ends the process of the call.
    """
    path, names, at_load = str(log), NAMES, ValueAtLoad()

    def times_ten(x: pa.Array) -> pa.Array:
        import json
        import os
        import signal
        import time

        import pyarrow.compute as pc

        began_s = time.time()
        visible = [at_load.value, *(os.environ.get(name) for name in names)]
        try:
            os.unlink(os.path.join(os.path.dirname(path), "kill"))
        except FileNotFoundError:
            time.sleep(seconds)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        line = json.dumps([began_s, time.time(), os.getpid(), visible, len(x)])
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        return pc.multiply(x, 10)

    options = {"min_checkpoint_size": 5, "checkpoint_size": 5, "version": "1", **options}
    return udf(data_type=pa.int64(), **options)(times_ten)


def device_table(
    home: Path, spark: SparkSession, function: UDF, *, rows: int, fragments: int
) -> lance_spark.Table:
    """Makes a table `t` with the column `v` of the UDF."""
    data = pa.table({"x": pa.array(range(rows), pa.int64())})
    lance.write_dataset(data, f"{home}/t.lance", max_rows_per_file=rows // fragments)
    table = lance_spark.connect(str(home), spark, progress=False).open_table("t")
    table.add_columns({"v": function})
    return table


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """The calls of a log."""

    lines: list[Any]

    @staticmethod
    def read(*logs: Path) -> DeviceCalls:
        return DeviceCalls(
            [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        )

    @property
    def rows(self) -> int:
        return sum(line[4] for line in self.lines)

    @property
    def visible(self) -> set[str]:
        """The visible devices of each call: at the load and in each variable."""
        return {device for line in self.lines for device in line[3]}

    @property
    def processes(self) -> set[int]:
        return {line[2] for line in self.lines}

    @property
    def most_at_once(self) -> int:
        """The maximum number of processes in a call at the same time."""
        events = sorted(
            [(line[0], 1) for line in self.lines] + [(line[1], -1) for line in self.lines]
        )
        counts = [sum(step for _, step in events[: end + 1]) for end in range(len(events))]
        return max(counts, default=0)

    def of(self, device: str) -> DeviceCalls:
        return DeviceCalls([line for line in self.lines if set(line[3]) == {device}])
