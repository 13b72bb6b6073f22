"""The effect of annotations on a UDF; in this module annotations are strings."""

from __future__ import annotations

import dataclasses
import functools
import io
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from udf_runtime import UDF, Columns, Kind, UdfDefinitionError, chunker, udf
from udf_runtime.definition import Parameter

F32 = pa.float32()


class Size(NamedTuple):
    height: int
    width: float


@dataclasses.dataclass
class Area:
    height: int
    width: float


SIZE = pa.struct([("height", pa.int64()), ("width", pa.float64())])


def scalar(a: int, b: str | None) -> float: ...
def arrow(a: pa.Array, b: pa.Array) -> pa.Array: ...
def exact_arrow(a: pa.Int64Array) -> pa.FloatArray: ...
def pandas(a: pd.Series, b: pd.Series) -> pd.Series: ...
def batch(rows: pa.RecordBatch) -> pa.Array: ...
def arrow_iter(rows: Iterator[pa.Array]) -> Iterator[pa.Array]: ...
def arrow_pairs(rows: typing.Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]: ...
def pandas_iter(rows: Iterator[pd.Series]) -> Iterator[pd.Series]: ...
def pandas_pairs(rows: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]: ...
def batch_iter(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.Array]: ...


KINDS = [
    (scalar, Kind.SCALAR, ("a", "b")),
    (arrow, Kind.ARROW, ("a", "b")),
    (exact_arrow, Kind.ARROW, ("a",)),
    (pandas, Kind.PANDAS, ("a", "b")),
    (batch, Kind.RECORD_BATCH, None),
    (arrow_iter, Kind.ARROW_ITER, ("rows",)),
    (arrow_pairs, Kind.ARROW_ITER, ("rows_0", "rows_1")),
    (pandas_iter, Kind.PANDAS_ITER, ("rows",)),
    (pandas_pairs, Kind.PANDAS_ITER, ("rows_0", "rows_1")),
    (batch_iter, Kind.RECORD_BATCH_ITER, None),
]


