"""What counts of a class: its members, annotations and fields, without the caches of Python."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

CLASS_SURROUNDINGS = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__",
        "__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__",
        "__abstractmethods__", "_abc_impl", "__parameters__", "__conditional_annotations__", "__classdictcell__",
        "__dataclass_fields__", "__dataclass_params__",
    }
)  # fmt: skip
"""Attributes that tell where a class stands, hold its source in another form, or are caches."""

_ENUM_HOOKS = frozenset({"_missing_", "_boundary_"})


def class_members(cls: type) -> dict[str, object]:
    """Returns the attributes of a class that count, in their order."""
    members = {name: item for name, item in vars(cls).items() if name not in CLASS_SURROUNDINGS}
    if issubclass(cls, enum.Enum):
        # The metaclass keeps the members again, in another form with each version of Python.
        members = {name: item for name, item in members.items() if _is_enum_content(cls, name)}
    if "__pydantic_fields__" in members:
        # Schemas and validators that pydantic makes of the fields hold addresses of objects.
        members = {name: item for name, item in members.items() if not name.startswith(("__pydantic_", "__signature"))}
    if "__attrs_attrs__" in members:
        # Methods that attrs makes of the attributes hold hashes, which differ in each process.
        members = {name: item for name, item in members.items() if not _file_of(item).startswith("<attrs generated")}
    return members


def annotations_of(owner: Any) -> dict[str, object]:  # noqa: ANN401 - a class or a function
    """Returns the annotations of a class or a function; empty if a name is not defined yet."""
    try:
        annotations = inspect.get_annotations(owner)
    except (NameError, TypeError):
        return {}
    module = sys.modules.get(str(getattr(owner, "__module__", None)))
    names = getattr(owner, "__globals__", {} if module is None else vars(module))
    return {name: _resolve(value, names) for name, value in annotations.items()}


def _resolve(annotation: object, names: Mapping[str, object]) -> object:
    """Returns an annotation as an object; as a text if the text names something unknown."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return text
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": text}), dict(names))["it"]
    except Exception:  # noqa: BLE001 - an annotation is any expression
        return text


def field_parts(field: dataclasses.Field[object]) -> tuple[object, ...]:
    """Returns what counts of a field of a dataclass, its type apart."""
    default = None if field.default is dataclasses.MISSING else (field.default,)
    factory = None if field.default_factory is dataclasses.MISSING else (field.default_factory,)
    return (field.name, default, factory, field.init, field.repr, field.hash, field.compare, field.kw_only)


def model_parts(cls: type) -> Iterator[object] | None:
    """Returns what counts of a model of pydantic beside its members; None for other classes."""
    fields: Mapping[str, object] | None = vars(cls).get("__pydantic_fields__")
    return None if fields is None else _model_parts(cls, fields)


def _model_parts(cls: Any, fields: Mapping[str, object]) -> Iterator[object]:  # noqa: ANN401 - a model
    yield dict(fields)
    generic = getattr(cls, "__pydantic_generic_metadata__", None)
    yield None if generic is None else (generic["origin"], generic["args"])
    decorators = getattr(cls, "__pydantic_decorators__", None)
    for kind in () if decorators is None else dataclasses.fields(decorators):
        for name, decorator in getattr(decorators, kind.name).items():
            yield (kind.name, name, getattr(decorator, "info", None))


def adapter_parts(value: object) -> tuple[object, ...] | None:
    """Returns what counts of a `TypeAdapter` of pydantic; None for other objects.

    The schema of an adapter holds addresses.
    """
    cls = type(value)
    if cls.__name__ != "TypeAdapter" or cls.__module__.partition(".")[0] != "pydantic":
        return None
    return (getattr(value, "_type", None), getattr(value, "_config", None))


def _file_of(member: object) -> str:
    return getattr(getattr(member, "__code__", None), "co_filename", "")


def _is_enum_content(cls: type[enum.Enum], name: str) -> bool:
    return name in _ENUM_HOOKS or (name not in cls.__members__ and not name[:1] == "_" == name[-1:])
