"""Calls once per distinct input: exact equality of inputs, shared values and failures, a bounded store."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.execute.cases import failed_rows, make, run, values_of
from udf_runtime.definition import UDF, Kind, udf
from udf_runtime.errors import UdfDefinitionError, UdfFailedError, UdfOutputError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.batches.distinct import DistinctCalls, encode_rows
from udf_runtime.policies import Retry, Skip, skip_on_error

SMALL_NAN, OTHER_NAN = (
    struct.unpack("<d", struct.pack("<Q", bits))[0]
    for bits in (0x7FF8000000000000, 0x7FF8000000000001)
)

CASES: dict[str, tuple[pa.DataType, list[object]]] = {
    "booleans": (pa.bool_(), [True, None, False, True, None]),
    "integers": (pa.int64(), [1, None, 2**60, 2**60 + 1, 2**60, 1]),
    "bytes of integers": (pa.uint8(), [1, 255, None, 1, 0]),
    "floats": (pa.float64(), [0.0, -0.0, None, SMALL_NAN, OTHER_NAN, SMALL_NAN, 0.0, -0.0]),
    "floats of 32 bits": (pa.float32(), [0.0, -0.0, math.nan, math.nan, 1.5]),
    "floats of 16 bits": (pa.float16(), [0.0, -0.0, 1.5, 1.5]),
    "decimals": (pa.decimal128(10, 2), [Decimal("1.10"), None, Decimal("1.1"), Decimal("-1.10")]),
    "long decimals": (pa.decimal256(60, 2), [Decimal("1.10"), None, Decimal("1.1")]),
    "dates": (pa.date32(), [dt.date(2020, 1, 1), None, dt.date(2020, 1, 1)]),
    "timestamps": (pa.timestamp("us", "UTC"), [0, None, 1, 0]),
    "durations": (pa.duration("ns"), [0, None, 1, 0]),
    "intervals": (pa.month_day_nano_interval(), [(1, 2, 3), None, (1, 2, 4), (1, 2, 3)]),
    "text": (pa.string(), ["a", "", None, "a", "\0", "", "é", "e\u0301"]),
    "large text": (pa.large_string(), ["a", "", None, "a"]),
    "text views": (pa.string_view(), ["a", "", None, "a" * 20, "a" * 20, None]),
    "bytes": (pa.binary(), [b"a", b"", None, b"a", b"\0", b""]),
    "bytes of a length": (pa.binary(2), [b"ab", None, b"ab", b"\0\0"]),
    "nothing": (pa.null(), [None, None]),
    "lists": (pa.list_(pa.int64()), [[1, 2], [], None, [1], [2], [1, 2], [None], [], [1, None]]),
    "nested lists": (
        pa.large_list(pa.list_(pa.string())),
        [[["a"], []], [["a"]], [[], ["a"]], [["a"], []], None, [None]],
    ),
    "vectors": (pa.list_(pa.float32(), 2), [[0.0, 1.0], None, [-0.0, 1.0], [0.0, 1.0]]),
    "list views": (pa.list_view(pa.int64()), [[1, 2], [], None, [1, 2]]),
    "structs": (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        [
            {"a": 1, "b": ["x"]},
            None,
            {"a": None, "b": None},
            {"a": 1, "b": ["x"]},
            {"a": 1, "b": None},
            None,
        ],
    ),
    "structs without fields": (pa.struct([]), [{}, None, {}]),
    "maps": (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], None, [], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)]],
    ),
}


def identity(value: object) -> object:
    """Returns a value whose equality is that of Arrow's stored values."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return tuple((name, identity(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(identity(item) for item in value)
    return value


def groups(numbers: object) -> list[int]:
    """Returns for each row the first row of the same group."""
    seen = list(numbers)
    return [seen.index(number) for number in seen]


