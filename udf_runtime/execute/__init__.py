"""Runs UDFs over Arrow record batches, in this process or in child processes."""

from __future__ import annotations

from udf_runtime.execute.batches.rebatch import Rebatcher
from udf_runtime.execute.calls.chunks import ChunkPieces
from udf_runtime.execute.result import BatchResult, RowFailure
from udf_runtime.execute.runner import UdfRunner
from udf_runtime.execute.tables import TableSource, call_table

__all__ = [
    "BatchResult",
    "ChunkPieces",
    "Rebatcher",
    "RowFailure",
    "TableSource",
    "UdfRunner",
    "call_table",
]
