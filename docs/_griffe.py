"""Extension of Griffe, which reads the signatures of the reference pages from the sources."""

from __future__ import annotations

from typing import Any

import griffe

_TAKES = "lance_spark.arguments.takes"


class RequestParameters(griffe.Extension):
    """Gives a method with the decorator `takes` the parameters of its request class."""

    def on_function(self, *, func: Any, loader: Any, **_: Any) -> None:
        """Replaces the request by the fields of its class."""
        for decorator in func.decorators:
            if decorator.callable_path == _TAKES:
                request = loader.modules_collection[decorator.value.arguments[0].canonical_path]
                fields = list(request.members["__init__"].parameters)[1:]
                func.parameters = griffe.Parameters(func.parameters[0], *fields)
                func.overloads = None  # for type checkers: the parameters are those of the function
