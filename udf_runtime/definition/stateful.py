"""Callables with a state: a single instance per process, regardless of unpicklings."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import pickletools
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import cloudpickle

from udf_runtime.errors import UdfDefinitionError, end_sentence, refuse_driver_object
from udf_runtime.event_loop import finish
from udf_runtime.unpickling import loads

_BY_VALUE = ("_make_function", "_make_skeleton_class", "CodeType")
"""Functions in a pickle that rebuild code."""


class _Once:
    """A value made at its first use, by a single thread.

    A failure leaves the value unset.
    """

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Callable[..., object] | None = None

    @property
    def value(self) -> Callable[..., object] | None:
        """The value, if a thread has made the value."""
        return self._value

    def get(self, make: Callable[[], Callable[..., object]]) -> Callable[..., object]:
        with self._lock:
            if self._value is None:
                self._value = make()
            return self._value


_instances: dict[str, _Once] = {}  # by payload digest; "once per process" needs a global
_instances_lock = threading.Lock()


class Stateful:
    """A class with constructor arguments, or a callable object; the caller makes the instance.

    Thread-safe. In the defining process, the instance belongs to this object. Every other process
    makes a single instance for all copies of the same payload, and keeps the instance until
    :func:`forget_instances`.
    """

    __slots__ = ("_own", "_payload", "_recipe")

    def __init__(
        self,
        made_from: Callable[..., object],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Stores a class and its arguments, or a callable object; calls neither."""
        self._recipe: tuple[Callable[..., object], tuple[object, ...], dict[str, object]] | None
        self._recipe = (made_from, args, dict(kwargs or {}))
        self._payload: bytes | None = None
        self._own: dict[
            str, _Once
        ] = {}  # instances in the defining process, by checksum of the artifacts

    def __reduce__(self) -> tuple[object, ...]:
        return (_from_payload, (self._dumps(),))

    @property
    def made_from(self) -> Callable[..., object]:
        """The class, or the callable object."""
        return self._unpack()[0]

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns the class and the arguments by the names of their parameters."""
        made_from, args, kwargs = self._unpack()
        if not isinstance(made_from, type):
            return (made_from,)
        try:
            bound = inspect.signature(made_from).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return (made_from, args, kwargs)
        return (made_from, dict(bound.arguments))

    @property
    def has_state(self) -> bool:
        """Whether a class makes the instance, or the object has a `setup`.

        True if this process lacks a module of the code.
        """
        try:
            made_from = self.made_from
        except UdfDefinitionError:
            return True
        return isinstance(made_from, type) or callable(getattr(made_from, "setup", None))

    def travels_by_value(self) -> bool:
        """Tells whether the pickle holds code instead of the name of a module."""
        return any(
            operation.name in ("SHORT_BINUNICODE", "BINUNICODE", "GLOBAL")
            and str(argument).split()[-1] in _BY_VALUE
            for operation, argument, _ in pickletools.genops(self._dumps())
            if argument
        )

    def load(
        self, checksum: str = "", find_artifacts: Callable[[], Mapping[str, str]] | None = None
    ) -> Callable[..., object]:
        """Returns this process's callable, made and set up at the first call.

        Args:
            checksum: Checksum of the artifacts; each checksum has an instance of its own.
            find_artifacts: Returns the argument of `setup`; None for `setup` without an argument.

        Raises:
            UdfDefinitionError: This process cannot unpickle the payload.
            Exception: Any error of the constructor or `setup`; the next call tries again.
        """
        digest = None if self._payload is None else hashlib.sha256(self._payload).hexdigest()
        with _instances_lock:
            instances, key = (
                (self._own, checksum) if digest is None else (_instances, f"{digest}{checksum}")
            )
            once = instances.setdefault(key, _Once())
        return once.get(lambda: self._make(find_artifacts))

    def _make(
        self, find_artifacts: Callable[[], Mapping[str, str]] | None
    ) -> Callable[..., object]:
        made_from, args, kwargs = self._unpack()
        instance = made_from(*args, **kwargs) if isinstance(made_from, type) else made_from
        if not callable(instance):
            raise UdfDefinitionError(
                f"An object of {made_from} in a UDF cannot be called. Define __call__ in its class."
            )
        setup = getattr(instance, "setup", None)
        if callable(setup):
            finish(setup(*([] if find_artifacts is None else [find_artifacts()])))
        return instance

    def _unpack(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
        if self._recipe is None:
            self._recipe = unpickled(self._payload or b"", what="The code of a UDF")  # type: ignore[assignment]  # by _dumps
        return self._recipe  # type: ignore[return-value]

    def _dumps(self) -> bytes:
        if self._payload is not None:
            return self._payload
        return pickled(self._recipe, what="The code of a UDF with its arguments")


def _from_payload(payload: bytes) -> Stateful:
    stateful = Stateful.__new__(Stateful)
    stateful._recipe, stateful._payload, stateful._own = None, payload, {}  # noqa: SLF001  # its own constructor
    return stateful


def forget_instances() -> None:
    """Drops this process's instances of unpickled class UDFs, and calls their `teardown()`.

    The next call makes new instances. Runs at the end of a UDF's process. An error of `teardown` is
    printed, because no row is to blame.
    """
    with _instances_lock:
        dropped = list(_instances.values())
        _instances.clear()
    for once in dropped:
        teardown = getattr(once.value, "teardown", None)
        if callable(teardown):
            try:
                finish(teardown())
            except Exception:  # noqa: BLE001 - the other instances end, too
                traceback.print_exc()


def _renew_lock() -> None:
    """Renews the lock in a forked process, because a thread of the parent may hold the lock."""
    global _instances_lock  # noqa: PLW0603 - one lock per process
    _instances_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


_NO_FILE = "<dynamic-code>"
"""Substitute for the name of a function's file in pickles of cloudpickle 3.1.3 and later."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions with the names of their files, so tracebacks of a UDF show its lines."""

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as pickle has it
        refuse_driver_object(obj, lambda: "the globals, defaults or closure, or the called object")
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, arguments = self.dispatch_table[CodeType](obj)
        # A copy, because pickle distinguishes equal texts from the same text.
        return make, tuple(
            "".join(obj.co_filename) if part == _NO_FILE else part for part in arguments
        )


def pickled(value: object, *, what: str) -> bytes:
    """Returns the cloudpickle form of a value.

    Raises:
        UdfDefinitionError: An object in the value cannot be pickled.
    """
    try:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(value)
        return buffer.getvalue()
    except UdfDefinitionError:
        raise
    except Exception as error:
        raise UdfDefinitionError(
            f"{what} cannot be pickled for other processes. {end_sentence(f'{type(error).__name__}: {error}')} Make "
            "connections, locks and models inside the function, or in setup() of a class."
        ) from error


def unpickled(payload: bytes, *, what: str) -> object:
    """Returns the value from the bytes of :func:`pickled`.

    Raises:
        UdfDefinitionError: The payload is damaged, or needs a missing module.
    """
    try:
        return loads(payload)  # UDFs are code; a process that forbids stored UDFs never gets here
    except Exception as error:
        raise UdfDefinitionError(
            f"{what} cannot be unpickled in this process. {end_sentence(f'{type(error).__name__}: {error}')} Install "
            "the modules that the UDF imports, or give them to py_modules of its manifest, and use the Python version "
            "of its definition."
        ) from error
