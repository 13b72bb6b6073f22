"""A UDF as a value: what it computes, from what, and how it wants to be run."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.arrow_types import check_fillable
from udf_runtime.definition.kinds import CHUNKS_OF_ROW, NEW_FORMS, Kind, Parameter
from udf_runtime.definition.signature import SignatureRequest, UdfSignature, signature_of
from udf_runtime.definition.stateful import Stateful, pickled, unpickled
from udf_runtime.environments.manifest import Manifest, current_python
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.fingerprint import fingerprint, first_digest, is_first_digest
from udf_runtime.policies import ErrorPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a UDF wants to be run.

    None of it changes what is computed, so none of it is in the version.

    Attributes:
        num_cpus: Processor cores that one call uses, None for one.
        num_gpus: GPUs that one process uses.
        memory: Bytes that one process uses.
        checkpoint_size: Rows of a checkpoint.
        min_checkpoint_size: Fewest rows of an adaptive checkpoint.
        max_checkpoint_size: Most rows of an adaptive checkpoint.
        task_size: Rows of one task.
        timeout: Seconds that one row may take; scalar UDFs only.
        on_error: What to do about errors.
        field_metadata: Metadata that its columns get, beside what says that they are computed.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    task_size: int | None = None
    timeout: float | None = None
    on_error: ErrorPolicy = dataclasses.field(default_factory=ErrorPolicy)
    field_metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("memory", "checkpoint_size", "min_checkpoint_size", "max_checkpoint_size", "task_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UdfDefinitionError(
                    f"{name}={value!r} is no number of 1 or more - in a UDF - give a whole number, or None"
                )
        for name in ("num_cpus", "num_gpus", "timeout"):
            value = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or value < 0 or (name == "timeout" and value == 0):
                raise UdfDefinitionError(f"{name}={value!r} is no positive number - in a UDF - give a number, or None")
        low, high = self.min_checkpoint_size, self.max_checkpoint_size
        if low is not None and high is not None and low > high:
            raise UdfDefinitionError(
                f"min_checkpoint_size={low} is above max_checkpoint_size={high} - in a UDF - swap them"
            )
        metadata = self.field_metadata
        if not isinstance(metadata, Mapping) or not all(isinstance(s, str) for pair in metadata.items() for s in pair):
            raise UdfDefinitionError(f"field_metadata={metadata!r} is no mapping of str to str - in a UDF - give one")


@ARGUMENTS.methods
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UDF(Settings):
    """A user-defined function over columns.

    Immutable, picklable, and still callable like the function that it was made from. Made by `@udf`
    or :meth:`define`.

    Attributes:
        name: Its name, in messages, records and checkpoints.
        manifest: The environment that it runs in; None is the Python that runs it.
        signature: What was read from the function's signature.
        target: The function, or the class with its arguments.
        input_columns: Columns that the parameters read, in order; None for the kinds that take
            record batches.
        given_version: The explicit version, or the one that was found before pickling; None while
            it follows the code.
        payload: The bytes that it was unpickled from, None in the process that defines it.
    """

    name: str
    signature: UdfSignature
    target: Callable[..., object] | Stateful
    input_columns: tuple[str, ...] | None
    given_version: str | None = None
    payload: bytes | None = None
    manifest: Manifest | None = None

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
        call: Callable[..., object] | None = None,
        local_names: Mapping[str, object] | None = None,
    ) -> UDF:
        """Makes a UDF of a function. Runs on the driver; does not call the function.

        Args:
            func: A function, a method, a partial, a callable object, or a :class:`Stateful`.
            kind: What it gets and returns; taken from its annotations if left out.
            data_type: Type of its results; taken from the annotation of its result if left out.
            input_columns: Columns that its parameters read, in order; the parameters' names if left
                out. A parameter with a default is no input unless a column is given for it here.
            name: Its name; the function's if left out.
            version: What stands for its code in checkpoints and records; a digest of the code if
                left out.
            settings: How it wants to be run.
            manifest: The environment that it runs in.
            call: The function whose signature counts, `__call__` of a class that was not
                constructed yet.
            local_names: Variables around the definition, for annotations that are strings.

        Raises:
            UdfDefinitionError: Something about it cannot work; the message says what, and what to
                do.
        """
        if not callable(func) and not isinstance(func, Stateful):
            raise UdfDefinitionError(
                f"{func!r} cannot be called - as a UDF - give a function, or an object with __call__"
            )
        if isinstance(func, type):
            raise UdfDefinitionError(
                f"{func.__qualname__} is a class - as a UDF - decorate it with @udf, and call the result"
            )
        name = name if name is not None else _name_of(call or func)
        where = f"UDF {name!r}"
        if data_type is not None and not isinstance(data_type, pa.DataType):
            raise UdfDefinitionError(
                f"data_type={data_type!r} is no Arrow type - {where} - give one, such as pa.float32()"
            )
        if not name or not (version is None or (isinstance(version, str) and version)):
            raise UdfDefinitionError(
                f"version={version!r} is no text - {where} - give a name and a version of one letter or more"
            )
        columns = None if input_columns is None else _checked_columns(input_columns, where)
        request = SignatureRequest(
            name=name,
            kind=kind,
            data_type=data_type,
            input_columns=columns,
            local_names=local_names or {},
            skip_self=call is not None,
        )
        signature = signature_of(call or _callable_of(func), request)
        check_fillable(signature.data_type, where=where)
        settings = settings or Settings()
        if settings.timeout is not None and signature.kind is not Kind.SCALAR:
            raise UdfDefinitionError(f"timeout is per call of a scalar UDF - {where} is none - drop timeout")
        if not isinstance(func, Stateful) and _has_state(func):
            func = Stateful(func)
        shared = {field.name: getattr(settings, field.name) for field in dataclasses.fields(Settings)}
        made = UDF(
            name=name,
            signature=signature,
            target=func,
            input_columns=_bound_columns(signature, columns, where),
            given_version=version,
            **(shared | {"field_metadata": dict(settings.field_metadata)}),
        )
        _ = made.version  # what cannot be digested is said where the UDF is defined, not where it is first used
        return made if manifest is None else made.with_manifest(manifest)

    def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401  # whatever the function returns
        """Calls the function in this process, without error policy, timeout and conversion."""
        return self.load()(*args, **kwargs)

    def __repr__(self) -> str:
        inputs = "a record batch" if self.input_columns is None else ", ".join(self.input_columns)
        return f"<UDF {self.name}({inputs}) -> {self.data_type}, {self.kind.value}>"

    def __reduce__(self) -> tuple[object, ...]:
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # Computed here, where the code is: other processes may see other globals.
        return (_rebuild, (state | {"given_version": self.version, "payload": None},))

    @property
    def kind(self) -> Kind:
        """What one call gets and returns."""
        return self.signature.kind

    @property
    def data_type(self) -> pa.DataType:
        """Arrow type of the results; for `Columns[T]` the struct of T."""
        return self.signature.data_type

    @property
    def result_type(self) -> pa.DataType:
        """Arrow type of what a run gives for a row: for a chunker, where its chunks are."""
        return CHUNKS_OF_ROW if self.kind is Kind.CHUNKS else self.data_type

    @property
    def is_columns(self) -> bool:
        """Whether each field of the result is a column of its own."""
        return self.signature.is_columns

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The inputs of a call, one per input column; for record batches the one batch."""
        inputs = self.signature.inputs
        return inputs if self.input_columns is None else inputs[: len(self.input_columns)]

    @property
    def version(self) -> str:
        """The explicit version, or a digest of code, input columns and data type.

        A digest is made anew each time while the code can still change: a helper may be defined
        after the UDF, a cell of a notebook may be run again. Pickling settles it.
        """
        if self.given_version is not None:
            return self.given_version
        return fingerprint(*_digested(self), what=f"UDF {self.name!r}")

    def _first_form(self) -> UDF:
        """Returns the UDF as releases with the first scheme defined it: values arrive as they are.

        An adapter names the UDF that it stands for in an attribute `first_form`.
        """
        first = getattr(self.target.made_from, "first_form", None) if isinstance(self.target, Stateful) else None
        form = self if first is None else first
        inputs = [dataclasses.replace(p, form="value") if p.form in NEW_FORMS else p for p in form.signature.inputs]
        return dataclasses.replace(form, signature=dataclasses.replace(form.signature, inputs=tuple(inputs)))

    def keep_version(self, name: str, version: str) -> UDF:
        """Returns the UDF with a stored version, if that is the version of the same code.

        Digests of earlier releases have no number of a scheme. The values and checkpoints of such a
        version stay valid while the code, as the first scheme sees it, is the same.

        Args:
            name: Name of the stored UDF.
            version: Version of the stored UDF.
        """
        if self.given_version is not None or self.name != name or not is_first_digest(version):
            return self
        try:
            same = first_digest(*_digested(self._first_form()), what=f"UDF {self.name!r}") == version
        except UdfDefinitionError:
            same = False
        return dataclasses.replace(self, given_version=version, payload=None) if same else self

    def pickle_once(self) -> UDF:
        """Returns the UDF with its version and its pickled form settled.

        The pickled form of some objects differs from one time to the next, and a UDF is stored
        under the digest of this form.

        Raises:
            UdfDefinitionError: The UDF holds something that cannot be pickled.
        """
        settled = dataclasses.replace(self, given_version=self.version)
        return dataclasses.replace(settled, payload=settled.dumps())

    @property
    def __wrapped__(self) -> Callable[..., object]:
        # For inspect.signature; a class that was not constructed has nothing to show.
        if isinstance(self.target, Stateful):
            raise AttributeError("__wrapped__")  # noqa: TRY004  # what a missing attribute raises
        return self.target

    @property
    def __name__(self) -> str:
        return self.name

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns what another UDF that calls this one depends on."""
        return (self.target,) if self.given_version is None else (self.name, self.given_version)

    def with_input_columns(self, columns: Sequence[str]) -> UDF:
        """Returns the same UDF over other columns, given to its parameters by position.

        Raises:
            UdfDefinitionError: The number of columns does not fit, or the UDF takes whole record
                batches.
        """
        where = f"UDF {self.name!r}"
        bound = _bound_columns(self.signature, _checked_columns(columns, where), where)
        return dataclasses.replace(self, input_columns=bound, payload=None)

    def with_manifest(self, manifest: Manifest) -> UDF:
        """Returns the same UDF in another environment.

        Its code is not unpickled but in a process of that environment.

        Raises:
            UdfDefinitionError: It is no manifest, or of a version of Python that cannot run the
                code.
        """
        where = f"UDF {self.name!r}"
        if not isinstance(manifest, Manifest):
            raise UdfDefinitionError(
                f"manifest={manifest!r} is no Manifest - {where} - build one: "
                "Manifest.create_pip('name').pip([...]).build()"
            )
        target = self.target if isinstance(self.target, Stateful) else Stateful(self.target)
        if manifest.python_version != current_python() and target.travels_by_value():
            raise UdfDefinitionError(
                f"its code was compiled by Python {current_python()} here, and manifest {manifest.name!r} asks for "
                f"{manifest.python_version} - {where} - put the function into a module, give that to py_modules, and "
                "decorate the imported function: udf(module.function, manifest=...)"
            )
        return dataclasses.replace(self, manifest=manifest, target=target, payload=None)

    def load(self) -> Callable[..., Any]:
        """Returns this process's callable: the function, or the one instance of the class, set up.

        Thread-safe. Raises what the constructor or `setup` of a class raises.
        """
        return self.target.load() if isinstance(self.target, Stateful) else self.target

    def dumps(self) -> bytes:
        """Returns the UDF pickled; for one that was unpickled, the same bytes again.

        Raises:
            UdfDefinitionError: It holds something that cannot be pickled.
        """
        return self.payload if self.payload is not None else pickled(self, what=f"UDF {self.name!r}")

    @staticmethod
    def loads(payload: bytes) -> UDF:
        """Returns the UDF that :meth:`dumps` gave bytes of. Runs the code of their author.

        Raises:
            UdfDefinitionError: The bytes are damaged, hold something else, or need a module that is
                not there.
        """
        found = unpickled(payload, what="the payload of a UDF")
        if not isinstance(found, UDF):
            raise UdfDefinitionError(
                f"the bytes hold a {type(found).__name__} - not a UDF - give what UDF.dumps() returned"
            )
        return dataclasses.replace(found, payload=payload)

    @staticmethod
    def payload_digest(payload: bytes) -> str:
        """Returns the SHA-256 of a pickled UDF, in hex."""
        return hashlib.sha256(payload).hexdigest()


@ARGUMENTS.constructor
@dataclasses.dataclass(frozen=True, slots=True)
class UnpackedUDF:
    """A UDF that returns `Columns[T]`, with a prefix for the names of its columns.

    Attributes:
        udf: The UDF.
        prefix: What the columns' names begin with.
    """

    udf: UDF
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.udf.is_columns:
            raise UdfDefinitionError(
                f"{self.udf!r} does not return Columns[T] - in UnpackedUDF - annotate its result as such"
            )

    @property
    def output_columns(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a field of T and the column that it fills, in the order of the fields."""
        kind = self.udf.data_type
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return tuple((name, f"{self.prefix}{name}") for name in names)


