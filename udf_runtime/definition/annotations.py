"""The annotations of a function as objects, also where they are strings."""

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
    """An annotation that is a string whose names are not known where the function was defined.

    Attributes:
        text: The annotation.
        reason: Why it could not be resolved.
    """

    text: str
    reason: str


def resolved(annotation: object, func: Callable[..., object], local_names: Mapping[str, object]) -> object:
    """Returns an annotation with its strings replaced by what they name, or :class:`Unresolved`.

    Names are looked up in the function's globals, its closure, and `local_names`.

    Args:
        annotation: As the signature has it; `inspect.Parameter.empty` for none.
        func: The function that it is of; whatever wraps it is looked through.
        local_names: The variables that surrounded the definition, which no closure holds unless the
            body uses them.
    """
    if annotation is inspect.Parameter.empty:
        return annotation
    inner = function_of(func)
    scope = dict(local_names)
    module: dict[str, object] = {}
    if inner is not None:
        module = inner.__globals__
        scope |= _closure_of(inner)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        # One at a time, so that one that cannot be resolved says nothing about the others.
        return typing.get_type_hints(holder, module, scope, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001  # an annotation is any expression; the caller says what it makes of it
        return Unresolved(text=str(annotation), reason=f"{type(error).__name__}: {error}")


def function_of(func: Callable[..., object]) -> types.FunctionType | None:
    """Returns the Python function behind a partial, method or callable object; None without one."""
    seen: object = func
    while True:
        if isinstance(seen, functools.partial):
            seen = seen.func
        elif isinstance(seen, types.MethodType):
            seen = seen.__func__
        elif isinstance(seen, types.FunctionType):
            # As inspect.signature does: a decorated function is annotated as the one that it wraps.
            inner = getattr(seen, "__wrapped__", None)
            if inner is None:
                return seen
            seen = inner
        else:
            call = inspect.getattr_static(type(seen), "__call__", None)
            if not isinstance(call, types.FunctionType):
                return None
            seen = call


def _closure_of(function: types.FunctionType) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet, as a function's own name is while it is decorated
            found[name] = cell.cell_contents
    return found
