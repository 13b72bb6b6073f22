"""Batches of one version of a table as a stream of Arrow: :func:`stream_of`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_spark.types.layout import relabel_batch, same_layout


def stream_of(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], batch_size: int | None = None
) -> pa.RecordBatchReader:
    """Returns batches as a stream of a schema, which reads each batch on demand.

    Args:
        schema: The schema of the batches.
        batches: The batches.
        batch_size: Maximum number of rows of a batch; None keeps the batches.
    """

    def read() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # A consumer of another library trusts the schema of the stream.
            rows = (
                batch
                if batch.schema.equals(schema, check_metadata=True)
                else _convert(batch, schema)
            )
            for start in range(0, rows.num_rows, batch_size or max(1, rows.num_rows)):
                yield rows.slice(start, batch_size)

    return pa.RecordBatchReader.from_batches(schema, read())


def _convert(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if same_layout(pa.struct(list(batch.schema)), pa.struct(list(schema))):
        return relabel_batch(batch, schema)
    return batch.cast(schema)