@pytest.mark.parametrize("name", CASES)
def test_rows_are_equal_if_arrow_stores_equal_values(name):
    kind, values = CASES[name]
    array = pa.array(values, kind)
    expected = groups(map(identity, values))
    assert groups(encode_rows([array])) == expected
    assert sorted(set(encode_rows([array]).tolist())) == list(range(len(set(expected))))
    padded = pa.concat_arrays([array, array, array])
    assert groups(encode_rows([padded.slice(len(array), len(array))])) == expected
    assert groups(encode_rows([array, array])) == expected
    pairs = encode_rows(
        [padded, pa.array([0, 1, 0]).take(pa.array([i // len(array) for i in range(len(padded))]))]
    )
    assert groups(pairs) == [*expected, *(len(array) + row for row in expected), *expected]


def test_dictionaries_extensions_and_bytes_behind_null_do_not_matter():
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["x", "x", "y"]))
    assert groups(encode_rows([twice])) == [0, 0, 2, 3]
    vectors = pa.array([[1, 2], None, [1, 2]], pa.list_(pa.int64(), 2))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2]), vectors)
    assert groups(encode_rows([tensors])) == [0, 1, 0]
    behind = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x01"), pa.array([1, 2, 3]).buffers()[1]]
    )
    assert groups(encode_rows([behind])) == [0, 1, 1]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3]), pa.array([7, 8, 7]), mask=pa.array([False, True, True])
    )
    assert groups(encode_rows([lists])) == [0, 1, 1]
    runs = pc.run_end_encode(pa.array([1, 1, 2, 1]))
    assert groups(encode_rows([runs])) == [0, 0, 2, 0]
    assert groups(
        encode_rows([pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 1])])])
    ) == [0, 1]


class Calls:
    """Functions of every kind that record the inputs of their calls and fail for some texts."""

    def __init__(self, bad: frozenset[str] = frozenset()) -> None:
        self.bad = bad
        self.inputs: list[tuple[object, object]] = []

    def scalar(self, x: str | None, y: float | None) -> str:
        self.inputs.append((x, identity(y)))
        if x in self.bad:
            raise ValueError(x)
        return f"{x} {y}"

    def arrow(self, x: pa.Array, y: pa.Array) -> pa.Array:
        rows = list(zip(x.to_pylist(), y.to_pylist(), strict=True))
        if any(text in self.bad for text, _ in rows):
            raise ValueError
        self.inputs += [(text, identity(number)) for text, number in rows]
        return pa.array([f"{text} {number}" for text, number in rows])

    def record_batch(self, rows: pa.RecordBatch) -> pa.Array:
        return self.arrow(*rows.columns)

    def arrow_iter(self, batches):
        for x, y in batches:
            yield self.arrow(x, y)

    def pandas(self, x, y):
        return self.arrow(
            pa.array(x, pa.string(), from_pandas=True), pa.array(y, pa.float64())
        ).to_pandas()


def calling(calls: Calls, kind: Kind, *, deduplicate: bool, **options) -> UDF:
    method = getattr(calls, kind.value)
    takes_one = kind in (Kind.RECORD_BATCH, Kind.ARROW_ITER)
    work = (lambda rows: method(rows)) if takes_one else (lambda x, y: method(x, y))  # noqa: PLW0108 - would be copied
    return make(work, kind, pa.string(), inputs=["x", "y"], deduplicate=deduplicate, **options)


def batch_of(rows: list[tuple[str | None, float | None]]) -> pa.RecordBatch:
    texts, numbers = ([row[i] for row in rows] for i in range(2))
    return pa.record_batch(
        {"x": pa.array(texts, pa.string()), "y": pa.array(numbers, pa.float64())}
    )


ROWS = st.tuples(
    st.sampled_from(["a", "b", "", None]), st.sampled_from([0.0, -0.0, 1.0, math.nan, None])
)


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=4),
    kind=st.sampled_from([Kind.SCALAR, Kind.ARROW, Kind.RECORD_BATCH, Kind.ARROW_ITER]),
    bad=st.frozensets(st.sampled_from(["a", "b"]), max_size=1),
    size=st.sampled_from([None, 2]),
    threads=st.sampled_from([1, 3]),
)
def test_values_and_failures_are_those_of_a_call_per_row(batches, kind, bad, size, threads):
    options = {"on_error": skip_on_error()} if bad else {}
    if kind is not Kind.SCALAR:
        options["batch_size"] = size
    arrow = [batch_of(rows) for rows in batches]
    plain, distinct = Calls(bad), Calls(bad)
    expected = run(calling(plain, kind, deduplicate=False, **options), *arrow)
    results = run(calling(distinct, kind, deduplicate=True, **options), *arrow, threads=threads)
    assert values_of(results) == values_of(expected)
    assert [failed_rows(result) for result in results] == [
        failed_rows(result) for result in expected
    ]
    messages = [[failure.message for failure in result.failures] for result in results]
    assert messages == [[failure.message for failure in result.failures] for result in expected]
    rows = [(text, identity(number)) for batch in batches for text, number in batch]
    called = [row for row in distinct.inputs if row[0] not in bad]
    assert len(called) == len(set(called)) and set(called) == {
        row for row in rows if row[0] not in bad
    }
    if not bad:
        assert sum(result.deduplicated for result in results) == len(rows) - len(distinct.inputs)


