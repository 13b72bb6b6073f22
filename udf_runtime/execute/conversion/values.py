"""Python values of any depth as an Arrow array of exactly a type: :class:`ValueConverter`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types as t

from udf_runtime.execute.conversion.casts import (
    Array,
    can_become,
    cast,
    is_list,
    list_array,
    map_array,
    struct_array,
    vector_array,
)
from udf_runtime.execute.conversion.leaf_values import (
    CONVERSION_ERRORS,
    is_exact,
    leaf_array,
    may_differ,
    without_missing,
)
from udf_runtime.optional import np

__all__ = ["CONVERSION_ERRORS", "ValueConverter"]

Maker: TypeAlias = Callable[[list[Any]], Array]
"""Makes an array of values; None becomes NULL."""


class ValueConverter:
    """Makes arrays of a type from Python values: each value exactly, or an error.

    Lists may come as any sequence or NumPy array. Maps come as mappings or lists of pairs. Structs
    come as NamedTuples, dataclasses, other objects with the fields as attributes, mappings, and
    tuples of the right length.
    """

    __slots__ = ("_make", "data_type", "nan_is_null")

    def __init__(self, data_type: pa.DataType, *, nan_is_null: bool, complete: bool) -> None:
        """Prepares for a type.

        Args:
            data_type: Type of the arrays.
            nan_is_null: Whether NaN, NaT and NA stand for NULL, as in pandas.
            complete: Whether a mapping must have every field of a struct type; else missing fields
                are NULL. Does not apply to nested structs.
        """
        self.data_type = data_type
        self.nan_is_null = nan_is_null
        self._make = _choose_maker(data_type, nan_is_null=nan_is_null, complete=complete)

    def array(self, values: list[Any]) -> pa.Array[Any]:
        """Returns the values as an array.

        Raises:
            CONVERSION_ERRORS: A value does not fit: a fraction for an integer, a part of a unit of
                time, a finite number beyond the range of a float type, a time with a time zone,
                NULL for a nested field that is not nullable, a list of the wrong length.
        """
        result: pa.Array[Any] = self._make(values)
        return result

    def misfits(self, values: list[Any]) -> Iterator[tuple[int, BaseException]]:
        """Yields position and error of each misfit, tested alone, in order."""
        return self._misfits(values, 0, len(values))

    def _misfits(
        self, values: list[Any], start: int, stop: int
    ) -> Iterator[tuple[int, BaseException]]:
        try:
            self._make(values[start:stop])
        except CONVERSION_ERRORS as error:
            if stop - start == 1:
                yield start, error
                return
        else:
            return
        middle = (start + stop) // 2
        yield from self._misfits(values, start, middle)
        yield from self._misfits(values, middle, stop)


def _choose_maker(data_type: Any, *, nan_is_null: bool, complete: bool = False) -> Maker:  # noqa: ANN401
    inner = partial(_choose_maker, nan_is_null=nan_is_null)
    if isinstance(data_type, pa.BaseExtensionType):
        storage = inner(data_type.storage_type, complete=complete)
        return lambda values: pa.ExtensionArray.from_storage(data_type, storage(values))
    if t.is_dictionary(data_type):
        plain = inner(data_type.value_type)
        return lambda values: cast(plain(values), data_type)
    nested: Maker
    if t.is_struct(data_type):
        nested = _Structs(data_type, [inner(field.type) for field in data_type], complete=complete)
    elif t.is_map(data_type):
        nested = partial(
            _make_maps, data_type, inner(data_type.key_type), inner(data_type.item_type)
        )
    elif is_list(data_type):
        nested = partial(
            _make_lists, data_type, inner(data_type.value_type), nan_is_null=nan_is_null
        )
    elif t.is_nested(data_type):
        raise TypeError(f"there are no values of {data_type}")
    else:
        return partial(leaf_array, data_type=data_type, nan_is_null=nan_is_null)
    if not nan_is_null:
        return nested
    return lambda values: nested(list(without_missing(values, set(map(type, values)))))


# Lists


def _make_lists(data_type: Any, make: Maker, values: list[Any], *, nan_is_null: bool) -> Array:  # noqa: ANN401
    classes = set(map(type, values))
    exact = None if nan_is_null else _make_exact_lists(data_type, values, classes)
    if exact is not None:
        return exact
    if not classes <= {list, tuple, type(None)}:
        child = _concatenate_arrays(values, classes, data_type.value_type, nan_is_null=nan_is_null)
        if child is not None:
            return _assemble_lists(data_type, values, child)
        values = [None if value is None else _list_items(value) for value in values]
    return _assemble_lists(data_type, values, make(list(chain.from_iterable(filter(None, values)))))


def _make_exact_lists(data_type: Any, values: list[Any], classes: set[type]) -> Array | None:  # noqa: ANN401
    """Returns lists from a single PyArrow conversion; None if PyArrow may change a value."""
    item = data_type.value_field
    if not (item.nullable and is_exact(item.type)):
        return None
    is_numpy = classes <= {np.ndarray, type(None)} and _are_of(item.type, values)
    if not is_numpy and not classes <= {list, tuple, type(None)}:
        return None
    with suppress(*CONVERSION_ERRORS):
        array: Any = pa.array(values, data_type)
        is_sure = is_numpy or not t.is_floating(item.type)
        if not isinstance(array, pa.ChunkedArray) and (is_sure or not may_differ(array.flatten())):
            return array
    return None


def _are_of(item_type: pa.DataType, arrays: list[Any]) -> bool:
    """Tells whether NumPy arrays have the dtype of an Arrow type."""
    present = (
        arrays
        if type(None) not in set(map(type, arrays))
        else [array for array in arrays if array is not None]
    )
    dtypes = set(map(attrgetter("dtype"), present))
    try:
        return all(dtype.isnative and pa.from_numpy_dtype(dtype) == item_type for dtype in dtypes)
    except pa.ArrowNotImplementedError:
        return False


def _assemble_lists(data_type: Any, values: list[Any], child: Array) -> Array:  # noqa: ANN401
    null_mask = _make_null_mask(values)
    if t.is_fixed_size_list(data_type):
        size = data_type.list_size
        wrong = next(
            (len(value) for value in values if value is not None and len(value) != size), None
        )
        if wrong is not None:
            raise ValueError(f"expected {size} items, got {wrong}")
        return vector_array(child, data_type, null_mask)
    return list_array(_compute_offsets(values), child, data_type, null_mask)


def _concatenate_arrays(
    values: list[Any],
    classes: set[type],
    item_type: pa.DataType,
    *,
    nan_is_null: bool,
) -> Array | None:
    """Returns the items of NumPy vectors of a single dtype; None for other values."""
    if not classes <= {np.ndarray, type(None)}:
        return None
    arrays = [value for value in values if value is not None]
    dtypes = {array.dtype for array in arrays}
    if (
        len(dtypes) != 1
        or any(array.ndim != 1 for array in arrays)
        or not _is_castable(dtypes.pop(), item_type)
    ):
        return None
    flat: Any = np.concatenate(arrays)
    return cast(pa.array(flat, from_pandas=nan_is_null), item_type)


def _is_castable(dtype: Any, item_type: pa.DataType) -> bool:  # noqa: ANN401
    try:
        return dtype.isnative and can_become(pa.from_numpy_dtype(dtype), item_type)
    except pa.ArrowNotImplementedError:
        return False  # a dtype, or a unit of time, of NumPy only


def _list_items(value: Any) -> Sequence[object]:  # noqa: ANN401
    """Returns the items of a list in any form."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, np.ndarray):
        return _list_numpy_items(value)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.to_pylist()
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not (
        isinstance(value, Iterable) and isinstance(value, Sized)
    ):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    if hasattr(value, "tolist"):
        return _list_items(value.tolist())  # a Series, an Index, a tensor
    return list(value)


