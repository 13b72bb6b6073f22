"""`@udf`, `@chunker` and `@udtf`, on functions, callable objects and classes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Generic,
    Literal,
    Protocol,
    Required,
    TypedDict,
    Unpack,
    cast,
    overload,
)

import pyarrow as pa

from udf_runtime.arguments import ARGUMENTS, show_value
from udf_runtime.definition.kinds import Kind
from udf_runtime.definition.spec import UDF, P, R_co, Settings
from udf_runtime.definition.stateful import Stateful
from udf_runtime.environments.manifest import Manifest
from udf_runtime.errors import UdfDefinitionError, end_sentence
from udf_runtime.policies import ErrorPolicy, OnError, RateLimit

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R")

    class _CallableObject(Protocol[P, R_co]):
        """An instance of a decorated class."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """The keyword arguments of a decorator, except the decorated function."""

    data_type: pa.DataType | None
    input_columns: Sequence[str] | None
    name: str | None
    version: str | None
    settings: Settings
    local_names: Mapping[str, object] = dataclasses.field(repr=False)
    kind: Kind | None = None
    manifest: Manifest | None = None
    artifacts: Mapping[str, str] | None = None

    def define(
        self,
        target: Callable[..., object] | Stateful,
        call: Callable[..., object] | None,
        name: str | None,
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
            artifacts=self.artifacts,
            local_names=self.local_names,
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class UdfFactory(Generic[P, R_co]):
    """The result of `@udf` on a class: a call with constructor arguments returns a UDF.

    The call does not make an instance.

    Attributes:
        cls: The class.
    """

    cls: type
    _wishes: _Wishes

    def __call__(self, *args: object, **kwargs: object) -> UDF[P, R_co]:
        """Returns the UDF for a set of constructor arguments.

        Each process of the UDF calls the constructor once, and then `setup()` if the class has this
        method. A process outlives the job, and calls `teardown()` at its end if the class has this
        method.

        Raises:
            UdfDefinitionError: The arguments do not fit the constructor, or `__call__` does not fit
                a UDF.
        """
        name = self._wishes.name or self.cls.__name__
        call = _find_call(self.cls, name)
        try:
            inspect.signature(self.cls).bind(*args, **kwargs)
        except TypeError as error:
            raise UdfDefinitionError(
                f"The arguments do not fit the constructor: {end_sentence(str(error))} Place: UDF {name!r}. "
                f"Call it as {name}{inspect.signature(self.cls)}."
            ) from error
        return cast(
            "UDF[P, R_co]", self._wishes.define(Stateful(self.cls, args, kwargs), call, name)
        )


def _find_call(cls: type, name: str) -> Callable[..., object]:
    # getattr would return the constructor of a class without __call__.
    call = inspect.getattr_static(cls, "__call__", None)
    if not isinstance(call, types.FunctionType):
        raise UdfDefinitionError(
            f"The class {cls.__name__} has no method __call__. Place: UDF {name!r}. Define __call__(self, ...)."
        )
    return call


class _FunctionOptions(TypedDict, total=False):
    name: str | None
    version: str | None
    num_cpus: float | None
    num_gpus: float | None
    memory: int | None
    manifest: Manifest | None
    artifacts: Mapping[str, str] | None


class _RowOptions(_FunctionOptions, total=False):
    input_columns: Sequence[str] | None
    checkpoint_size: int | None
    min_checkpoint_size: int | None
    max_checkpoint_size: int | None
    task_size: int | None
    on_error: OnError


class UdfOptions(_RowOptions, total=False):
    """The keywords of :func:`udf`, for type checkers."""

    data_type: pa.DataType | None
    timeout: float | None
    call_timeout: float | None
    max_in_flight: int | None
    rate_limit: RateLimit | None
    deduplicate: bool | Literal["table"]
    field_metadata: Mapping[str, str] | None
    cuda: bool | None
    batch_size: int | Literal["auto"] | None
    sort_batch_by: str | Callable[..., object] | None
    prefetch_batches: int | None
    cost: float | Callable[..., object] | None
    error_handling: OnError
    auto_backfill: bool


class ChunkerOptions(_RowOptions, total=False):
    """The keywords of :func:`chunker`, for type checkers."""

    output_schema: pa.Schema | None
    cost: float | Callable[..., object] | None


class UdtfOptions(_FunctionOptions, total=False):
    """The keywords of :func:`udtf`, for type checkers."""

    output_schema: Required[pa.Schema]


class UdfDecorator(Protocol):
    """The decorator from `@udf(...)` with arguments."""

    @overload
    def __call__(self, func: type[_CallableObject[P, R]], /) -> UdfFactory[P, R]: ...  # type: ignore[overload-overlap]  # a class is callable too
    @overload
    def __call__(self, func: Callable[P, R], /) -> UDF[P, R]: ...


@overload
def udf(  # type: ignore[overload-overlap]
    func: type[_CallableObject[P, R]],
    /,
    **options: Unpack[UdfOptions],
) -> UdfFactory[P, R]: ...
@overload
def udf(func: Callable[P, R], /, **options: Unpack[UdfOptions]) -> UDF[P, R]: ...
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
    batch_size: int | Literal["auto"] | None = None,
    sort_batch_by: str | Callable[..., object] | None = None,
    prefetch_batches: int | None = None,
    cost: float | Callable[..., object] | None = None,
    timeout: float | None = None,
    call_timeout: float | None = None,
    max_in_flight: int | None = None,
    rate_limit: RateLimit | None = None,
    on_error: OnError = None,
    deduplicate: bool | Literal["table"] = False,
    field_metadata: Mapping[str, str] | None = None,
    manifest: Manifest | None = None,
    artifacts: Mapping[str, str] | None = None,
    cuda: bool | None = None,
    error_handling: OnError = None,
    auto_backfill: bool = False,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a UDF from a function or a callable object, and a factory of UDFs from a class.

    The decorator works with and without arguments. The annotations of the parameters determine the
    kind: `pa.Array`, `pd.Series`, a `pa.RecordBatch`, or an `Iterator` over these (or over tuples
    of arrays or series). All other functions are scalar UDFs, and they are called once per row,
    with None for NULL. The calls of an `async def` function run concurrently on the event loop of
    the process; `setup` of a class may be async, too.

    With `deduplicate=True`, equal rows of a batch share the value, or the failure, of a single
    call. A task also stores values for its later batches: of at most 65,536 distinct inputs, in at
    most 32 MiB of inputs and values. Inputs are equal if Arrow stores equal values: 0.0 and -0.0
    differ, NULL equals NULL, NaN equals a NaN of the same bits, and blobs are compared by their
    bytes. The value of a row must depend on the inputs of this row alone. With
    `deduplicate="table"`, a task also takes values from rows of the table that this version of the
    UDF has computed from equal inputs, as far as a scalar index (BTREE or BITMAP) of an input
    column of text or integers covers the rows.

    Args:
        func: The decorated function, object or class.
        data_type: Arrow type of the results; by default from the annotation of a scalar function's
            result.
        input_columns: Columns of the parameters, in order; by default the parameters' names. A
            parameter with a default is an input only if this list has a column for the parameter.
        name: Name of the UDF; by default the function's name.
        version: Stands for the code in checkpoints and records; by default a digest of code, input
            columns and type.
        num_cpus: Processor cores of a task, reserved for jobs.
        num_gpus: GPUs of each process, or below 1 a share of a single GPU. Reserved for jobs: the
            process sees no other GPU. Numbers above 1 are rounded up.
        memory: Bytes of a task, reserved for jobs.
        checkpoint_size: Rows of a checkpoint.
        min_checkpoint_size: Minimum rows of an adaptive checkpoint.
        max_checkpoint_size: Maximum rows of an adaptive checkpoint.
        task_size: Rows of a task.
        batch_size: Rows of a call of a UDF over batches, for example the batch of a model. By
            default a call gets all rows of a checkpoint. `"auto"` measures the throughput of calls
            of 16, 32, 64, ... rows, and keeps the best size after a minute at most. A call never
            exceeds a checkpoint. A call of a scalar UDF always has one row.
        sort_batch_by: An input column, or a function of the input arrays that returns an array with
            one key per row, such as `pc.utf8_length`. The rows of a checkpoint are sorted, NULL
            last, before they are cut into calls. Results keep the order of the rows. The function
            runs in the process of the UDF. An exception of the function ends the range, as a
            `UdfFailedError`.
        prefetch_batches: Maximum number of batches that a task reads while the UDF runs; by default
            2.
        cost: Cost of a call for a row in any unit, such as dollars: a number, or a function of the
            input arrays that returns an array with the cost of each row. NULL counts as 0. For
            `backfill(max_cost=)`, `plan_backfill(sample=)` and the job's result. The function runs
            in the tasks, with the packages of the executors.
        timeout: Another name of `call_timeout`.
        call_timeout: Maximum seconds per call; scalar and async UDFs only. By default there is no
            maximum. A late call raises a TimeoutError into the error policy.
        max_in_flight: Maximum number of concurrent calls of an async UDF in a process; by default
            32.
        rate_limit: Calls and tokens per minute that a service accepts, for the whole job over all
            executors. Not for UDFs over iterators.
        on_error: Policy for errors: a policy, a matcher, or a list of matchers; by default the
            first error fails the job.
        deduplicate: Whether rows with equal inputs share a call; for deterministic functions. With
            "table", a row also takes the value of a computed row with equal inputs.
        field_metadata: Metadata of the columns.
        manifest: The environment with packages, modules and variables of its own. By default the
            environment of the connection, else the executors' Python.
        artifacts: Files and folders by name, such as the weights of a model: paths that the driver
            and every executor see, or URIs of object stores. Each machine copies the files once,
            and `setup(artifacts)` of the decorated class gets their local paths by name. The
            content counts for the version.
        cuda: Deprecated; `num_gpus=1`.
        error_handling: Another name of `on_error`.
        auto_backfill: Whether an agent keeps columns of the UDF up to date: `Connection.agent`, or
            `lance-spark agent`. Stored with a column by `add_columns` and `alter_columns`.

    Raises:
        UdfDefinitionError: The definition cannot work; the message names the problem and the
            remedy.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from udf_runtime import udf
        >>> @udf
        ... def words(text: str) -> int:
        ...     return len(text.split())
        >>> words("two words"), words.input_columns, words.data_type
        (2, ('text',), DataType(int64))
        >>> @udf(data_type=pa.int32(), input_columns=["title"])
        ... def letters(text: pa.Array) -> pa.Array:
        ...     return pc.utf8_length(text)
        >>> letters.kind.value
        'arrow'
        >>> @udf(data_type=pa.int32(), batch_size=64, sort_batch_by=pc.utf8_length)
        ... def tokens(title: pa.Array) -> pa.Array:
        ...     return pc.list_value_length(pc.utf8_split_whitespace(title))
        >>> tokens.batch_size
        64
    """
    if on_error is not None and error_handling is not None:
        raise UdfDefinitionError(
            "The arguments on_error and error_handling of @udf are the same. Give on_error only."
        )
    wishes = _Wishes(
        data_type=data_type,
        input_columns=input_columns,
        name=name,
        version=version,
        settings=Settings(
            num_cpus=num_cpus,
            num_gpus=_resolve_num_gpus(num_gpus, cuda),
            memory=memory,
            checkpoint_size=checkpoint_size,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            batch_size=batch_size,
            sort_batch_by=sort_batch_by,
            prefetch_batches=prefetch_batches,
            cost=cost,
            timeout=_resolve_call_timeout(call_timeout, timeout),
            max_in_flight=max_in_flight,
            rate_limit=rate_limit,
            deduplicate=deduplicate,
            on_error=ErrorPolicy.of(on_error if on_error is not None else error_handling),
            field_metadata=field_metadata if field_metadata is not None else {},
            auto_backfill=auto_backfill,
        ),
        local_names=_collect_names_around(inspect.currentframe()),
        manifest=manifest,
        artifacts=artifacts,
    )
    return _decorate(func, wishes)


