"""Streams of values are merged in the order of the rows, in chunks that are worth their cost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.rows.merge import Chunk, merge


def chunks(rows: list[int], size: int) -> list[Chunk]:
    parts = [rows[first : first + size] for first in range(0, len(rows), size)]
    return [(np.array(part, dtype=np.int64), pa.array([f"v{row}" for row in part])) for part in parts]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 7), min_size=4, max_size=4))
def test_every_row_comes_once_in_order_with_its_value(owners: list[int], sizes: list[int]):
    streams = [chunks([row for row, by in enumerate(owners) if by == one], sizes[one]) for one in range(4)]
    merged = list(merge([iter(stream) for stream in streams]))
    assert [row for offsets, _ in merged for row in offsets.tolist()] == list(range(len(owners)))
    assert [value for _, values in merged for value in values.to_pylist()] == [f"v{row}" for row in range(len(owners))]


def test_rows_that_alternate_between_two_streams_are_not_taken_one_by_one():
    even, odd = chunks(list(range(0, 2000, 2)), 500), chunks(list(range(1, 2000, 2)), 500)
    assert len(list(merge([iter(even), iter(odd)]))) <= 6
