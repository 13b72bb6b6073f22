"""Python values for annotated parameters: :func:`value_reader`."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from udf_runtime.arrow_types import field_annotations, strip_optional
from udf_runtime.errors import UdfDefinitionError

Reader: TypeAlias = Callable[[Any], Any]
"""Converts Arrow's Python value to a value of the annotation. Never called with None."""

_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_VALUE_MODULES = frozenset(
    (
        "abc",
        "builtins",
        "collections",
        "datetime",
        "decimal",
        "numbers",
        "numpy",
        "pandas",
        "typing",
        "uuid",
    )
)
"""Top-level packages of classes whose instances come from Arrow, or which do not describe a
value."""
_NEVER_GIVEN = (set, frozenset, complex)


def value_reader(annotation: object, *, where: str) -> Reader | None:
    """Returns the converter to values of an annotation; None if Arrow's values already fit.

    At any depth, a map becomes a dict, a struct an instance of the annotated dataclass or
    NamedTuple, a list with the annotation `tuple[T, ...]` a tuple, and a value of an Enum a member.

    Args:
        annotation: A resolved annotation of a parameter of a scalar UDF.
        where: The annotated parameter, for an error message.

    Raises:
        UdfDefinitionError: No value of a column is an instance of the annotated class.

    Example:
        >>> value_reader(dict[str, int], where="parameter 'm'")([("a", 1)])
        {'a': 1}
    """
    annotation = _strip_names(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _MAPPINGS or origin in _MAPPINGS:
        return _read_mapping(arguments, where)
    if origin in _LISTS:
        return _read_sequence(list, value_reader(arguments[0], where=where))
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        return _read_sequence(tuple, value_reader(arguments[0], where=where) or _return_same)
    return (
        _read_class(annotation, where) if isinstance(annotation, type) and origin is None else None
    )


def _strip_names(annotation: object) -> object:
    """Returns the annotation below `| None`, `Annotated` and `NewType`."""
    annotation = strip_optional(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _strip_names(typing.get_args(annotation)[0])
    supertype = getattr(annotation, "__supertype__", None)  # of typing.NewType
    return annotation if supertype is None else _strip_names(supertype)


def _read_mapping(arguments: Sequence[object], where: str) -> Reader:
    if not arguments:
        return dict
    key, item = (value_reader(argument, where=where) for argument in arguments)
    if key is None and item is None:
        return dict
    read_key, read_item = _allow_none(key), _allow_none(item)
    return lambda pairs: {read_key(k): read_item(v) for k, v in dict(pairs).items()}


def _read_sequence(make: type, item: Reader | None) -> Reader | None:
    if item is None:
        return None
    read = _allow_none(item)
    return lambda values: make(map(read, values))


def _read_class(annotated: type, where: str) -> Reader | None:
    if issubclass(annotated, enum.Enum):
        return annotated
    fields = field_annotations(annotated)
    if fields is not None:
        return _read_record(annotated, fields, where)
    is_value = (
        annotated.__module__.partition(".")[0] in _VALUE_MODULES and annotated not in _NEVER_GIVEN
    )
    if is_value or getattr(annotated, "_is_protocol", False):
        return None
    raise UdfDefinitionError(
        f"No value of a column is an instance of {annotated.__qualname__}, as {where} is annotated. "
        "Annotate it as dict, a dataclass or a NamedTuple, and make the instance inside the function."
    )


def _read_record(annotated: type, fields: Mapping[str, object], where: str) -> Reader | None:
    readers = {name: value_reader(annotation, where=where) for name, annotation in fields.items()}
    if typing.is_typeddict(annotated):
        return _read_typed_dict(readers)
    if dataclasses.is_dataclass(annotated) and not all(
        field.init for field in dataclasses.fields(annotated)
    ):
        raise UdfDefinitionError(
            f"Dataclass {annotated.__qualname__}, as {where} is annotated, has a field with init=False. Its instances "
            "cannot be made of a struct. Take a dict, and make the instance inside the function."
        )
    read_fields = {name: _allow_none(read) for name, read in readers.items()}
    return lambda struct: annotated(
        **{name: read(struct[name]) for name, read in read_fields.items()}
    )


def _read_typed_dict(readers: Mapping[str, Reader | None]) -> Reader | None:
    changed = {name: _allow_none(read) for name, read in readers.items() if read is not None}
    if not changed:
        return None
    return lambda struct: struct | {name: read(struct[name]) for name, read in changed.items()}


def _return_same(value: object) -> object:
    return value


def _allow_none(read: Reader | None) -> Reader:
    """Returns a reader that passes None through; without a reader, all values."""
    return _return_same if read is None else lambda value: None if value is None else read(value)
