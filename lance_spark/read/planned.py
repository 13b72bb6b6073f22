"""A planned read in the form in which Spark's JVM keeps one: :func:`planned_read`.

Spark asks for it in a Python process of its own after a query is planned. The planner rule has
asked this process about the scan already, and takes the answer to both questions at once.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from pyspark.sql.types import StructType

MAX_PARTITIONS = 1000
"""Partitions up to which a read is handed over; for more Spark asks by itself, without the detour
through text."""

_ROWS_PER_BATCH = 10_000
"""Spark wants to know it of readers that yield rows; ours yields Arrow batches."""


def planned_read(source: DataSource, reader: DataSourceReader, schema: StructType) -> bytes | None:
    """Returns the pickled read function and partitions, as Spark's planning process sends them.

    Each is preceded by its length, and the partitions by their number, in big-endian 32 bits. Runs
    on the driver. Returns None where Spark has to ask by itself: there are too many partitions, or
    this release of Spark has other names for it.
    """
    if len(reader.partitions()) > MAX_PARTITIONS:
        return None
    try:
        from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

        sent = io.BytesIO()
        write_read_func_and_partitions(
            sent,
            reader=reader,
            data_source=source,
            schema=schema,
            max_arrow_batch_size=_ROWS_PER_BATCH,
            binary_as_bytes=True,
        )
    except (ImportError, TypeError):
        return None
    return sent.getvalue()
