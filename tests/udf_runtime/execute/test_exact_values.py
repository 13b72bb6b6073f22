"""Results of UDFs, in every type, at every depth, from every kind of UDF: exact, or an error with the row."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.exact_values import (
    FITS,
    INFINITY,
    MIDNIGHT,
    MISFITS,
    NAN,
    WIDE,
    NestedValue,
    cases,
    expected,
)
from tests.udf_runtime.execute.cases import batches_of, make, run
from udf_runtime.definition import UDF, Kind, as_udf, chunker, udtf
from udf_runtime.errors import UdfOutputError
from udf_runtime.execute import ChunkPieces, call_table
from udf_runtime.execute.conversion.casts import can_become, cast
from udf_runtime.execute.conversion.leaf_values import is_missing
from udf_runtime.execute.conversion.values import ValueConverter

ENTRIES = (
    "scalar",
    "list of an Arrow UDF",
    "series",
    "column of a batch",
    "chunk",
    "frame of a table function",
)
OF_PANDAS = ("series", "frame of a table function")


class NoRows:
    """The source of a table function that ignores its source."""

    schema = pa.schema([])


def returned(entry: str, data_type: pa.DataType, values: list[object]) -> pa.Array:
    """Returns the column for the results of a UDF of some kind."""
    rows = batches_of(list(range(len(values))))
    if entry == "scalar":
        return run(make(lambda x: values[x], data_type=data_type), *rows)[0].values
    if entry == "list of an Arrow UDF":
        return run(make(lambda x: values, Kind.ARROW, data_type), *rows)[0].values
    if entry == "series":
        return run(make(lambda x: pd.Series(values, dtype=object), Kind.PANDAS, data_type), *rows)[
            0
        ].values
    if entry == "column of a batch":
        column = pa.struct([pa.field("c", data_type)])
        chunk_udf = run(make(lambda batch: {"c": values}, Kind.RECORD_BATCH, column), *rows)[
            0
        ].values
        return chunk_udf.field("c")
    schema = pa.schema([pa.field("c", data_type)])
    if entry == "chunk":
        chunk_udf = chunker(lambda x: [(value,) for value in values], output_schema=schema)
        (piece,) = ChunkPieces(udf_of(chunk_udf)).of_row(0)
        return piece.column("c")
    frame = pd.DataFrame({"c": pd.Series(values, dtype=object)})
    (batch,) = call_table(udf_of(udtf(lambda source: frame, output_schema=schema)), NoRows())  # type: ignore[arg-type]
    return batch.column("c")


def udf_of(function: object) -> UDF:
    udf_found = as_udf(function)
    assert udf_found is not None
    return udf_found


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=40, deadline=None)
@given(case=cases(FITS))
def test_a_value_that_fits_stays_what_it_is(entry: str, case: NestedValue) -> None:
    array = returned(entry, case.data_type, [case.value, case.value])
    assert array.type == case.data_type and len(array) == 2
    array.validate(full=True)
    inner = array.slice(1)
    for get in case.get:
        inner = get(inner)
    # As text, because NaN then equals itself.
    assert str(inner.slice(len(inner) - 1)) == str(expected(case, nan_is_null=entry in OF_PANDAS))


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=40, deadline=None)
@given(case=cases(MISFITS))
def test_a_value_that_does_not_fit_is_an_error_of_its_row(entry: str, case: NestedValue) -> None:
    assume(not (entry in OF_PANDAS and is_missing(case.inner)))
    before: list[object] = [] if entry == "chunk" else [None]
    with pytest.raises(UdfOutputError) as caught:
        returned(entry, case.data_type, [*before, case.value])
    assert caught.value.row == (None if entry == "chunk" else 1)


def test_nan_nat_and_na_are_null_where_pandas_is_used_and_only_there() -> None:
    for kind, null_value in (
        (pa.int64(), NAN),
        (pa.date32(), pd.NaT),
        (pa.string(), pd.NA),
        (pa.list_(pa.int8()), NAN),
        (pa.timestamp("us"), np.datetime64("NaT")),
    ):
        for entry in OF_PANDAS:
            assert returned(entry, kind, [null_value]).to_pylist() == [None]
    for kind, null_value in (
        (pa.int64(), NAN),
        (pa.date32(), pd.NaT),
        (pa.string(), pd.NA),
        (pa.list_(pa.int8()), NAN),
    ):
        with pytest.raises(UdfOutputError):
            returned("scalar", kind, [null_value])


ARROW_DEPTHS: dict[
    str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[pa.Array], pa.Array]]
] = {
    "value": (lambda kind: kind, lambda array: array),
    "list": (pa.large_list, lambda array: pa.ListArray.from_arrays([0, 1, 2], array)),
    "vector to list": (pa.list_, lambda array: pa.FixedSizeListArray.from_arrays(array, 1)),
    "list to vector": (
        lambda kind: pa.list_(kind, 1),
        lambda array: pa.ListArray.from_arrays([0, 1, 2], array),
    ),
    "struct": (
        lambda kind: pa.struct({"g": pa.int8(), "f": kind}),
        lambda array: pa.StructArray.from_arrays(
            [array, pa.array([1, 2], pa.int8())], names=["f", "g"]
        ),
    ),
    "map": (
        lambda kind: pa.map_(pa.large_string(), kind),
        lambda array: pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), array),
    ),
}


@pytest.mark.parametrize(("array", "target"), WIDE, ids=str)
def test_arrow_data_is_cast_exactly_or_not_at_all(array: pa.Array, target: pa.DataType) -> None:
    for outer, inner in itertools.product(ARROW_DEPTHS.values(), repeat=2):
        data_type = outer[0](inner[0](target))
        rows = outer[1](inner[1](array))
        work = make(lambda x, rows=rows: rows, Kind.ARROW, data_type)
        fits = pa.types.is_string(target) or array.type == pa.timestamp("s")
        if fits:
            assert run(work, *batches_of([0, 1]))[0].values.type == data_type
            continue
        with pytest.raises(UdfOutputError) as caught:
            run(work, *batches_of([0, 1]))
        assert caught.value.row == 1
        first = rows.slice(0, 1)
        result_array = run(
            make(lambda x, first=first: first, Kind.ARROW, data_type), *batches_of([0])
        )[0].values
        result_array.validate(full=True)
        assert result_array.type == data_type and result_array.null_count == 0


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_cast_keeps_every_row_of_every_shape(data: st.DataObject) -> None:
    """NULL at every depth, slices, and values hidden below NULL."""
    values = st.none() | st.lists(st.none() | st.integers(-100, 100), min_size=2, max_size=2)
    rows = data.draw(st.lists(values, max_size=6))
    kinds = (
        pa.list_(pa.int64()),
        pa.large_list(pa.int8()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.decimal128(5, 1), 2),
    )
    kinds += (pa.list_view(pa.int64()),)
    source, target = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds[:-1]))
    array = pa.array(rows, source)
    start = data.draw(st.integers(0, len(rows)))
    result_array = (
        cast(array.slice(start), target)
        if can_become(source, target)
        else pytest.fail("one family")
    )
    result_array.validate(full=True)
    assert result_array.type == target and result_array.to_pylist() == rows[start:]


def test_infinity_and_nan_in_arrow_data_stay() -> None:
    wide = pa.array([[INFINITY, -INFINITY, NAN, None, 1.5], None])
    result_array = cast(wide, pa.large_list(pa.float16()))
    assert str(result_array) == str(pa.array(wide.to_pylist(), pa.large_list(pa.float16())))


@pytest.mark.parametrize("row", [0, 65_535, 65_536, 199_999])
def test_one_number_that_is_too_large_is_an_error_of_its_row_among_many(row: int) -> None:
    numbers = np.random.default_rng(1).standard_normal(200_001)
    numbers[5], numbers[6] = NAN, INFINITY
    whole = numbers.copy()
    whole[6] = 1.5
    for floats in (numbers, whole):
        single = floats.astype(np.float32)
        assert np.array_equal(
            cast(pa.array(floats).slice(1), pa.float32()).to_numpy(), single[1:], equal_nan=True
        )
        floats[1 + row] = 1e300
        with pytest.raises(UdfOutputError, match="too large") as caught:
            returned_array(pa.array(floats).slice(1), pa.float32())
        assert caught.value.row == row


@pytest.mark.parametrize("row", [0, 1, 1000])
def test_a_boolean_among_many_floats_is_an_error_of_its_row(row: int) -> None:
    for number in (0.0, 1.5):
        floats: list[object] = [number] * 1001
        assert returned("scalar", pa.float64(), floats).to_pylist() == floats
        floats[row] = True
        with pytest.raises(UdfOutputError, match="got bool") as caught:
            returned("scalar", pa.float64(), floats)
        assert caught.value.row == row


def test_values_under_nulls_are_not_misfits() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([1e300, 1.0])], names=["f"], mask=pa.array([True, False])
    )
    assert cast(hidden, pa.struct({"f": pa.float32()})).to_pylist() == [None, {"f": 1.0}]


def test_the_mask_of_a_masked_array_is_null_in_one_dimension_and_two() -> None:
    flat = np.ma.array([1, 2], mask=[True, False])
    vectors = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[True, False], [False, False]])
    assert returned_array(flat, pa.int64()).to_pylist() == [None, 2]
    for kind in (pa.list_(pa.float32(), 2), pa.list_(pa.float64())):
        assert returned_array(vectors, kind).to_pylist() == [[None, 2.0], [3.0, 4.0]]
        assert returned("scalar", kind, list(vectors)).to_pylist() == [[None, 2.0], [3.0, 4.0]]


def test_vectors_of_numpy_are_checked_without_a_python_object_per_item() -> None:
    for items, kind in (
        (np.array([1e300, 1.0]), pa.float32()),
        (np.array([1.5, 1.0]), pa.int64()),
        (np.array(["2020-01-01T00:00:00.000000999"], "datetime64[ns]"), pa.timestamp("us")),
        (np.array([999], "timedelta64[ns]"), pa.duration("us")),
        (np.array([5, 300]), pa.int8()),
    ):
        for array in (items, items.astype(object)) if items.dtype.kind == "f" else (items,):
            with pytest.raises(UdfOutputError) as caught:
                returned("scalar", pa.list_(kind), [array[:0], array])
            assert caught.value.row == 1
    moments = np.array(["2020-01-01T00:00:00.000001"], "datetime64[ns]")
    assert returned("scalar", pa.list_(pa.timestamp("us")), [moments])[0].as_py() == [
        MIDNIGHT.replace(microsecond=1)
    ]
    many = [np.zeros(1000, np.float32) for _ in range(100)]
    before = sys.getallocatedblocks()
    array = ValueConverter(pa.list_(pa.float32()), nan_is_null=False, complete=False).array(many)
    assert sys.getallocatedblocks() - before < 10_000 and len(array.values) == 100_000


@pytest.mark.parametrize("entry", ENTRIES)
def test_null_for_a_nested_field_that_is_not_nullable_is_an_error(entry: str) -> None:
    required = pa.field("f", pa.int64(), nullable=False)
    for kind, value in (
        (pa.struct([required]), {"f": None}),
        (pa.list_(required), [None]),
        (pa.list_(required, 1), [None]),
        (pa.map_(pa.string(), required), {"k": None}),
        (pa.map_(pa.string(), pa.int64()), {None: 1}),
    ):
        with pytest.raises(UdfOutputError):
            returned(entry, kind, [value])
    if entry != "chunk":
        assert returned(entry, pa.list_(required, 2), [None, [1, 2], None]).to_pylist() == [
            None,
            [1, 2],
            None,
        ]
        assert returned(entry, pa.struct([required]), [None, {"f": 1}]).to_pylist() == [
            None,
            {"f": 1},
        ]


def test_null_in_a_required_field_of_arrow_data_is_an_error() -> None:
    struct = pa.array(
        [{"f": 1}, {"f": None}, None], pa.struct([pa.field("f", pa.int64(), nullable=False)])
    )
    work = make(lambda x: struct, Kind.ARROW, struct.type)
    with pytest.raises(UdfOutputError) as caught:
        run(work, *batches_of([0, 1, 2]))
    assert caught.value.row == 1


def test_an_array_that_is_not_valid_is_an_error() -> None:
    """Wrongly encoded text could be stored, but never read again."""
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    with pytest.raises(UdfOutputError, match="UTF"):
        returned_array(broken, pa.string())


def returned_array(result: object, data_type: pa.DataType) -> pa.Array:
    rows = batches_of(list(range(len(result))))  # type: ignore[arg-type]
    return run(make(lambda x: result, Kind.ARROW, data_type), *rows)[0].values


def test_a_table_function_that_yields_arrow_data_that_does_not_fit_is_an_error() -> None:
    for array, target in WIDE:
        if pa.types.is_string(target) or array.type == pa.timestamp("s"):
            continue
        schema = pa.schema([pa.field("c", target)])
        table_udf = udtf(lambda source, array=array: pa.table({"c": array}), output_schema=schema)
        with pytest.raises(UdfOutputError, match="column 'c'"):
            list(call_table(udf_of(table_udf), NoRows()))  # type: ignore[arg-type]
    required = pa.schema([pa.field("c", pa.int64(), nullable=False)])
    table_udf = udtf(lambda source: pa.table({"c": [None]}), output_schema=required)
    with pytest.raises(UdfOutputError, match="NULL in column 'c'"):
        list(call_table(udf_of(table_udf), NoRows()))  # type: ignore[arg-type]
