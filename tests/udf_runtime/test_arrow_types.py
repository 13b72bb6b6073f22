from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import typing
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.arrow_types import arrow_type
from udf_runtime.errors import UdfDefinitionError


class Color(str, enum.Enum):  # noqa: UP042  # both spellings are in use
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Plain(enum.Enum):
    X = "x"


@dataclasses.dataclass
class Box:
    left: int
    labels: list[str]
    kind: typing.ClassVar[int] = 3


class Face(NamedTuple):
    box: Box | None
    score: np.float32


class Options(typing.TypedDict, total=False):
    depth: typing.Required[int]
    name: str


@dataclasses.dataclass
class Node:
    child: Node | None


class Length:
    min_length = 3
    max_length = 3

    def __repr__(self) -> str:
        return "Length()"


Id = typing.NewType("Id", int)
BOX = pa.struct([("left", pa.int64()), ("labels", pa.list_(pa.string()))])

TYPES = [
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (str, pa.string()),
    (bytes, pa.binary()),
    (np.int8, pa.int8()),
    (np.uint32, pa.uint32()),
    (np.float16, pa.float16()),
    (np.float32, pa.float32()),
    (np.bool_, pa.bool_()),
    (np.str_, pa.string()),
    (np.dtype("int16"), pa.int16()),
    (dt.datetime, pa.timestamp("us")),
    (dt.date, pa.date32()),
    (dt.time, pa.time64("us")),
    (dt.timedelta, pa.duration("us")),
    (decimal.Decimal, pa.decimal128(38, 18)),
    (list[float], pa.list_(pa.float64())),
    (typing.List[str], pa.list_(pa.string())),  # noqa: UP006
    (collections.abc.Sequence[int], pa.list_(pa.int64())),
    (tuple[int, ...], pa.list_(pa.int64())),
    (list[list[int] | None], pa.list_(pa.list_(pa.int64()))),
    (npt.NDArray[np.float32], pa.list_(pa.float32())),
    (int | None, pa.int64()),
    (typing.Optional[str], pa.string()),  # noqa: UP045
    (Annotated[list[float], 384], pa.list_(pa.float64(), 384)),
    (Annotated[list[np.float32], 4], pa.list_(pa.float32(), 4)),
    (Annotated[npt.NDArray[np.float32], 4] | None, pa.list_(pa.float32(), 4)),
    (Annotated[list[int], Length()], pa.list_(pa.int64(), 3)),
    (Annotated[float, "metres"], pa.float64()),
    (Annotated[float, pa.float32()], pa.float32()),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 2)),
    (dict[str, int], pa.map_(pa.string(), pa.int64())),
    (collections.abc.Mapping[str, list[int]], pa.map_(pa.string(), pa.list_(pa.int64()))),
    (Color, pa.string()),
    (Level, pa.int64()),
    (Literal["a", "b", None], pa.string()),
    (Literal[1, 2], pa.int64()),
    (Id, pa.int64()),
    (Box, BOX),
    (Face, pa.struct([("box", BOX), ("score", pa.float32())])),
    (Options, pa.struct([("depth", pa.int64()), ("name", pa.string())])),
    (list[Face], pa.list_(pa.struct([("box", BOX), ("score", pa.float32())]))),
]


@pytest.mark.parametrize(("annotation", "expected"), TYPES, ids=str)
def test_an_annotation_has_its_arrow_type(annotation: object, expected: pa.DataType):
    assert arrow_type(annotation, where="the result of UDF 'f'") == expected


REFUSED = [
    (None, "none of the annotations"),
    (object, "none of the annotations"),
    (typing.Any, "none of the annotations"),
    (complex, "none of the annotations"),
    (set[int], "none of the annotations"),
    (pa.Array, "none of the annotations"),
    (list, "type of its elements"),
    (np.ndarray, "type of its elements"),
    (dict, "type of its elements"),
    (np.floating, "several types"),
    (np.datetime64, "several types"),
    (np.longdouble, "numpy"),
    (int | str, "several types"),
    (tuple[int, str], "NamedTuple or a dataclass"),
    (Literal["a", 1], "not of one type"),
    (Plain, r"\(str, Enum\)"),
    (Node, "contains itself"),
    (Annotated[list[int], 0], "fixed-size vector"),
    (Annotated[list[int], 2, 3], "fixed-size vector"),
    (Annotated[int, 3], "fixed-size vector"),
]


@pytest.mark.parametrize(("annotation", "reason"), REFUSED, ids=str)
def test_any_other_annotation_is_refused_with_a_reason_and_a_way_out(
    annotation: object, reason: str
):
    with pytest.raises(UdfDefinitionError, match=reason) as caught:
        arrow_type(annotation, where="the result of UDF 'f'")
    assert "of the result of UDF 'f' has no Arrow type" in str(caught.value)
    assert str(caught.value).endswith("Pass data_type=, a pyarrow type.")


def test_a_record_whose_field_names_an_unknown_class_is_refused():
    @dataclasses.dataclass
    class Local:
        value: Missing  # noqa: F821

    with pytest.raises(UdfDefinitionError, match="'Missing' is not defined"):
        arrow_type(Local, where="the result of UDF 'f'")


SIMPLE = [bool, int, float, str, bytes, dt.date, decimal.Decimal, np.int8, np.float32]
ANNOTATIONS = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]), inner.map(lambda t: t | None), inner.map(lambda t: dict[str, t]),
        st.tuples(inner, st.integers(1, 9)).map(lambda pair: Annotated[list[pair[0]], pair[1]]),
    ),
    max_leaves=6,
)  # fmt: skip


@given(ANNOTATIONS)
def test_optional_changes_no_type_and_lists_nest(annotation: typing.Any):
    inner = arrow_type(annotation, where="x")
    assert arrow_type(typing.Optional[annotation], where="x") == inner  # noqa: UP045
    assert arrow_type(list[annotation], where="x") == pa.list_(inner)