def _list_numpy_items(array: Any) -> Sequence[object]:  # noqa: ANN401
    if not array.ndim:
        raise TypeError("expected a list, got an array without dimensions")
    # `tolist` would turn moments into plain integers, and rows into lists.
    items: list[object] = (
        list(array) if array.ndim > 1 or array.dtype.kind in "mM" else array.tolist()
    )
    if array.ndim == 1 and isinstance(array, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(array)
        return [None if hidden else item for item, hidden in zip(items, masked, strict=True)]
    return items


# Maps


def _make_maps(data_type: Any, make_keys: Maker, make_items: Maker, values: list[Any]) -> Array:  # noqa: ANN401
    maps: list[Any] = [value for value in values if value is not None]
    if set(map(type, maps)) <= {dict}:
        keys, items = (
            list(chain.from_iterable(maps)),
            list(chain.from_iterable(map(dict.values, maps))),
        )
    else:
        values = [None if value is None else _list_entries(value) for value in values]
        pairs = list(chain.from_iterable(filter(None, values)))
        keys, items = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return map_array(
        _compute_offsets(values),
        make_keys(keys),
        make_items(items),
        data_type,
        _make_null_mask(values),
    )


def _list_entries(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [_read_pair(entry) for entry in _list_items(value)]


def _read_pair(entry: object) -> tuple[object, object]:
    if isinstance(entry, Mapping) and set(entry) == {"key", "value"}:
        return entry["key"], entry["value"]
    if not isinstance(entry, (tuple, list)) or len(entry) != 2:
        raise TypeError(f"expected a pair of key and value, got {type(entry).__name__}")
    return entry[0], entry[1]


# Structs


class _Structs:
    """Makes arrays of a struct type from structs in every form."""

    __slots__ = ("_complete", "_makers", "_names", "_type")

    def __init__(self, data_type: Any, makers: list[Maker], *, complete: bool) -> None:  # noqa: ANN401
        self._type = data_type
        self._makers = makers
        self._names = tuple(field.name for field in data_type)
        self._complete = complete

    def __call__(self, values: list[Any]) -> Array:
        rows = self._split_rows(values, self._choose_getter(values))
        children = []
        for at, (name, make) in enumerate(zip(self._names, self._makers, strict=True)):
            try:
                children.append(make(list(map(itemgetter(at), rows))))
            except CONVERSION_ERRORS as error:
                raise ValueError(f"field {name!r}: {error}") from error
        return struct_array(children, len(values), self._type, _make_null_mask(values))

    def _split_rows(
        self, values: list[Any], get: Callable[[Any], Sequence[object]] | None
    ) -> list[Sequence[object]]:
        none = (None,) * len(self._names)
        if get is tuple:
            return [none if value is None else value for value in values]
        if get is not None:
            try:
                return [none if value is None else get(value) for value in values]
            except (KeyError, AttributeError):
                pass  # `_split_struct` names the field
        return [none if value is None else self._split_struct(value) for value in values]

    def _choose_getter(self, values: list[Any]) -> Callable[[Any], Sequence[object]] | None:
        """Returns a getter of all fields if all values have a single simple form, else None."""
        forms = set(map(type, values)) - {type(None)}
        if len(forms) != 1 or len(self._names) < 2:
            return None  # a getter of a single name returns no tuple
        form = forms.pop()
        if issubclass(form, tuple) and getattr(form, "_fields", self._names) == self._names:
            return tuple if set(map(len, filter(None, values))) == {len(self._names)} else None
        if set(getattr(form, "__dataclass_fields__", ())) == set(self._names):
            return attrgetter(*self._names)
        if form is dict and set(map(len, filter(None, values))) == {len(self._names)}:
            return itemgetter(*self._names)
        return None

    def _split_struct(self, value: Any) -> Sequence[object]:  # noqa: ANN401
        """Returns the values of a struct in the order of the fields."""
        names = self._names
        if isinstance(value, Mapping):
            if not set(names).issuperset(value) or (self._complete and len(value) != len(names)):
                raise self._make_error(f"a mapping of {_join_names(value)}")
            return [value.get(name) for name in names]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            if len(value) != len(names):
                raise ValueError(
                    f"expected a struct of {len(names)} fields ({_join_names(names)}), got a tuple of {len(value)}"
                )
            return value
        return self._split_object(value)

    def _split_object(self, value: Any) -> Sequence[object]:  # noqa: ANN401
        form = type(value)
        own = getattr(form, "_fields", None) or getattr(form, "__dataclass_fields__", None)
        if own is not None and set(own) != set(self._names):
            raise self._make_error(f"{form.__name__} of {_join_names(own)}")
        try:
            return [getattr(value, name) for name in self._names]
        except AttributeError:
            raise self._make_error(form.__name__) from None

    def _make_error(self, actual: str) -> ValueError:
        return ValueError(f"expected a struct of {_join_names(self._names)}, got {actual}")


def _make_null_mask(values: list[Any]) -> Array | None:
    null_mask = [value is None for value in values]
    return pa.array(null_mask) if any(null_mask) else None


def _compute_offsets(values: list[Any]) -> list[int]:
    return list(accumulate((0 if value is None else len(value) for value in values), initial=0))


def _join_names(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "nothing"
