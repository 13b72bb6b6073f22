"""Prints what geneva offers, as JSON: `ENVIRONMENT/bin/python tests/support/geneva_signatures.py`; `geneva_signatures.json` is its output.

Run by the Python of an environment that has geneva, so it imports nothing of this project. What is offered: the names that `geneva` exports,
and those that the modules below do; of each class the public methods and attributes that geneva itself defines or inherits from LanceDB; of each
function and method the parameters; and every environment variable that geneva's source names.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import json
import re
from pathlib import Path

MODULES = {
    "geneva": (),
    "geneva.db": ("Connection", "connect"),
    "geneva.table": ("Table", "TableReference"),
    "geneva.query": ("GenevaQueryBuilder",),
    "geneva.manifest": (),
    "geneva.cluster": (),
    "geneva.jobs": (),
    "geneva.errors": (),
    "geneva.udfs": (),
    "geneva.udtfs": (),
    "geneva.chunkers": (),
}
"""Modules whose `__all__` is taken, and names that users meet in modules that export none."""

VARIABLE = re.compile(r"\b(?:GENEVA|LANCEDB)_[A-Z0-9]+(?:_+[A-Z0-9]+)*\b")


def parameters(value: object) -> list[str]:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    named = (p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [p.name for p in named if p.name not in ("self", "cls")]


def members(cls: type) -> dict[str, list[str]]:
    if issubclass(cls, (BaseException, enum.Enum)):
        return {}
    found = {}
    for base in reversed(cls.__mro__[:-1]):
        if not base.__module__.startswith(("geneva", "lancedb")):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_"):
                plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                found[name] = parameters(plain) if callable(plain) and not inspect.isclass(plain) else []
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
        found.update({field: [] for field in parameters(cls) if not field.startswith("_")})
    return found


def offered() -> dict[str, object]:
    names: dict[str, dict[str, object]] = {}
    for path, chosen in MODULES.items():
        module = importlib.import_module(path)
        for name in chosen or module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or not callable(value):
                continue
            entry = names.setdefault(name, {"imports": [], "parameters": parameters(value)})
            entry["imports"].append(path)  # type: ignore[attr-defined]
            if inspect.isclass(value):
                entry["members"] = members(value)
    root = Path(importlib.import_module("geneva").__file__ or "").parent
    variables = {found for file in root.rglob("*.py") for found in VARIABLE.findall(file.read_text("utf-8"))}
    return {
        "version": importlib.metadata.version("geneva"),
        "names": dict(sorted(names.items())),
        "variables": sorted(variables),
    }


if __name__ == "__main__":
    print(json.dumps(offered(), indent=1))
