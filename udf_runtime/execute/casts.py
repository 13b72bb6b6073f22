"""Which Arrow types may become which, and the cast: within a family, nothing that guesses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types as t

_TEXT = (t.is_string, t.is_large_string, t.is_string_view)
_BYTES = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
_NUMBER = (t.is_integer, t.is_floating, t.is_decimal)
_FAMILIES = (_TEXT, _BYTES, _NUMBER, (t.is_timestamp,), (t.is_date,), (t.is_time,), (t.is_duration,))
_LISTS = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)


def can_become(source: Any, target: Any) -> bool:  # noqa: ANN401 - DataType, and what subclasses add to it
    """Tells whether values of a type may be cast to another, should each value fit.

    Numbers may become other numbers, and lists, text, bytes, times, structs (by field name) others
    of their family. Text never becomes numbers or numbers text, and booleans are not numbers: such
    an output is a mistake more often than a wish.
    """
    if source.equals(target) or t.is_null(source):
        return True
    if isinstance(source, pa.BaseExtensionType) or isinstance(target, pa.BaseExtensionType):
        return can_become(_storage(source), _storage(target))
    if t.is_dictionary(source) or t.is_dictionary(target):
        return can_become(_decoded(source), _decoded(target))
    if _among(_LISTS, source) and _among(_LISTS, target):
        return can_become(source.value_type, target.value_type)
    if t.is_map(source) and t.is_map(target):
        return can_become(source.key_type, target.key_type) and can_become(source.item_type, target.item_type)
    if t.is_struct(source) and t.is_struct(target):
        theirs, ours = {field.name: field.type for field in source}, {field.name: field.type for field in target}
        return theirs.keys() == ours.keys() and all(can_become(theirs[name], ours[name]) for name in ours)
    return any(_among(family, source) and _among(family, target) for family in _FAMILIES)


def cast(array: Any, target: pa.DataType) -> pa.Array[Any]:  # noqa: ANN401 - Array, and what subclasses add to it
    """Returns the array as the type, for types of which `can_become` is true.

    Raises:
        pa.ArrowException: A value does not fit: too large, not a whole number, a list of the wrong
            length.
    """
    made: pa.Array[Any] = array
    if array.type.equals(target):
        return made
    if t.is_null(array.type):
        return nulls(len(array), target)
    if isinstance(array, pa.ExtensionArray):
        return cast(array.storage, target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, cast(array, target.storage_type))
    if t.is_struct(array.type) and t.is_struct(target):
        children = [cast(array.field(field.name), field.type) for field in target]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    made = array.cast(target, safe=True)
    return made  # noqa: RET504 - `made` has a type, which what `cast` returns has not


def nulls(rows: int, data_type: pa.DataType) -> pa.Array[Any]:
    """Returns an array of NULLs."""
    # The stubs have an overload per type, and none for a type that is not known yet.
    made: pa.Array[Any] = pa.nulls(rows, data_type)  # type: ignore[call-overload]
    return made


def _storage(data_type: pa.DataType) -> pa.DataType:
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _decoded(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if t.is_dictionary(data_type) else data_type


def _among(family: tuple[object, ...], data_type: pa.DataType) -> bool:
    return any(callable(belongs) and belongs(data_type) for belongs in family)
