"""Kind, inputs and output of a UDF, read from the signature of its function."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import io
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import pyarrow as pa

from udf_runtime.arrow_types import arrow_type, field_annotations, strip_optional
from udf_runtime.definition.annotations import Unresolved, function_of, resolved
from udf_runtime.definition.columns import Columns
from udf_runtime.definition.kinds import Form, Kind, Parameter
from udf_runtime.definition.parameter_values import value_reader
from udf_runtime.errors import UdfDefinitionError, as_sentence
from udf_runtime.optional import np

_EMPTY = inspect.Parameter.empty

Shape = typing.Literal["scalar", "arrow", "pandas", "batch", "iterator"]
"""The form of the values of a call, by annotation."""

_PLAIN: Mapping[Shape, Kind] = {
    "scalar": Kind.SCALAR,
    "arrow": Kind.ARROW,
    "pandas": Kind.PANDAS,
    "batch": Kind.RECORD_BATCH,
}
_ITERATING: Mapping[Shape, Kind] = {
    "arrow": Kind.ARROW_ITER,
    "pandas": Kind.PANDAS_ITER,
    "batch": Kind.RECORD_BATCH_ITER,
}
_ROWS_OF = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    list,
)
_SPELLED: Mapping[Kind, str] = {
    Kind.ARROW: "pa.Array",
    Kind.PANDAS: "pd.Series",
    Kind.RECORD_BATCH: "pa.Array",
    Kind.ARROW_ITER: "Iterator[pa.Array]",
    Kind.PANDAS_ITER: "Iterator[pd.Series]",
    Kind.RECORD_BATCH_ITER: "Iterator[pa.Array]",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UdfSignature:
    """Facts of a UDF from its function's signature.

    Attributes:
        kind: The kind of UDF.
        inputs: Parameters that accept columns, in order: first parameters without a default, then
            parameters with a default. For kinds over record batches: the batch.
        required: Number of inputs without a default.
        data_type: Type of the output; for `Columns[T]` the struct of T.
        is_columns: Whether each field of the output is a column of its own.
        is_async: Whether a call returns a coroutine, which the process's event loop runs.
    """

    kind: Kind
    inputs: tuple[Parameter, ...]
    required: int
    data_type: pa.DataType
    is_columns: bool
    is_async: bool = False

    def __setstate__(self, state: Sequence[object]) -> None:
        # Signatures of earlier releases end before `is_async`.
        for field, value in zip_longest(dataclasses.fields(self), state, fillvalue=False):
            object.__setattr__(self, field.name, value)  # type: ignore[union-attr]  # never more values than fields

    @property
    def accepted(self) -> str:
        """Number of accepted input columns, as text."""
        most = len(self.inputs)
        return str(most) if self.required == most else f"{self.required} to {most}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SignatureRequest:
    """The user's settings for a function, and the surroundings of its definition.

    Attributes:
        name: Name of the UDF, for messages.
        kind: The explicit kind; annotations then only determine types.
        data_type: The explicit output type.
        input_columns: The explicit input columns.
        local_names: Variables around the definition, for annotations in the form of strings.
        skip_self: Whether the first parameter is the instance of a class.
    """

    name: str
    kind: Kind | None = None
    data_type: pa.DataType | None = None
    input_columns: Sequence[str] | None = None
    local_names: Mapping[str, object] = dataclasses.field(default_factory=dict)
    skip_self: bool = False


def signature_of(func: Callable[..., object], request: SignatureRequest) -> UdfSignature:
    """Reads a function's signature.

    Raises:
        UdfDefinitionError: The signature does not fit a UDF, its kind or output is unknown, or its
            annotations contradict each other.
    """
    return _SignatureReader(func, request).read()


class _SignatureReader:
    def __init__(self, func: Callable[..., object], request: SignatureRequest) -> None:
        self._func = func
        self._request = request
        self._where = f"UDF {request.name!r}"

    def error(self, problem: str, hint: str) -> UdfDefinitionError:
        return UdfDefinitionError(
            f"{as_sentence(problem)} Place: {self._where}. {as_sentence(hint)}"
        )

    def read(self) -> UdfSignature:
        parameters, result = self._read_parameters()
        returns = self._resolve(
            result,
            "the result",
            needed=self._request.data_type is None or self._request.kind is None,
        )
        annotations = [
            self._resolve(p.annotation, f"parameter {p.name!r}", needed=self._request.kind is None)
            for p in parameters
        ]
        kind, width = self._find_kind(annotations)
        function = function_of(self._func)
        is_async = self._check_async(function, kind)
        yields = inspect.isgeneratorfunction(function)
        if yields and not kind.iterates and not kind.makes_rows:
            raise self.error(
                "the function yields, but its annotations name no iterators",
                "return one value per call. A function that yields several rows per row is decorated with @chunker",
            )
        inputs, required = self._make_inputs(parameters, annotations, kind, width)
        data_type, is_columns = self._find_output(kind, returns)
        return UdfSignature(
            kind=kind,
            inputs=inputs,
            required=required,
            data_type=data_type,
            is_columns=is_columns,
            is_async=is_async,
        )

    def _check_async(self, function: Callable[..., object] | None, kind: Kind) -> bool:
        """Tells whether a call returns a coroutine; refuses other async forms."""
        if inspect.isasyncgenfunction(function):
            raise self.error("an async function of a UDF cannot yield", "return one value per call")
        is_async = inspect.iscoroutinefunction(function)
        if is_async and (kind.iterates or kind.makes_rows):
            raise self.error(
                "an async function returns one result per call, and this kind of UDF yields results",
                "take single values, pa.Array, pd.Series or a pa.RecordBatch, or define the function with def",
            )
        return is_async

    def _read_parameters(self) -> tuple[list[inspect.Parameter], object]:
        """Returns the parameters of a positional call, and the annotation of the result."""
        try:
            signature = inspect.signature(self._func)
        except (TypeError, ValueError) as error:
            columns = self._request.input_columns
            if not columns:
                raise self.error(
                    f"the signature cannot be read ({error})",
                    "give input_columns=, or wrap it in a function",
                ) from error
            names = [f"input_{i}" for i in range(len(columns))]
            return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names], _EMPTY
        positional = []
        for parameter in list(signature.parameters.values())[int(self._request.skip_self) :]:
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise self.error(
                    f"parameter {str(parameter)!r} names no column",
                    "write the parameters out, one per column",
                )
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                positional.append(parameter)
            elif parameter.default is _EMPTY:
                raise self.error(
                    f"parameter {parameter.name!r} can only be given by keyword",
                    "move it before the *, or give it a default",
                )
        if not positional:
            raise self.error(
                "the function has no parameters that could be columns", "take at least one column"
            )
        return positional, signature.return_annotation

    def _resolve(self, annotation: object, what: str, *, needed: bool) -> object:
        annotated = resolved(annotation, self._func, self._request.local_names)
        if not isinstance(annotated, Unresolved):
            return annotated
        if annotated.text.strip("'\"").rpartition(".")[2] in ("BlobFile", "BinaryIO"):
            return typing.BinaryIO  # the module is often imported for type checkers only
        if not needed:
            return _EMPTY
        raise self.error(
            f"annotation {annotated.text!r} of {what} cannot be resolved ({annotated.reason})",
            "import what it names where the function is defined, outside `if TYPE_CHECKING`",
        )

    def _find_kind(self, annotations: Sequence[object]) -> tuple[Kind, int | None]:
        """Returns the kind, and the number of columns in an iterator's item (None: unknown)."""
        shapes = {_read_shape(annotation) for annotation in annotations}
        explicit = self._request.kind
        if explicit is not None:
            is_iterator = _read_shape(annotations[0]) == "iterator"
            columns = self._request.input_columns or annotations
            return explicit, _read_width(annotations[0]) if is_iterator else len(columns)
        if len(shapes) > 1:
            raise self.error(
                "some parameters are vectors and others are not",
                "annotate each parameter as pa.Array, or each as pd.Series",
            )
        shape = shapes.pop()
        if shape in ("batch", "iterator") and len(annotations) > 1:
            hint = (
                "take Iterator[tuple[pa.Array, pa.Array]]"
                if shape == "iterator"
                else "take one pa.RecordBatch"
            )
            raise self.error(
                f"there are {len(annotations)} parameters, and each is a whole input", hint
            )
        if shape == "iterator":
            return self._find_iterator_kind(annotations[0]), _read_width(annotations[0])
        return _PLAIN[shape], len(annotations)

    def _find_iterator_kind(self, annotation: object) -> Kind:
        item = _read_item(annotation)
        shapes = {_read_shape(element) for element in item}
        kind = _ITERATING.get(shapes.pop()) if len(shapes) == 1 else None
        if kind is None or (kind is Kind.RECORD_BATCH_ITER and len(item) > 1):
            raise self.error(
                f"a UDF has no input of the type {annotation}",
                "take Iterator[pa.Array], Iterator[pd.Series], Iterator[pa.RecordBatch], "
                "or one of tuples of arrays or series",
            )
        return kind

    def _make_inputs(
        self,
        parameters: Sequence[inspect.Parameter],
        annotations: Sequence[object],
        kind: Kind,
        width: int | None,
    ) -> tuple[tuple[Parameter, ...], int]:
        if kind.takes_batches:
            return (Parameter(name=parameters[0].name),), 1
        if kind.iterates:
            inputs = self._make_iterator_inputs(parameters[0].name, width)
            return inputs, len(inputs)
        if kind.vectorised:
            inputs = tuple(Parameter(name=p.name) for p in parameters)
        else:
            inputs = tuple(
                self._make_scalar_input(p.name, a)
                for p, a in zip(parameters, annotations, strict=True)
            )
        return inputs, sum(p.default is _EMPTY for p in parameters)

    def _make_iterator_inputs(self, name: str, width: int | None) -> tuple[Parameter, ...]:
        if width is None:
            width = len(self._request.input_columns or ())
        if width < 1:
            raise self.error(
                "the number of inputs is unknown",
                "give input_columns=, or Iterator[tuple[pa.Array, pa.Array]]",
            )
        names = [name] if width == 1 else [f"{name}_{i}" for i in range(width)]
        return tuple(Parameter(name=n) for n in names)

    def _make_scalar_input(self, name: str, annotation: object) -> Parameter:
        annotation = strip_optional(annotation)
        form = _read_form(annotation)
        # An explicit kind marks a foreign function, whose annotations describe other values.
        honoured = annotation is not _EMPTY and self._request.kind in (None, Kind.CHUNKS)
        if honoured and form in ("value", "list"):
            read = value_reader(annotation, where=f"parameter {name!r} of {self._where}")
            form = form if read is None else "python"
        try:
            checked = (
                None
                if annotation is _EMPTY or form == "blob"
                else arrow_type(annotation, where=self._where)
            )
        except UdfDefinitionError:
            checked = None  # an annotation like `object` or `np.ndarray` does not describe a column, and is legal here
        return Parameter(
            name=name, type=checked, form=form, annotation=annotation if form == "python" else None
        )

    def _find_output(self, kind: Kind, returns: object) -> tuple[pa.DataType, bool]:
        data_type = self._request.data_type
        if kind is Kind.TABLE and data_type is not None:
            return data_type, True
        if kind is Kind.CHUNKS:
            return self._find_rows_type(returns, data_type), True
        is_iterator = kind.iterates and _read_shape(returns) == "iterator"
        inner = typing.get_args(returns)[0] if is_iterator and typing.get_args(returns) else returns
        columns = strip_optional(inner)
        if _is_columns(columns):
            return self._find_columns_type(columns, data_type), True
        if self._request.kind is None:
            self._check_result(kind, returns, inner)
        return self._infer_output(kind, returns) if data_type is None else data_type, False

    def _infer_output(self, kind: Kind, returns: object) -> pa.DataType:
        if kind.vectorised:
            raise self.error(
                f"the output type of a UDF over {kind.value.replace('_', ' ')} inputs cannot be inferred",
                "pass data_type=, for example data_type=pa.float32()",
            )
        if returns is _EMPTY:
            raise self.error(
                "the result has no annotation", "annotate it, as in `-> int`, or pass data_type="
            )
        return arrow_type(returns, where=f"the result of {self._where}")

    def _check_result(self, kind: Kind, returns: object, inner: object) -> None:
        """Raises an error if the annotation of the result belongs to another kind."""
        if returns is _EMPTY:
            return
        shape = _read_shape(inner)
        iterates = inner is not returns or _read_shape(returns) == "iterator"
        expected: Shape = (
            "pandas" if kind.takes_series else "arrow" if kind.vectorised else "scalar"
        )
        if shape != expected or iterates != kind.iterates:
            spelled = _SPELLED.get(kind, "one value")
            raise self.error(
                f"the result is annotated as {_format_annotation(returns)}, but a function with these parameters "
                f"returns {spelled}",
                f"correct the annotations of the parameters, or annotate the result as {spelled}",
            )

    def _find_rows_type(self, annotation: object, data_type: pa.DataType | None) -> pa.DataType:
        """Returns the struct of a chunk: the explicit type, or the type of the yielded rows."""
        if data_type is not None:
            return data_type
        rows = strip_optional(annotation)
        origin, arguments = typing.get_origin(rows), typing.get_args(rows)
        if origin not in _ROWS_OF or not arguments:
            raise self.error(
                f"the result is annotated as {_format_annotation(annotation)}, which does not name the type of the rows"
                if annotation is not _EMPTY
                else "the result has no annotation",
                "annotate it, as in `-> Iterator[Chunk]` where Chunk is a NamedTuple or a dataclass, or pass "
                "output_schema=",
            )
        row_type = arrow_type(arguments[0], where=f"the result of {self._where}")
        if not pa.types.is_struct(row_type) or not row_type.num_fields:
            raise self.error(
                f"rows of {_format_annotation(arguments[0])} have no columns",
                "yield NamedTuples or dataclasses, or pass output_schema=",
            )
        return row_type

    def _find_columns_type(self, annotation: object, data_type: pa.DataType | None) -> pa.DataType:
        arguments = typing.get_args(annotation)
        record = arguments[0] if arguments else None
        try:
            fields = field_annotations(record)
        except NameError:
            fields = {}  # arrow_type names the missing class
        if fields is None:
            raise self.error(
                f"Columns[{_format_annotation(record)}] has no fields",
                "give it a NamedTuple or a dataclass",
            )
        if data_type is None:
            return arrow_type(record, where=f"the result of {self._where}")
        names = (
            [data_type.field(i).name for i in range(data_type.num_fields)]
            if pa.types.is_struct(data_type)
            else []
        )
        if names != list(fields):
            raise self.error(
                f"the data_type {data_type} does not have the fields of {_format_annotation(record)}: "
                f"{', '.join(fields)}",
                "give a struct of these fields in this order, or leave data_type out",
            )
        return data_type


