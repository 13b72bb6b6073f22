"""Where code comes from: a library, which goes by name, or one's own, which goes by content."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig

_OWN_PACKAGE = __name__.partition(".")[0]


def is_library(module: str) -> bool:
    """Returns whether a module is of the standard library, installed, or of this package.

    A module without a file (a notebook, `__main__` of a shell, code of `exec`) is one's own, unless
    it is built into Python.
    """
    top = module.partition(".")[0]
    if top == "__main__":
        return False  # also where its file is a tool's script
    if top == _OWN_PACKAGE or top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    return _is_installed(getattr(sys.modules.get(module), "__file__", None))


def _is_installed(file: str | None) -> bool:
    if not file:
        return False
    path = os.path.realpath(file)
    return bool({"site-packages", "dist-packages"} & set(path.split(os.sep))) or path.startswith(_library_roots())


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    # "data" is the whole environment, where a project may well lie.
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(
        os.path.realpath(root) + os.sep for root in roots | {*site.getsitepackages(), site.getusersitepackages()}
    )


def source_digest(name: str, package: object) -> str | None:
    """Returns the digest of the source of a module of one's own; None for all else.

    Whether the module is loaded by now makes no difference, and it is not loaded here (the packages
    that it lies in are).

    Args:
        name: Name of the module as an import has it; it may begin with dots.
        package: `__package__` of the module that imports it.
    """
    try:
        absolute = importlib.util.resolve_name(name, str(package)) if name.startswith(".") else name
        spec = _find(absolute)
    except (ImportError, ValueError):
        return None  # the function would find the same: an import that fails, or a module without a specification
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return None
    with open(spec.origin, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    parts = name.split(".")
    if is_library(parts[0]):
        return None
    spec = importlib.util.find_spec(parts[0])
    for i in range(1, len(parts)):
        if spec is None or spec.submodule_search_locations is None or _is_installed(spec.origin):
            return None
        spec = importlib.util.find_spec(".".join(parts[: i + 1]))
    return None if spec is None or _is_installed(spec.origin) else spec