def _digested(udf: UDF) -> tuple[object, ...]:
    """Returns what the automatic version is a digest of."""
    forms = tuple(parameter.form for parameter in udf.parameters)
    about = (udf.kind.value, forms, udf.input_columns, udf.is_columns, udf.data_type)
    classes = tuple(parameter.annotation for parameter in udf.parameters if parameter.form == "python")
    target = udf.target.fingerprint_parts() if isinstance(udf.target, Stateful) else (udf.target,)
    return (*target, about, *([classes] if classes else []))


def _rebuild(state: dict[str, Any]) -> UDF:
    return UDF(**state)


def _has_state(func: Callable[..., object]) -> bool:
    """Returns whether it is a callable object, which each process has once."""
    return (
        not isinstance(func, functools.partial) and not hasattr(func, "__qualname__") and not hasattr(func, "__name__")
    )


def _callable_of(func: Callable[..., object] | Stateful) -> Callable[..., object]:
    return func.load() if isinstance(func, Stateful) else func


def _name_of(func: object) -> str:
    if isinstance(func, functools.partial):
        return _name_of(func.func)
    name = getattr(func, "__name__", None) or type(func).__name__
    return "lambda_function" if name == "<lambda>" else str(name)


def _checked_columns(columns: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(isinstance(column, str) and column for column in columns):
        raise UdfDefinitionError(
            f"input_columns={columns!r} is no list of names - {where} - give a list, one name per parameter"
        )
    return tuple(columns)


def _bound_columns(signature: UdfSignature, columns: tuple[str, ...] | None, where: str) -> tuple[str, ...] | None:
    if signature.kind.takes_batches:
        if columns is not None:
            raise UdfDefinitionError(
                f"input_columns={list(columns)} on a UDF over record batches - {where} - drop input_columns: "
                "it gets all columns that the table has when it is registered"
            )
        return None
    if columns is None:
        columns = tuple(parameter.name for parameter in signature.inputs[: signature.required])
        if not columns:
            raise UdfDefinitionError(
                f"every parameter has a default - {where} - say with input_columns= which ones are columns"
            )
        return columns
    if not max(signature.required, 1) <= len(columns) <= len(signature.inputs):
        raise UdfDefinitionError(
            f"the function expects {signature.accepted} parameters but {len(columns)} input columns were given "
            f"({', '.join(columns)}) - {where} "
            f"- give one column per parameter: {', '.join(p.name for p in signature.inputs)}"
        )
    return columns
