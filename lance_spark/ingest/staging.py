"""Rows of this process for Spark's tasks: in memory, or staged next to the table.

:class:`LocalRows` and :func:`discard`.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pyarrow as pa

from lance_spark.commit.attempt import Landed, attempt_commit
from lance_spark.dataset import DatasetRef
from lance_spark.errors import refusals_as_errors
from lance_spark.ingest.rows import keep_errors
from lance_spark.namespaces.access import renewal_arguments
from lance_spark.staging.area import Staging

_LOG = logging.getLogger(__name__)

_HELD_BYTES = 64 << 20
"""Maximum bytes of rows in the memory of this process. More rows stream to their place next to the
table."""


class LocalRows:
    """Rows of this process. A stream is read once.

    Attributes:
        schema: The columns.
        table: All rows, if they are few; else None.
    """

    def __init__(self, stream: pa.RecordBatchReader) -> None:
        """Reads few rows into memory, and the first rows of many."""
        self.schema = stream.schema
        self.table: pa.Table | None = None
        self._stream: pa.RecordBatchReader | None = None
        held_batches, size = [], 0
        for batch in stream:
            held_batches.append(batch)
            size += batch.nbytes
            if size > _HELD_BYTES:
                self._stream = pa.RecordBatchReader.from_batches(
                    self.schema, itertools.chain(held_batches, stream)
                )
                return
        self.table = pa.Table.from_batches(held_batches, schema=self.schema)

    def take(self) -> pa.RecordBatchReader:
        """Returns the rows. A stream can be taken only once."""
        if self.table is not None:
            return self.table.to_reader()
        stream, self._stream = self._stream, None
        assert stream is not None, "after an error, a stream lacks the rows that were read"
        return stream


def stage(
    rows: pa.RecordBatchReader, ref: DatasetRef, staging: Staging, *, version: str | None = None
) -> tuple[str, pa.Schema]:
    """Writes rows as a table in the folder of a job, batch by batch.

    Returns the location and the columns of the table.

    The end of the job deletes the rows with the job's files.

    Args:
        rows: The rows.
        ref: The table of the job.
        staging: The job.
        version: Lance file format; by default Lance's stable one.
    """
    import lance
    from lance.fragment import write_fragments

    options: dict[str, Any] = {
        "storage_options": ref.lance_options,
        "data_storage_version": version or "stable",
    }
    place = f"{ref.uri}/{staging.folder}/source"
    renewal = renewal_arguments(ref.storage)
    with refusals_as_errors(ref.uri), keep_errors(rows) as batches:
        if not renewal:
            return place, lance.write_dataset(batches, place, **options).schema
        # write_dataset renews no credentials at a location.
        write = write_fragments(
            batches, place, mode="create", return_transaction=True, **options, **renewal
        )
        outcome = attempt_commit(
            place, write.operation, read_version=0, properties={}, storage_options=ref.storage
        )
        if not isinstance(outcome, Landed):
            raise outcome.error
    return place, outcome.dataset.schema


def discard(staging: Staging) -> None:
    """Deletes the staged rows of a job that stages nothing else."""
    try:
        staging.sweep()
    except OSError as error:
        _LOG.warning(
            "The staged rows of job %s in %s could not be deleted: %s. lance_spark.cleanup deletes them later.",
            staging.job_id,
            staging.uri,
            error,
        )
