"""Annotation -> Arrow type.

The table lists all supported annotations. Other annotations raise an error that asks for
`data_type=`.

| annotation | Arrow type |
| --- | --- |
| `bool`, `int`, `float`, `str`, `bytes` | bool, int64, float64, string, binary |
| NumPy scalar types and dtypes (`np.float32`, ...) | the Arrow type of the same width |
| `datetime.datetime` | timestamp[us] without a zone; aware values are stored as UTC wall time |
| `date`, `time`, `timedelta` | date32, time64[us], duration[us] |
| `Decimal` | decimal128(38, 18) |
| `list[T]`, `Sequence[T]`, `tuple[T, ...]`, `NDArray[T]` | list<T> |
| `Annotated[list[T], n]` | fixed_size_list<T>[n] |
| `dict[K, V]` | map<K, V> |
| dataclass, `NamedTuple`, `TypedDict` | struct of its fields |
| `T | None` | T: every Arrow value may be NULL |
| `Literal[...]`, `class Color(str, Enum)` | the type of its values |
| `Annotated[T, pa.DataType]`, a `pa.DataType` itself | this type |

A Python `float` has 64 bits and always becomes float64. For vectors of half the size, annotate
`Annotated[list[np.float32], n]`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from udf_runtime.errors import UdfDefinitionError, end_sentence
from udf_runtime.optional import np

_SIMPLE: Mapping[object, Callable[[], pa.DataType]] = {
    bool: pa.bool_,
    int: pa.int64,
    float: pa.float64,
    str: pa.string,
    bytes: pa.binary,
    bytearray: pa.binary,
    dt.datetime: lambda: pa.timestamp("us"),
    dt.date: pa.date32,
    dt.time: lambda: pa.time64("us"),
    dt.timedelta: lambda: pa.duration("us"),
    decimal.Decimal: lambda: pa.decimal128(38, 18),
    np.str_: pa.string,
    np.bytes_: pa.binary,
}

_SEVERAL_TYPES = (
    np.generic,
    np.number,
    np.integer,
    np.signedinteger,
    np.unsignedinteger,
    np.inexact,
    np.floating,
    np.complexfloating,
    np.flexible,
    np.character,
    np.datetime64,  # its unit belongs to the type
    np.timedelta64,
)

_NEVER_STORED: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pa.types.is_string_view, "pa.string()"),
    (pa.types.is_binary_view, "pa.binary()"),
    (pa.types.is_list_view, "pa.list_()"),
    (pa.types.is_large_list_view, "pa.large_list()"),
    (pa.types.is_run_end_encoded, "the type of its values"),
    (pa.types.is_union, "a struct with a field per type"),
    (pa.types.is_interval, "pa.duration(), or a struct of months, days and nanoseconds"),
    (pa.types.is_decimal32, "pa.decimal128()"),
    (pa.types.is_decimal64, "pa.decimal128()"),
    (
        lambda kind: pa.types.is_fixed_size_list(kind) and kind.list_size == 0,
        "vectors of one item or more",
    ),
)
"""Types without values in Lance, and their substitutes."""

_SEQUENCES = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def arrow_type(
    annotation: object, *, where: str, remedy: str = "Pass data_type=, a pyarrow type."
) -> pa.DataType:
    """Returns the Arrow type of values with an annotation.

    Args:
        annotation: A resolved annotation (no string), or a `pa.DataType`, which is returned
            unchanged.
        where: The annotated object, for an error message: "the result of UDF 'f'".
        remedy: What to do about an annotation without a type, for an error message.

    Raises:
        UdfDefinitionError: The annotation has no Arrow type of its own.
    """
    return _Inference(where, remedy).of(annotation)


def check_fillable(data_type: pa.DataType, *, where: str) -> None:
    """Checks whether Lance can store values of a type.

    Args:
        data_type: The type of a UDF's results.
        where: The owner of the type, for an error message: "UDF 'f'".

    Raises:
        UdfDefinitionError: Lance cannot store values of the type or of a nested type.
    """
    for is_kind, remedy in _NEVER_STORED:
        if is_kind(data_type):
            raise UdfDefinitionError(
                f"No column of type {data_type}, as of {where}, can be stored. Use {remedy}."
            )
    if isinstance(data_type, pa.BaseExtensionType):
        check_fillable(data_type.storage_type, where=where)
    elif pa.types.is_dictionary(data_type):
        check_fillable(data_type.value_type, where=where)
    else:
        for at in range(data_type.num_fields):
            check_fillable(data_type.field(at).type, where=where)


def strip_optional(annotation: object) -> object:
    """Returns T of `T | None` and of `Optional[T]`, and any other annotation unchanged."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        if len(members) == 1:
            return members[0]
    return annotation


def field_annotations(record: object) -> dict[str, object] | None:
    """Returns the annotations of a dataclass, NamedTuple or TypedDict in order; None otherwise.

    Raises:
        NameError: An annotation is a string, and the module of the class lacks a name in the
            string.
    """
    if not isinstance(record, type):
        return None
    if dataclasses.is_dataclass(record):
        names = [field.name for field in dataclasses.fields(record)]
    elif issubclass(record, tuple) and hasattr(record, "_fields"):
        names = list(record._fields)
    elif typing.is_typeddict(record):
        names = list(record.__annotations__)
    else:
        return None
    hints = typing.get_type_hints(record, include_extras=True)
    return {name: hints.get(name) for name in names}


