"""A UDF as a value: its computation, its inputs, and its settings."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import pyarrow as pa

from udf_runtime.arguments import ARGUMENTS, is_whole_number
from udf_runtime.arrow_types import check_fillable
from udf_runtime.definition.artifacts import Artifact, checksum_of, local_paths, make_artifacts
from udf_runtime.definition.kinds import CHUNKS_OF_ROW, NEW_FORMS, Kind, Parameter
from udf_runtime.definition.setting_checks import (
    check_batches,
    check_cost,
    check_metadata,
    is_amount,
)
from udf_runtime.definition.signature import SignatureRequest, UdfSignature, signature_of
from udf_runtime.definition.stateful import Stateful, pickled, unpickled
from udf_runtime.environments.manifest import Manifest, current_python
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.fingerprint import fingerprint, first_digest, is_first_digest
from udf_runtime.policies import ErrorPolicy, RateLimit

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    # With defaults, `UDF` alone is the type of a UDF with any parameters and any result.
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", default=Any, covariant=True)
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)


SortKey: TypeAlias = "str | Callable[..., object] | Stateful | None"
"""A column or a function for `sort_batch_by`."""

RowCost: TypeAlias = "float | Callable[..., object] | Stateful | None"
"""The cost of a row, or a function from the input arrays to the costs of the rows."""

DEFAULT_MAX_IN_FLIGHT = 32
"""Concurrent calls of an async UDF in a process, unless the UDF sets `max_in_flight`."""

_WHOLE_NUMBERS = (
    "memory",
    "checkpoint_size",
    "min_checkpoint_size",
    "max_checkpoint_size",
    "task_size",
    "max_in_flight",
    "prefetch_batches",
)
"""Settings that are None or a whole number from 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings for the run of a UDF.

    The settings do not change results, so the version ignores the settings.

    Attributes:
        num_cpus: Processor cores of a task, None for one core.
        num_gpus: GPUs of each process, or below 1 a share of a single GPU.
        memory: Bytes of a task.
        checkpoint_size: Rows of a checkpoint.
        min_checkpoint_size: Minimum rows of an adaptive checkpoint.
        max_checkpoint_size: Maximum rows of an adaptive checkpoint.
        task_size: Rows of a task.
        batch_size: Rows of a call, or `"auto"` for the size with the highest throughput; None for
            all rows of a checkpoint. A call of a scalar UDF has one row.
        sort_batch_by: A parameter, or a function of the input arrays that returns an array of keys.
        prefetch_batches: Maximum number of batches read while the UDF runs.
        cost: Cost of a call for a row, in any unit, or a function of the input arrays that returns
            an array of costs; for budgets and estimates.
        timeout: Maximum seconds per call; scalar and async UDFs only.
        max_in_flight: Maximum number of concurrent calls of an async UDF per process; None for 32.
        rate_limit: Calls and tokens per minute that the service of the UDF accepts.
        on_error: Policy for errors.
        deduplicate: Whether rows with equal inputs share a call; "table": also with computed rows.
        field_metadata: Metadata of its columns, in addition to the mark of a computed column.
        auto_backfill: Whether an agent keeps new columns of the UDF up to date.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    task_size: int | None = None
    batch_size: int | Literal["auto"] | None = None
    sort_batch_by: SortKey = None
    prefetch_batches: int | None = None
    cost: RowCost = None
    timeout: float | None = None
    max_in_flight: int | None = None
    rate_limit: RateLimit | None = None
    on_error: ErrorPolicy = dataclasses.field(default_factory=ErrorPolicy)
    deduplicate: bool | Literal["table"] = False
    field_metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    auto_backfill: bool = False

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is not None and not is_whole_number(value):
                raise UdfDefinitionError(
                    f"The setting {name}={value!r} of a UDF is no number of 1 or more. Give a whole number, or None."
                )
        for keyword, name in (
            ("num_cpus", "num_cpus"),
            ("num_gpus", "num_gpus"),
            ("call_timeout", "timeout"),
        ):
            value = getattr(self, name)
            if value is not None and not is_amount(value, from_zero=name != "timeout"):
                raise UdfDefinitionError(
                    f"The setting {keyword}={value!r} of a UDF is no positive number. Give a number, or None."
                )
        if not isinstance(self.deduplicate, bool) and self.deduplicate != "table":
            raise UdfDefinitionError(
                f"The setting deduplicate={self.deduplicate!r} of a UDF is none of True, False and 'table'. Give one."
            )
        if not isinstance(self.auto_backfill, bool):
            raise UdfDefinitionError(
                f"The setting auto_backfill={self.auto_backfill!r} of a UDF is neither True nor False. Give one."
            )
        self._check_bounds()
        check_cost(self.cost)
        check_batches(self.batch_size, self.sort_batch_by)
        check_metadata(self.field_metadata)

    def _check_bounds(self) -> None:
        low, high = self.min_checkpoint_size, self.max_checkpoint_size
        if low is not None and high is not None and low > high:
            raise UdfDefinitionError(
                f"The setting min_checkpoint_size={low} of a UDF is above max_checkpoint_size={high}. Swap the two."
            )


