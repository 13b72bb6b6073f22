"""The first rows of a sort by its first key: :func:`first_rows`.

The planner rule pushes a sort with a limit down, and keeps both in the plan. Every partition
returns its candidates for the first rows, plus all rows with the same key as the last candidate.
Other columns are read for the candidates only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from lance_spark.read.planning.pushdown_request import TopN

MOST_ROWS = 1 << 14
"""Maximum number of candidate rows of a partition. If more rows share the key of the last
candidate, the partition returns all rows."""


def is_sortable(kind: pa.DataType) -> bool:
    """Tells whether Arrow and Spark order the values of a type alike.

    Nanoseconds are excluded: Spark has microseconds, and raises an error if a value does not fit.
    """
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit != "ns")
        or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    )


def first_rows(batches: Iterable[pa.RecordBatch], top: TopN) -> npt.NDArray[np.uint64] | None:
    """Returns the addresses of the candidate rows, ascending, or None if the scan needs all rows.

    Runs on an executor. Holds MOST_ROWS keys and one batch. Zeros of both signs are equal, as in
    Spark.

    Args:
        batches: The key and the address of each row of a partition.
        top: The requested sort and number of rows.

    Returns:
        None if a key is NaN, fewer rows than requested have a key, or too many rows share the key
        of the last candidate.
    """
    candidates = _Candidates(top)
    for batch in batches:
        if not candidates.add(batch):
            return None
    addresses = candidates.addresses()
    return None if addresses is None else np.sort(addresses)


class _Candidates:
    """The keys and addresses of the candidate rows in the batches so far."""

    def __init__(self, top: TopN) -> None:
        self._top = top
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._bound: pa.Scalar[Any] | None = None

    def add(self, batch: pa.RecordBatch) -> bool:
        """Adds a batch. Returns False if the candidates can no longer be told from the rest."""
        keys = batch.column(0)
        if pa.types.is_floating(keys.type) and pc.any(pc.is_nan(keys)).as_py():
            return False
        rows = pa.table([keys, batch.column(1)], names=["key", "address"])
        part = self._may_be_first(rows)
        self._parts.append(part)
        self._rows += part.num_rows
        return self._rows <= MOST_ROWS or self._narrow()

    def addresses(self) -> npt.NDArray[np.uint64] | None:
        """Returns the addresses of the candidates."""
        if not self._parts or not self._narrow() or self._bound is None:
            return None
        return self._parts[0]["address"].to_numpy()

    def _narrow(self) -> bool:
        """Keeps the first rows and all rows with the key of the last candidate."""
        rows = pa.concat_tables(self._parts)
        values = rows["key"].drop_null()
        if len(values) >= self._top.n:
            order: Literal["ascending", "descending"] = (
                "ascending" if self._top.ascending else "descending"
            )
            chosen = values.take(pc.select_k_unstable(values, self._top.n, [("", order)]))
            self._bound = (pc.max if self._top.ascending else pc.min)(chosen)
            rows = self._may_be_first(rows)
        self._parts, self._rows = [rows], rows.num_rows
        return self._rows <= MOST_ROWS

    def _may_be_first(self, rows: pa.Table) -> pa.Table:
        if self._bound is None:
            return rows if self._top.nulls_first else rows.drop_null()
        compare = pc.less_equal if self._top.ascending else pc.greater_equal
        selected: Any = compare(rows["key"], self._bound)
        return rows.filter(selected.fill_null(self._top.nulls_first))
