"""Devices of the machine of a local session: :func:`list_local_devices`. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.jvm.gateway import is_classic
from udf_runtime.execute.isolation.devices import list_devices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def list_local_devices(spark: SparkSession) -> tuple[str, ...]:
    """Returns the ids of the GPUs of a local session's machine.

    Order: the resources of the driver (`spark.driver.resource.gpu.amount` and `.discoveryScript`),
    then :func:`udf_runtime.execute.isolation.devices.list_devices`. Over Spark Connect, a Spark
    job of one task lists the devices of the server's machine.
    """
    if not is_classic(spark):
        rows = spark.range(0, 1, 1, 1).mapInArrow(_list_in_task, "id string").collect()
        return tuple(row[0] for row in rows)
    resource = spark.sparkContext.resources.get("gpu")
    return list_devices() if resource is None else tuple(resource.addresses)


def _list_in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch([pa.array(list_devices(), pa.string())], names=["id"])
