"""Small batches are combined, large batches are passed on, and no batch waits for long."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.read.scan import MERGED_BYTES, merged


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    starts = itertools.accumulate(sizes, initial=0)
    return [
        pa.record_batch({"i": pa.array(range(start, start + size), pa.int64())})
        for start, size in zip(starts, sizes, strict=False)
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 150), max_size=40), st.integers(1, 100))
def test_no_row_is_lost_or_moved_and_no_batch_grows_too_big(sizes: list[int], rows: int):
    got = list(merged(batches_of(sizes), rows, clock=lambda: 0.0))
    assert [i for b in got for i in b.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(b.num_rows <= max([rows, *sizes]) for b in got)
    small = [2 * b.num_rows < rows for b in got]
    assert not any(map(all, itertools.pairwise(small)))


def test_many_small_batches_become_few():
    assert [b.num_rows for b in merged(batches_of([10] * 100), 400, clock=lambda: 0.0)] == [
        400,
        400,
        200,
    ]


def test_a_batch_of_half_the_rows_is_passed_on_as_it_is():
    (batch,) = batches_of([50])
    assert next(merged([batch], 100, clock=lambda: 0.0)) is batch


def test_rows_are_not_held_back_for_long():
    times = iter([0.0, 0.0, 5.0, 5.1])
    stream = merged(iter(batches_of([1, 1, 1])), 1000, clock=lambda: next(times))
    assert next(stream).num_rows == 2


def test_batches_of_many_bytes_are_not_put_together():
    wide = [pa.record_batch({"b": pa.array([b"x" * (MERGED_BYTES // 2 + 1)])}) for _ in range(3)]
    assert [b.num_rows for b in merged(wide, 1000, clock=lambda: 0.0)] == [1, 1, 1]


@pytest.mark.parametrize("nested", [False, True])
def test_batches_whose_dictionaries_have_no_room_for_each_others_values_are_passed_on_one_by_one(
    nested: bool,
):
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = []
    for number in range(3):
        column = pa.array([f"user-{number}-{i}" for i in range(60)]).dictionary_encode().cast(kind)
        array = pa.StructArray.from_arrays([column], ["d"]) if nested else column
        batches.append(pa.record_batch({"c": array}))
    got = list(merged(batches, 1000, clock=lambda: 0.0))
    assert [row for b in got for row in b.to_pylist()] == [
        row for b in batches for row in b.to_pylist()
    ]
