"""Unpickles values of cloudpickle without a change of this process's own classes: :func:`loads`."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import cloudpickle.cloudpickle

_SET_STATE = "_class_setstate"


def loads(payload: bytes) -> Any:  # noqa: ANN401 - as pickle has it
    """Returns the value of a pickle. Runs code of the pickle's author.

    A class of `__main__` is pickled by value. In the process with the class, cloudpickle returns
    the class itself, and would set its attributes again: its methods would then see copies of the
    globals of `__main__`, without the names that only annotations use.

    Example:
        >>> import cloudpickle
        >>> from udf_runtime.unpickling import loads
        >>> loads(cloudpickle.dumps([1, "a"]))
        [1, 'a']
    """
    return _Unpickler(io.BytesIO(payload)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        value = super().find_class(module, name)
        return (
            _set_state
            if name == _SET_STATE and module == cloudpickle.cloudpickle.__name__
            else value
        )


def _set_state(cls: type, state: object) -> type:
    """Sets the attributes of a class, unless this process has defined the class."""
    set_state: Callable[[type, object], type] = getattr(cloudpickle.cloudpickle, _SET_STATE)
    return cls if _is_defined_here(cls) else set_state(cls, state)


def _is_defined_here(cls: type) -> bool:
    """Tells whether the methods of a class see the globals of its module."""
    module = sys.modules.get(cls.__module__)
    functions = (value for value in vars(cls).values() if isinstance(value, FunctionType))
    return module is not None and any(
        function.__globals__ is vars(module) for function in functions
    )
