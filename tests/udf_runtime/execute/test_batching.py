"""The batches of calls: exact sizes and orders of every kind, and values as without batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.execute.cases import INT, batches_of, failed_rows, make, run, values_of
from udf_runtime.definition import Kind
from udf_runtime.errors import UdfFailedError, UdfOutputError
from udf_runtime.execute import UdfRunner
from udf_runtime.policies import Retry, Skip, skip_on_error

VECTOR_KINDS = [Kind.ARROW, Kind.PANDAS, Kind.RECORD_BATCH]
STREAM_KINDS = [Kind.ARROW_ITER, Kind.PANDAS_ITER, Kind.RECORD_BATCH_ITER]


def items_of(argument) -> list[int | None]:
    """Returns the values of a call's argument of any kind."""
    if isinstance(argument, pa.RecordBatch):
        argument = argument.column(0)
    return pa.array(argument, from_pandas=True).to_pylist()


def doubling(
    kind: Kind, calls: list[list[int | None]], bad: frozenset[int] = frozenset(), **options
):
    """Returns a UDF that doubles values, logs the rows of its calls, and raises for bad values."""

    def double(argument) -> pa.Array:
        rows = items_of(argument)
        calls.append(rows)
        for row in rows:
            if row in bad:
                raise ValueError(f"bad {row}")
        return pa.array([None if row is None else 2 * row for row in rows], INT)

    def double_each(arguments: Iterator) -> Iterator[pa.Array]:
        return (double(argument) for argument in arguments)

    return make(double_each if kind.iterates else double, kind, **options)


@pytest.mark.parametrize("kind", [*VECTOR_KINDS, *STREAM_KINDS])
def test_a_call_has_batch_size_rows_of_a_single_batch(kind: Kind):
    calls: list[list[int | None]] = []
    results = run(
        doubling(kind, calls, batch_size=3), *batches_of(range(7), [], range(2), range(3))
    )
    assert [len(rows) for rows in calls] == [3, 3, 1, 2, 3]
    assert values_of(results) == [[0, 2, 4, 6, 8, 10, 12], [], [0, 2], [0, 2, 4]]


def test_a_call_of_a_scalar_udf_has_one_row_and_its_batch_is_converted_at_once():
    calls: list[int] = []
    results = run(make(lambda x: calls.append(x) or x, batch_size=2), *batches_of(range(5)))
    assert calls == values_of(results)[0] == list(range(5))