@ARGUMENTS.methods
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UDF(Settings, Generic[P, R_co]):
    """A user-defined function over columns.

    A UDF is immutable, picklable, and callable like its function. `@udf` and :meth:`define` make
    UDFs.

    Attributes:
        name: Name in messages, records and checkpoints.
        manifest: The environment of the UDF; None is the Python of the running process.
        signature: Facts from the function's signature.
        target: The function, or the class with its arguments.
        input_columns: Columns of the parameters, in order; None for kinds over record batches.
        given_version: The explicit version, or the digest of the code at the time of pickling; None
            while the version follows the code.
        payload: The pickled bytes of an unpickled UDF, None in the defining process.
        artifacts: Files and folders for `setup(artifacts)`, sorted by name.

    Example:
        >>> from udf_runtime import UDF
        >>> def double(x: int) -> int:
        ...     return 2 * x
        >>> function = UDF.define(double, input_columns=["price"])
        >>> function, function(21)
        (<UDF double(price) -> int64, scalar>, 42)
    """

    name: str
    signature: UdfSignature
    target: Callable[..., object] | Stateful
    input_columns: tuple[str, ...] | None
    given_version: str | None = None
    payload: bytes | None = None
    manifest: Manifest | None = None
    artifacts: tuple[Artifact, ...] = ()

    @staticmethod
    def define(  # noqa: PLR0913  # one keyword per thing that can be said about a UDF
        func: Callable[..., object] | Stateful,
        *,
        kind: Kind | None = None,
        data_type: pa.DataType | None = None,
        input_columns: Sequence[str] | None = None,
        name: str | None = None,
        version: str | None = None,
        settings: Settings | None = None,
        manifest: Manifest | None = None,
        artifacts: Mapping[str, str] | None = None,
        call: Callable[..., object] | None = None,
        local_names: Mapping[str, object] | None = None,
    ) -> UDF:
        """Makes a UDF from a function. Runs on the driver; does not call the function.

        Args:
            func: A function, a method, a partial, a callable object, or a :class:`Stateful`.
            kind: The arguments and results of a call; by default from the annotations.
            data_type: Type of the results; by default from the annotation of the result.
            input_columns: Columns of the parameters, in order; by default the parameters' names. A
                parameter with a default is an input only if this list has a column for the
                parameter.
            name: Name of the UDF; by default the function's name.
            version: Stands for the code in checkpoints and records; by default a digest of the
                code.
            settings: Settings for the run.
            manifest: The environment of the UDF.
            artifacts: Locations of files and folders by name, for `setup(artifacts)`.
            call: The function with the relevant signature: `__call__` of a class before its
                construction.
            local_names: Variables around the definition, for annotations in the form of strings.

        Raises:
            UdfDefinitionError: The definition cannot work; the message names the problem and the
                remedy.
        """
        _check_callable(func)
        name = name if name is not None else _find_name(call or func)
        where = f"UDF {name!r}"
        _check_declaration(data_type, name, version)
        columns = None if input_columns is None else _check_columns(input_columns, where)
        request = SignatureRequest(
            name=name,
            kind=kind,
            data_type=data_type,
            input_columns=columns,
            local_names=local_names or {},
            skip_self=call is not None,
        )
        signature = signature_of(call or _load_callable(func), request)
        check_fillable(signature.data_type, where=where)
        settings = settings or Settings()
        _check_calls(settings, signature, where)
        _check_batch_settings(settings, signature, where)
        shared = {
            field.name: getattr(settings, field.name) for field in dataclasses.fields(Settings)
        }
        bound_columns = _bind_columns(signature, columns, where)
        sort_key = _bind_sort_key(settings.sort_batch_by, signature, bound_columns, where)
        udf = UDF(
            name=name,
            signature=signature,
            target=_hold_state(func),
            input_columns=bound_columns,
            given_version=version,
            artifacts=make_artifacts(artifacts, _hold_state(func), name),
            **(
                shared
                | {"field_metadata": dict(settings.field_metadata), "sort_batch_by": sort_key}
            ),
        )
        _ = (
            udf.code_version
        )  # a failure of the digest is raised at the definition, before the first use
        return udf if manifest is None else udf.with_manifest(manifest)

    @property
    def keeps_process(self) -> bool:
        """Whether the UDF runs in a process that outlives its tasks: with a state, or on GPUs."""
        return bool(self.num_gpus) or (isinstance(self.target, Stateful) and self.target.has_state)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the function in this process, without error policy, timeout and conversion."""
        result: R_co = self.load()(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        inputs = "a record batch" if self.input_columns is None else ", ".join(self.input_columns)
        return f"<UDF {self.name}({inputs}) -> {self.data_type}, {self.kind.value}>"

    def __reduce__(self) -> tuple[object, ...]:
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # Computed here, in the process with the code, because other processes may see other
        # globals.
        return (_rebuild, (state | {"given_version": self.code_version, "payload": None},))

    @property
    def kind(self) -> Kind:
        """The arguments and results of a call."""
        return self.signature.kind

    @property
    def data_type(self) -> pa.DataType:
        """Arrow type of the results; for `Columns[T]` the struct of T."""
        return self.signature.data_type

    @property
    def result_type(self) -> pa.DataType:
        """Arrow type of a run's value for a row; for a chunker the location of the row's chunks."""
        return CHUNKS_OF_ROW if self.kind is Kind.CHUNKS else self.data_type

    @property
    def is_columns(self) -> bool:
        """Whether each field of the result is a column of its own."""
        return self.signature.is_columns

    @property
    def is_async(self) -> bool:
        """Whether a call returns a coroutine, as from `async def`."""
        return self.signature.is_async

    @property
    def calls_in_flight(self) -> int:
        """Maximum number of concurrent calls of an async UDF in a process."""
        return DEFAULT_MAX_IN_FLIGHT if self.max_in_flight is None else self.max_in_flight

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The inputs of a call: a parameter per input column; for record batches the batch."""
        inputs = self.signature.inputs
        return inputs if self.input_columns is None else inputs[: len(self.input_columns)]

    @property
    def call_rows(self) -> int:
        """Rows of a full call, as far as a setting fixes them; 1 for scalar UDFs.

        For async UDFs of single rows: the rows of `max_in_flight` concurrent calls.
        """
        if self.is_async and not self.kind.vectorised:
            return self.calls_in_flight
        return self.batch_size if self.kind.vectorised and isinstance(self.batch_size, int) else 1

    @property
    def sort_key(self) -> Callable[..., object] | None:
        """The function from the input arrays, or the record batch, to an array of sort keys."""
        key = self.sort_batch_by
        if isinstance(key, Stateful):
            return key.load()
        if not isinstance(key, str):
            return key
        if self.input_columns is None:
            return operator.methodcaller("column", key)
        position = [parameter.name for parameter in self.parameters].index(key)
        return lambda *columns: columns[position]

    @property
    def version(self) -> str:
        """The code's version and the checksum of the artifacts, or the code's version alone.

        Raises:
            UdfDefinitionError: The artifacts are not listed yet.
        """
        return (
            f"{self.code_version}+{checksum_of(self.artifacts)}"
            if self.artifacts
            else self.code_version
        )

    @property
    def code_version(self) -> str:
        """The explicit version, or a digest of code, input columns and data type.

        While the code can still change, each access computes the digest again, because a helper may
        be defined after the UDF, and a cell of a notebook may run again. Pickling fixes the digest.
        """
        if self.given_version is not None:
            return self.given_version
        return fingerprint(*_collect_digest_parts(self), what=f"UDF {self.name!r}")

    def _restore_first_form(self) -> UDF:
        """Returns the UDF in the form of releases with the first scheme: values arrive unchanged.

        An adapter holds the original UDF in an attribute `first_form`.
        """
        first = (
            getattr(self.target.made_from, "first_form", None)
            if isinstance(self.target, Stateful)
            else None
        )
        form = self if first is None else first
        inputs = [
            dataclasses.replace(p, form="value") if p.form in NEW_FORMS else p
            for p in form.signature.inputs
        ]
        return dataclasses.replace(
            form, signature=dataclasses.replace(form.signature, inputs=tuple(inputs))
        )

    def keep_version(self, name: str, version: str) -> UDF:
        """Returns the UDF with a stored version, if the stored version belongs to the same code.

        Digests of earlier releases have no number of a scheme. Values and checkpoints of an old
        version stay valid while the code has the same digest under the first scheme.

        Args:
            name: Name of the stored UDF.
            version: Version of the stored UDF.
        """
        if (
            self.given_version is not None
            or self.name != name
            or self.artifacts
            or not is_first_digest(version)
        ):
            return self
        try:
            same = (
                first_digest(
                    *_collect_digest_parts(self._restore_first_form()), what=f"UDF {self.name!r}"
                )
                == version
            )
        except UdfDefinitionError:
            same = False
        return dataclasses.replace(self, given_version=version, payload=None) if same else self

    def pickle_once(self) -> UDF:
        """Returns the UDF with a fixed version and a fixed pickled form.

        The pickled form of some objects differs from run to run, and a UDF is stored under the
        digest of this form.

        Raises:
            UdfDefinitionError: An object in the UDF cannot be pickled, or artifacts are not listed.
        """
        _ = self.version  # a UDF is stored with listed artifacts
        settled = dataclasses.replace(self, given_version=self.code_version)
        return dataclasses.replace(settled, payload=settled.dumps())

    @property
    def __wrapped__(self) -> Callable[..., object]:
        # For inspect.signature; a class without an instance has no signature to show.
        if isinstance(self.target, Stateful):
            raise AttributeError("__wrapped__")  # noqa: TRY004  # as for a missing attribute
        return self.target

    @property
    def __name__(self) -> str:
        return self.name

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns the dependencies of another UDF that calls this UDF."""
        code = (self.target,) if self.given_version is None else (self.name, self.given_version)
        return (*code, self.artifacts) if self.artifacts else code

    def with_input_columns(self, columns: Sequence[str]) -> UDF:
        """Returns the same UDF over other columns, assigned to its parameters by position.

        Raises:
            UdfDefinitionError: The number of columns does not fit, or the UDF takes whole record
                batches.
        """
        where = f"UDF {self.name!r}"
        bound = _bind_columns(self.signature, _check_columns(columns, where), where)
        return dataclasses.replace(self, input_columns=bound, payload=None)

    def with_manifest(self, manifest: Manifest) -> UDF:
        """Returns the same UDF in another environment.

        Only a process of this environment unpickles the code.

        Raises:
            UdfDefinitionError: The argument is no manifest, or its Python version cannot run the
                code.
        """
        where = f"UDF {self.name!r}"
        if not isinstance(manifest, Manifest):
            raise UdfDefinitionError(
                f"The manifest={manifest!r} of {where} is no Manifest. Build a manifest, for example "
                "Manifest.create_pip('name').pip([...]).build()."
            )
        target = self.target if isinstance(self.target, Stateful) else Stateful(self.target)
        if manifest.python_version != current_python() and target.travels_by_value():
            raise UdfDefinitionError(
                f"The code of {where} was compiled by Python {current_python()} here, and manifest {manifest.name!r} "
                f"asks for {manifest.python_version}. Put the function into a module, give the module to py_modules, "
                "and decorate the imported function: udf(module.function, manifest=...)."
            )
        return dataclasses.replace(
            self,
            manifest=manifest,
            target=target,
            # Other processes must not unpickle the functions with the UDF.
            sort_batch_by=_hold_function(self.sort_batch_by),
            cost=_hold_function(self.cost),
            payload=None,
        )

    def load(self) -> Callable[..., Any]:
        """Returns this process's callable: the function, or the single instance of the class.

        Thread-safe. Raises the errors of the class's constructor and `setup`.
        """
        if not isinstance(self.target, Stateful):
            return self.target
        if not self.artifacts:
            return self.target.load()
        is_listed = all(artifact.files for artifact in self.artifacts)
        checksum = checksum_of(self.artifacts) if is_listed else ""
        return self.target.load(checksum, lambda: local_paths(self.artifacts))

    def with_artifacts(self, artifacts: tuple[Artifact, ...]) -> UDF:
        """Returns the same UDF with listed artifacts."""
        return dataclasses.replace(self, artifacts=artifacts, payload=None)

    def dumps(self) -> bytes:
        """Returns the pickled UDF; for an unpickled UDF, the same bytes again.

        Raises:
            UdfDefinitionError: An object in the UDF cannot be pickled.
        """
        return (
            self.payload if self.payload is not None else pickled(self, what=f"UDF {self.name!r}")
        )

    @staticmethod
    def loads(payload: bytes) -> UDF:
        """Returns the UDF from the bytes of :meth:`dumps`. Runs code of the UDF's author.

        Raises:
            UdfDefinitionError: The bytes are damaged, hold another object, or need a missing
                module.
        """
        udf = unpickled(payload, what="The payload of a UDF")
        if not isinstance(udf, UDF):
            raise UdfDefinitionError(
                f"The bytes hold a {type(udf).__name__} instead of a UDF. Give the bytes of UDF.dumps()."
            )
        return dataclasses.replace(udf, payload=payload)

    @staticmethod
    def payload_digest(payload: bytes) -> str:
        """Returns the SHA-256 of a pickled UDF, in hex."""
        return hashlib.sha256(payload).hexdigest()


@ARGUMENTS.constructor
@dataclasses.dataclass(frozen=True, slots=True)
class UnpackedUDF:
    """A UDF with the result `Columns[T]`, and a prefix for the names of its columns.

    Attributes:
        udf: The UDF.
        prefix: Prefix of the columns' names.

    Example:
        >>> from typing import NamedTuple
        >>> from udf_runtime import Columns, UnpackedUDF, udf
        >>> class Size(NamedTuple):
        ...     height: int
        ...     width: int
        >>> @udf
        ... def size(image: bytes) -> Columns[Size]:
        ...     return Size(len(image), 1)
        >>> UnpackedUDF(size, prefix="image_").output_columns
        (('height', 'image_height'), ('width', 'image_width'))
    """

    udf: UDF
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.udf.is_columns:
            raise UdfDefinitionError(
                f"{self.udf!r} in UnpackedUDF does not return Columns[T]. Annotate its result as Columns[T]."
            )

    @property
    def output_columns(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a field of T and the name of its column, in the order of the fields."""
        kind = self.udf.data_type
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return tuple((name, f"{self.prefix}{name}") for name in names)


