"""Arrow schemas of model classes of pydantic and of LanceDB: :func:`schema_of`."""

from __future__ import annotations

import types
import typing

import pyarrow as pa

from lance_spark.errors import OptionError
from udf_runtime.arrow_types import arrow_type, strip_optional

ModelClass: typing.TypeAlias = type[object]
"""A class of pydantic, such as a LanceModel."""


def schema_of(schema: pa.Schema | ModelClass | None) -> pa.Schema | None:
    """Returns the Arrow schema of a schema or a model class.

    A LanceModel converts itself. Fields of other models have the types of UDF annotations, and
    accept NULL if their annotation includes None.

    Raises:
        OptionError: The value is neither a schema nor a model class, or an annotation has no Arrow
            type.
    """
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, type) and hasattr(schema, "to_arrow_schema"):
        converted = schema.to_arrow_schema()
        if isinstance(converted, pa.Schema):
            return converted
    fields = getattr(schema, "model_fields", None)
    if not isinstance(schema, type) or not isinstance(fields, dict):
        raise OptionError("schema", schema, "an Arrow schema, or a class of pydantic")
    return pa.schema(_fields_of(schema, fields))


def _fields_of(model: ModelClass, fields: dict[str, typing.Any]) -> list[pa.Field[typing.Any]]:
    return [_field_of(model, name, field.annotation, field.metadata) for name, field in fields.items()]


def _field_of(
    model: ModelClass, name: str, annotation: object, metadata: typing.Sequence[object]
) -> pa.Field[typing.Any]:
    is_optional = typing.get_origin(annotation) in (typing.Union, types.UnionType) and types.NoneType in (
        typing.get_args(annotation)
    )
    inner: typing.Any = strip_optional(annotation)
    nested = getattr(inner, "model_fields", None)
    if isinstance(inner, type) and isinstance(nested, dict):
        kind: pa.DataType = pa.struct(_fields_of(inner, nested))
    else:
        # pydantic keeps the extras of Annotated[T, ...], such as the length of a vector, apart.
        annotated = typing.Annotated[(inner, *metadata)] if metadata else inner
        try:
            kind = arrow_type(annotated, where=f"field {name!r} of {model.__name__}")
        except ValueError as error:
            raise OptionError(
                "schema", model, "a class with annotations of Arrow types", problem=f"has no Arrow schema: {error}"
            ) from error
    return pa.field(name, kind, nullable=is_optional)
