"""Checks of the arguments of public functions, by their annotations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from lance_spark.errors import OptionError
from udf_runtime.arguments import ArgumentChecks, resolve_annotations

_P = ParamSpec("_P")
_Self = TypeVar("_Self")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

ARGUMENTS = ArgumentChecks(OptionError)
"""Decorators of public functions and classes. A wrong argument is an OptionError with its name."""


def takes(
    request: Callable[_P, _Request],
) -> Callable[[Callable[[_Self, _Request], _Result]], Callable[Concatenate[_Self, _P], _Result]]:
    """Returns a decorator of a method whose parameters are the fields of a request class.

    A call makes an object of the class, and the method gets the object. `inspect.signature`,
    `help()` and type checkers show each field with its default.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Greeting:
        ...     name: str = "world"
        >>> class Greeter:
        ...     @takes(Greeting)
        ...     def greet(self, request):
        ...         return f"Hello, {request.name}"
        >>> Greeter().greet(), Greeter().greet(name="Lance")
        ('Hello, world', 'Hello, Lance')
    """
    fields = inspect.signature(request).parameters
    constructed: Any = request
    kinds = resolve_annotations(
        constructed.__init__
    )  # their texts mean something in the module of the class
    constructor = f"{getattr(request, '__qualname__', '')}.__init__()"

    def decorate(
        method: Callable[[_Self, _Request], _Result],
    ) -> Callable[Concatenate[_Self, _P], _Result]:
        @functools.wraps(method)
        def call(self: _Self, /, *args: _P.args, **named: _P.kwargs) -> _Result:
            try:
                request_object = request(*args, **named)
            except TypeError as error:
                if not str(error).startswith(constructor):
                    raise
                raise TypeError(
                    str(error).replace(constructor, f"{method.__qualname__}()", 1)
                ) from None
            return method(self, request_object)

        own = inspect.signature(method)
        own_self = next(iter(own.parameters.values()))
        documented: Any = call
        documented.__signature__ = own.replace(parameters=[own_self, *fields.values()])
        documented.__annotations__ = {
            name: kinds.get(name, field.annotation) for name, field in fields.items()
        }
        return call

    return decorate