def test_pandas_udfs_and_isolated_udfs_share_calls(tmp_path):
    calls = Calls()
    batches = [batch_of([("a", 1.0), ("b", None), ("a", 1.0)]), batch_of([("b", None), ("c", 1.0)])]
    results = run(calling(calls, Kind.PANDAS, deduplicate=True), *batches)
    assert [result.deduplicated for result in results] == [1, 1] and len(calls.inputs) == 3
    log = tmp_path / "log"

    def logged(x: str) -> int:
        with log.open("a") as file:
            file.write(x)
        return len(x)

    isolated = make(logged, deduplicate=True)
    batches = [pa.record_batch({"x": texts}) for texts in (["a", "bb", "a"], ["bb", "c", "c"])]
    results = run(isolated, *batches, isolate=True)
    assert values_of(results) == [[1, 2, 1], [2, 1, 1]]
    assert (log.read_text(), [result.deduplicated for result in results]) == ("abbc", [1, 2])


def test_a_failure_is_recorded_for_each_row_with_its_place_and_called_again_in_a_later_batch():
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        return "no number" if x == 7 else x

    options = {"deduplicate": True, "on_error": [Retry(max_attempts=2), Skip(UdfOutputError)]}
    batches = [pa.record_batch({"x": rows}) for rows in ([1, 7, 1, 7, 7], [7, 2])]
    first, second = run(make(work, **options), *batches)
    assert first.values.to_pylist() == [1, None, 1, None, None] and second.values.to_pylist() == [
        None,
        2,
    ]
    assert (failed_rows(first), failed_rows(second)) == ([1, 3, 4], [0])
    assert [
        f"row {row} of the batch" in f.message
        for row, f in zip((1, 3, 4), first.failures, strict=True)
    ] == [True] * 3
    assert [failure.attempt for failure in first.failures] == [2, 2, 2] and first.retries == 1
    assert (first.deduplicated, second.deduplicated) == (3, 0)
    assert calls == [1, 7, 7, 7, 2, 7]


@pytest.mark.parametrize("kind", [Kind.SCALAR, Kind.ARROW])
def test_an_error_names_the_first_row_with_its_input(kind):
    def work(x):
        if x == 7 or (isinstance(x, pa.Array) and 7 in x.to_pylist()):
            raise ValueError("seven")
        return x

    policy = None if kind is Kind.SCALAR else Skip(KeyError)
    batches = [pa.record_batch({"x": rows}) for rows in ([1, 2], [1, 2, 1, 3, 7, 7])]
    udf = make(
        work,
        kind,
        deduplicate=True,
        on_error=policy,
        **({} if kind is Kind.SCALAR else {"batch_size": 1}),
    )
    with pytest.raises(UdfFailedError) as caught:
        run(udf, *batches)
    assert caught.value.row == 4 and isinstance(caught.value.__cause__, ValueError)


def test_the_store_serves_later_runs_and_is_bounded():
    calls: list[int] = []

    def work(x: pa.Array) -> pa.Array:
        calls.extend(x.to_pylist())
        return x

    udf = make(work, Kind.ARROW, deduplicate=True)
    with UdfRunner(udf) as runner:
        for _ in range(2):
            list(runner.run([pa.record_batch({"x": [1, 2, 1]})]))
        assert calls == [1, 2]
        runner._distinct = DistinctCalls(udf, cache_rows=4)
        calls.clear()
        for rows in ([1, 2, 3], [4, 5], [4, 1], [2, 3, 4]):
            list(runner.run([pa.record_batch({"x": rows})]))
        assert calls == [1, 2, 3, 4, 5, 1, 2, 3]  # the oldest batches leave first
        runner._distinct = DistinctCalls(udf, cache_bytes=100)
        calls.clear()
        for _ in range(2):
            list(runner.run([pa.record_batch({"x": list(range(50))})]))
        assert calls == [*range(50), *range(50)]


