"""Batches of wanted sizes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.execute.cases import Pulled, batches_of
from udf_runtime.execute import Rebatcher


@settings(deadline=None)  # PyArrow imports pandas for its first array of a list
@given(
    sizes=st.lists(st.integers(0, 20), max_size=12),
    takes=st.lists(st.integers(1, 25), min_size=1, max_size=8),
    max_bytes=st.none() | st.integers(1, 200),
)
def test_every_row_comes_once_in_order_in_batches_of_at_most_the_wanted_size(
    sizes, takes, max_bytes
):
    total = sum(sizes)
    rows = iter(range(total))
    rebatcher = Rebatcher(
        batches_of(*[[next(rows) for _ in range(size)] for size in sizes]), max_bytes=max_bytes
    )
    rows_seen: list[int] = []
    turn = 0
    while True:
        wanted_rows = takes[turn % len(takes)]
        turn += 1
        batch = rebatcher.take(wanted_rows)
        if batch is None:
            break
        assert 1 <= batch.num_rows <= wanted_rows
        if max_bytes is None:
            assert batch.num_rows == min(wanted_rows, total - len(rows_seen))
        else:
            # eight bytes a row, and a byte or two of validity in a slice
            assert batch.num_rows == 1 or batch.num_rows * 8 <= max_bytes
        rows_seen.extend(batch.column(0).to_pylist())
    assert rows_seen == list(range(total))
    assert rebatcher.take(1) is None


def test_a_byte_limit_ends_a_batch_early_but_never_before_the_first_row():
    texts = ["a" * 10, "b" * 1000, "c" * 10, "d" * 10]
    rebatcher = Rebatcher([pa.record_batch({"x": texts})], max_bytes=100)
    batches = [rebatcher.take(10).column(0).to_pylist() for _ in range(3)]
    assert batches == [texts[:1], texts[1:2], texts[2:]]


def test_a_byte_limit_holds_over_the_batches_that_are_joined():
    rebatcher = Rebatcher(batches_of(*[[i] for i in range(10)]), max_bytes=33)
    assert [rebatcher.take(10).num_rows for _ in range(3)] == [4, 4, 2]


def test_a_large_batch_is_not_joined_with_the_next_batch():
    batches = batches_of(list(range(9)), [9], [10], list(range(11, 20)))
    rebatcher = Rebatcher(batches, max_bytes=100, max_joined_bytes=33)
    assert [rebatcher.take(12).num_rows for _ in range(3)] == [9, 4, 7]


def test_nothing_is_pulled_before_it_is_needed():
    source = Pulled(batches_of([1, 2, 3], [4, 5], [6]))
    rebatcher = Rebatcher(source)
    assert source.count == 0
    rebatcher.take(2)
    assert source.count == 1
    rebatcher.take(1)
    assert source.count == 1
    rebatcher.take(2)
    assert source.count == 2


def test_a_slice_of_one_batch_is_not_copied():
    batch = batches_of(list(range(1000)))[0]
    before = pa.total_allocated_bytes()
    taken_batch = Rebatcher([batch]).take(400)
    assert pa.total_allocated_bytes() == before
    assert taken_batch.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="0 rows"):
        Rebatcher([]).take(0)
    with pytest.raises(ValueError, match="max_bytes=0"):
        Rebatcher([], max_bytes=0)
