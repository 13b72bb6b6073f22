"""Arrow schemas of model classes of pydantic and of LanceDB: :func:`schema_of`."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing

import pyarrow as pa

from lance_spark.errors import OptionError
from udf_runtime.arrow_types import arrow_type, strip_optional

ModelClass: typing.TypeAlias = type[object]
"""A class of pydantic, such as a LanceModel."""

_COLLECTIONS: typing.Mapping[object, typing.Any] = {
    list: list,
    tuple: tuple,
    dict: dict,
    collections.abc.Sequence: list,
    collections.abc.Mapping: dict,
}
"""Generic classes whose elements may be models, by their origin."""


def schema_of(schema: pa.Schema | ModelClass | None) -> pa.Schema | None:
    """Returns the Arrow schema of a schema or a model class.

    Raises:
        OptionError: The value is neither a schema nor a model class, or an annotation has no Arrow
            type.
    """
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    if not is_model(schema) and not hasattr(schema, "to_arrow_schema"):
        raise OptionError("schema", schema, "an Arrow schema, or a class of pydantic")
    try:
        return schema_of_model(schema)
    except ValueError as error:
        raise OptionError(
            "schema",
            schema,
            "a class with annotations of Arrow types",
            problem=f"has no Arrow schema: {error}",
        ) from error


def is_model(cls: object) -> bool:
    """Tells whether a class is a model class of pydantic."""
    return isinstance(cls, type) and isinstance(getattr(cls, "model_fields", None), dict)


def schema_of_model(model: ModelClass) -> pa.Schema:
    """Returns the Arrow schema of a model class.

    A LanceModel converts itself. Fields of other models have LanceDB's types: a text enumeration is
    a dictionary, `Vector(n)` is a fixed-size list, and `json_schema_extra={"tz": ...}` is the time
    zone of a timestamp. Other annotations have the types of UDF annotations. A field accepts NULL
    if its annotation includes None.

    Raises:
        ValueError: An annotation has no Arrow type, or a model contains itself.
    """
    if hasattr(model, "to_arrow_schema"):
        converted = model.to_arrow_schema()
        if isinstance(converted, pa.Schema):
            return converted
    return pa.schema(_ModelFields(()).of(model))


class _ModelFields:
    """The fields of a model inside other models, which must not recur."""

    def __init__(self, outer_models: tuple[object, ...]) -> None:
        self._outer_models = outer_models

    def of(self, model: typing.Any) -> list[pa.Field[typing.Any]]:  # noqa: ANN401 - a class of an optional package
        if model in self._outer_models:
            raise ValueError(f"the model {model.__name__} contains itself")
        inner = _ModelFields((*self._outer_models, model))
        return [inner._field(model, name, field) for name, field in model.model_fields.items()]

    def _field(self, model: type, name: str, field: typing.Any) -> pa.Field[typing.Any]:  # noqa: ANN401
        annotation = self._resolve(field.annotation)
        # pydantic keeps the extras of Annotated[T, ...], such as the length of a vector, apart.
        if field.metadata and not isinstance(annotation, pa.DataType):
            annotation = typing.Annotated[(annotation, *field.metadata)]
        kind = arrow_type(
            annotation,
            where=f"field {name!r} of {model.__name__}",
            remedy="Annotate an Arrow type.",
        )
        zone = (
            field.json_schema_extra.get("tz") if isinstance(field.json_schema_extra, dict) else None
        )
        if zone is not None and pa.types.is_timestamp(kind):
            kind = pa.timestamp(kind.unit, str(zone))
        return pa.field(name, kind, nullable=_accepts_null(field.annotation))

    def _resolve(self, annotation: object) -> object:
        """Returns an annotation with Arrow types for models, vectors and enumerations."""
        annotation = strip_optional(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            inner = self._resolve(arguments[0])
            return (
                inner
                if isinstance(inner, pa.DataType)
                else typing.Annotated[(inner, *arguments[1:])]
            )
        if origin in _COLLECTIONS and arguments:
            return _COLLECTIONS[origin][tuple(map(self._resolve, arguments))]
        return (
            self._resolve_class(annotation)
            if isinstance(annotation, type) and origin is None
            else annotation
        )

    def _resolve_class(self, cls: typing.Any) -> object:  # noqa: ANN401
        if is_model(cls):
            return pa.struct(self.of(cls))
        if hasattr(cls, "value_arrow_type") and hasattr(
            cls, "dim"
        ):  # Vector(n) of LanceDB or pylance
            vector = pa.list_(cls.value_arrow_type(), cls.dim())
            return pa.list_(vector) if getattr(cls, "is_multi_vector", bool)() else vector
        kinds = {type(member.value) for member in cls} if issubclass(cls, enum.Enum) else set()
        if len(kinds) != 1:
            return cls
        (kind,) = kinds
        return pa.dictionary(pa.int32(), pa.string()) if kind is str else kind


def _accepts_null(annotation: typing.Any) -> bool:  # noqa: ANN401
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return types.NoneType in typing.get_args(annotation)
    return hasattr(annotation, "value_arrow_type") and bool(getattr(annotation, "nullable", bool)())