def _collect_digest_parts(udf: UDF) -> tuple[object, ...]:
    """Returns the values under the digest of the automatic version."""
    forms = tuple(parameter.form for parameter in udf.parameters)
    about = (udf.kind.value, forms, udf.input_columns, udf.is_columns, udf.data_type)
    classes = tuple(
        parameter.annotation for parameter in udf.parameters if parameter.form == "python"
    )
    target = udf.target.fingerprint_parts() if isinstance(udf.target, Stateful) else (udf.target,)
    return (*target, about, *([classes] if classes else []))


def _rebuild(state: dict[str, Any]) -> UDF:
    return UDF(**state)


def _check_callable(func: object) -> None:
    if not callable(func) and not isinstance(func, Stateful):
        raise UdfDefinitionError(
            f"{func!r} cannot be a UDF, because it cannot be called. Give a function, or an object with __call__."
        )
    if isinstance(func, type):
        raise UdfDefinitionError(
            f"{func.__qualname__} is a class. Decorate the class with @udf, and call the result to get a UDF."
        )


def _check_declaration(data_type: object, name: str, version: object) -> None:
    if data_type is not None and not isinstance(data_type, pa.DataType):
        raise UdfDefinitionError(
            f"The data_type={data_type!r} of UDF {name!r} is no Arrow type. Give a type, for example pa.float32()."
        )
    if not name or (version is not None and not (isinstance(version, str) and version)):
        raise UdfDefinitionError(
            f"The version={version!r} or the name of UDF {name!r} is empty or no text. Give a name and a version of "
            "one letter or more."
        )


