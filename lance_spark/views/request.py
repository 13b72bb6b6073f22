"""What a caller of `refresh` asks for, checked: :class:`RefreshRequest`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.backfill.request import DEFAULT_BLOB_BUFFER_BYTES, DEFAULT_CONCURRENCY

DEFAULT_FRAGMENT_ROWS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRequest:
    """The parameters that :meth:`lance_spark.Table.refresh` documents, checked."""

    src_version: int | None = None
    max_rows_per_fragment: int = DEFAULT_FRAGMENT_ROWS
    concurrency: int | None = DEFAULT_CONCURRENCY
    intra_applier_concurrency: int = 1
    admission_check: bool = True
    admission_strict: bool = True
    blob_read_buffer_size: int = DEFAULT_BLOB_BUFFER_BYTES
