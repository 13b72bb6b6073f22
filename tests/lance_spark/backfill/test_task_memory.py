"""The peak memory of a task is independent of its fragment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_spark
from udf_runtime import UDF, udf

MB = 1_000_000
ROWS, BLOB_BYTES = 12_000, 50_000
BLOB = {"lance-encoding:blob": "true"}


def peak_udf(column: str) -> UDF:
    """Returns a UDF with the peak resident megabytes of its process as value."""

    def peak(rows: pa.Array) -> pa.Array:
        status = Path("/proc/self/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return pa.array([kib * 1024 // 1_000_000] * len(rows))

    return udf(peak, data_type=pa.int64(), input_columns=[column])


def reset_udf() -> UDF:
    """Returns a UDF with the resident megabytes of its process as value. Earlier peaks are forgotten."""

    def reset(rows: pa.Array) -> pa.Array:
        Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        return pa.array([kib * 1024 // 1_000_000] * len(rows))

    return udf(reset, data_type=pa.int64(), input_columns=["id"])


def make_blobs(path: str) -> None:
    fields = [pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=BLOB)]
    schema = pa.schema(fields)
    parts = (
        pa.record_batch([range(first, first + 1000), [b"x" * BLOB_BYTES] * 1000], schema=schema)
        for first in range(0, ROWS, 1000)
    )
    lance.write_dataset(
        parts, path, schema=schema, max_rows_per_file=ROWS, enable_stable_row_ids=True
    )


@pytest.mark.long
@pytest.mark.guarantee("T47")
@pytest.mark.parametrize("buffer_mb", [64, 256])
def test_the_buffer_bounds_the_memory_of_a_task(
    db: lance_spark.Connection, tmp_path: Path, buffer_mb: int
) -> None:
    make_blobs(str(tmp_path / "db" / "t.lance"))
    table = db.open_table("t")
    table.add_columns({"before": reset_udf(), "peak": peak_udf("b")})
    options: dict[str, Any] = {"concurrency": 1, "blob_read_buffer_size": buffer_mb * MB}
    table.backfill("before", concurrency=1)
    table.backfill("peak", **options)
    values = table.to_arrow(["before", "peak"])
    before, peak = (max(values[name].to_pylist()) for name in ("before", "peak"))
    # The modules of the tests, which the worker imports for the UDF, are in both numbers.
    assert peak - before < buffer_mb + 150, (before, peak)
