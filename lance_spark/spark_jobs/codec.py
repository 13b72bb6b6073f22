"""Results of tasks as JSON: :func:`encode` on executors, :func:`decode` on the driver.

The driver unpickles no object of a task. A result may hold dataclasses, tuples, lists, sets,
mappings with keys of text or integers, bytes, JSON values, and objects with `to_text` and
`from_text` like :class:`~lance_spark.rows.row_set.RowSet`. The reader takes the types from the type
hints of the dataclasses.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def encode(value: object) -> str:
    """Returns a value as JSON text."""
    return json.dumps(value, default=_to_json)


def decode(kind: type[Value], text: str | bytes) -> Value:
    """Returns the value of a type from the JSON text of :func:`encode`."""
    return from_json(kind, json.loads(text))


def from_json(kind: type[Value], value: Any) -> Value:  # noqa: ANN401 - JSON
    """Returns the value of a type from JSON values."""
    result: Value = _decoder(typing.cast("Any", kind))(value)
    return result


def _to_json(value: Any) -> object:  # noqa: ANN401 - any value of a result
    if hasattr(value, "to_text"):
        return value.to_text()
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be the result of a task")


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type or a type hint
    """Returns the function from JSON values to a value of a type."""
    if get_origin(kind) is not None:
        return _generic_decoder(get_origin(kind), get_args(kind))
    if hasattr(kind, "from_text"):
        return typing.cast("Callable[[Any], Any]", kind.from_text)
    if kind is bytes:
        return base64.b64decode
    if not dataclasses.is_dataclass(kind):
        return lambda value: value
    decoders = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}
    make: Any = kind
    return lambda value: make(**{name: decoders[name](item) for name, item in value.items()})


def _generic_decoder(origin: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:  # noqa: ANN401 - as above
    if origin in (Union, types.UnionType):
        return _optional_decoder(arguments)
    decoders = [_decoder(argument) for argument in arguments]
    if origin in (dict, Mapping):
        key, item = (int if arguments[0] is int else str), decoders[1]
        return lambda value: {key(name): item(entry) for name, entry in value.items()}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return lambda value: tuple(
            decoder(item) for decoder, item in zip(decoders, value, strict=True)
        )
    return lambda value: origin(map(decoders[0], value))


def _optional_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    (member,) = (_decoder(argument) for argument in arguments if argument is not types.NoneType)
    return lambda value: None if value is None else member(value)
