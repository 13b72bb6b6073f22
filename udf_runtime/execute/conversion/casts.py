"""Exact casts between Arrow types of a family, at any depth: :func:`can_become`, :func:`cast`.

Only a cast to a float type rounds, to the nearest number. A finite number too large for the float
type raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from udf_runtime.optional import HAS_NUMPY, np

Array: TypeAlias = Any
"""A `pa.Array`. Its methods depend on its type, which the stubs cannot follow."""

_Family: TypeAlias = tuple[Callable[[pa.DataType], bool], ...]
_TEXT = (t.is_string, t.is_large_string, t.is_string_view)
_BYTES = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
_NUMBER = (t.is_integer, t.is_floating, t.is_decimal)
_LISTS = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
_STRUCTS = (t.is_struct,)
_MAPS = (t.is_map,)
_MOMENTS = ((t.is_timestamp,), (t.is_date,), (t.is_time,), (t.is_duration,))
_FAMILIES = (_TEXT, _BYTES, _NUMBER, *_MOMENTS, _LISTS, _STRUCTS, _MAPS)

WHOLE_HALF = 2**11
"""The integers up to this size are exact in 16 bits."""

_BLOCK = 2**16
"""Number of values per NumPy operation: the values stay in the processor's cache."""


def is_list(data_type: pa.DataType) -> bool:
    """Tells whether a type has lists of any length or of a fixed length, except views."""
    return t.is_list(data_type) or t.is_large_list(data_type) or t.is_fixed_size_list(data_type)


def can_become(source: Any, target: Any) -> bool:  # noqa: ANN401 - DataType, and the attributes of its subclasses
    """Tells whether values of a type may be cast to another type, if each value fits.

    Casts stay within a family: numbers, lists, text, bytes, times, structs (by field name). Text
    never becomes a number or the reverse, and booleans are not numbers, because such an output is a
    mistake more often than an intention.
    """
    source, target = _unwrap(source), _unwrap(target)
    if source.equals(target) or t.is_null(source):
        return True
    if not any(_are_both(family, source, target) for family in _FAMILIES):
        return False
    source_children, target_children = _name_children(source), _name_children(target)
    return source_children.keys() == target_children.keys() and all(
        can_become(child, target_children[name]) for name, child in source_children.items()
    )


def cast(array: Array, target: Any) -> pa.Array[Any]:  # noqa: ANN401 - as in can_become
    """Returns the array as the type, for types accepted by `can_become`.

    No value becomes a Python object.

    Raises:
        pa.ArrowException: A value does not fit: too large, not a whole number, not a whole unit of
        time, a list of the wrong length, NULL in a field that is not nullable.
    """
    result: pa.Array[Any] = _cast(array, target)
    return result


def _cast(array: Array, target: Any) -> Array:  # noqa: ANN401
    if array.type.equals(target) and not _has_required(target):
        return array
    if t.is_null(array.type):
        return nulls(len(array), target)
    if isinstance(array, pa.ExtensionArray):
        return cast(array.storage, target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, cast(array, target.storage_type))
    if t.is_dictionary(array.type):
        return cast(array.dictionary_decode(), target)
    if t.is_dictionary(target):
        return _encode(array, target)
    for family, cast_nested in ((_STRUCTS, _cast_struct), (_MAPS, _cast_map), (_LISTS, _cast_list)):
        if _are_both(family, array.type, target):
            return cast_nested(array, target)
    return _cast_leaf(array, target)


def nulls(rows: int, data_type: pa.DataType) -> pa.Array[Any]:
    """Returns an array of NULLs."""
    # The stubs have an overload per type, and none for an unknown type.
    result: pa.Array[Any] = pa.nulls(rows, data_type)  # type: ignore[call-overload]
    return result


def first_failing(rows: int, attempt: Callable[[int, int], object]) -> int:
    """Returns the first row of a failed conversion, in log(rows) attempts.

    Args:
        rows: Number of rows.
        attempt: Converts the rows from a start to a stop.
    """
    start, stop = 0, rows
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(start, middle)
        except (pa.ArrowException, ValueError):
            stop = middle
        else:
            start = middle
    return start


