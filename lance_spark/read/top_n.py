"""The first rows of a sort, found by its first key alone: :func:`first_rows`.

The planner rule asks for it below a sort and a limit, which stay in the plan: every partition gives
the rows that may be among the first, and those that are equal to the last of them in that key.
Other columns are read for these rows only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from lance_spark.read.spec import TopN

MOST_ROWS = 1 << 14
"""Rows of a partition that are told apart from the others, at most. Where more are equal to the
last of the first ones, all rows are read instead."""


def is_sortable(kind: pa.DataType) -> bool:
    """Tells whether Arrow orders the values of a type as Spark orders what is read from it.

    Nanoseconds are left out: Spark has microseconds, and a value that does not fit is an error.
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
    """Returns the addresses of the rows that may be among the first of all, ascending.

    Runs on an executor; holds MOST_ROWS keys and a batch. Zeros of both signs are equal, as in
    Spark.

    Args:
        batches: The key and the address of each row of a partition.
        top: What is asked for.

    Returns:
        None where they cannot be told from the others: a key is NaN, fewer rows than asked for have
        a key, or too many are equal to the last.
    """
    held = _Held(top)
    for batch in batches:
        if not held.add(batch):
            return None
    addresses = held.addresses()
    return None if addresses is None else np.sort(addresses)


class _Held:
    """The keys and addresses of the rows that may be among the first, of those seen so far."""

    def __init__(self, top: TopN) -> None:
        self._top = top
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._bound: pa.Scalar[Any] | None = None

    def add(self, batch: pa.RecordBatch) -> bool:
        """Takes a batch; returns whether the rows can still be told from the others."""
        keys = batch.column(0)
        if pa.types.is_floating(keys.type) and pc.any(pc.is_nan(keys)).as_py():
            return False
        rows = pa.table([keys, batch.column(1)], names=["key", "address"])
        part = self._may_be_first(rows)
        self._parts.append(part)
        self._rows += part.num_rows
        return self._rows <= MOST_ROWS or self._narrow()

    def addresses(self) -> npt.NDArray[np.uint64] | None:
        """Returns the addresses of the rows."""
        if not self._parts or not self._narrow() or self._bound is None:
            return None
        return self._parts[0]["address"].to_numpy()

    def _narrow(self) -> bool:
        """Leaves the first rows, and those that are equal to the last of them."""
        rows = pa.concat_tables(self._parts)
        values = rows["key"].drop_null()
        if len(values) >= self._top.n:
            order: Literal["ascending", "descending"] = "ascending" if self._top.ascending else "descending"
            chosen = values.take(pc.select_k_unstable(values, self._top.n, [("", order)]))
            self._bound = (pc.max if self._top.ascending else pc.min)(chosen)
            rows = self._may_be_first(rows)
        self._parts, self._rows = [rows], rows.num_rows
        return self._rows <= MOST_ROWS

    def _may_be_first(self, rows: pa.Table) -> pa.Table:
        if self._bound is None:
            return rows if self._top.nulls_first else rows.drop_null()
        compare = pc.less_equal if self._top.ascending else pc.greater_equal
        kept: Any = compare(rows["key"], self._bound)
        return rows.filter(kept.fill_null(self._top.nulls_first))
