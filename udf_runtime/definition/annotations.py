"""The annotations of a function as objects, also for annotations in the form of strings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """An annotation in the form of a string, with a name unknown at the function's definition.

    Attributes:
        text: The annotation.
        reason: The reason of the failure.
    """

    text: str
    reason: str


def resolved(
    annotation: object, func: Callable[..., object], local_names: Mapping[str, object]
) -> object:
    """Returns an annotation with its strings replaced by objects, or :class:`Unresolved`.

    Names are resolved in the function's globals, its closure, and `local_names`.

    Args:
        annotation: The annotation in the signature; `inspect.Parameter.empty` for none.
        func: The annotated function, possibly in wrappers.
        local_names: The variables around the definition; a closure holds only variables in the
            function's body.
    """
    if annotation is inspect.Parameter.empty:
        return annotation
    inner = function_of(func)
    scope = dict(local_names)
    module: dict[str, object] = {}
    if inner is not None:
        module = inner.__globals__
        scope |= _read_closure(inner)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        # Each annotation is resolved alone, so a failure does not affect the next annotation.
        return typing.get_type_hints(holder, module, scope, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001  # an annotation is any expression; the caller decides
        return Unresolved(text=str(annotation), reason=f"{type(error).__name__}: {error}")


def function_of(func: Callable[..., object]) -> types.FunctionType | None:
    """Returns the Python function behind a partial, method or callable object; None without one."""
    current: object = func
    while True:
        if isinstance(current, functools.partial):
            current = current.func
        elif isinstance(current, types.MethodType):
            current = current.__func__
        elif isinstance(current, types.FunctionType):
            # Like inspect.signature: a decorated function has the annotations of the wrapped
            # function.
            inner = getattr(current, "__wrapped__", None)
            if inner is None:
                return current
            current = inner
        else:
            call = inspect.getattr_static(type(current), "__call__", None)
            if not isinstance(call, types.FunctionType):
                return None
            current = call


def _read_closure(function: types.FunctionType) -> dict[str, object]:
    variables: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(
            ValueError
        ):  # unassigned so far, like a function's own name during its decoration
            variables[name] = cell.cell_contents
    return variables