def _check_calls(settings: Settings, signature: UdfSignature, where: str) -> None:
    """Refuses settings of calls for UDFs whose calls cannot have them."""
    if (
        settings.timeout is not None
        and signature.kind is not Kind.SCALAR
        and not signature.is_async
    ):
        raise UdfDefinitionError(
            f"The call_timeout is per call of a scalar or async UDF, and {where} is neither. Leave call_timeout out."
        )
    if settings.max_in_flight is not None and not signature.is_async:
        raise UdfDefinitionError(
            f"The setting max_in_flight counts calls of an async UDF, and {where} is not async. Define the function "
            "with async def, or leave max_in_flight out, and give backfill() intra_applier_concurrency."
        )
    if settings.rate_limit is not None and (signature.kind.iterates or signature.kind.makes_rows):
        raise UdfDefinitionError(
            f"A rate limit counts calls that return a result, and {where} yields results from a single call. Leave "
            "rate_limit out, or take single values or arrays."
        )


def _check_batch_settings(settings: Settings, signature: UdfSignature, where: str) -> None:
    """Checks the settings of batches against the kind of a UDF."""
    kind = signature.kind
    if kind.makes_rows and (settings.batch_size is not None or settings.sort_batch_by is not None):
        raise UdfDefinitionError(
            f"The settings batch_size and sort_batch_by are for UDFs over batches of rows, and {where} makes new rows. "
            "Leave both out."
        )
    if not kind.vectorised and settings.sort_batch_by is not None:
        raise UdfDefinitionError(
            f"The setting sort_batch_by is for UDFs over batches, and a call of {where} gets one row. Leave "
            "sort_batch_by out."
        )