def first_overflow(source: Array, floats: Array) -> int | None:
    """Returns the first row with a finite number that became an infinite float; None without any.

    Args:
        source: Numbers of any type.
        floats: The same numbers as floats.
    """
    if not has_infinity(floats):
        return None
    infinite = pc.is_inf(_widen_half(floats))
    finite = (
        pc.is_finite(_widen_half(source)) if t.is_floating(source.type) else pc.is_valid(source)
    )
    overflown: Array = pc.and_(infinite, finite)
    row: int = pc.index(overflown, pa.scalar(True)).as_py()
    return None if row < 0 else row


def has_infinity(floats: Array) -> bool:
    """Tells whether a float is infinite; may also report a value under a NULL."""
    if not _is_in_numpy(floats.type):
        return bool(pc.any(pc.is_inf(_widen_half(floats))).as_py())
    return any(bool(np.isinf(block).any()) for block in _split_blocks(_view_in_numpy(floats)))


def narrow_floats(array: Array, target: pa.DataType) -> tuple[Array, int | None]:
    """Returns numbers as floats of fewer bits, each rounded to the nearest float.

    Args:
        array: Floats or decimals.
        target: A float type.

    Returns:
        The floats, and the first row with a finite number that became infinite; None without any.
    """
    quick = (
        _narrow_to_single(array, target)
        if t.is_float64(array.type) and t.is_float32(target)
        else None
    )
    if quick is not None:
        return quick, None
    floats = array.cast(target, safe=True)
    return floats, first_overflow(array, floats)


def _narrow_to_single(array: Array, target: pa.DataType) -> Array | None:
    """Returns 64-bit floats as 32-bit floats; None if a number may be too large.

    NumPy reports a finite number that becomes infinite from the flags of the processor, without a
    further pass over the values. PyArrow's check takes a third of the cast (measured with PyArrow
    26 and NumPy 2.4).
    """
    if not HAS_NUMPY or array.null_count or not len(array):
        return None
    # Arrow's pool reuses memory; NumPy's does not.
    memory: Any = pa.allocate_buffer(4 * len(array))
    with np.errstate(all="ignore", over="raise"):
        try:
            np.frombuffer(memory, np.float32)[...] = _view_in_numpy(array)
        except FloatingPointError:
            return None
    single: Array = pa.Array.from_buffers(target, len(array), [None, memory])
    return single


def zero_or_one_rows(floats: Array) -> list[int]:
    """Returns the rows of floats that may come from a boolean."""
    if _is_in_numpy(floats.type):
        values = _view_in_numpy(floats)
        rows: list[int] = np.flatnonzero((values == 0) | (values == 1)).tolist()
        return rows
    numbers = _widen_half(floats)
    zeros: Array = pc.equal(numbers, pa.scalar(0.0, numbers.type))
    likely: Array = pc.or_(zeros, pc.equal(numbers, pa.scalar(1.0, numbers.type)))
    places: Any = pc.indices_nonzero(likely).to_pylist()
    return list(places)


def _is_in_numpy(data_type: pa.DataType) -> bool:
    """Tells whether NumPy can view the values of a type without a copy."""
    return HAS_NUMPY and (t.is_float32(data_type) or t.is_float64(data_type))


