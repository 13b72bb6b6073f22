"""Digests of the syntax trees of the user's modules, and of their imported user modules."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Iterable, Iterator

from udf_runtime.fingerprint.provenance import find_own_module

_Block = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_IMPORTERS = frozenset({"import_module", "__import__"})


def source_digests(names: Iterable[str], package: object = None) -> dict[str, str]:
    """Returns the digests of the user's modules by name, transitively over their imports.

    An import also runs the parent packages of a module, so these count. Libraries are left out. The
    result does not depend on loaded modules, and no module is loaded here.

    Args:
        names: Names of modules as in imports; relative names begin with dots.
        package: `__package__` of the importing module.
    """
    digests: dict[str, str] = {}
    waiting = [(name, package) for name in names]
    visited = set()
    while waiting:
        request = waiting.pop()
        if request in visited:
            continue
        visited.add(request)
        spec = find_own_module(*request)
        if spec is None or spec.name in digests:
            continue
        digests[spec.name], imports = _digest_module(spec)
        waiting.extend((name, spec.parent) for name in imports)
        waiting.append((spec.name.rpartition(".")[0], None))
    return digests


def raw_digest(name: str, package: object) -> str | None:
    """Returns the digest of the file's bytes of a user's module; None without a file."""
    spec = find_own_module(name, package)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return None
    return _compute_digest(_read(spec.origin))


def _digest_module(spec: importlib.machinery.ModuleSpec) -> tuple[str, frozenset[str]]:
    source = _read_source(spec)
    if isinstance(source, str):
        try:
            return _digest_tree(source)
        except (SyntaxError, ValueError, RecursionError):
            source = source.encode("utf-8", "surrogatepass")
    return _compute_digest(source), frozenset()


def _read_source(spec: importlib.machinery.ModuleSpec) -> str | bytes:
    """Returns the source text of a module, also from a zip file; without a text the bytes."""
    get_source = getattr(spec.loader, "get_source", None)
    try:
        text: str | None = None if get_source is None else get_source(spec.name)
    except (ImportError, SyntaxError, UnicodeError):
        text = None
    if text is not None:
        return text
    return _read(spec.origin) if spec.origin is not None and os.path.isfile(spec.origin) else b""


@functools.lru_cache(maxsize=4096)
def _digest_tree(source: str) -> tuple[str, frozenset[str]]:
    """Returns the digest of a syntax tree without docstrings, and its imported modules."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _Block):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    imports = (name for node in ast.walk(tree) for name in _list_imports(node))
    return _compute_digest(ast.dump(tree).encode("utf-8", "surrogatepass")), frozenset(imports)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and _read_text(statement.value) is not None


def _list_imports(node: ast.AST) -> Iterator[str]:
    """Yields the names of the modules that a statement or a call imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield module
        separator = "" if module.endswith(".") else "."
        yield from (f"{module}{separator}{alias.name}" for alias in node.names)
    elif (
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) in _IMPORTERS
    ):
        yield from filter(None, map(_read_text, node.args))


def _read_text(node: ast.AST) -> str | None:
    """Returns the value of a literal text; None for other expressions."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _compute_digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
