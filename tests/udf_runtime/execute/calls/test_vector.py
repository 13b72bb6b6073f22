"""UDFs of whole batches: inputs, allowed results, and halving under a policy."""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.execute.cases import INT, batches_of, failed_rows, make, run, values_of
from udf_runtime.definition import Columns, Kind, udf
from udf_runtime.errors import UdfFailedError, UdfOutputError
from udf_runtime.policies import Fail, Retry, Skip, retry_all, skip_on_error


class Size(NamedTuple):
    height: int
    name: str


SIZE = pa.struct([("height", pa.int64()), ("name", pa.string())])


def test_arrow_udfs_get_arrays_and_record_batch_udfs_the_batch():
    batch = pa.record_batch({"a": [1, 2], "b": [10, None]})
    assert values_of(run(make(pc.add, Kind.ARROW, inputs=["a", "b"]), batch)) == [[11, None]]
    assert values_of(run(make(lambda rows: rows.column("b"), Kind.RECORD_BATCH), batch)) == [
        [10, None]
    ]


def test_an_arrow_udf_costs_no_copy():
    batch = batches_of(list(range(100_000)))[0]
    gc.collect()  # garbage of earlier tests may hold buffers
    before = pa.total_allocated_bytes()
    result = run(make(lambda x: x, Kind.ARROW), batch)[0]
    assert result.values.buffers()[1].address == batch.column(0).buffers()[1].address
    assert pa.total_allocated_bytes() <= before


def test_no_python_object_is_made_per_row():
    batch = batches_of(list(range(200_000)))[0]
    for kind, work in ((Kind.ARROW, lambda x: pc.multiply(x, 2)), (Kind.PANDAS, lambda x: x * 2)):
        run(make(work, kind), *batches_of([1]))
        before = sys.getallocatedblocks()
        results = run(make(work, kind), batch)
        assert sys.getallocatedblocks() - before < 10_000
        assert len(results[0].values) == 200_000


def test_series_keep_large_integers_beside_nulls():
    types_seen: list[str] = []

    def work(x: pd.Series) -> pd.Series:
        types_seen.append(str(x.dtype))
        return x + 1

    big = 2**60 + 1
    results = run(make(work, Kind.PANDAS), *batches_of([big, 2], [big, None]))
    assert values_of(results) == [[big + 1, 3], [big + 1, None]]
    assert types_seen == ["int64", "int64[pyarrow]"]


def test_nan_is_null_for_pandas_udfs_only():
    batch = pa.record_batch({"x": pa.array([1.0, None, math.nan])})
    for kind in (Kind.PANDAS, Kind.PANDAS_ITER):
        work = (lambda x: x) if kind is Kind.PANDAS else (lambda batches: batches)
        assert run(make(work, kind, pa.float64()), batch)[0].values.to_pylist() == [1.0, None, None]
    arrow = run(make(lambda x: x, Kind.ARROW, pa.float64()), batch)[0].values
    assert arrow.null_count == 1 and math.isnan(arrow[2].as_py())


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (pd.Series([1.0, math.nan]), [1, None]),  # floats because of a missing value
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series([1, None], dtype=object), [1, None]),
        (pd.Series([1, 2], dtype="int8"), [1, 2]),
        (np.array([1, 2], np.int32), [1, 2]),
        ([1, None], [1, None]),
    ],
)
def test_pandas_udfs_may_return_series_arrays_and_lists(returned, expected):
    result = run(make(lambda x: returned, Kind.PANDAS), *batches_of([0, 0]))[0].values
    assert result.type == INT and result.to_pylist() == expected


@pytest.mark.parametrize(
    ("data_type", "returned"),
    [
        (pa.int64(), pa.array([1, 2], pa.int32())),
        (pa.int8(), pa.array([1, 2])),
        (pa.float32(), pa.array([1.5, 2.5])),
        (pa.int64(), pa.chunked_array([[1], [2]])),
        (pa.string(), pa.array(["a", None]).dictionary_encode()),
        (pa.large_string(), pa.array(["a", "b"])),
        (pa.list_(pa.float32(), 2), pa.array([[1.0, 2.0], None])),
        (pa.list_(pa.float32(), 2), np.ones((2, 2))),
        (pa.int64(), pa.nulls(2)),
        (pa.timestamp("us"), pa.array([1, 2], pa.timestamp("s"))),
        (pa.fixed_shape_tensor(pa.int64(), [2]), pa.array([[1, 2], [3, 4]])),
    ],
)
def test_safe_casts_give_exactly_the_type(data_type, returned):
    result = run(make(lambda x: returned, Kind.ARROW, data_type), *batches_of([0, 0]))[0].values
    assert result.type == data_type and len(result) == 2 and not isinstance(result, pa.ChunkedArray)


