"""Checks of arguments by the annotations of public functions: :class:`ArgumentChecks`.

A decorator checks every call before the function runs. An argument of another type, a text without
an encoding in UTF-8, and an integer beyond 64 bits raise an error with the argument's name. NumPy
numbers become Python numbers. An iterable becomes a list if the annotation is a sequence.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import numbers
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, timedelta
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from udf_runtime.errors import UdfDefinitionError

_T = TypeVar("_T", bound=type)
_F = TypeVar("_F", bound=Callable[..., Any])

_CHARS = 100
_MOST_ITEMS = 1_000_000
_PRINTABLE = (str, int, float, date, timedelta, type(None))
_UNIONS = (Union, types.UnionType)
_SEQUENCES = (list, tuple, Sequence)
_NAMES: dict[object, str] = {
    str: "text",
    bool: "True or False",
    int: "a whole number of at most 64 bits",
    float: "a number",
    type(None): "None",
    Callable: "a function",
}


class ArgumentChecks:
    """Decorators for checks of the arguments of functions and methods.

    Args:
        make_error: Makes the error from the argument's name, its value, and the accepted values.
    """

    def __init__(self, make_error: Callable[[str, object, str], Exception]) -> None:
        self._make_error = make_error

    def function(self, function: _F, *, docs: str | None = None) -> _F:
        """Decorates a function or a method.

        Args:
            function: The function.
            docs: Text that describes the parameters, by default the function's docstring.
        """
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call_checked(*args: object, **keywords: object) -> object:
            try:
                call = signature.bind(*args, **keywords)
            except TypeError:
                return function(*args, **keywords)  # Python's own message names a missing argument
            kinds = resolve_annotations(function)
            for name, value in call.arguments.items():
                if name in kinds:
                    try:
                        call.arguments[name] = _check_argument(
                            signature.parameters[name], kinds[name], value
                        )
                    except _MisfitError as misfit:
                        wrong = misfit.value
                        accepted = describe(kinds[name]) + _describe_parameter(
                            docs or inspect.getdoc(function) or "", name
                        )
                        if (text := _first_unreadable(wrong)) is not None:
                            wrong, accepted = (
                                text,
                                "text without NUL characters and lone surrogates",
                            )
                        raise self._make_error(name, wrong, accepted) from None
            return function(*call.args, **call.kwargs)

        return typing.cast(_F, call_checked)

    def methods(self, cls: _T) -> _T:
        """Decorates the public methods of a class, inherited, static and class methods included."""
        for name, member in inspect.getmembers_static(cls):
            if name.startswith("_"):
                continue
            if isinstance(member, (staticmethod, classmethod)):
                setattr(cls, name, type(member)(self.function(member.__func__)))
            elif inspect.isfunction(member) and len(inspect.signature(member).parameters) > 1:
                setattr(cls, name, self.function(member))
        return cls

    def constructor(self, cls: _T) -> _T:
        """Decorates the constructor of a class, whose docstring describes the arguments."""
        cls.__init__ = self.function(cls.__init__, docs=inspect.getdoc(cls))  # type: ignore[misc]
        return cls


class _MisfitError(Exception):
    """A value that does not fit the annotation of its parameter."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


def _check_argument(parameter: inspect.Parameter, kind: object, value: object) -> object:
    if parameter.kind is parameter.VAR_POSITIONAL and isinstance(value, tuple):
        return tuple(_convert_argument(kind, item) for item in value)
    if parameter.kind is parameter.VAR_KEYWORD and isinstance(value, dict):
        return {name: _convert_argument(kind, item) for name, item in value.items()}
    return value if value is parameter.default else _convert_argument(kind, value)


def _convert_argument(kind: object, value: object) -> object:
    # A conversion consumes a stream, so the value itself is tested first.
    for candidate in itertools.chain([value], _yield_conversions(kind, value)):
        if accepts(kind, candidate):
            return candidate
    raise _MisfitError(value)


def _describe_parameter(docs: str, name: str) -> str:
    """Returns the sentence of a docstring about a parameter, in parentheses."""
    entry = re.search(rf"^    {name}: (.*[^:\n](?:\n {{5,}}.+)*)$", docs, re.MULTILINE)
    return f" ({' '.join(entry[1].split()).rstrip('.')})" if entry else ""


def show_value(value: object) -> str:
    """Returns a value for a message: short, and without the items of containers."""
    if not isinstance(value, _PRINTABLE):
        return f"a value of type {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 4 * _CHARS:
        return "a number of more than 100 digits"
    text = repr(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}..."


def accepts(kind: object, value: object) -> bool:
    """Tells whether a value fits an annotation. An unknown form of annotation fits every value.

    Example:
        >>> accepts(list[str] | None, ["a"]), accepts(list[str] | None, "a")
        (True, False)
    """
    origin, items = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return any(accepts(item, value) for item in items)
    if origin is Literal:  # the function accepts further spellings, and lists the accepted words
        return _is_instance(type(items[0]), value)
    if origin is type:
        return _is_subclass(value, items[0])
    plain = origin or kind
    return not isinstance(plain, type) or (
        _is_instance(plain, value) and _accepts_items(plain, items, value)
    )