@overload
def chunker(  # type: ignore[overload-overlap]
    func: type[_CallableObject[P, R]],
    /,
    **options: Unpack[ChunkerOptions],
) -> UdfFactory[P, R]: ...
@overload
def chunker(func: Callable[P, R], /, **options: Unpack[ChunkerOptions]) -> UDF[P, R]: ...
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
    cost: float | Callable[..., object] | None = None,
    on_error: OnError = None,
    manifest: Manifest | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a chunker from a function: a row becomes any number of rows, its chunks.

    Works with and without arguments, on functions, callable objects and classes, like :func:`udf`.
    The function gets the values of a row, None for NULL, and yields (or returns a list of)
    NamedTuples, dataclasses, mappings, or tuples with the columns in order. The runner consumes the
    chunks one after another, so a long text never needs to be in memory in pieces. A row has no
    chunks if the function yields no chunk or returns None.

    Args:
        func: The decorated function, object or class.
        output_schema: Columns of a chunk, all nullable. By default from the annotation of the
            result: `Iterator[T]`, `Iterable[T]`, `Generator[T, ...]` or `list[T]`, with a
            NamedTuple or a dataclass as T.
        input_columns: Columns of the parameters, in order; by default the parameters' names.
        name: Name of the chunker; by default the function's name.
        version: Stands for the code in checkpoints and records; by default a digest of code, input
            columns and output columns.
        num_cpus: Processor cores of a task, reserved for jobs.
        num_gpus: GPUs of each process, or below 1 a share of a single GPU. Reserved for jobs: the
            process sees no other GPU. Numbers above 1 are rounded up.
        memory: Bytes of a task, reserved for jobs.
        checkpoint_size: Rows of a checkpoint: input rows, not chunks.
        min_checkpoint_size: Minimum rows of an adaptive checkpoint.
        max_checkpoint_size: Maximum rows of an adaptive checkpoint.
        task_size: Rows of a task.
        cost: Cost of a call for a row, as for :func:`udf`.
        on_error: Policy for errors of a row, as for :func:`udf`. A skipped row has no chunks.
        manifest: The environment with packages, modules and variables of its own. By default the
            environment of the connection, else the executors' Python.
        artifacts: Files and folders by name, such as the weights of a model: paths that the driver
            and every executor see, or URIs of object stores. Each machine copies the files once,
            and `setup(artifacts)` of the decorated class gets their local paths by name. The
            content counts for the version.

    Raises:
        UdfDefinitionError: The definition cannot work; the message names the problem and the
            remedy.

    Example:
        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from udf_runtime import chunker
        >>> class Sentence(NamedTuple):
        ...     text: str
        ...     length: int
        >>> @chunker
        ... def sentences(body: str) -> Iterator[Sentence]:
        ...     for text in body.split(". "):
        ...         yield Sentence(text, len(text))
        >>> [sentence.length for sentence in sentences("One. Three")]
        [3, 5]
    """
    wishes = _Wishes(
        kind=Kind.CHUNKS,
        data_type=_make_struct(output_schema, "@chunker"),
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
            cost=cost,
            on_error=ErrorPolicy.of(on_error),
        ),
        local_names=_collect_names_around(inspect.currentframe()),
        manifest=manifest,
        artifacts=artifacts,
    )
    return _decorate(func, wishes)


@overload
def udtf(  # type: ignore[overload-overlap]
    func: type[_CallableObject[P, R]],
    /,
    **options: Unpack[UdtfOptions],
) -> UdfFactory[P, R]: ...
@overload
def udtf(func: Callable[P, R], /, **options: Unpack[UdtfOptions]) -> UDF[P, R]: ...
@overload
def udtf(func: None = None, /, **options: Unpack[UdtfOptions]) -> UdfDecorator: ...


@ARGUMENTS.function
def udtf(  # noqa: PLR0913  # one keyword per thing that can be said about a table function
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
    artifacts: Mapping[str, str] | None = None,
) -> UDF | UdfFactory | UdfDecorator:
    """Makes a table function from a function: a whole table becomes the rows of another table.

    The function's parameter is a source with `schema`, `count_rows()`, `to_batches()`, `to_arrow()`
    and `to_pandas()`. The function yields (or returns a list of) record batches, tables or data
    frames with exactly the columns of `output_schema`. The function is called once, in a single
    process.

    Args:
        func: The decorated function, object or class.
        output_schema: Columns of the yielded rows; required.
        name: Name of the table function; by default the function's name.
        version: Stands for the code in records; by default a digest of the code.
        num_cpus: Processor cores of the call. A table function reserves no resources.
        num_gpus: GPUs of the call, without a reservation.
        memory: Bytes of the call, without a reservation.
        manifest: The environment with packages, modules and variables of its own. By default the
            environment of the connection, else the executors' Python.
        artifacts: Files and folders by name, such as the weights of a model: paths that the driver
            and every executor see, or URIs of object stores. Each machine copies the files once,
            and `setup(artifacts)` of the decorated class gets their local paths by name. The
            content counts for the version.

    Raises:
        UdfDefinitionError: The definition cannot work; the message names the problem and the
            remedy.

    Example:
        >>> import pyarrow as pa
        >>> from udf_runtime import udtf
        >>> @udtf(output_schema=pa.schema({"rows": pa.int64()}))
        ... def size(source):
        ...     yield pa.table({"rows": [source.count_rows()]})
        >>> size.kind.value
        'table'
    """
    wishes = _Wishes(
        kind=Kind.TABLE,
        data_type=_make_struct(output_schema, "@udtf"),
        input_columns=None,
        name=name,
        version=version,
        settings=Settings(num_cpus=num_cpus, num_gpus=num_gpus, memory=memory),
        local_names=_collect_names_around(inspect.currentframe()),
        manifest=manifest,
        artifacts=artifacts,
    )
    return _decorate(func, wishes)


def _make_struct(schema: pa.Schema | None, where: str) -> pa.DataType | None:
    if schema is None and where == "@chunker":
        return None
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise UdfDefinitionError(
            f"The argument output_schema={show_value(schema)} of {where} is no Arrow schema with columns. Give a "
            "schema, for example pa.schema({'text': pa.string()})."
        )
    return pa.struct(list(schema))


def as_udf(value: object) -> UDF | None:
    """Returns a UDF as is, the UDF of a decorated class without arguments, None for other values.

    Raises:
        UdfDefinitionError: The constructor of the class needs arguments.

    Example:
        >>> from udf_runtime import as_udf, udf
        >>> @udf
        ... class Length:
        ...     def __call__(self, text: str) -> int:
        ...         return len(text)
        >>> as_udf(Length), as_udf(len)
        (<UDF Length(text) -> int64, scalar>, None)
    """
    if isinstance(value, UDF):
        return value
    return value() if isinstance(value, UdfFactory) else None


def _decorate(
    func: Callable[..., object] | None, wishes: _Wishes
) -> UDF | UdfFactory | UdfDecorator:
    """Returns the UDF of a function; without a function, the decorator that makes the UDF."""
    if func is None:
        return cast("UdfDecorator", functools.partial(_decorated, wishes=wishes))
    return _decorated(func, wishes=wishes)


def _decorated(func: Callable[..., object], *, wishes: _Wishes) -> UDF | UdfFactory:
    if isinstance(func, (UDF, UdfFactory)):
        raise UdfDefinitionError(
            f"{func!r} is a UDF already. Decorate the function once with @udf."
        )
    if not isinstance(func, type):
        return wishes.define(func, None, wishes.name)
    name = wishes.name or func.__name__
    # Reports errors of __call__ at the class; the version needs the arguments.
    dataclasses.replace(wishes, version="probe").define(
        Stateful(func), _find_call(func, name), name
    )
    return UdfFactory(func, wishes)


def _resolve_num_gpus(num_gpus: float | None, cuda: bool | None) -> float | None:
    if cuda is None:
        return num_gpus
    warnings.warn(
        "The argument cuda= of @udf is deprecated. Use num_gpus=1.",
        DeprecationWarning,
        stacklevel=4,
    )
    if cuda and num_gpus is not None:
        raise UdfDefinitionError(
            "The arguments cuda and num_gpus of @udf are the same. Give num_gpus only."
        )
    return 1.0 if cuda else num_gpus


def _resolve_call_timeout(call_timeout: float | None, timeout: float | None) -> float | None:
    if call_timeout is not None and timeout is not None:
        raise UdfDefinitionError(
            "The arguments call_timeout and timeout of @udf are the same. Give call_timeout only."
        )
    return timeout if call_timeout is None else call_timeout


def _collect_names_around(frame: types.FrameType | None) -> dict[str, object]:
    """Returns the types and modules among the variables of a decorator's calling function.

    Annotations in the form of strings may name these variables, and a closure only has variables
    from the body. Variables with other values are ignored, so a factory does not keep a user's data
    alive.
    """
    caller = frame
    decorators = (__name__, type(ARGUMENTS).__module__)
    while caller is not None and caller.f_globals.get("__name__") in decorators:
        caller = caller.f_back
    if caller is None or caller.f_locals is caller.f_globals:
        return {}
    annotation_types = (type, types.ModuleType, types.GenericAlias, types.UnionType, pa.DataType)
    return {
        k: v
        for k, v in caller.f_locals.items()
        if isinstance(v, annotation_types) or typing.get_origin(v) is not None
    }
