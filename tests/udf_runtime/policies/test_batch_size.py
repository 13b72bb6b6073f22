"""Checkpoint sizes, with a simulated clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.errors import UdfDefinitionError
from udf_runtime.policies import AdaptiveSize, CheckpointSizes, checkpoint_bounds
from udf_runtime.policies.batch_size import ThroughputSize


class Clock:
    """A clock under the control of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def sizes_of(adaptive: AdaptiveSize, clock: Clock, seconds_of, batches: int) -> list[int]:
    """Runs batches of simulated duration and returns their sizes."""
    sizes = []
    for _ in range(batches):
        rows = adaptive.next_rows()
        clock.now_s += seconds_of(rows)
        adaptive.record(rows)
        sizes.append(rows)
    return sizes


def test_the_batch_size_grows_until_a_batch_takes_the_target_time():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=1, maximum=100_000, initial=1, target_s=10.0, clock=clock)
    assert sizes_of(adaptive, clock, lambda rows: rows / 512, 4) == [1, 8, 64, 512]
    assert not adaptive.is_settled
    assert sizes_of(adaptive, clock, lambda rows: rows / 512, 4) == [4096, 5120, 5120, 5120]
    assert adaptive.is_settled


def test_it_stays_within_its_bounds_and_falls_when_rows_become_slow():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=10, maximum=200, initial=10, clock=clock)
    assert sizes_of(adaptive, clock, lambda rows: rows / 1000, 4) == [10, 80, 200, 200]
    assert sizes_of(adaptive, clock, lambda rows: rows * 1.0, 3) == [200, 10, 10]


def test_it_does_not_grow_while_the_speed_is_not_stable():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=1, maximum=100_000, initial=100, clock=clock)
    adaptive.record(100, 0.1)
    assert adaptive.next_rows() == 800
    adaptive.record(800, 4.0)  # 200 rows a second after 1000
    assert adaptive.next_rows() == 800
    adaptive.record(800, 4.0)
    assert adaptive.next_rows() == 2000


def test_a_constant_cost_per_call_does_not_keep_it_small():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=1, maximum=10_240, initial=1, clock=clock)
    assert sizes_of(adaptive, clock, lambda rows: 0.5 + rows * 0.001, 12)[-1] > 9000


def test_the_short_rest_of_a_fragment_says_nothing():
    adaptive = AdaptiveSize(minimum=1, maximum=100_000, initial=1000)
    adaptive.record(1000, 1.0)
    assert adaptive.next_rows() == 8000
    adaptive.record(3, 0.9)
    adaptive.record(0, 0.0)
    assert adaptive.next_rows() == 8000


def test_a_clock_that_stands_still_is_no_reason_for_an_endless_size():
    adaptive = AdaptiveSize(minimum=1, maximum=10_240, initial=1)
    adaptive.record(1, 0.0)
    assert adaptive.next_rows() == 8


def test_equal_bounds_are_a_fixed_size():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=64, maximum=64, initial=64, clock=clock)
    assert set(sizes_of(adaptive, clock, lambda rows: rows * 3.0, 5)) == {64}


@given(
    bounds=st.tuples(st.integers(1, 20_000), st.integers(1, 20_000)).map(sorted),
    initial=st.integers(1, 30_000),
    seconds=st.lists(st.floats(0, 1e6), max_size=20),
)
def test_no_size_is_ever_outside_of_the_bounds_or_more_than_eight_times_the_last(
    bounds, initial, seconds
):
    adaptive = AdaptiveSize(minimum=bounds[0], maximum=bounds[1], initial=initial)
    last = adaptive.next_rows()
    for duration in seconds:
        adaptive.record(last, duration)
        rows = adaptive.next_rows()
        assert bounds[0] <= rows <= bounds[1]
        assert rows <= last * 8
        last = rows


@given(speed=st.floats(0.5, 1e6))
def test_at_a_constant_speed_it_arrives_at_the_target_time(speed: float):
    clock = Clock()
    adaptive = AdaptiveSize(minimum=1, maximum=10**9, initial=1, target_s=10.0, clock=clock)
    sizes = sizes_of(adaptive, clock, lambda rows: rows / speed, 15)
    assert sizes[-1] == pytest.approx(speed * 10, rel=0.01, abs=1)
    assert all(
        after >= before - 1 for before, after in itertools.pairwise(sizes)
    )  # the clock rounds


def test_sizes_hold_full_calls():
    clock = Clock()
    adaptive = AdaptiveSize(minimum=512, maximum=10_240, initial=512, call_rows=512, clock=clock)
    assert sizes_of(adaptive, clock, lambda rows: rows / 700, 4) == [512, 4096, 6656, 6656]


