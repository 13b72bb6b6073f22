"""Row sets against Python's own sets, their stored form and its size."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.rows.row_set import RowSet

# Clusters and stray rows on both sides of a bitmap's containers of 65,536.
runs = st.tuples(st.integers(0, 200_000), st.integers(1, 40)).map(
    lambda run: range(run[0], sum(run))
)
offsets = st.lists(
    runs | st.integers(0, 2**32 - 1).map(lambda n: range(n, n + 1)), max_size=12
).map(lambda row_runs: {row for run in row_runs for row in run})


@given(offsets, offsets)
def test_a_row_set_behaves_like_a_set_of_numbers(left: set[int], right: set[int]) -> None:
    a, b = RowSet.of(left), RowSet.of(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (len(a), bool(a)) == (len(left), bool(left))
    assert (a == b, a <= b, a.isdisjoint(b)) == (
        left == right,
        left <= right,
        left.isdisjoint(right),
    )
    assert (a | b) == (b | a) and hash(a | b) == hash(b | a)
    assert all(row in a for row in left) and not any(row in a for row in right - left)
    assert a.to_numpy().tolist() == sorted(left) and a.to_numpy().dtype == np.int64


@given(offsets)
def test_a_stored_row_set_comes_back_the_same(rows: set[int]) -> None:
    row_set = RowSet.of(rows)
    assert RowSet.loads(row_set.dumps()) == row_set
    assert RowSet.from_text(row_set.to_text()) == row_set
    assert pickle.loads(pickle.dumps(row_set)) == row_set


@given(offsets, offsets)
def test_stored_forms_of_equal_sets_are_read_back_as_equal_sets(
    left: set[int], right: set[int]
) -> None:
    union, difference = RowSet.of(left) | RowSet.of(right), RowSet.of(left) - RowSet.of(right)
    assert RowSet.loads(union.dumps()) == RowSet.loads(RowSet.of(left | right).dumps()) == union
    assert (
        RowSet.loads(difference.dumps())
        == RowSet.loads(RowSet.of(left - right).dumps())
        == difference
    )


def test_a_dense_set_with_gaps_is_stored_as_small_as_a_scattered_one() -> None:
    every_third = RowSet.of(np.arange(0, 300_000, 3))
    dense = RowSet.span(0, 300_000) - RowSet.of([row for row in range(300_000) if row % 3])
    assert len(dense.dumps()) == len(every_third.dumps())
    assert RowSet.loads(dense.dumps()) == every_third


@given(offsets, st.integers(0, 200_100), st.integers(0, 100))
def test_a_window_of_rows_is_counted_and_masked(rows: set[int], start: int, length: int) -> None:
    row_set = RowSet.of(rows)
    inside = [row in rows for row in range(start, start + length)]
    assert row_set.mask(start, start + length).tolist() == inside
    assert row_set.count(start, start + length) == sum(inside)


@pytest.mark.parametrize("rows", [0, 1, 10_240, 10_000_000, 2**32])
def test_all_rows_of_a_fragment_take_a_byte_for_four_thousand(rows: int) -> None:
    everything = RowSet.span(0, rows)
    assert len(everything) == rows
    assert len(everything.dumps()) < 30 + rows / 4_000
    assert RowSet.loads(everything.dumps()) == everything


def test_many_sets_of_all_rows_but_a_few_compress_to_a_few_bytes_each() -> None:
    rows = RowSet.span(0, 1_000_000)
    stored = b"".join(
        (rows - RowSet.of([5 + i, 70_000 + i, 999_998 - i])).dumps() for i in range(1000)
    )
    assert len(pa.compress(stored, codec="zstd", asbytes=True)) < 1000 * 20


def test_every_other_row_takes_a_bit_a_row() -> None:
    assert len(RowSet.of(np.arange(0, 10_000_000, 2)).dumps()) < 10_000_000 / 8 * 1.01


def test_offsets_come_from_any_integers_in_any_order() -> None:
    expected = RowSet.of({1, 2, 9})
    assert RowSet.of(iter([9, 1, 2, 2])) == expected
    assert RowSet.of(np.array([9, 2, 1], dtype=np.uint64)) == expected
    assert RowSet.of(np.array([], dtype=np.int32)) == RowSet.empty() == RowSet.of([])
    assert 2**32 not in expected and -1 not in expected


@pytest.mark.parametrize("wrong", [[-1], [2**32], np.array([0.5]), np.array([True])])
def test_invalid_offsets_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="offsets"):
        RowSet.of(wrong)  # type: ignore[arg-type]


def test_a_span_outside_of_a_fragment_is_refused() -> None:
    with pytest.raises(ValueError, match="below 2\\^32"):
        RowSet.span(-1, 5)
    with pytest.raises(ValueError, match="below 2\\^32"):
        RowSet.span(0, 2**32 + 1)
    assert RowSet.span(5, 3) == RowSet.empty()


BITMAP = RowSet.of(np.arange(0, 1000, 3)).dumps()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        RowSet.span(0, 1000).dumps()[:-1],
        RowSet.span(0, 1000).dumps() + b"x",
        BITMAP[:-1],
        BITMAP + b"x",
    ],
)
def test_damaged_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no row set"):
        RowSet.loads(payload)


def test_damaged_text_is_refused() -> None:
    with pytest.raises(ValueError, match="row set"):
        RowSet.from_text("no base64!")
