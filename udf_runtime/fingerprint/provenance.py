"""The origin of code: a library counts by name, and the user's code by content."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import pkgutil
import site
import sys
import sysconfig

_OWN_PACKAGE = __name__.partition(".")[0]


def is_library(module: str) -> bool:
    """Tells whether a module belongs to the standard library, an installed package or this package.

    A module without a file (a notebook, `__main__` of a shell, code of `exec`) is the user's own,
    unless the module is built into Python.
    """
    top = module.partition(".")[0]
    if top == "__main__":
        return False  # even if its file is a tool's script
    if top == _OWN_PACKAGE or top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    return _is_installed(getattr(sys.modules.get(module), "__file__", None))


def _is_installed(file: str | None) -> bool:
    if not file:
        return False
    path = os.path.realpath(file)
    return bool({"site-packages", "dist-packages"} & set(path.split(os.sep))) or path.startswith(
        _library_roots()
    )


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    # "data" is the whole environment, which may contain a project.
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(
        os.path.realpath(root) + os.sep
        for root in roots | {*site.getsitepackages(), site.getusersitepackages()}
    )


def find_own_module(name: str, package: object = None) -> importlib.machinery.ModuleSpec | None:
    """Returns the module spec of a user's module; None for a library or an unknown module.

    Runs no code: neither the module nor its parent packages are imported.

    Args:
        name: Name of the module as in an import; a relative name begins with dots.
        package: `__package__` of the importing module.
    """
    try:
        absolute = importlib.util.resolve_name(name, str(package)) if name.startswith(".") else name
        spec = _find(absolute)
    except (ImportError, ValueError, AttributeError):
        return None  # the import would fail in the same way, or the module has no spec
    return None if spec is None or _is_installed(spec.origin) else spec


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    top, *rest = name.split(".")
    if not top or is_library(top):
        return None
    spec = importlib.util.find_spec(top)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None or _is_installed(spec.origin):
            return None
        spec = _find_below(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


def _find_below(name: str, path: list[str]) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        except KeyError:  # a folder without `__init__.py` whose parent package is not imported
            return _find_on_path(name, path)
        if spec is not None:
            return spec
    return None


def _find_on_path(name: str, path: list[str]) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module in folders or zip files, as `PathFinder.find_spec` does."""
    folders: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry)
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            folders += spec.submodule_search_locations or ()
    if not folders:
        return None
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec
