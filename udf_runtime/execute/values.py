"""Python values, structs in every form, into one Arrow array without silent truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types as t

from udf_runtime.execute.casts import cast
from udf_runtime.optional import np

Normaliser: TypeAlias = Callable[[object], object]

CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)
"""What a value that does not fit makes PyArrow raise, and the normalisers below."""


class ValueConverter:
    """Makes arrays of one type from Python values.

    Structs may come as NamedTuples, dataclasses, other objects with the fields as attributes,
    mappings, and tuples of the right length. PyArrow wants one form per column, and takes `1.5` as
    1 for an integer column: the first is evened out here, the second refused.
    """

    __slots__ = ("_names", "_normalise", "_storage", "data_type", "nan_is_null")

    def __init__(self, data_type: pa.DataType, *, nan_is_null: bool, complete: bool) -> None:
        """Prepares for a type.

        Args:
            data_type: Type of the arrays.
            nan_is_null: Whether NaN, NaT and NA stand for NULL, as they do in pandas.
            complete: Whether a mapping must have every field of a struct type (not: of structs
                within it), instead of NULL for the others.
        """
        self.data_type = data_type
        self._storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
        self.nan_is_null = nan_is_null
        self._normalise = _normaliser(self._storage, complete=complete)
        # Field names in order, of a struct type in which no other one is nested.
        self._names: tuple[str, ...] | None = None
        if t.is_struct(self._storage) and not any(_normaliser(field.type) for field in self._storage):
            self._names = tuple(field.name for field in self._storage)

    def array(self, values: list[object]) -> pa.Array[Any]:
        """Returns the values as an array.

        Raises:
            CONVERSION_ERRORS: A value does not fit.
        """
        if self._normalise is not None:
            values = self._quickly_normalised(values) or list(map(self._normalise, values))
        if t.is_integer(self._storage) and not self.nan_is_null:
            # Inferring the type costs less than looking at the type of each value, and tells
            # whether all were whole numbers.
            try:
                inferred: Any = pa.array(_untyped(values))
            except CONVERSION_ERRORS:
                inferred = None  # mixed types, or beyond 64 bits: the careful way below says which
            if isinstance(inferred, pa.Array) and (t.is_integer(inferred.type) or t.is_null(inferred.type)):
                return self._as_type(cast(inferred, self._storage))
        _refuse_fractions(values, self._storage)
        made: Any = pa.array(_untyped(values), type=self._storage, from_pandas=self.nan_is_null)
        if isinstance(made, pa.ChunkedArray):
            raise pa.ArrowCapacityError(
                f"the values of the batch are too large for one array of {self._storage}; "
                "use a large_ type or smaller batches"
            )
        return self._as_type(made)

    def _quickly_normalised(self, values: list[object]) -> list[object] | None:
        """Returns struct values as tuples where all have one simple form, else None."""
        kinds = set(map(type, values))
        present = kinds - {type(None)}
        if self._names is None or len(present) != 1:
            return None
        form = present.pop()
        if issubclass(form, tuple) and getattr(form, "_fields", self._names) == self._names:
            lengths = set(map(len, filter(None, values)))  # type: ignore[arg-type]  # tuples, by the line above
            return values if lengths == {len(self._names)} else None
        get: Any  # `attrgetter` and `itemgetter` have no type in common
        if len(self._names) < 2:
            return None  # a getter of one name gives no tuple
        if set(getattr(form, "__dataclass_fields__", ())) == set(self._names):
            get = attrgetter(*self._names)
        elif form is dict and set(map(len, filter(None, values))) == {len(self._names)}:  # type: ignore[arg-type]  # likewise
            get = itemgetter(*self._names)
        else:
            return None
        try:
            return (
                [None if value is None else get(value) for value in values]
                if len(kinds) > 1
                else list(map(get, values))
            )
        except (KeyError, AttributeError):
            return None  # the careful way says what is missing

    def _as_type(self, array: pa.Array[Any]) -> pa.Array[Any]:
        if isinstance(self.data_type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(self.data_type, array)
        return array


def _untyped(values: list[object]) -> Any:  # noqa: ANN401 - PyArrow takes a list of anything, and its stubs do not
    return values


def _normaliser(data_type: Any, *, complete: bool = False) -> Normaliser | None:  # noqa: ANN401
    """Returns a function that turns structs into tuples in field order; None without structs."""
    if t.is_struct(data_type):
        return _struct_normaliser(list(data_type), complete)
    if t.is_list(data_type) or t.is_large_list(data_type) or t.is_fixed_size_list(data_type):
        inner = _normaliser(data_type.value_type)
        if inner is not None:
            each = inner
            return lambda value: None if value is None else [each(item) for item in _as_items(value)]
    return None


def _struct_normaliser(fields: Sequence[pa.Field[Any]], complete: bool) -> Normaliser:
    names = [field.name for field in fields]
    known = frozenset(names)
    inner = [_normaliser(field.type) for field in fields]
    nested = any(inner)

    def taken_apart(value: object) -> Sequence[object]:
        if isinstance(value, Mapping):
            if not known.issuperset(value) or (complete and len(value) != len(known)):
                raise ValueError(f"expected a struct of {_listed(names)}, got a mapping of {_listed(value)}")
            return [value.get(name) for name in names]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            if len(value) != len(names):
                raise ValueError(
                    f"expected a struct of {len(names)} fields ({_listed(names)}), got a tuple of {len(value)}"
                )
            return value
        own = getattr(type(value), "_fields", None) or getattr(type(value), "__dataclass_fields__", None)
        if own is not None and set(own) != known:
            raise ValueError(f"expected a struct of {_listed(names)}, got {type(value).__name__} of {_listed(own)}")
        try:
            return [getattr(value, name) for name in names]
        except AttributeError:
            raise ValueError(f"expected a struct of {_listed(names)}, got {type(value).__name__}") from None

    def normalise(value: object) -> object:
        if value is None:
            return None
        parts = taken_apart(value)
        if nested:
            return tuple(part if own is None else own(part) for part, own in zip(parts, inner, strict=True))
        return tuple(parts)

    return normalise


_FRACTIONAL = (float, np.floating, Decimal)


def _refuse_fractions(values: Iterable[object], data_type: pa.DataType) -> None:
    """Raises ValueError where a fraction would become an integer: PyArrow drops it silently."""
    for make_leaves in _integer_leaves(values, data_type):
        # The types first, in C: almost always they are all `int`, and no value need be looked at.
        if not any(issubclass(cls, _FRACTIONAL) for cls in set(map(type, make_leaves()))):
            continue
        for value in make_leaves():
            # NaN differs from itself and stays what it is: PyArrow refuses it, or takes it as NULL
            # where pandas' rule holds.
            if isinstance(value, _FRACTIONAL) and value == value and value % 1 != 0:  # noqa: PLR0124
                raise ValueError(f"{value} is not a whole number")


def _integer_leaves(values: Iterable[object], data_type: Any) -> Iterator[Callable[[], Iterable[object]]]:  # noqa: ANN401
    """Yields, for each integer type within a type, what gives the values that will become of it."""
    if t.is_integer(data_type):
        yield lambda: values
    elif t.is_struct(data_type):
        rows: Iterable[Any] = values  # normalised: tuples of the right length, and None
        for position, field in enumerate(data_type):
            if t.is_integer(field.type):
                yield partial(_items_at, rows, position)
            elif _has_integers(field.type):
                yield from _integer_leaves(list(_items_at(rows, position)), field.type)
    elif (t.is_list(data_type) or t.is_large_list(data_type) or t.is_fixed_size_list(data_type)) and _has_integers(
        data_type.value_type
    ):
        lists: list[Any] = values if isinstance(values, list) else list(values)
        kinds = set(map(type, lists))
        if any(issubclass(kind, np.ndarray) for kind in kinds):
            lists = [
                value
                for value in lists
                if value is not None and not (isinstance(value, np.ndarray) and value.dtype.kind in "iub")
            ]
        elif type(None) in kinds:
            lists = [value for value in lists if value is not None]
        if t.is_integer(data_type.value_type) and kinds <= {list, tuple, type(None)}:
            yield lambda: chain.from_iterable(lists)  # without a copy of all items
        elif lists:
            yield from _integer_leaves(list(chain.from_iterable(map(_as_items, lists))), data_type.value_type)


def _items_at(rows: Iterable[Any], position: int) -> Iterable[object]:
    return map(itemgetter(position), filter(None, rows))


def _has_integers(data_type: pa.DataType) -> bool:
    if t.is_list(data_type) or t.is_large_list(data_type) or t.is_fixed_size_list(data_type):
        return _has_integers(data_type.value_type)
    return t.is_integer(data_type) or (t.is_struct(data_type) and any(_has_integers(field.type) for field in data_type))


def _as_items(value: object) -> Iterable[object]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "nothing"
