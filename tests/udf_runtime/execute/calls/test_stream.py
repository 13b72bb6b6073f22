"""UDFs with iterators: one generator over many batches, and its restart after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.udf_runtime.execute.cases import Pulled, batches_of, failed_rows, make, run, values_of
from udf_runtime.definition import Kind
from udf_runtime.errors import UdfFailedError, UdfOutputError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.calls.stream import MOST_READ_AHEAD
from udf_runtime.policies import retry_all, skip_on_error

Arrays = Iterator[pa.Array]


class Doubler:
    """A generator function that counts its starts and raises for some values."""

    def __init__(self, bad: set[int] = frozenset()) -> None:
        self.bad = set(bad)
        self.starts = 0
        self.seen: list[list[int]] = []

    def __call__(self, batches: Arrays) -> Arrays:
        self.starts += 1
        for batch in batches:
            self.seen.append(batch.to_pylist())
            if self.bad & set(self.seen[-1]):
                raise ValueError(self.seen[-1])
            yield pc.multiply(batch, 2)


def doubling(work: Doubler, **options):
    return make(lambda batches: work(batches), Kind.ARROW_ITER, **options)  # noqa: PLW0108 - a callable object would be copied


def test_one_generator_serves_all_batches_and_empty_ones_keep_their_place():
    work = Doubler()
    results = run(doubling(work), *batches_of([], [1, 2], [], [3], [4], []), threads=2)
    assert values_of(results) == [[], [2, 4], [], [6], [8], []]
    assert work.starts == 1 and work.seen == [[1, 2], [3], [4]]


def test_batches_are_pulled_one_at_a_time():
    source = Pulled(batches_of([1], [2], [3]))
    with UdfRunner(doubling(Doubler())) as runner:
        results = runner.run(source)
        assert source.count == 0
        next(results)
        assert source.count == 1
        next(results)
        assert source.count == 2


def test_several_inputs_come_as_tuples_and_record_batches_whole():
    batch = pa.record_batch({"a": [1, 2], "b": [10, 20]})
    adds = make(lambda pairs: (a + b for a, b in pairs), Kind.PANDAS_ITER, inputs=["a", "b"])
    assert values_of(run(adds, batch, batch)) == [[11, 22], [11, 22]]
    seconds = make(lambda rows: (row.column("b") for row in rows), Kind.RECORD_BATCH_ITER)
    assert values_of(run(seconds, batch)) == [[10, 20]]
    assert values_of(
        run(make(lambda s: (x + 1 for x in s), Kind.PANDAS_ITER), *batches_of([1]))
    ) == [[2]]
    assert pd is not None


def test_a_function_may_read_ahead_and_one_that_wants_everything_sees_the_end_after_some_batches():
    batches_read: list[int] = []

    def collects(batches: Arrays) -> Arrays:
        all_of_them = list(batches)
        batches_read.append(len(all_of_them))
        yield from all_of_them

    results = run(make(collects, Kind.ARROW_ITER), *batches_of(*[[i] for i in range(10)]))
    assert values_of(results) == [[i] for i in range(10)]
    assert batches_read == [MOST_READ_AHEAD, MOST_READ_AHEAD, 2]


def test_a_function_that_ends_after_each_batch_is_started_again():
    starts: list[int] = []

    def single_batch(batches: Arrays) -> Arrays:
        starts.append(1)
        yield next(batches)

    assert values_of(run(make(single_batch, Kind.ARROW_ITER), *batches_of([1], [2], [3]))) == [
        [1],
        [2],
        [3],
    ]
    assert len(starts) == 3


def test_an_error_costs_only_its_rows_and_the_generator_is_started_again():
    work = Doubler({4})
    results = run(
        doubling(work, on_error=skip_on_error()), *batches_of([1, 2], [3, 4, 5], [6], [7])
    )
    assert values_of(results) == [[2, 4], [6, None, 10], [12], [14]]
    assert [failed_rows(result) for result in results] == [[], [1], [], []]
    assert work.seen == [[1, 2], [3, 4, 5], [3], [4, 5], [4], [5], [6], [7]]


def test_a_retry_runs_the_failed_batch_alone():
    work = Doubler({4})

    def heals(batches: Arrays) -> Arrays:
        if work.starts:
            work.bad = set()
        return work(batches)

    results = run(make(heals, Kind.ARROW_ITER, on_error=retry_all()), *batches_of([1], [4], [5]))
    assert values_of(results) == [[2], [8], [10]]
    assert work.seen == [[1], [4], [4], [5]] and results[1].retries == 1


def test_with_batches_read_ahead_each_of_them_is_tried_alone():
    def read_ahead(batches: Arrays) -> Arrays:
        all_batches = list(batches)
        for batch in all_batches:
            if 2 in batch.to_pylist():
                raise ValueError
        yield from all_batches

    results = run(
        make(read_ahead, Kind.ARROW_ITER, on_error=skip_on_error()), *batches_of([1], [2], [], [3])
    )
    assert values_of(results) == [[1], [None], [], [3]]


def test_an_error_without_a_policy_ends_the_run_behind_the_results_before_it():
    with UdfRunner(doubling(Doubler({2}))) as runner:
        results = runner.run(batches_of([1], [2], [3]))
        assert next(results).values.to_pylist() == [2]
        with pytest.raises(UdfFailedError, match="ValueError"):
            next(results)


def test_an_error_of_the_source_is_not_blamed_on_the_function():
    def source() -> Iterator[pa.RecordBatch]:
        yield from batches_of([1])
        raise OSError("the disk is gone")

    with UdfRunner(doubling(Doubler(), on_error=skip_on_error())) as runner:
        results = runner.run(source())
        assert next(results).values.to_pylist() == [2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(results)


def test_too_few_and_too_many_results_are_errors():
    def drops(batches: Arrays) -> Arrays:
        for batch in batches:
            if batch[0].as_py() != 2:
                yield batch

    with pytest.raises(UdfOutputError, match="ended after"):
        run(make(drops, Kind.ARROW_ITER), *batches_of([1], [2]))
    with pytest.raises(UdfOutputError, match="more results than"):
        run(
            make(lambda batches: (b for batch in batches for b in (batch, batch)), Kind.ARROW_ITER),
            *batches_of([1], [2]),
        )
    with pytest.raises(UdfOutputError, match="instead of an iterator"):
        run(make(lambda batches: 3, Kind.ARROW_ITER), *batches_of([1]))


def test_a_result_that_does_not_fit_is_settled_while_the_generator_lives_on():
    starts: list[int] = []

    def work(batches: Arrays) -> Arrays:
        starts.append(1)
        for batch in batches:
            yield batch.filter(pc.not_equal(batch, 2))

    results = run(
        make(work, Kind.ARROW_ITER, on_error=skip_on_error()), *batches_of([1], [2, 3], [4])
    )
    assert values_of(results) == [[1], [None, 3], [4]]
    assert len(starts) == 3  # the stream, and a restart for each half


def test_an_error_behind_the_last_result_is_not_lost():
    def work(batches: Arrays) -> Arrays:
        yield from batches
        raise ValueError("while closing the model")

    with pytest.raises(UdfFailedError, match="while closing the model"):
        run(make(work, Kind.ARROW_ITER, on_error=skip_on_error()), *batches_of([1]))


def test_a_run_that_is_left_early_closes_the_generator():
    closed: list[bool] = []

    def work(batches: Arrays) -> Arrays:
        try:
            yield from batches
        finally:
            closed.append(True)

    with UdfRunner(make(work, Kind.ARROW_ITER)) as runner:
        results = runner.run(batches_of([1], [2]))
        next(results)
        results.close()
    assert closed == [True]