def _view_in_numpy(array: Array) -> Any:  # noqa: ANN401
    """Returns the numbers of an array without a copy; any number lies under a NULL."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _split_blocks(values: Any) -> Iterator[Any]:  # noqa: ANN401
    for start in range(0, len(values), _BLOCK):
        yield values[start : start + _BLOCK]


def refuse_nulls(child: Array, field: pa.Field[Any], *, hidden: int = 0) -> None:
    """Raises an error for NULL in a field that is not nullable.

    Args:
        child: Values of the field.
        field: The field.
        hidden: Number of NULLs in `child` below a NULL struct.

    Raises:
        pa.ArrowInvalid: The field holds such a NULL.
    """
    if not field.nullable and child.null_count > hidden:
        raise pa.ArrowInvalid(f"NULL for {field.name!r}, which is not nullable")


def list_array(
    offsets: list[int] | Array,
    child: Array,
    target: Any,  # noqa: ANN401
    null_mask: Array | None,
) -> Array:
    """Returns lists of any length.

    Args:
        offsets: Start of each list's items, and the end of the last list.
        child: The items.
        target: A list type of 32 or 64-bit offsets.
        null_mask: True for each NULL list; None without NULLs.

    Raises:
        pa.ArrowInvalid: An item is NULL against the type.
    """
    refuse_nulls(child, target.value_field)
    large = t.is_large_list(target)
    offsets = pa.array(offsets, pa.int64()).cast(pa.int64() if large else pa.int32())
    make: Any = pa.LargeListArray.from_arrays if large else pa.ListArray.from_arrays
    return make(offsets, child, type=target, mask=null_mask)


def vector_array(child: Array, target: Any, null_mask: Array | None) -> pa.Array[Any]:  # noqa: ANN401
    """Returns vectors.

    Args:
        child: The items of all vectors that are not NULL.
        target: A type of lists of a fixed length.
        null_mask: True for each NULL vector; None without NULLs.

    Raises:
        pa.ArrowInvalid: An item is NULL against the type, or vectors have no items.
    """
    if not target.list_size:  # PyArrow 26 ends the process
        raise pa.ArrowInvalid("vectors have at least one item")
    refuse_nulls(child, target.value_field)
    if null_mask is None:
        return pa.FixedSizeListArray.from_arrays(child, type=target)
    if not len(child):
        return nulls(len(null_mask), target)
    vectors: Array = pa.FixedSizeListArray.from_arrays(child, type=target)
    present: Array = pc.invert(null_mask)
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
    if target.value_field.nullable:
        spread: pa.Array[Any] = vectors.take(
            pc.if_else(null_mask, pa.scalar(None, pa.int64()), places)
        )
        return spread
    # Lance rejects NULL items below a NULL vector if items are not nullable.
    vectors = vectors.take(pc.if_else(null_mask, 0, places))
    return pa.FixedSizeListArray.from_arrays(vectors.flatten(), type=target, mask=null_mask)


def map_array(
    offsets: list[int] | Array,
    keys: Array,
    items: Array,
    target: Any,  # noqa: ANN401
    null_mask: Array | None,
) -> Array:
    """Returns maps.

    Args:
        offsets: Start of each map's entries, and the end of the last map.
        keys: The keys of all entries.
        items: The values of all entries.
        target: A map type.
        null_mask: True for each NULL map; None without NULLs.

    Raises:
        pa.ArrowInvalid: A key is NULL, or a value is NULL against the type.
    """
    refuse_nulls(keys, target.key_field)
    refuse_nulls(items, target.item_field)
    make: Any = pa.MapArray.from_arrays
    return make(pa.array(offsets, pa.int32()), keys, items, type=target, mask=null_mask)


def struct_array(
    children: Iterable[Array],
    rows: int,
    target: Any,  # noqa: ANN401
    null_mask: Array | None,
) -> Array:
    """Returns structs.

    Args:
        children: The values of each field.
        rows: Number of structs.
        target: A struct type.
        null_mask: True for each NULL struct, with NULL in all children; None without NULLs.

    Raises:
        pa.ArrowInvalid: A field is NULL against the type.
    """
    arrays = list(children)
    if not arrays:
        empty: list[Any] = (
            [()] * rows
            if null_mask is None
            else [None if null else () for null in null_mask.to_pylist()]
        )
        return pa.array(empty, type=target)
    hidden = 0 if null_mask is None else pc.sum(null_mask).as_py() or 0
    for array, field in zip(arrays, target, strict=True):
        refuse_nulls(array, field, hidden=hidden)
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=null_mask)


def _cast_struct(array: Array, target: Any) -> Array:  # noqa: ANN401
    # Flattened, a child is NULL below a NULL struct.
    children = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    result = []
    for field in target:
        try:
            result.append(cast(children[field.name], field.type))
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(f"field {field.name!r}: {error}") from error
    return struct_array(result, len(array), target, _make_null_mask(array))


def _cast_list(array: Array, target: Any) -> Array:  # noqa: ANN401
    child = cast(array.flatten(), target.value_type)
    sizes = pc.list_value_length(array)
    if t.is_fixed_size_list(target):
        wrong = pc.drop_null(pc.filter(sizes, pc.not_equal(sizes, pa.scalar(target.list_size))))
        if len(wrong):
            raise pa.ArrowInvalid(f"a list has {wrong[0]} items instead of {target.list_size}")
        return vector_array(child, target, _make_null_mask(array))
    if not t.is_list(target) and not t.is_large_list(target):
        return array.cast(target)
    return list_array(_compute_offsets(sizes), child, target, _make_null_mask(array))


def _cast_map(array: Array, target: Any) -> Array:  # noqa: ANN401
    entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    keys, items = entries.flatten().flatten()
    offsets = _compute_offsets(pc.list_value_length(entries))
    result = cast(keys, target.key_type), cast(items, target.item_type)
    return map_array(offsets, *result, target, _make_null_mask(array))


def _cast_leaf(array: Array, target: pa.DataType) -> Array:
    source = array.type
    if t.is_floating(target) and (t.is_floating(source) or t.is_decimal(source)):
        return _cast_to_floats(array, target)
    if t.is_decimal(target) and t.is_integer(source):
        # Arrow rejects a direct cast to few digits by type. A cast through all digits of a 64-bit
        # integer depends on the values only.
        array = array.cast(pa.decimal256(20, 0))
    result = array.cast(target, safe=True)
    if t.is_float16(target) and t.is_integer(source):
        _refuse_changed(array, result, pc.greater(pc.abs(array), pa.scalar(WHOLE_HALF)))
    elif t.is_decimal(target) and t.is_floating(source):
        _refuse_changed(
            array, result, pc.not_equal(result.cast(pa.float64()), array.cast(pa.float64()))
        )
    return result


def _cast_to_floats(array: Array, target: pa.DataType) -> Array:
    if t.is_float16(target) and t.is_decimal(array.type):
        array = array.cast(pa.float64())
    floats, row = narrow_floats(array, target)
    if row is not None:
        raise pa.ArrowInvalid(f"{array[row]} is too large for {target}")
    return floats


def _refuse_changed(array: Array, result: Array, changed: Array) -> None:
    row: int = pc.index(changed, True).as_py()
    if row >= 0:
        raise pa.ArrowInvalid(f"{array[row]} would become {result[row]} in {result.type}")


def _encode(array: Array, target: Any) -> Array:  # noqa: ANN401
    encoded = cast(array, target.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(target.index_type), encoded.dictionary, ordered=target.ordered
    )


def _compute_offsets(sizes: Array) -> Array:
    ends = pc.cumulative_sum(pc.fill_null(sizes, 0).cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends])


def _make_null_mask(array: Array) -> Array | None:
    return array.is_null() if array.null_count else None


def _widen_half(array: Array) -> Array:
    return array.cast(pa.float32()) if t.is_float16(array.type) else array


def _has_required(data_type: Any) -> bool:  # noqa: ANN401
    """Tells whether a field within a type is not nullable; the key of a map never is."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_required(data_type.storage_type)
    if t.is_map(data_type):
        fields = [data_type.key_field.with_nullable(True), data_type.item_field]
    elif _belongs_to(_LISTS, data_type):
        fields = [data_type.value_field]
    else:
        fields = list(data_type) if t.is_struct(data_type) else []
    return any(not field.nullable or _has_required(field.type) for field in fields)


def _unwrap(data_type: pa.DataType) -> pa.DataType:
    """Returns the type of the values below extension types and dictionaries."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _unwrap(data_type.storage_type)
    return _unwrap(data_type.value_type) if t.is_dictionary(data_type) else data_type


def _name_children(data_type: Any) -> dict[str, pa.DataType]:  # noqa: ANN401
    """Returns the types of nested values: of structs by field name, else by the same names."""
    if t.is_struct(data_type):
        return {field.name: field.type for field in data_type}
    if t.is_map(data_type):
        return {"key": data_type.key_type, "value": data_type.item_type}
    return {"item": data_type.value_type} if _belongs_to(_LISTS, data_type) else {}


def _are_both(family: _Family, source: pa.DataType, target: pa.DataType) -> bool:
    return _belongs_to(family, source) and _belongs_to(family, target)


def _belongs_to(family: _Family, data_type: pa.DataType) -> bool:
    return any(belongs(data_type) for belongs in family)