def _bind_sort_key(
    key: SortKey, signature: UdfSignature, columns: tuple[str, ...] | None, where: str
) -> SortKey:
    """Returns the parameter of a sort column, which keeps its name over other columns."""
    if not isinstance(key, str) or columns is None:
        return key
    parameters = [parameter.name for parameter in signature.inputs[: len(columns)]]
    if key in columns:
        return parameters[columns.index(key)]
    if key in parameters:
        return key
    raise UdfDefinitionError(
        f"The sort_batch_by={key!r} of {where} is no input. Give an input ({', '.join(columns)}), or a function of "
        "the input arrays."
    )


def _hold_state(func: Callable[..., object] | Stateful) -> Callable[..., object] | Stateful:
    """Returns functions unchanged, and callable objects with an instance per process."""
    if (
        isinstance(func, (Stateful, functools.partial))
        or hasattr(func, "__qualname__")
        or hasattr(func, "__name__")
    ):
        return func
    return Stateful(func)


def _hold_function(setting: Any) -> Any:  # noqa: ANN401 - any setting
    """Returns functions in a holder that unpickles them at their first use."""
    return Stateful(setting) if callable(setting) and not isinstance(setting, Stateful) else setting


def _load_callable(func: Callable[..., object] | Stateful) -> Callable[..., object]:
    return func.load() if isinstance(func, Stateful) else func


