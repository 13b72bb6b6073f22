"""`@udf`, `@chunker` and `@udtf`, on functions, callable objects and classes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Required, TypedDict, Unpack, cast, overload

import pyarrow as pa

from udf_runtime.arguments import ARGUMENTS, show_value
from udf_runtime.definition.kinds import Kind
from udf_runtime.definition.spec import UDF, Settings
from udf_runtime.definition.stateful import Stateful
from udf_runtime.environments.manifest import Manifest
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.policies import ErrorPolicy, OnError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """What was said about a UDF beside its function."""

    data_type: pa.DataType | None
    input_columns: Sequence[str] | None
    name: str | None
    version: str | None
    settings: Settings
    local_names: Mapping[str, object] = dataclasses.field(repr=False)
    kind: Kind | None = None
    manifest: Manifest | None = None

    def define(
        self, target: Callable[..., object] | Stateful, call: Callable[..., object] | None, name: str | None
    ) -> UDF:
        return UDF.define(
            target,
            call=call,
            kind=self.kind,
            data_type=self.data_type,
            input_columns=self.input_columns,
            name=name,
            version=self.version,
            settings=self.settings,
            manifest=self.manifest,
            local_names=self.local_names,
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class UdfFactory:
    """What `@udf` makes of a class: called with its arguments, it returns a UDF.

    No instance is made for that.

    Attributes:
        cls: The class.
    """

    cls: type
    _wishes: _Wishes

    def __call__(self, *args: object, **kwargs: object) -> UDF:
        """Returns the UDF for one set of constructor arguments.

        Each process that runs it calls the constructor once, and then `setup()`, if there is one.

        Raises:
            UdfDefinitionError: The arguments do not fit the constructor, or `__call__` is none of a
                UDF.
        """
        name = self._wishes.name or self.cls.__name__
        call = _call_of(self.cls, name)
        try:
            inspect.signature(self.cls).bind(*args, **kwargs)
        except TypeError as error:
            raise UdfDefinitionError(
                f"the arguments do not fit the constructor: {error} - UDF {name!r} "
                f"- call it as {name}{inspect.signature(self.cls)}"
            ) from error
        return self._wishes.define(Stateful(self.cls, args, kwargs), call, name)


def _call_of(cls: type, name: str) -> Callable[..., object]:
    # Not getattr: a class without __call__ still has the one that constructs it.
    call = inspect.getattr_static(cls, "__call__", None)
    if not isinstance(call, types.FunctionType):
        raise UdfDefinitionError(
            f"class {cls.__name__} has no method __call__ - UDF {name!r} - define __call__(self, ...) or change func"
        )
    return call


class UdfOptions(TypedDict, total=False):
    """The keywords of :func:`udf`, for type checkers."""

    data_type: pa.DataType | None
    input_columns: Sequence[str] | None
    name: str | None
    version: str | None
    num_cpus: float | None
    num_gpus: float | None
    memory: int | None
    checkpoint_size: int | None
    min_checkpoint_size: int | None
    max_checkpoint_size: int | None
    task_size: int | None
    timeout: float | None
    on_error: OnError
    field_metadata: Mapping[str, str] | None
    manifest: Manifest | None
    cuda: bool | None
    batch_size: int | None
    error_handling: OnError
    auto_backfill: bool


class ChunkerOptions(TypedDict, total=False):
    """The keywords of :func:`chunker`, for type checkers."""

    output_schema: pa.Schema | None
    input_columns: Sequence[str] | None
    name: str | None
    version: str | None
    num_cpus: float | None
    num_gpus: float | None
    memory: int | None
    checkpoint_size: int | None
    min_checkpoint_size: int | None
    max_checkpoint_size: int | None
    task_size: int | None
    on_error: OnError
    manifest: Manifest | None


class UdtfOptions(TypedDict, total=False):
    """The keywords of :func:`udtf`, for type checkers."""

    output_schema: Required[pa.Schema]
    name: str | None
    version: str | None
    num_cpus: float | None
    num_gpus: float | None
    memory: int | None
    manifest: Manifest | None


class UdfDecorator(Protocol):
    """What `@udf(...)` with arguments decorates with."""

    @overload
    def __call__(self, func: type[object], /) -> UdfFactory: ...  # type: ignore[overload-overlap]  # a class is callable too
    @overload
    def __call__(self, func: Callable[..., object], /) -> UDF: ...


@overload
def udf(func: type[object], /, **options: Unpack[UdfOptions]) -> UdfFactory: ...  # type: ignore[overload-overlap]
@overload
def udf(func: Callable[..., object], /, **options: Unpack[UdfOptions]) -> UDF: ...
@overload
def udf(func: None = None, /, **options: Unpack[UdfOptions]) -> UdfDecorator: ...


@ARGUMENTS.function
def udf(  # noqa: PLR0913  # one keyword per thing that can be said about a UDF
    func: Callable[..., object] | None = None,
    /,
    *,
    data_type: pa.DataType | None = None,
    input_columns: Sequence[str] | None = None,
    name: str | None = None,
    version: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    checkpoint_size: int | None = None,
    min_checkpoint_size: int | None = None,
    max_checkpoint_size: int | None = None,
    task_size: int | None = None,
    timeout: float | None = None,
    on_error: OnError = None,
    field_metadata: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    cuda: bool | None = None,
    batch_size: int | None = None,
    error_handling: OnError = None,
    auto_backfill: bool = False,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a UDF of a function or a callable object, and a factory of UDFs of a class.

    With or without arguments. The annotations of the parameters tell the kind: `pa.Array`,
    `pd.Series`, one `pa.RecordBatch`, an `Iterator` over one of these (or over tuples of arrays or
    series); everything else is a scalar UDF, called once per row with None for NULL.

    Args:
        func: What is decorated.
        data_type: Arrow type of the results; taken from the annotation of a scalar function's
            result if left out.
        input_columns: Columns that the parameters read, in order; the parameters' names if left
            out. A parameter with a default is no input unless a column is given for it here.
        name: Name of the UDF; the function's if left out.
        version: What stands for the code in checkpoints and records; a digest of code, input
            columns and type if left out.
        num_cpus: Processor cores that one call uses.
        num_gpus: GPUs that one process uses.
        memory: Bytes that one process uses.
        checkpoint_size: Rows of a checkpoint.
        min_checkpoint_size: Fewest rows of an adaptive checkpoint.
        max_checkpoint_size: Most rows of an adaptive checkpoint.
        task_size: Rows of one task.
        timeout: Seconds that one row may take; scalar UDFs only.
        on_error: What to do about errors: a policy, a matcher, or a list of matchers; the first
            error fails the work if left out.
        field_metadata: Metadata that the columns get.
        manifest: The environment that it runs in: packages, modules and variables of its own. By
            default that of the connection, else the executors' own Python.
        cuda: Deprecated; `num_gpus=1`.
        batch_size: Deprecated; `checkpoint_size`.
        error_handling: Another name of `on_error`.
        auto_backfill: Refused if true: nothing runs by itself.

    Raises:
        UdfDefinitionError: Something about the definition cannot work; the message says what, and
            what to do.
    """
    if auto_backfill:
        raise UdfDefinitionError(
            "auto_backfill=True needs a service that watches the table, and there is none - in @udf - "
            "call backfill() after rows were added, or run it on a schedule"
        )
    if on_error is not None and error_handling is not None:
        raise UdfDefinitionError("on_error and error_handling are the same - in @udf - give on_error only")
    wishes = _Wishes(
        data_type=data_type,
        input_columns=input_columns,
        name=name,
        version=version,
        settings=Settings(
            num_cpus=num_cpus,
            num_gpus=_num_gpus(num_gpus, cuda),
            memory=memory,
            checkpoint_size=_checkpoint_size(checkpoint_size, batch_size),
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            timeout=timeout,
            on_error=ErrorPolicy.of(on_error if on_error is not None else error_handling),
            field_metadata=field_metadata if field_metadata is not None else {},
        ),
        local_names=_names_around(inspect.currentframe()),
        manifest=manifest,
    )
    if func is not None:
        return _decorated(func, wishes=wishes)
    return cast("UdfDecorator", functools.partial(_decorated, wishes=wishes))


