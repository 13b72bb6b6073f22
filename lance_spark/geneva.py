"""What Geneva has under another name or not at all: refused by name, with what serves instead.

`from_geneva.json` says it name by name, `udf_runtime.geneva` of what is defined there;
`docs/from-geneva.md` is made of both.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

import udf_runtime.geneva
from lance_spark.errors import UnsupportedOperationError
from lance_spark.words import warn_caller

_REFUSED = "refused: "
_NONE = "none: "
_PREFIXES = ("GENEVA_",)
_T = TypeVar("_T", bound=type)
_F = TypeVar("_F", bound=Callable[..., object])


class RefusedAttributeError(UnsupportedOperationError, AttributeError):
    """An attribute that Geneva has and this class has not; `hasattr` is false for it."""


@functools.cache
def counterparts() -> Mapping[str, str]:
    """Returns names of Geneva with what they are here, where that is not the same name.

    Names are `Class.member(parameter)` or a part of it, or `$VARIABLE` of the environment. Texts
    begin with `refused: `, with `none: `, or with the counterpart in backticks.
    """
    text = Path(__file__).with_name("from_geneva.json").read_text(encoding="utf-8")
    return {**json.loads(text), **{name: f"{_REFUSED}{serves}" for name, serves in udf_runtime.geneva.SERVES.items()}}


def refusal(name: str) -> str | None:
    """Returns what serves instead of a name that is another here, or None."""
    text = counterparts().get(name, _NONE)
    if text.startswith(_NONE):
        return None
    return text.removeprefix(_REFUSED) if text.startswith(_REFUSED) else f"use {text}"


def unsupported(name: str, serves: str) -> UnsupportedOperationError:
    """Returns the error for a name that is refused."""
    return UnsupportedOperationError(f"{name} of Geneva is not a name here - nothing was done - {serves}", UserWarning)


def refusing(theirs: str) -> Callable[[_T], _T]:
    """Returns a decorator of a class that refuses what Geneva's class of this name has besides.

    Attributes are refused where they are read, parameters where a method is called with them.
    """

    def decorate(cls: _T) -> _T:
        def missing(self: object, name: str) -> NoReturn:
            serves = refusal(f"{theirs}.{name}")
            if serves is None:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise RefusedAttributeError(str(unsupported(f"{theirs}.{name}", serves)))

        cls.__getattr__ = missing  # type: ignore[attr-defined]
        members = {name.partition("(")[0] for name in counterparts() if name.startswith(f"{theirs}.")}
        for member in sorted(name.rpartition(".")[2] for name in members):
            method = inspect.getattr_static(cls, member, None)
            if inspect.isfunction(method):
                setattr(cls, member, refusing_parameters(f"{theirs}.{member}")(method))
        return cls

    return decorate


def refusing_parameters(theirs: str) -> Callable[[_F], _F]:
    """Returns a decorator of a function that refuses parameters which only Geneva's has."""

    def decorate(function: _F) -> _F:
        known = inspect.signature(function).parameters
        refused = {name: text for name, text in _parameters(theirs) if name not in known and text is not None}
        if not refused:
            return function

        @functools.wraps(function)
        def checked(*args: object, **named: object) -> object:
            for name in named.keys() & refused.keys():
                raise unsupported(f"{theirs}({name})", refused[name])
            return function(*args, **named)

        return checked  # type: ignore[return-value]

    return decorate


def _parameters(theirs: str) -> Iterator[tuple[str, str | None]]:
    for name in counterparts():
        if name.startswith(f"{theirs}("):
            yield name[len(theirs) + 1 : -1], refusal(name)


@functools.cache
def warn_of_variables() -> None:
    """Warns of environment variables of Geneva that are set, once in a process.

    Warns:
        UserWarning: Each that is set and not read here, with the name that is.
    """
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES):
            text = counterparts().get(f"${name}", f"{_NONE}see docs/environment-variables.md for those that are")
            serves = f"set {text} instead" if not text.startswith(_NONE) else text.removeprefix(_NONE)
            warn_caller(f"the environment variable {name} of Geneva is not read - {serves}", UserWarning)