@pytest.mark.parametrize(
    ("data_type", "returned", "row"),
    [
        (pa.int8(), pa.array([1, 300]), 1),
        (pa.int64(), pa.array([1.0, 1.5]), 1),
        (pa.list_(pa.float32(), 2), pa.array([[1.0, 2.0], [3.0]]), 1),
        (pa.int64(), pa.array(["1", "2"]), None),
        (pa.string(), pa.array([1, 2]), None),
        (pa.int64(), pa.array([True, False]), None),
        (pa.int64(), "text", None),
        (pa.int64(), None, None),
        (SIZE, pa.record_batch({"height": [1, 2]}), None),
        (SIZE, pa.record_batch({"height": [1, 2], "name": ["a", "b"], "x": [1, 2]}), None),
        (pa.int64(), pa.record_batch({"height": [1, 2]}), None),
    ],
)
def test_results_that_do_not_fit_say_what_was_expected_and_which_row_it_was(
    data_type, returned, row
):
    with pytest.raises(
        UdfOutputError, match=r"UDF '.*' returned .*(expected|does not fit)|that is no"
    ) as caught:
        run(make(lambda x: returned, Kind.ARROW, data_type), *batches_of([0, 0]))
    assert caught.value.row == row


def test_a_skipped_misfit_names_its_row_in_the_whole_batch():
    work = make(
        lambda x: pc.multiply(x, 2**40), Kind.ARROW, pa.int32(), on_error=Skip(UdfOutputError)
    )
    result = run(work, *batches_of([0, 0, 0, 1]))[0]
    assert failed_rows(result) == [3]
    assert "row 3 of the batch" in result.failures[0].message
    moved = result.failures[0].renumber(rows=8, depth=1)
    assert (moved.row, "row 11 of the batch" in moved.message) == (11, True)


def test_a_wrong_number_of_rows_says_both_numbers():
    def short(x: pa.Array) -> pa.Array:
        return x[2:]

    with pytest.raises(UdfOutputError, match="UDF 'short' returned 998 rows for a batch of 1000"):
        run(make(short, Kind.ARROW), *batches_of(list(range(1000))))


@pytest.mark.parametrize(
    "returned",
    [
        pa.StructArray.from_arrays(
            [pa.array(["a", "b"]), pa.array([1, 2], pa.int32())], names=["name", "height"]
        ),
        pa.record_batch({"name": ["a", "b"], "height": [1, 2]}),
        pa.table({"height": [1, 2], "name": ["a", "b"]}),
        pd.DataFrame({"name": ["a", "b"], "height": [1, 2]}),
        {"name": pa.array(["a", "b"]), "height": np.array([1, 2])},
        Size(pa.array([1, 2]), pd.Series(["a", "b"])),
    ],
    ids=["struct", "batch", "table", "frame", "dict", "NamedTuple"],
)
def test_columns_come_as_structs_or_as_columns_in_any_order(returned):
    @udf
    def sizes(x: pa.Array) -> Columns[Size]:
        return returned

    result = run(sizes, *batches_of([0, 0]))[0].values
    assert result.type == SIZE
    assert result.to_pylist() == [{"height": 1, "name": "a"}, {"height": 2, "name": "b"}]


def test_null_structs_survive_reordering_and_slicing():
    structs = pa.array(
        [None, {"name": "a", "height": 1}, None, {"name": None, "height": 2}],
        pa.struct([("name", pa.string()), ("height", pa.int64())]),
    )
    result = run(make(lambda x: structs.slice(1), Kind.ARROW, SIZE), *batches_of([0, 0, 0]))[
        0
    ].values
    assert result.to_pylist() == [{"height": 1, "name": "a"}, None, {"height": 2, "name": None}]


