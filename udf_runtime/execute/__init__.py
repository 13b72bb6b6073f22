"""Runs UDFs over Arrow record batches, in this process or in children of it."""

from __future__ import annotations

from udf_runtime.execute.inputs import OpenBlobs
from udf_runtime.execute.rebatch import Rebatcher
from udf_runtime.execute.result import BatchResult, RowFailure
from udf_runtime.execute.runner import UdfRunner

__all__ = ["BatchResult", "OpenBlobs", "Rebatcher", "RowFailure", "UdfRunner"]
