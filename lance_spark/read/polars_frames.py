"""Arrow rows as frames of Polars: :func:`to_frame` and :func:`scan_frame`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lance_spark.errors import UnsupportedOperationError

if TYPE_CHECKING:
    import polars as pl


RowReader: TypeAlias = (
    "Callable[[Sequence[str] | None, int | None, int | None], pa.RecordBatchReader]"
)
"""Opens rows. The arguments are the columns, the maximum number of rows, and of rows per batch."""


def to_frame(rows: pa.Table) -> pl.DataFrame:
    """Returns rows as a frame.

    Raises:
        UnsupportedOperationError: Polars is not installed.
    """
    frame: pl.DataFrame = _load_polars().from_arrow(rows)
    return frame


def scan_frame(schema: pa.Schema, read_rows: RowReader) -> pl.LazyFrame:
    """Returns a lazy frame. Each query of the frame reads its columns, batch by batch.

    Polars evaluates all conditions itself. Each read has to return equal rows.

    Raises:
        UnsupportedOperationError: Polars is not installed.
    """
    polars = _load_polars()
    from polars.io.plugins import register_io_source

    def read(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        limit: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        for batch in read_rows(columns, limit, batch_size):
            frame = polars.from_arrow(batch)
            yield frame if predicate is None else frame.filter(predicate)

    columns = polars.from_arrow(schema.empty_table()).schema
    # A pinned version has equal rows at each read, so a query that uses the frame twice reads once.
    frame: pl.LazyFrame = register_io_source(read, schema=columns, is_pure=True)
    return frame


def _load_polars() -> Any:  # noqa: ANN401 - the module
    try:
        import polars as pl
    except ImportError as error:
        raise UnsupportedOperationError(
            "to_polars() requires the package polars, which is not installed. Run pip install polars, or call "
            "to_arrow()."
        ) from error
    return pl
