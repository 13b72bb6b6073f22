"""Digests of data in code: NumPy, Arrow and pandas values, by their full content.

Equal Arrow data have the same digest, because offsets of slices, chunk boundaries, bytes under
NULLs and validity bitmaps without NULLs do not count. The memory order of NumPy arrays and the
order of categories count, because functions can distinguish them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udf_runtime.optional import np


def data_parts(value: object) -> Iterator[object] | None:
    """Returns a NumPy, Arrow or pandas value as plain values, bytes and arrays; None otherwise."""
    for list_parts in (_arrow_values, _arrow_types, _numpy_values, _pandas_parts):
        parts = list_parts(value)
        if parts is not None:
            return parts
    return None


def _arrow_values(value: object) -> Iterator[object] | None:
    if isinstance(value, pa.Array):
        return _array_parts(value)
    if isinstance(value, pa.ChunkedArray):
        return iter(
            (
                "chunked",
                pa.concat_arrays(value.chunks) if value.num_chunks else pa.array([], value.type),
            )
        )
    if isinstance(value, (pa.RecordBatch, pa.Table)):
        return iter((type(value).__name__, value.schema, list(value.columns)))
    if isinstance(value, pa.Scalar):
        return iter(
            (
                "scalar",
                pa.array([value.as_py()], value.type)
                if value.is_valid
                else pa.nulls(1, value.type),
            )
        )
    return iter(("buffer", value.to_pybytes())) if isinstance(value, pa.Buffer) else None


def _arrow_types(value: object) -> Iterator[object] | None:
    if isinstance(value, pa.Schema):
        return iter(("schema", list(value), value.metadata))
    if isinstance(value, pa.Field):
        return iter(("field", value.name, value.type, value.nullable, value.metadata))
    if isinstance(value, pa.DataType):
        return iter(("type", str(value), [value.field(i) for i in range(value.num_fields)]))
    return None


def is_numpy_value(value: object) -> bool:
    """Tells whether a value is a NumPy scalar, except a record, or an array of no subclass."""
    return type(value) in (np.ndarray, np.memmap) or (
        isinstance(value, np.generic) and not isinstance(value, np.void)
    )


def _numpy_values(value: object) -> Iterator[object] | None:
    if is_numpy_value(value):
        return _numpy_parts(np.asarray(value))
    return iter(("dtype", value.str, _dtype_parts(value))) if isinstance(value, np.dtype) else None


def _dtype_parts(kind: np.dtype[Any]) -> tuple[object, ...]:
    if kind.subdtype is not None:
        return kind.subdtype
    return (kind.descr, kind.isalignedstruct) if kind.names else ()


def _numpy_parts(array: np.ndarray) -> Iterator[object]:
    yield from ("ndarray", array.dtype, array.shape, bool(array.flags.fnc))
    if array.dtype.hasobject:
        yield array.tolist()
    else:
        yield np.ascontiguousarray(array).tobytes()


def _pandas_parts(value: object) -> Iterator[object] | None:
    pandas = sys.modules.get("pandas")  # without an import of pandas, no pandas value exists
    if pandas is None:
        return None
    if isinstance(value, pandas.DataFrame):
        columns = [value.iloc[:, i] for i in range(value.shape[1])]
        return iter(("DataFrame", value.columns, value.index, columns, value.attrs))
    if isinstance(value, pandas.Series):
        return iter(
            ("Series", value.name, _pandas_type(value), value.index, value.to_numpy(), value.attrs)
        )
    if isinstance(value, pandas.Index):
        names = list(value.names)
        return iter(
            ("Index", names, _pandas_type(value), value.to_numpy(), getattr(value, "freqstr", None))
        )
    if isinstance(value, pandas.CategoricalDtype):
        return iter(("CategoricalDtype", value.categories, value.ordered))
    return None


def _pandas_type(value: Any) -> object:  # noqa: ANN401 - a series or an index
    return value.dtype if str(value.dtype) == "category" else str(value.dtype)


def _array_parts(array: pa.Array) -> Iterator[object]:  # type: ignore[type-arg]  # of any element type
    kind = array.type
    yield from ("array", kind, len(array))
    if isinstance(array, pa.ExtensionArray):
        yield array.storage
        return
    if isinstance(array, pa.DictionaryArray):
        yield from (array.indices, array.dictionary)
        return
    if _is_rare(array.type):
        yield array.to_pylist()
        return
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    yield np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).astype(np.int64).tobytes()
    # take() copies the values: no offset, no bytes under NULLs.
    yield from _value_parts(array.take(pc.indices_nonzero(array.is_valid())))


def _value_parts(array: pa.Array) -> Iterator[object]:  # type: ignore[type-arg]
    """Yields the content of an array without NULLs at its top."""
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return
    if types.is_nested(kind):
        yield from _nested_parts(array)
    elif types.is_boolean(kind):
        yield array.cast(pa.uint8()).to_numpy().tobytes()
    elif types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        width = kind.bit_width // 8
        data = array.buffers()[1]
        yield (
            b""
            if data is None
            else data.slice(array.offset * width, len(array) * width).to_pybytes()
        )
    else:
        text: Any = array.cast(pa.large_binary())
        yield from (pc.binary_length(text).to_numpy().tobytes(), b"".join(text.to_pylist()))


def _nested_parts(array: Any) -> Iterator[object]:  # noqa: ANN401 - an array of any nested type
    """Yields the children of an array, after the lengths of lists and maps."""
    kind, types = array.type, pa.types
    if types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.field(0).type.field(i) for i in range(2)])))
    if not types.is_struct(kind) and not types.is_fixed_size_list(kind):
        yield pc.list_value_length(array)
    yield array.flatten()


def _is_rare(kind: pa.DataType) -> bool:
    """Tells whether kernels reject a type or fail, like slices of list views in pyarrow 26."""
    types = pa.types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return views or types.is_run_end_encoded(kind) or types.is_union(kind)
