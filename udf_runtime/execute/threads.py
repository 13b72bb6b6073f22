"""Limits on the threads of native libraries: a UDF uses `num_cpus` cores.

Each native library starts a thread per core of the machine by default. Several processes with a
UDF then compete for the same cores. Variables of the environment, `threadpoolctl` and a hook at the
import of torch and onnxruntime set the number of threads. Settings of the user take precedence.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)

COUNT_NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Variables with a number of threads."""

TOKENIZERS_NAME = "TOKENIZERS_PARALLELISM"
"""Variable with a truth value: whether tokenizers of Hugging Face use several threads."""

THREAD_NAMES = (*COUNT_NAMES, TOKENIZERS_NAME)

_own_values: dict[str, str] = {}  # the variables that `limit_threads` has set in this process


def thread_count(num_cpus: float | None) -> int:
    """Returns the threads of a native library for a UDF's `num_cpus`; None is a core."""
    return max(1, int(num_cpus or 1))


def thread_variables(num_cpus: float | None) -> dict[str, str]:
    """Returns the variables that limit threads, without the variables that the user has set.

    Example:
        >>> from udf_runtime.execute.threads import thread_variables
        >>> thread_variables(2)["RAYON_NUM_THREADS"]
        '2'
    """
    count = thread_count(num_cpus)
    variables = {
        **dict.fromkeys(COUNT_NAMES, str(count)),
        TOKENIZERS_NAME: "true" if count > 1 else "false",
    }
    return {name: value for name, value in variables.items() if not _is_set_by_user(name)}


def limit_threads(num_cpus: float | None) -> None:
    """Limits the threads of native libraries in this process; the last call counts.

    Libraries that read their variable at import need a process with :func:`thread_variables` from
    its start, or `threadpoolctl`.
    """
    variables = thread_variables(num_cpus)
    if all(_own_values.get(name) == value for name, value in variables.items()):
        return
    os.environ.update(variables)
    _own_values.update(variables)
    if "OMP_NUM_THREADS" in variables:
        _limit_pools(thread_count(num_cpus))
    hook_imports()


def hook_imports() -> None:
    """Limits torch and onnxruntime to `OMP_NUM_THREADS` threads: now, or after their import."""
    for name, limit in _LIMITS.items():
        if name in sys.modules:
            _apply(limit, sys.modules[name])
    if not any(isinstance(finder, _LimitingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LimitingFinder())


def _is_set_by_user(name: str) -> bool:
    value = os.environ.get(name)
    return value is not None and value != _own_values.get(name)


def _limit_pools(count: int) -> None:
    """Limits the pools of loaded libraries, if `threadpoolctl` is installed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("threadpoolctl").threadpool_limits(count)


def _read_count() -> int | None:
    """Returns the threads of a library; None if the variable has no whole number."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _limit_torch(torch: Any, count: int) -> None:  # noqa: ANN401 - a module without types here
    torch.set_num_threads(count)
    with contextlib.suppress(RuntimeError):  # torch has started this pool
        torch.set_num_interop_threads(count)


def _limit_onnxruntime(onnxruntime: Any, _: int) -> None:  # noqa: ANN401 - as in _limit_torch
    """Gives the limit to sessions without a number of threads; the default is all cores."""
    session = onnxruntime.InferenceSession
    make = session.__init__
    if hasattr(make, "__wrapped__"):  # limited before
        return

    @functools.wraps(make)
    def make_limited(
        self: object,
        path_or_bytes: object,
        sess_options: Any = None,  # noqa: ANN401 - as in _limit_torch
        *arguments: object,
        **options: object,
    ) -> None:
        count = _read_count()
        if count is not None:
            sess_options = onnxruntime.SessionOptions() if sess_options is None else sess_options
            # Zero is the default: a thread per core.
            sess_options.intra_op_num_threads = sess_options.intra_op_num_threads or count
            sess_options.inter_op_num_threads = sess_options.inter_op_num_threads or count
        make(self, path_or_bytes, sess_options, *arguments, **options)

    session.__init__ = make_limited


_LIMITS: Mapping[str, Callable[[Any, int], None]] = {
    "torch": _limit_torch,
    "onnxruntime": _limit_onnxruntime,
}


def _apply(limit: Callable[[Any, int], None], module: ModuleType) -> None:
    count = _read_count()
    if count is None:
        return
    try:
        limit(module, count)
    except Exception:  # noqa: BLE001 - an import never fails because of its threads
        _log.warning("the threads of %s are not limited", module.__name__, exc_info=True)


class _LimitingFinder(MetaPathFinder):
    """Finds torch and onnxruntime by the other finders; limits the modules after their import."""

    def find_spec(
        self,
        fullname: str,
        path: Any,  # noqa: ANN401 - as importlib has it
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        limit = _LIMITS.get(fullname)
        if limit is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _LimitingLoader(spec.loader, limit)
                return spec
        return None


class _LimitingLoader(Loader):
    """Loads a module by its own loader, and limits its threads."""

    def __init__(self, loader: Any, limit: Callable[[Any, int], None]) -> None:  # noqa: ANN401 - loaders share no type
        self._loader = loader
        self._limit = limit

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        module: ModuleType | None = self._loader.create_module(spec)
        spec.loader = self
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module sees its own loader, for example to read resources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _apply(self._limit, module)