@overload
def chunker(func: type[object], /, **options: Unpack[ChunkerOptions]) -> UdfFactory: ...  # type: ignore[overload-overlap]
@overload
def chunker(func: Callable[..., object], /, **options: Unpack[ChunkerOptions]) -> UDF: ...
@overload
def chunker(func: None = None, /, **options: Unpack[ChunkerOptions]) -> UdfDecorator: ...


@ARGUMENTS.function
def chunker(  # noqa: PLR0913  # one keyword per thing that can be said about a chunker
    func: Callable[..., object] | None = None,
    /,
    *,
    output_schema: pa.Schema | None = None,
    input_columns: Sequence[str] | None = None,
    name: str | None = None,
    version: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    checkpoint_size: int | None = None,
    min_checkpoint_size: int | None = None,
    max_checkpoint_size: int | None = None,
    task_size: int | None = None,
    on_error: OnError = None,
    manifest: Manifest | None = None,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a chunker of a function: for each row it yields any number of rows, its chunks.

    With or without arguments, on functions, callable objects and classes, as :func:`udf`. The
    function gets the values of one row, None for NULL, and yields (or returns a list of)
    NamedTuples, dataclasses, mappings, or tuples with the columns in order. They are taken one
    after the other, so that a long text need not be held in pieces. A row of which it yields
    nothing has no chunks; so has one for which it returns None.

    Args:
        func: What is decorated.
        output_schema: Columns of a chunk, all nullable; taken from the annotation of the result if
            left out: `Iterator[T]`, `Iterable[T]`, `Generator[T, ...]` or `list[T]` with a T that
            is a NamedTuple or a dataclass.
        input_columns: Columns that the parameters read, in order; the parameters' names if left
            out.
        name: Name of the chunker; the function's if left out.
        version: What stands for the code in checkpoints and records; a digest of code, input
            columns and output columns if left out.
        num_cpus: Processor cores that one call uses.
        num_gpus: GPUs that one process uses.
        memory: Bytes that one process uses.
        checkpoint_size: Rows of a checkpoint: of the rows that are chunked, not of chunks.
        min_checkpoint_size: Fewest rows of an adaptive checkpoint.
        max_checkpoint_size: Most rows of an adaptive checkpoint.
        task_size: Rows of one task.
        on_error: What to do about errors of a row, as for :func:`udf`. A row that is skipped has no
            chunks.
        manifest: The environment that it runs in: packages, modules and variables of its own. By
            default that of the connection, else the executors' own Python.

    Raises:
        UdfDefinitionError: Something about the definition cannot work; the message says what, and
            what to do.
    """
    wishes = _Wishes(
        kind=Kind.CHUNKS,
        data_type=_struct_of(output_schema, "@chunker"),
        input_columns=input_columns,
        name=name,
        version=version,
        settings=Settings(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            checkpoint_size=checkpoint_size,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            on_error=ErrorPolicy.of(on_error),
        ),
        local_names=_names_around(inspect.currentframe()),
        manifest=manifest,
    )
    if func is not None:
        return _decorated(func, wishes=wishes)
    return cast("UdfDecorator", functools.partial(_decorated, wishes=wishes))


@overload
def udtf(func: type[object], /, **options: Unpack[UdtfOptions]) -> UdfFactory: ...  # type: ignore[overload-overlap]
@overload
def udtf(func: Callable[..., object], /, **options: Unpack[UdtfOptions]) -> UDF: ...
@overload
def udtf(func: None = None, /, **options: Unpack[UdtfOptions]) -> UdfDecorator: ...


@ARGUMENTS.function
def udtf(
    func: Callable[..., object] | None = None,
    /,
    *,
    output_schema: pa.Schema | None = None,
    name: str | None = None,
    version: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    manifest: Manifest | None = None,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a table function of a function: it gets a whole table, and yields the rows of another.

    Its parameter is a source with `schema`, `count_rows()`, `to_batches()`, `to_arrow()` and
    `to_pandas()`. It yields (or returns a list of) record batches, tables or data frames of exactly
    the columns of `output_schema`. It is called once, in one process.

    Args:
        func: What is decorated.
        output_schema: Columns of the rows that it yields; has to be given.
        name: Name of the function; its own if left out.
        version: What stands for the code in records; a digest of it if left out.
        num_cpus: Processor cores that the call uses.
        num_gpus: GPUs that it uses.
        memory: Bytes that it uses.
        manifest: The environment that it runs in: packages, modules and variables of its own. By
            default that of the connection, else the executors' own Python.

    Raises:
        UdfDefinitionError: Something about the definition cannot work; the message says what, and
            what to do.
    """
    wishes = _Wishes(
        kind=Kind.TABLE,
        data_type=_struct_of(output_schema, "@udtf"),
        input_columns=None,
        name=name,
        version=version,
        settings=Settings(num_cpus=num_cpus, num_gpus=num_gpus, memory=memory),
        local_names=_names_around(inspect.currentframe()),
        manifest=manifest,
    )
    if func is not None:
        return _decorated(func, wishes=wishes)
    return cast("UdfDecorator", functools.partial(_decorated, wishes=wishes))


def _struct_of(schema: pa.Schema | None, where: str) -> pa.DataType | None:
    if schema is None and where == "@chunker":
        return None
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise UdfDefinitionError(
            f"output_schema={show_value(schema)} is no Arrow schema with columns - in {where} - give one, as in "
            "pa.schema({'text': pa.string()})"
        )
    return pa.struct(list(schema))


def as_udf(value: object) -> UDF | None:
    """Returns a UDF as it is, that of a decorated class without arguments, None for all else.

    Raises:
        UdfDefinitionError: The constructor of the class needs arguments.
    """
    if isinstance(value, UDF):
        return value
    return value() if isinstance(value, UdfFactory) else None


def _decorated(func: Callable[..., object], *, wishes: _Wishes) -> UDF | UdfFactory:
    if isinstance(func, (UDF, UdfFactory)):
        raise UdfDefinitionError(f"{func!r} is a UDF already - in @udf - decorate the function once")
    if not isinstance(func, type):
        return wishes.define(func, None, wishes.name)
    name = wishes.name or func.__name__
    # Says what is wrong with __call__ where the class is; the version waits for the arguments.
    dataclasses.replace(wishes, version="probe").define(Stateful(func), _call_of(func, name), name)
    return UdfFactory(func, wishes)


def _num_gpus(num_gpus: float | None, cuda: bool | None) -> float | None:
    if cuda is None:
        return num_gpus
    warnings.warn("cuda= is deprecated - in @udf - use num_gpus=1", DeprecationWarning, stacklevel=4)
    if cuda and num_gpus is not None:
        raise UdfDefinitionError("cuda and num_gpus say the same - in @udf - give num_gpus only")
    return 1.0 if cuda else num_gpus


def _checkpoint_size(checkpoint_size: int | None, batch_size: int | None) -> int | None:
    if batch_size is None:
        return checkpoint_size
    warnings.warn("batch_size= is deprecated - in @udf - use checkpoint_size=", DeprecationWarning, stacklevel=4)
    if checkpoint_size is not None:
        raise UdfDefinitionError("batch_size and checkpoint_size say the same - in @udf - give checkpoint_size only")
    return batch_size


def _names_around(frame: types.FrameType | None) -> dict[str, object]:
    """Returns the types and modules among the variables of the function that called a decorator.

    Annotations that are strings may name them, and a closure only has those that the body uses.
    Other variables are left alone, so that a factory does not keep a user's data alive.
    """
    caller = frame
    decorators = (__name__, type(ARGUMENTS).__module__)
    while caller is not None and caller.f_globals.get("__name__") in decorators:
        caller = caller.f_back
    if caller is None or caller.f_locals is caller.f_globals:
        return {}
    kept = (type, types.ModuleType, types.GenericAlias, types.UnionType, pa.DataType)
    return {k: v for k, v in caller.f_locals.items() if isinstance(v, kept) or typing.get_origin(v) is not None}