@settings(deadline=None, max_examples=40)
@given(
    batches=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4),
    elsewhere=st.sets(st.integers(0, 9), max_size=6),
    threads=st.sampled_from([1, 3]),
)
def test_values_from_elsewhere_need_no_call(batches, elsewhere, threads):
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        if x == 3:
            raise ValueError
        return x

    def find(inputs: pa.RecordBatch):
        values = inputs.column(0).to_pylist()
        rows = [row for row, value in enumerate(values) if value in elsewhere]
        return np.array(rows, np.int64), pa.array([values[row] + 100 for row in rows], pa.int64())

    function = make(work, deduplicate=True, on_error=skip_on_error())
    arrow = [pa.record_batch({"x": pa.array(rows, pa.int64())}) for rows in batches]
    results = run(function, *arrow, find_values=find, threads=threads)
    expected = [
        [x + 100 if x in elsewhere else None if x == 3 else x for x in rows] for rows in batches
    ]
    assert values_of(results) == expected
    failing = [
        [row for row, x in enumerate(rows) if x == 3 and x not in elsewhere] for rows in batches
    ]
    assert [failed_rows(result) for result in results] == failing
    worked = [x for x in calls if x != 3]
    assert len(worked) == len(set(worked)) and set(worked) == {
        x for rows in batches for x in rows
    } - elsewhere - {3}
    if 3 not in calls:
        assert sum(result.deduplicated for result in results) == sum(map(len, batches)) - len(calls)


def test_many_small_batches_and_a_change_of_types_keep_the_store_small():
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        return x

    with UdfRunner(make(work, deduplicate=True)) as runner:
        results = list(runner.run(pa.record_batch({"x": [row % 100]}) for row in range(300)))
        assert sum(result.deduplicated for result in results) == 200 and len(calls) == 100
        assert len(runner._distinct._stored) < 40
        assert (
            next(runner.run([pa.record_batch({"x": pa.array([5], pa.int32())})])).deduplicated == 0
        )


def test_stored_values_hold_no_memory_of_larger_batches():
    big = pa.record_batch({"x": pa.array(range(1_000_000))})
    before = pa.total_allocated_bytes()
    with UdfRunner(make(lambda x: x, Kind.ARROW, deduplicate=True)) as runner:
        values = [
            result.values.to_pylist() for result in runner.run([big.slice(0, 3), big.slice(10, 2)])
        ]
        assert values == [[0, 1, 2], [10, 11]]
        assert pa.total_allocated_bytes() - before < 10_000
        del big
        assert pa.total_allocated_bytes() < before


def test_blobs_are_equal_by_their_bytes():
    calls = 0

    def work(x) -> int:
        nonlocal calls
        calls += 1
        return len(x.read())

    blob = make(work, deduplicate=True)
    inputs = tuple(
        dataclasses.replace(parameter, form="blob") for parameter in blob.signature.inputs
    )
    blob = dataclasses.replace(blob, signature=dataclasses.replace(blob.signature, inputs=inputs))
    batch = pa.record_batch({"x": pa.array([b"abc", b"de", b"abc"], pa.large_binary())})
    assert run(blob, batch)[0].values.to_pylist() == [3, 2, 3] and calls == 2


def test_the_setting_changes_no_version_and_is_checked():
    @udf(deduplicate=True)
    def length(text: str) -> int:
        return len(text)

    assert length.deduplicate and UDF.loads(length.dumps()).deduplicate
    assert make(len, deduplicate=True).version == make(len).version
    with pytest.raises(UdfDefinitionError, match="deduplicate='yes'"):
        udf(deduplicate="yes")(lambda x: x)
    with pytest.raises(UdfDefinitionError, match="deduplicate"):
        udf(deduplicate=1)(lambda x: x)