def _is_columns(annotation: object) -> bool:
    return annotation is Columns or typing.get_origin(annotation) is Columns


def _read_shape(annotation: object) -> Shape:
    annotation = strip_optional(annotation)
    origin = typing.get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return "scalar"
    if origin is collections.abc.Iterator:
        return "iterator"
    if issubclass(origin, pa.RecordBatch):
        return "batch"
    if issubclass(origin, pa.Array):
        return "arrow"
    pandas = sys.modules.get(
        "pandas"
    )  # without an import of pandas, no annotation names a pandas class
    return "pandas" if pandas is not None and issubclass(origin, pandas.Series) else "scalar"


def _read_item(annotation: object) -> list[object]:
    """Returns the parts of an item of an annotated iterator, without the `...` of a tuple."""
    arguments = typing.get_args(annotation)
    if not arguments:
        return []
    if typing.get_origin(arguments[0]) is tuple:
        return [element for element in typing.get_args(arguments[0]) if element is not Ellipsis]
    return [arguments[0]]


def _read_width(annotation: object) -> int | None:
    """Returns the number of columns in an item of an annotated iterator; None if unknown."""
    arguments = typing.get_args(annotation) if _read_shape(annotation) == "iterator" else ()
    if not arguments or (
        typing.get_origin(arguments[0]) is tuple and Ellipsis in typing.get_args(arguments[0])
    ):
        return None
    return len(_read_item(annotation))


def _read_form(annotation: object) -> Form:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    if origin is np.ndarray:
        return "numpy"
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.MutableSequence):
        return "list"
    is_file = isinstance(origin, type) and (
        issubclass(origin, io.IOBase) or origin.__name__ == "BlobFile"
    )
    return "blob" if is_file or origin in (typing.BinaryIO, typing.IO) else "value"


def _format_annotation(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