@pytest.mark.parametrize(
    ("func", "kind", "columns"), KINDS, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_the_annotations_tell_the_kind_and_the_inputs(
    func: Callable[..., object], kind: Kind, columns
):
    kind_udf = udf(func, data_type=F32)
    assert kind_udf.kind is kind
    assert kind_udf.input_columns == columns
    assert kind_udf.data_type == F32
    assert tuple(p.name for p in kind_udf.parameters) == (columns or ("rows",))


@pytest.mark.parametrize(
    "func", [func for func, kind, _ in KINDS if kind.vectorised], ids=lambda f: f.__name__
)
def test_a_vector_kind_without_data_type_is_refused(func: Callable[..., object]):
    with pytest.raises(UdfDefinitionError, match=r"cannot be inferred.* Pass data_type="):
        udf(func)


def test_kinds_tell_whether_they_iterate_and_compute_many_rows():
    assert [k for k in Kind if k.iterates] == [
        Kind.ARROW_ITER,
        Kind.PANDAS_ITER,
        Kind.RECORD_BATCH_ITER,
    ]
    assert [k for k in Kind if not k.vectorised] == [Kind.SCALAR, Kind.CHUNKS]
    assert [k for k in Kind if k.makes_rows] == [Kind.CHUNKS, Kind.TABLE]


def test_a_scalar_udf_infers_its_types():
    scalar_udf = udf(scalar)
    assert scalar_udf.data_type == pa.float64()
    assert scalar_udf.parameters == (
        Parameter(name="a", type=pa.int64()),
        Parameter(name="b", type=pa.string()),
    )


def test_data_type_overrides_the_annotation():
    assert udf(scalar, data_type=pa.int8()).data_type == pa.int8()


def test_parameters_tell_how_their_values_arrive():
    def forms(
        a,
        b: list[int],
        c: np.ndarray,
        d: npt.NDArray[np.float32],
        e: lance.BlobFile,  # type: ignore[name-defined]  # noqa: F821  # as where it is imported for type checkers only
        f: typing.BinaryIO,
        g: Annotated[list[float], 3],
    ) -> int: ...

    form_udf = udf(forms)
    assert [p.form for p in form_udf.parameters] == [
        "value",
        "list",
        "numpy",
        "numpy",
        "blob",
        "blob",
        "list",
    ]
    types = [p.type for p in form_udf.parameters]
    assert types == [
        None,
        pa.list_(pa.int64()),
        None,
        pa.list_(F32),
        None,
        None,
        pa.list_(pa.float64(), 3),
    ]


def test_an_io_class_is_a_blob_too():
    def read(a: io.BufferedReader | None) -> int: ...

    assert udf(read).parameters[0].form == "blob"


@pytest.mark.parametrize("record", [Size, Area])
def test_columns_of_a_record_are_the_fields_of_a_struct(record: type):
    def f(a: int) -> Columns[record]: ...  # type: ignore[valid-type]

    def g(a: int) -> record: ...  # type: ignore[valid-type]

    assert (udf(f).data_type, udf(f).is_columns) == (SIZE, True)
    assert (udf(g).data_type, udf(g).is_columns) == (SIZE, False)


def test_columns_may_be_optional():
    def f(a: int) -> Columns[Size] | None: ...

    assert (udf(f).data_type, udf(f).is_columns) == (SIZE, True)


def test_columns_work_with_vector_kinds_and_take_a_type_of_the_same_fields():
    def vector(a: pa.Array) -> Columns[Size]: ...

    def stream(a: Iterator[pa.RecordBatch]) -> Iterator[Columns[Size]]: ...

    narrow = pa.struct([("height", pa.int32()), ("width", F32)])
    assert (udf(vector).kind, udf(vector).data_type, udf(vector).is_columns) == (
        Kind.ARROW,
        SIZE,
        True,
    )
    assert (udf(stream).kind, udf(stream).data_type, udf(stream).is_columns) == (
        Kind.RECORD_BATCH_ITER,
        SIZE,
        True,
    )
    assert udf(vector, data_type=narrow).data_type == narrow
    with pytest.raises(UdfDefinitionError, match="height, width"):
        udf(vector, data_type=pa.struct([("other", pa.int32())]))


def annotated(parameters: dict[str, object], result: object) -> Callable[..., object]:
    names = ", ".join(parameters)
    scope: dict[str, typing.Any] = {}
    exec(f"def f({names}): ...", scope)
    scope["f"].__annotations__ = {
        **{n.strip("*"): a for n, a in parameters.items()},
        "return": result,
    }
    return scope["f"]  # type: ignore[no-any-return]


WRONG = [
    ({"a": pa.Array, "b": int}, pa.Array, "Some parameters are vectors"),
    ({"a": pa.Array, "b": pd.Series}, pa.Array, "Some parameters are vectors"),
    ({"a": pa.RecordBatch, "b": pa.RecordBatch}, pa.Array, "Take one pa.RecordBatch"),
    ({"a": Iterator[pa.Array], "b": Iterator[pa.Array]}, Iterator[pa.Array], "Iterator\\[tuple"),
    ({"a": Iterator[int]}, Iterator[int], "no input of the type"),
    ({"a": Iterator}, Iterator, "no input of the type"),
    ({"a": Iterator[tuple[pa.Array, pd.Series]]}, Iterator[pa.Array], "no input of the type"),
    ({"a": Iterator[tuple[pa.Array, ...]]}, Iterator[pa.Array], "number of inputs is unknown"),
    ({"a": pa.Array}, pd.Series, "returns pa.Array"),
    ({"a": pa.Array}, Iterator[pa.Array], "returns pa.Array"),
    ({"a": Iterator[pa.Array]}, pa.Array, "returns Iterator"),
    ({"a": int}, pa.Array, "returns one value"),
    ({"a": pd.Series}, pa.Array, "returns pd.Series"),
    ({"*args": int}, int, "names no column"),
    ({"**kwargs": int}, int, "names no column"),
    ({"*": int, "a": int}, int, "by keyword"),
    ({}, int, "no parameters"),
    ({"a": int}, Columns[int], "has no fields"),
    ({"a": int}, Columns, "has no fields"),
    ({"a": "Missing"}, int, "'Missing' of parameter 'a' cannot be resolved"),
]


@pytest.mark.parametrize(("parameters", "result", "reason"), WRONG, ids=str)
def test_a_signature_that_cannot_work_is_refused(
    parameters: dict[str, object], result: object, reason: str
):
    with pytest.raises(UdfDefinitionError, match=reason) as caught:
        udf(annotated(parameters, result), data_type=F32)
    assert "UDF 'f'" in str(caught.value)


def test_an_iterator_over_tuples_of_any_length_takes_as_many_columns_as_are_given():
    func = annotated({"a": Iterator[tuple[pa.Array, ...]]}, Iterator[pa.Array])
    assert udf(func, data_type=F32, input_columns=["x", "y", "z"]).input_columns == ("x", "y", "z")


def test_a_scalar_udf_needs_the_type_of_its_result():
    with pytest.raises(
        UdfDefinitionError, match=r"The result has no annotation\. Place: UDF '.*'\. Annotate it"
    ):
        udf(lambda a: a)
    with pytest.raises(
        UdfDefinitionError,
        match=r"list of the result of UDF 'f' has no Arrow type.*Pass data_type=",
    ):
        udf(annotated({"a": int}, list))


def test_a_function_that_yields_needs_an_iterator_annotation():
    def yields(a: int) -> int:
        yield a  # type: ignore[misc]

    with pytest.raises(UdfDefinitionError, match="yields"):
        udf(yields)


def test_an_async_function_returns_one_result_per_call():
    async def value(a: int) -> int: ...

    async def array(a: pa.Array) -> pa.Array: ...

    async def stream(a: Iterator[pa.Array]) -> Iterator[pa.Array]: ...

    async def yields(a: int) -> int:
        yield a  # type: ignore[misc]

    assert (udf(value).kind, udf(value).data_type, udf(value).is_async) == (
        Kind.SCALAR,
        pa.int64(),
        True,
    )
    assert (udf(array, data_type=F32).kind, udf(array, data_type=F32).is_async) == (
        Kind.ARROW,
        True,
    )
    with pytest.raises(UdfDefinitionError, match="one result per call"):
        udf(stream, data_type=F32)
    with pytest.raises(UdfDefinitionError, match="cannot yield"):
        udf(yields)
    with pytest.raises(UdfDefinitionError, match="one result per call"):
        chunker(value, output_schema=pa.schema({"a": F32}))


@pytest.mark.parametrize("kind", Kind)
def test_an_explicit_kind_needs_no_annotations(kind: Kind):
    explicit_udf = UDF.define(lambda a: a, kind=kind, data_type=F32)
    assert explicit_udf.kind is kind
    assert explicit_udf.input_columns == (None if kind.takes_batches else ("a",))


def test_an_explicit_kind_and_type_overrule_annotations_that_cannot_be_resolved():
    func = annotated({"a": "Missing"}, "Missing")
    assert UDF.define(func, kind=Kind.PANDAS, data_type=F32).kind is Kind.PANDAS


def test_an_explicit_iterator_kind_takes_as_many_columns_as_are_given():
    iterator_udf = UDF.define(
        lambda rows: rows, kind=Kind.PANDAS_ITER, data_type=F32, input_columns=["x", "y"]
    )
    assert [p.name for p in iterator_udf.parameters] == ["rows_0", "rows_1"]


def test_string_annotations_find_what_only_surrounds_the_function():
    import decimal as numbers  # only the annotations use the name

    class Inner(NamedTuple):
        x: int

    @udf
    def f(a: numbers.Decimal) -> Columns[Inner]: ...

    @udf()
    def g(a: Inner) -> numbers.Decimal: ...

    assert f.data_type == pa.struct([("x", pa.int64())])
    assert g.data_type == pa.decimal128(38, 18) == f.parameters[0].type


def test_a_function_that_names_itself_can_be_decorated_inside_a_function():
    @udf
    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1)

    assert count(3) == 3
    assert count.version.startswith("2-")


def test_partials_methods_and_functions_without_a_signature_become_udfs():
    class Adder:
        def add(self, a: int) -> int:
            return a + 1

    def power(a: int, b: int) -> int:
        return a**b

    assert udf(functools.partial(power, b=2)).input_columns == ("a",)
    assert udf(functools.partial(power, b=2))(3) == 9
    assert udf(Adder().add).input_columns == ("a",)
    udfs = (
        udf(np.add.reduce, data_type=F32, input_columns=["x"])
        if False
        else udf(min, data_type=F32, input_columns=["x", "y"])
    )
    assert (udfs.input_columns, udfs(3, 2)) == (("x", "y"), 2)
