"""A planned read in the encoding of Spark's JVM: :func:`encode_read`."""

from __future__ import annotations

import base64
import io
import zlib
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

_ROWS_PER_BATCH = 10_000
"""Spark's batch size for readers of rows. Readers of this package return Arrow batches."""


class _SourceName(DataSource):
    """Supplies the name of the data source for error messages of Spark's read function."""

    @classmethod
    def name(cls) -> str:
        return "lance"


def encode_read(reader: DataSourceReader, schema: StructType) -> str:
    """Plans a read, and returns the pickled read function and partitions as text.

    The text is Base64 of a zlib stream of Spark's own encoding. Each pickle is preceded by its
    length, and the partitions by their number, in big-endian 32 bits. Runs on the driver.
    """
    sent = io.BytesIO()
    write_read_func_and_partitions(
        sent,
        reader=reader,
        data_source=_SourceName({}),
        schema=schema,
        max_arrow_batch_size=_ROWS_PER_BATCH,
        binary_as_bytes=True,
    )
    return base64.b64encode(zlib.compress(sent.getbuffer(), 1)).decode()