def _is_instance(kind: type, value: object) -> bool:
    if kind is str:
        return isinstance(value, str) and _is_text(value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and _is_number(value)
    if kind in _SEQUENCES:
        return isinstance(value, (list, tuple))
    if kind in (object, Any) or _is_static_protocol(kind):
        return True
    # Classes of Spark Connect share the names of the classic classes.
    if kind.__module__.startswith("pyspark."):
        return any(base.__name__ == kind.__name__ for base in type(value).__mro__)
    return isinstance(value, kind)


def _is_subclass(value: object, bound: object) -> bool:
    return isinstance(value, type) and (not isinstance(bound, type) or issubclass(value, bound))


def _is_static_protocol(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)


def is_whole_number(value: object) -> bool:
    """Tells whether a value is an integer of 1 or more; booleans are no numbers.

    Example:
        >>> is_whole_number(1), is_whole_number(0), is_whole_number(True)
        (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: str) -> bool:
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _first_unreadable(value: object) -> str | None:
    """Returns the first text, or name of a column, in an argument without an encoding in UTF-8."""
    if isinstance(value, str):
        return None if _is_text(value) else value
    items: Iterable[object] = value if isinstance(value, (list, tuple, AbstractSet)) else ()
    if isinstance(value, Mapping):
        items = itertools.chain(
            value, value.values() if all(isinstance(key, str) for key in value) else ()
        )
    return next(filter(None, map(_first_unreadable, items)), None)


def _is_number(value: int | float) -> bool:
    """Tells whether a value is a number of at most 64 bits; booleans are no numbers."""
    return not isinstance(value, bool) and (
        not isinstance(value, int) or -1 << 63 <= value < 1 << 63
    )


def _accepts_items(origin: object, kinds: tuple[object, ...], value: object) -> bool:
    """Tells whether the items of a container fit; a stream is left unread."""
    if not isinstance(value, (list, tuple, Mapping, AbstractSet)) or not kinds:
        return True
    if origin is tuple and kinds[-1] is not Ellipsis:
        return len(value) == len(kinds) and all(map(accepts, kinds, value))
    if isinstance(value, Mapping):
        return all(
            accepts(kinds[0], key) and accepts(kinds[-1], item) for key, item in value.items()
        )
    return all(accepts(kinds[0], item) for item in value)


def _yield_conversions(kind: object, value: object) -> Iterable[object]:
    """Yields a value of a library's own type as a Python number or list."""
    if isinstance(value, (bool, int, float, str, bytes, Mapping)) or not _is_plain(kind):
        return
    if isinstance(value, numbers.Integral):
        yield operator.index(value)
    elif isinstance(value, numbers.Real):
        yield float(value)
    elif type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        yield bool(value)
    elif (items := list_items(value)) is not None:
        yield items


def list_items(value: object) -> list[object] | None:
    """Returns the items of an iterable; None for other values, failures and endless iterables.

    Example:
        >>> list_items(range(2)), list_items(2)
        ([0, 1], None)
    """
    with contextlib.suppress(Exception):
        items = list(itertools.islice(value, _MOST_ITEMS + 1))  # type: ignore[call-overload]
        return items if len(items) <= _MOST_ITEMS else None
    return None


def _is_plain(kind: object) -> bool:
    """Tells whether an annotation has a number or a sequence of plain items."""
    members = get_args(kind) if get_origin(kind) in _UNIONS else (kind,)
    return any(
        member in (bool, int, float) or get_origin(member) in _SEQUENCES for member in members
    )


def describe(kind: object) -> str:
    """Returns a description of an annotation.

    Example:
        >>> describe(list[str] | None)
        'a list of: text; or None'
    """
    origin, items = get_origin(kind), get_args(kind)
    plain = origin or kind
    generic = _describe_items(origin, items) if items else None
    return generic or _NAMES.get(plain) or f"a value of type {getattr(plain, '__name__', plain)}"


def _describe_items(origin: object, items: tuple[object, ...]) -> str | None:
    if origin in _UNIONS:
        return "; or ".join(dict.fromkeys(map(describe, items)))
    if origin is Literal:
        return f"one of {', '.join(map(repr, items))}"
    if origin is type:
        return f"a subclass of {getattr(items[0], '__name__', items[0])}"
    if origin in _SEQUENCES:
        return f"a list of: {describe(items[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict with keys and values that are {describe(items[0])}; {describe(items[-1])}"
    return None


@functools.cache
def resolve_annotations(function: Callable[..., object]) -> Mapping[str, object]:
    """Returns the annotations of parameters, without names imported for type checkers only.

    Example:
        >>> resolve_annotations(show_value)
        {'value': <class 'object'>}
    """
    scope = vars(sys.modules[function.__module__])
    kinds = {}
    for name, annotation in function.__annotations__.items():
        try:
            kinds[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation  # noqa: S307 - of this package
        except (NameError, AttributeError, TypeError):
            continue
    kinds.pop("return", None)
    return {name: _resolve_alias(kind, scope) for name, kind in kinds.items()}


def _resolve_alias(kind: object, scope: dict[str, object]) -> object:
    """Resolves an alias in the form of a text."""
    if not isinstance(kind, str):
        return kind
    try:
        return eval(kind, scope)  # noqa: S307
    except (NameError, AttributeError, TypeError):
        return Any


def _make_definition_error(name: str, value: object, accepted: str) -> UdfDefinitionError:
    return UdfDefinitionError(
        f"The argument {name!r} has the wrong value {show_value(value)}. Give {accepted}."
    )


ARGUMENTS = ArgumentChecks(_make_definition_error)
"""Decorators of the public functions and classes of this package."""