@settings(deadline=None)
@given(rows=st.integers(1, 300), bad=st.sets(st.integers(0, 299), max_size=5))
def test_halving_finds_k_bad_rows_in_k_log_n_calls_and_keeps_what_worked(rows, bad):
    calls = 0
    worked: Counter[int] = Counter()

    def work(x: pa.Array) -> pa.Array:
        nonlocal calls
        calls += 1
        if bad & set(x.to_pylist()):
            raise ValueError
        worked.update(x.to_pylist())
        return x

    result = run(make(work, Kind.ARROW, on_error=skip_on_error()), *batches_of(list(range(rows))))[
        0
    ]
    bad_rows = {row for row in bad if row < rows}
    assert failed_rows(result) == sorted(bad_rows)
    assert result.values.to_pylist() == [None if row in bad_rows else row for row in range(rows)]
    assert calls <= 1 + 2 * len(bad_rows) * math.ceil(math.log2(rows) if rows > 1 else 0)
    assert worked == {row: 1 for row in range(rows) if row not in bad_rows}
    assert all(failure.bisect_depth <= math.ceil(math.log2(rows)) for failure in result.failures)


def test_an_output_that_does_not_fit_is_halved_like_any_error():
    def drops_three(x: pa.Array) -> pa.Array:
        return x.filter(pc.not_equal(x, 3))

    result = run(
        make(drops_three, Kind.ARROW, on_error=Skip(UdfOutputError)), *batches_of(list(range(10)))
    )[0]
    assert (
        failed_rows(result) == [3]
        and result.failures[0].error_type == "udf_runtime.errors.UdfOutputError"
    )
    assert result.failures[0].trace.count("udf_runtime/execute/conversion/outputs") == 0


def test_a_batch_is_retried_as_a_whole_before_it_is_halved():
    sizes: list[int] = []

    def flaky(x: pa.Array) -> pa.Array:
        sizes.append(len(x))
        if len(sizes) < 3:
            raise ConnectionError
        return x

    result = run(
        make(flaky, Kind.ARROW, on_error=[Retry(max_attempts=3), Skip()]),
        *batches_of(list(range(8))),
    )[0]
    assert sizes == [8, 8, 8] and result.retries == 2 and not result.failures


def test_on_the_way_down_only_the_row_that_is_alone_is_retried():
    sizes: list[int] = []

    def work(x: pa.Array) -> pa.Array:
        sizes.append(len(x))
        if 2 in x.to_pylist():
            raise ValueError
        return x

    result = run(
        make(work, Kind.ARROW, on_error=[Retry(max_attempts=2), Skip()]),
        *batches_of(list(range(8))),
    )[0]
    assert sizes == [8, 8, 4, 2, 2, 1, 1, 1, 4]
    failure = result.failures[0]
    assert (failure.row, failure.attempt, failure.max_attempts, failure.bisect_depth) == (
        2,
        2,
        2,
        3,
    )


def test_an_error_that_is_not_skipped_is_retried_in_a_half_and_ends_the_run_with_its_row_if_it_is_alone():
    calls: list[list[int]] = []

    def work(x: pa.Array) -> pa.Array:
        calls.append(x.to_pylist())
        if 1 in calls[-1]:
            raise KeyError if len(x) == 1 else ValueError
        if 2 in calls[-1] and sum(2 in call for call in calls if 1 not in call) < 2:
            raise ConnectionError
        return x

    policy = [Fail(KeyError), Retry(ConnectionError), Skip(ValueError)]
    with pytest.raises(UdfFailedError) as caught:
        run(make(work, Kind.ARROW, on_error=policy), *batches_of([0, 1]))
    assert (caught.value.row, caught.value.error_type) == (1, "KeyError")
    calls.clear()
    policy = [Retry(ConnectionError), Skip(ValueError, KeyError)]
    result = run(make(work, Kind.ARROW, on_error=policy), *batches_of([0, 1, 2, 3]))[0]
    assert failed_rows(result) == [1] and calls[-2:] == [[2, 3], [2, 3]]


def test_without_a_skip_a_used_up_retry_ends_the_run_without_halving():
    sizes: list[int] = []

    def work(x: pa.Array) -> pa.Array:
        sizes.append(len(x))
        raise OSError("down")

    with pytest.raises(UdfFailedError, match="attempt 3 of 3") as caught:
        run(make(work, Kind.ARROW, on_error=retry_all()), *batches_of([1, 2]))
    assert sizes == [2, 2, 2] and caught.value.row is None
    assert isinstance(caught.value.__cause__, OSError)