def _find_name(func: object) -> str:
    if isinstance(func, functools.partial):
        return _find_name(func.func)
    name = getattr(func, "__name__", None) or type(func).__name__
    return "lambda_function" if name == "<lambda>" else str(name)


def _check_columns(columns: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(
        isinstance(column, str) and column for column in columns
    ):
        raise UdfDefinitionError(
            f"The input_columns={columns!r} of {where} are no list of names. Give a list, one name per parameter."
        )
    return tuple(columns)


def _bind_columns(
    signature: UdfSignature, columns: tuple[str, ...] | None, where: str
) -> tuple[str, ...] | None:
    if signature.kind.takes_batches:
        if columns is not None:
            raise UdfDefinitionError(
                f"A UDF over record batches has no input_columns, and {where} has {list(columns)}. Drop input_columns. "
                "The UDF gets all columns of the table at its registration."
            )
        return None
    if columns is None:
        columns = tuple(parameter.name for parameter in signature.inputs[: signature.required])
        if not columns:
            raise UdfDefinitionError(
                f"Every parameter of {where} has a default. Give the columns with input_columns=."
            )
        return columns
    if not max(signature.required, 1) <= len(columns) <= len(signature.inputs):
        raise UdfDefinitionError(
            f"{where} expects {signature.accepted} parameters but {len(columns)} input columns were given "
            f"({', '.join(columns)}). Give one column per parameter: {', '.join(p.name for p in signature.inputs)}."
        )
    return columns