@pytest.mark.parametrize(
    ("checkpoint_size", "call_rows", "expected"),
    [
        (None, 512, (512, 10_240, 512)),
        (1000, 64, (64, 960, 960)),
        (100, 64, (64, 64, 64)),
        (50, 64, (50, 50, 50)),
        (None, 1, (1, 10_240, 1)),
    ],
)
def test_checkpoints_hold_full_calls(checkpoint_size, call_rows, expected):
    udf = CheckpointSizes(checkpoint_size=checkpoint_size)
    assert checkpoint_bounds(call=CheckpointSizes(), udf=udf, call_rows=call_rows) == expected


def sizes_by_throughput(seconds_of, calls: int) -> list[int]:
    """Returns the automatic sizes of calls of simulated duration."""
    clock = Clock()
    size = ThroughputSize(clock=clock)
    rows = []
    for _ in range(calls):
        rows.append(size.next_rows())
        clock.now_s += seconds_of(rows[-1])
        size.record(rows[-1], seconds_of(rows[-1]))
    return rows


@pytest.mark.parametrize(
    ("seconds_of", "best"),
    [
        (lambda rows: rows * 0.001, 16),  # the cost of a row alone: no gain from larger calls
        (lambda rows: 0.05 if rows <= 256 else rows * 0.001, 256),
        (lambda rows: 1.0, 16 << 16),  # the cost of a call alone
    ],
)
def test_an_automatic_size_doubles_while_the_throughput_grows(seconds_of, best):
    rows = sizes_by_throughput(seconds_of, 200)
    assert all(
        after in (before, before * 2)
        for before, after in itertools.pairwise(rows)
        if after >= before
    )
    assert rows[-1] == rows[-100]
    assert rows[-1] >= best if best > 1000 else rows[-1] == best


def test_an_automatic_size_is_final_after_a_minute():
    rows = sizes_by_throughput(lambda rows: 12.0, 20)
    assert len(set(rows[6:])) == 1


def test_short_calls_and_the_first_call_are_not_measured():
    size = ThroughputSize()
    size.record(16, 100.0)
    for _ in range(3):
        size.record(16, 0.1)
        size.record(5, 100.0)
    assert size.next_rows() == 16
    size.record(16, 0.1)
    assert size.next_rows() == 32


def test_impossible_bounds_are_refused():
    for bounds in ({"minimum": 0, "maximum": 5}, {"minimum": 6, "maximum": 5}):
        with pytest.raises(UdfDefinitionError):
            AdaptiveSize(initial=1, **bounds)
    with pytest.raises(UdfDefinitionError):
        CheckpointSizes(checkpoint_size=0)


@pytest.mark.parametrize(
    ("call", "udf", "expected"),
    [
        ((None, None, None), (None, None, None), (1, 10_240, 1)),
        ((None, None, None), (500, None, None), (1, 500, 500)),
        ((100, None, None), (500, None, None), (1, 100, 100)),
        ((None, None, None), (None, 25, 200), (25, 200, 25)),
        ((None, 10, 100), (None, 25, 200), (10, 100, 10)),
        (
            (None, None, 50_000),
            (None, None, None),
            (1, 10_240, 1),
        ),  # the most is capped at the checkpoint size
        ((None, None, 300), (1000, None, None), (1, 300, 300)),
        (
            (10, None, None),
            (None, 25, 200),
            (10, 10, 10),
        ),  # the call's cap comes before the UDF's least
        (
            (None, 500, None),
            (None, 25, 200),
            (500, 500, 500),
        ),  # and the call's least before the UDF's most
        ((None, 64, 64), (None, None, None), (64, 64, 64)),
    ],
)
def test_the_call_comes_before_the_udf_and_the_checkpoint_size_caps_the_most(call, udf, expected):
    names = ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size")
    bounds = checkpoint_bounds(
        call=CheckpointSizes(**dict(zip(names, call, strict=True))),
        udf=CheckpointSizes(**dict(zip(names, udf, strict=True))),
    )
    assert bounds == expected


@pytest.mark.parametrize("call", [(None, 20, 10), (10, 20, None), (None, 20_000, None)])
def test_a_least_above_the_most_is_refused(call):
    sizes = CheckpointSizes(
        checkpoint_size=call[0], min_checkpoint_size=call[1], max_checkpoint_size=call[2]
    )
    with pytest.raises(UdfDefinitionError, match="above the largest checkpoint"):
        checkpoint_bounds(call=sizes, udf=CheckpointSizes())