class _Inference:
    """The inference for a single annotation; keeps the open records to detect recursion."""

    def __init__(self, where: str, remedy: str) -> None:
        self._where, self._remedy = where, remedy
        self._open: list[object] = []

    def refuse(self, annotation: object, reason: str) -> UdfDefinitionError:
        spelling = annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)
        return UdfDefinitionError(
            f"The annotation {spelling} of {self._where} has no Arrow type: {end_sentence(reason)} {self._remedy}"
        )

    def of(self, annotation: object) -> pa.DataType:
        annotation = strip_optional(annotation)
        if isinstance(annotation, pa.DataType):
            return annotation
        if isinstance(annotation, np.dtype):
            return self._infer_numpy(annotation)
        # Some annotations, for example Literal of a list, cannot be hashed; none of them is simple.
        simple = _SIMPLE.get(annotation) if isinstance(annotation, type) else None
        if simple is not None:
            return simple()
        underlying = getattr(annotation, "__supertype__", None)  # of typing.NewType
        if underlying is not None:
            return self.of(underlying)
        if typing.get_origin(annotation) is not None:
            return self._infer_generic(
                annotation, typing.get_origin(annotation), typing.get_args(annotation)
            )
        if isinstance(annotation, type):
            return self._infer_class(annotation)
        raise self.refuse(annotation, "it is none of the annotations that have one")

    def _infer_numpy(self, annotation: np.dtype[np.generic] | type[np.generic]) -> pa.DataType:
        try:
            return pa.from_numpy_dtype(np.dtype(annotation))
        except (TypeError, ValueError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise self.refuse(
                annotation, str(error) or "NumPy knows no single width for it"
            ) from error

    def _infer_class(self, annotation: type) -> pa.DataType:
        if issubclass(annotation, enum.Enum):
            for base in annotation.__mro__:
                if base in (str, bytes, int, float):
                    return _SIMPLE[base]()
            raise self.refuse(
                annotation, "its members are no str or int; derive it from (str, Enum)"
            )
        if issubclass(annotation, np.generic):
            if annotation in _SEVERAL_TYPES:
                raise self.refuse(annotation, "it stands for several types")
            return self._infer_numpy(annotation)
        if annotation in (*_SEQUENCES, *_MAPPINGS, tuple, np.ndarray):
            raise self.refuse(annotation, "the type of its elements is not known")
        return self._infer_record(annotation)

    def _infer_record(self, record: type) -> pa.DataType:
        if record in self._open:
            raise self.refuse(record, "it contains itself")
        try:
            annotations = field_annotations(record)
        except NameError as error:
            reason = f"{error}; classes that its fields name must be known in its module"
            raise self.refuse(record, reason) from error
        if not annotations:
            reason = (
                "it has no fields"
                if annotations == {}
                else "it is none of the annotations that have one"
            )
            raise self.refuse(record, reason)
        self._open.append(record)
        fields = []
        for name, annotation in annotations.items():
            if annotation is None:
                raise self.refuse(record, f"its field {name!r} has no annotation")
            fields.append(pa.field(name, self.of(annotation)))
        self._open.pop()
        return pa.struct(fields)

    def _infer_generic(
        self, annotation: object, origin: object, args: Sequence[object]
    ) -> pa.DataType:
        if origin is typing.Annotated:
            return self._infer_annotated(annotation, args[0], args[1:])
        if origin is typing.Literal:
            return self._infer_literal(annotation, [value for value in args if value is not None])
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin in (typing.Union, types.UnionType):
            raise self.refuse(annotation, "a value may be of several types")
        if origin is tuple and args[1:] != (Ellipsis,):
            raise self.refuse(
                annotation, "the fields of a struct have names; use a NamedTuple or a dataclass"
            )
        return self._infer_collection(annotation, origin, args)

    def _infer_collection(
        self, annotation: object, origin: object, args: Sequence[object]
    ) -> pa.DataType:
        if origin in (*_SEQUENCES, tuple):
            return pa.list_(self.of(args[0]))
        if origin in _MAPPINGS:
            return pa.map_(self.of(args[0]), self.of(args[1]))
        if origin is np.ndarray:
            element = typing.get_args(args[1])
            return pa.list_(self.of(element[0] if element else args[1]))
        raise self.refuse(annotation, "it is none of the annotations that have one")

    def _infer_annotated(
        self, annotation: object, inner: object, extras: Sequence[object]
    ) -> pa.DataType:
        explicit_types = [extra for extra in extras if isinstance(extra, pa.DataType)]
        if explicit_types:
            return explicit_types[0]
        lengths = [length for length in map(_read_length, extras) if length is not None]
        inner_type = self.of(inner)
        if not lengths:
            return inner_type
        if len(lengths) > 1 or lengths[0] < 1 or not pa.types.is_list(inner_type):
            raise self.refuse(
                annotation, "a fixed-size vector is a list with one length of at least 1"
            )
        return pa.list_(typing.cast("pa.ListType[pa.DataType]", inner_type).value_type, lengths[0])

    def _infer_literal(self, annotation: object, values: Sequence[object]) -> pa.DataType:
        kinds = {type(value) for value in values}
        if len(kinds) != 1:
            raise self.refuse(annotation, "its values are not of one type")
        return self.of(kinds.pop())


def _read_length(extra: object) -> int | None:
    """Returns the length in `Annotated`: an int, or `annotated_types.Len(3, 3)`."""
    if isinstance(extra, int) and not isinstance(extra, bool):
        return extra
    shortest, longest = getattr(extra, "min_length", None), getattr(extra, "max_length", None)
    return shortest if isinstance(shortest, int) and shortest == longest else None