@pytest.mark.parametrize("kind", [Kind.ARROW, Kind.ARROW_ITER])
def test_a_child_process_cuts_its_batches(kind: Kind, tmp_path):
    def log_sizes(x: pa.Array) -> pa.Array:
        with (tmp_path / "log").open("a") as file:
            file.write(f"{len(x)} ")
        return x

    def log_each(xs: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return map(log_sizes, xs)

    udf = make(
        log_each if kind.iterates else log_sizes, kind, batch_size=4, sort_batch_by=pc.negate
    )
    assert values_of(run(udf, *batches_of(range(10), range(2)), isolate=True)) == [
        list(range(10)),
        [0, 1],
    ]
    assert (tmp_path / "log").read_text() == "4 4 2 2 "


@pytest.mark.parametrize("kind", [*VECTOR_KINDS, *STREAM_KINDS])
def test_rows_are_sorted_within_a_batch_and_values_return_in_order(kind: Kind):
    calls: list[list[int | None]] = []
    key = (lambda batch: pc.negate(batch.column(0))) if kind.takes_batches else pc.negate
    udf = doubling(kind, calls, batch_size=2, sort_batch_by=key)
    results = run(udf, *batches_of([1, 4, 2, 5, 3], [1, 9]))
    assert calls == [[5, 4], [3, 2], [1], [9, 1]]
    assert values_of(results) == [[2, 8, 4, 10, 6], [2, 18]]


def test_a_column_sorts_rows_with_null_last():
    calls: list[list[int | None]] = []
    results = run(
        doubling(Kind.ARROW, calls, batch_size=2, sort_batch_by="x"), *batches_of([3, None, 1, 2])
    )
    assert calls == [[1, 2], [3, None]]
    assert values_of(results) == [[6, None, 2, 4]]


@pytest.mark.parametrize("kind", [Kind.ARROW, Kind.ARROW_ITER])
def test_an_error_names_the_row_of_the_runners_batch(kind: Kind):
    calls: list[list[int | None]] = []
    udf = doubling(kind, calls, frozenset([1]), batch_size=1, sort_batch_by=pc.negate)
    with pytest.raises(UdfFailedError, match="bad 1") as caught:
        run(udf, *batches_of([9], [4, 1, 3, 2]))
    assert caught.value.row == 1
    assert calls == [[9], [4], [3], [2], [1]]
    with pytest.raises(UdfOutputError, match="row 2 of the batch") as misfit:
        run(
            make(
                lambda x: pc.multiply(x, 100),
                Kind.ARROW,
                pa.int8(),
                batch_size=2,
                sort_batch_by=pc.negate,
            ),
            *batches_of([0, 1, 2, 1]),
        )
    assert misfit.value.row == 2


@pytest.mark.parametrize("kind", [Kind.ARROW, Kind.ARROW_ITER])
def test_skipped_rows_cost_calls_of_their_own_batch_only(kind: Kind):
    calls: list[list[int | None]] = []
    udf = doubling(kind, calls, frozenset([5]), batch_size=4, on_error=skip_on_error())
    (result,) = run(udf, *batches_of(range(12)))
    assert failed_rows(result) == [5]
    assert [failure.message for failure in result.failures] == ["bad 5"]
    assert result.values.to_pylist() == [None if row == 5 else 2 * row for row in range(12)]
    assert (
        sum(rows == [0, 1, 2, 3] for rows in calls)
        == sum(rows == [8, 9, 10, 11] for rows in calls)
        == 1
    )


def test_a_key_that_cannot_sort_ends_the_run_with_a_sentence():
    def fail(x):
        raise KeyError("no key")

    with pytest.raises(UdfFailedError, match="no key") as caught:
        run(doubling(Kind.ARROW, [], sort_batch_by=fail), *batches_of([1, 2]))
    assert "sort_batch_by of UDF" in "".join(caught.value.__cause__.__notes__)  # type: ignore[union-attr]
    with pytest.raises(UdfOutputError, match="returned 1 keys for a batch of 2 rows"):
        run(doubling(Kind.ARROW, [], sort_batch_by=lambda x: x[:1]), *batches_of([1, 2]))


def test_threads_cut_their_batches_at_once():
    calls: list[list[int | None]] = []
    with UdfRunner(
        doubling(Kind.ARROW, calls, batch_size=3, sort_batch_by=pc.negate), threads=4
    ) as runner:
        results = list(runner.run(batches_of(*[range(10)] * 8)))
    assert values_of(results) == [[2 * row for row in range(10)]] * 8
    assert sorted(len(rows) for rows in calls) == [1] * 8 + [3] * 24


def test_an_automatic_size_keeps_the_best_throughput():
    calls: list[int] = []
    clock_s = 0.0

    def work(x: pa.Array) -> pa.Array:
        nonlocal clock_s
        calls.append(len(x))
        clock_s += 0.1 + max(0, len(x) - 256) * 0.01  # a batch of 256 fits the model
        return x

    results = run(
        make(work, Kind.ARROW, batch_size="auto"),
        *batches_of(*[range(5000)] * 3),
        clock=lambda: clock_s,
    )
    assert sum(map(len, values_of(results))) == 15_000
    assert calls[:6] == [16] * 5 + [32]
    assert set(calls[:21]) == {16, 32, 64, 128, 256}
    assert set(calls[40:]) <= {256, 5000 % 256, *range(256)}
    assert calls.count(256) > 40


def test_runners_of_a_process_share_the_automatic_size():
    calls: list[int] = []
    clock_s = 0.0

    def clock() -> float:
        return clock_s

    def work(x: pa.Array) -> pa.Array:
        nonlocal clock_s
        calls.append(len(x))
        clock_s += 0.1 + max(0, len(x) - 32) * 0.01
        return x

    for _ in range(2):
        run(make(work, Kind.ARROW, batch_size="auto"), *batches_of(range(1000)), clock=clock)
    assert calls[0] == 16
    assert calls[-10:-1] == [32] * 9
    assert calls.count(16) == 5


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([Kind.ARROW, Kind.PANDAS, Kind.ARROW_ITER]),
    batches=st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=20), max_size=5),
    batch_size=st.one_of(st.none(), st.just("auto"), st.integers(1, 25)),
    sort_batch_by=st.sampled_from([None, "x", pc.negate, pc.abs]),
    bad=st.frozensets(st.integers(-9, 9), max_size=4),
    on_error=st.sampled_from(
        [[Skip(ValueError)], [Retry(ValueError, max_attempts=2), Skip(ValueError)]]
    ),
)
def test_values_and_failures_are_those_of_the_function(
    kind, batches, batch_size, sort_batch_by, bad, on_error
):
    options = {"batch_size": batch_size, "sort_batch_by": sort_batch_by, "on_error": on_error}
    results = run(doubling(kind, [], bad, **options), *batches_of(*batches))
    assert values_of(results) == [
        [None if x is None or x in bad else 2 * x for x in batch] for batch in batches
    ]
    for result, batch in zip(results, batches, strict=True):
        assert failed_rows(result) == [row for row, x in enumerate(batch) if x in bad]
        assert [failure.message for failure in result.failures] == [
            f"bad {x}" for x in batch if x in bad
        ]
