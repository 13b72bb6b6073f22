"""A parameter gets the value of its annotated type, and an unconvertible value is an error of its row."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import pandas as pd
import pyarrow as pa
import pytest

from udf_runtime import UDF, Retry, UdfDefinitionError, chunker, skip_on_error, udf
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.checkpoint.chunks import ChunkFolder
from udf_runtime.definition import Parameter
from udf_runtime.errors import UdfFailedError
from udf_runtime.execute import BatchResult, UdfRunner


class Size(NamedTuple):
    height: int
    width: float | None


@dataclasses.dataclass
class Box:
    size: Size
    labels: dict[str, int]

    def __post_init__(self) -> None:
        if self.size is not None and self.size.height < 0:
            raise LookupError("negative")


class Plain(TypedDict):
    height: int
    width: float


class Shelf(TypedDict):
    box: Size
    tags: dict[str, int]


class Color(enum.StrEnum):
    RED = "red"


Labels = NewType("Labels", dict[str, int])
Pair = dict[str, int]

MAP = pa.map_(pa.string(), pa.int64())
SIZE = pa.struct([("height", pa.int64()), ("width", pa.float64())])
BOX = pa.struct([("size", SIZE), ("labels", MAP)])
PAIRS = [("a", 1), ("b", None)]

PROMISES: dict[str, tuple[object, pa.DataType, object, object]] = {
    "dict": (Pair, MAP, PAIRS, {"a": 1, "b": None}),
    "mapping": (Mapping[str, int], MAP, PAIRS, {"a": 1, "b": None}),
    "optional dict": (Pair | None, MAP, [], {}),
    "new type": (Labels, MAP, PAIRS, {"a": 1, "b": None}),
    "annotated": (Annotated[Pair, "doc"], MAP, PAIRS, {"a": 1, "b": None}),
    "bare dict of a map": (dict, MAP, PAIRS, {"a": 1, "b": None}),
    "bare dict of a struct": (dict, SIZE, {"height": 1, "width": 2.0}, {"height": 1, "width": 2.0}),
    "dict of dicts": (
        dict[str, Pair],
        pa.map_(pa.string(), MAP),
        [("k", PAIRS)],
        {"k": {"a": 1, "b": None}},
    ),
    "dict of records": (
        dict[str, Size],
        pa.map_(pa.string(), SIZE),
        [("k", {"height": 1})],
        {"k": Size(1, None)},
    ),
    "named tuple": (Size, SIZE, {"width": 2.0, "height": 1}, Size(1, 2.0)),
    "dataclass": (
        Box,
        BOX,
        {"size": {"height": 1}, "labels": PAIRS},
        Box(Size(1, None), {"a": 1, "b": None}),
    ),
    "dataclass of nulls": (Box, BOX, {}, Box(None, None)),  # type: ignore[arg-type]
    "typed dict": (Plain, SIZE, {"height": 1, "width": 2.0}, {"height": 1, "width": 2.0}),
    "typed dict of records": (
        Shelf,
        pa.struct([("box", SIZE), ("tags", MAP)]),
        {"box": {"height": 1}, "tags": []},
        {"box": Size(1, None), "tags": {}},
    ),
    "list of records": (list[Size], pa.list_(SIZE), [{"height": 1}, None], [Size(1, None), None]),
    "tuple": (tuple[int, ...], pa.list_(pa.int64()), [1, None], (1, None)),
    "enum": (Color, pa.string(), "red", Color.RED),
    "list of enums": (list[Color], pa.list_(pa.string()), ["red"], [Color.RED]),
}
"""An annotation, the type of a column, a value of the column, and the value for the function."""


def run(function: UDF, column: pa.Array) -> BatchResult:
    with UdfRunner(UDF.loads(function.dumps())) as runner:
        (result,) = runner.run([pa.RecordBatch.from_arrays([column], ["value"])])
    return result


@pytest.mark.parametrize("name", PROMISES)
def test_a_parameter_gets_the_annotated_value(name: str) -> None:
    annotation, kind, value, expected = PROMISES[name]

    def check(value: object) -> bool:
        return value is None or (type(value), value) == (type(expected), expected)

    check.__annotations__["value"] = annotation
    result = run(udf(check), pa.array([value, None], kind))
    assert result.values.to_pylist() == [True, True]


class Unknown:
    """A class without values in any column."""


@dataclasses.dataclass
class Derived:
    height: int
    area: int = dataclasses.field(init=False)


def model() -> type:
    pydantic = pytest.importorskip("pydantic")
    model_class: type = pydantic.create_model("Model", height=(int, ...))
    return model_class


@pytest.mark.parametrize(
    "annotation", [Unknown, set, Path, Derived, list[Unknown], dict[str, Unknown], model]
)
def test_an_annotation_without_values_is_refused_at_the_definition(annotation: Any) -> None:
    def function(value: object) -> int:
        return 1

    function.__annotations__["value"] = model() if annotation is model else annotation
    with pytest.raises(UdfDefinitionError, match="parameter 'value' of UDF 'function'"):
        udf(function)


def test_a_value_that_an_annotated_class_refuses_is_an_error_of_its_row() -> None:
    @udf(on_error=skip_on_error())
    def height(value: Box) -> int:
        return value.size.height

    rows = [{"size": {"height": height}} for height in (1, -1, 3)]
    result = run(height, pa.array(rows, BOX))
    assert result.values.to_pylist() == [1, None, 3]
    assert [(failure.row, failure.error_type, failure.message) for failure in result.failures] == [
        (1, "LookupError", "negative")
    ]


def test_the_class_of_a_parameter_is_part_of_the_version() -> None:
    def version(factor: int) -> str:
        @dataclasses.dataclass
        class Record:
            height: int

            def area(self) -> int:
                return self.height * factor

        @udf
        def area(value: Record) -> int:
            return value.area()

        return area.version

    assert version(1) == version(1) != version(2)


def test_a_parameter_that_an_earlier_release_pickled_has_no_annotation() -> None:
    parameter = Parameter(name="a")
    restored = pickle.loads(pickle.dumps(parameter))
    restored.__setstate__(["a", pa.int64(), "list"])
    assert restored == Parameter(name="a", type=pa.int64(), form="list")


# Values without an object in Python

DAY_OF_YEAR_12000 = 3_663_500
FAR_STAMP = 316_516_982_400_000_000


def stored(kind: Any, far: int) -> pa.Array:
    return (
        pa.array([0, 1, far, None, 2], pa.int64())
        .cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        .cast(kind)
    )


FAR = {
    "date": stored(pa.date32(), DAY_OF_YEAR_12000),
    "timestamp": stored(pa.timestamp("us"), FAR_STAMP),
    "timestamp before year 1": stored(pa.timestamp("us"), -FAR_STAMP),
    "timestamp with a zone": stored(pa.timestamp("us", "UTC"), FAR_STAMP),
    "timestamp in seconds": stored(pa.timestamp("s"), FAR_STAMP),
}
OFFSETS = pa.array([0, 1, 2, 3, 4, 5], pa.int32())
KEYS = pa.array(list("abcde"))
NESTED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda array: array,
    "struct": lambda array: pa.StructArray.from_arrays([array], ["t"]),
    "list": lambda array: pa.ListArray.from_arrays(OFFSETS, array),
    "map": lambda array: pa.MapArray.from_arrays(OFFSETS, KEYS, array),
    "list of structs": lambda array: pa.ListArray.from_arrays(
        OFFSETS, pa.StructArray.from_arrays([array], ["t"])
    ),
}


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("depth", NESTED)
@pytest.mark.parametrize("kind", FAR)
def test_a_far_date_is_an_error_of_its_row_which_the_policy_decides(
    kind: str, depth: str, timeout: float | None
) -> None:
    calls: list[object] = []

    def count(value) -> int:  # type: ignore[no-untyped-def]
        calls.append(value)
        return len(calls)

    column = NESTED[depth](FAR[kind])
    function = udf(count, timeout=timeout, on_error=skip_on_error())
    with UdfRunner(function) as runner:
        (result,) = runner.run([pa.RecordBatch.from_arrays([column], ["value"])])
    assert result.values.to_pylist() == [1, 2, None, 3, 4]
    assert len(calls) == 4
    (failure,) = result.failures
    assert (failure.row, failure.error_type) == (2, "ValueError")
    assert "parameter 'value' cannot take the value of its column" in failure.message


def test_without_a_policy_a_far_date_names_its_row() -> None:
    with pytest.raises(UdfFailedError, match="parameter 'value'") as caught:
        run(udf(lambda value: 1, data_type=pa.int64()), FAR["date"])
    assert caught.value.row == 2


def test_a_far_date_is_tried_as_often_as_the_policy_says() -> None:
    function = udf(
        lambda value: 1,
        data_type=pa.int64(),
        on_error=[Retry(ValueError, max_attempts=3), *skip_on_error()],
    )
    with UdfRunner(function, sleep=lambda seconds: None) as runner:
        (result,) = runner.run([pa.RecordBatch.from_arrays([FAR["date"]], ["value"])])
    assert (result.failures[0].attempt, result.retries) == (3, 2)


@pytest.mark.parametrize("isolate", [False, True])
def test_a_chunker_skips_a_row_with_a_far_date(tmp_path: Path, isolate: bool) -> None:
    @chunker(on_error=skip_on_error())
    def years(value: dt.date | None) -> Iterator[Size]:
        yield Size(0 if value is None else value.year, 1.0)

    folder = ChunkFolder(LocalObjects(str(tmp_path)), "checkpoints/key", "job")
    with UdfRunner(years, chunks=folder, isolate=isolate) as runner:
        (result,) = runner.run([pa.RecordBatch.from_arrays([FAR["date"]], ["value"])])
    assert [failure.row for failure in result.failures] == [2]
    assert [row is not None for row in result.values.to_pylist()] == [True, True, False, True, True]


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_a_pandas_udf_loses_at_most_the_row_with_a_far_date(kind: str) -> None:
    @udf(data_type=pa.int64(), on_error=skip_on_error())
    def year(value: pd.Series) -> pd.Series:
        return value.map(lambda moment: None if moment is None or moment is pd.NaT else moment.year)

    result = run(year, FAR[kind])
    assert result.values.to_pylist() == [1970, 1970, None if kind == "date" else 12000, None, 1970]
    assert [failure.row for failure in result.failures] == [2] * (kind == "date")
