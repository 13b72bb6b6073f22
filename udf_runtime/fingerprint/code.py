"""The part of a function's digest that is its bytecode: instructions, and names it reads."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import types
from collections.abc import Iterator

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ASSIGNS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})

# How a function is called and runs; not which __future__ imports and which nesting its source had.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GlobalNames:
    """Names that code, and the code nested in it, uses.

    Attributes:
        names: Globals that it reads, builtins included.
        assigned: Globals that it assigns or deletes.
        attributes: Names of attributes that it reads, of whatever object.
    """

    names: frozenset[str]
    assigned: frozenset[str]
    attributes: frozenset[str]


def code_parts(code: types.CodeType) -> Iterator[object]:
    """Yields what a code object does, as plain values; not its name, lines and docstring."""
    yield code.co_code  # without what the interpreter wrote into it while it ran: the attribute undoes that
    yield code.co_flags & _FLAGS
    yield (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    yield (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield code.co_exceptiontable
    yield (None, *code.co_consts[1:]) if _has_docstring(code) else code.co_consts


def _has_docstring(code: types.CodeType) -> bool:
    """Returns whether the first constant is a docstring, which a function without one lacks."""
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    if flag is not None:
        return bool(code.co_flags & flag)
    is_function = bool(code.co_flags & inspect.CO_NEWLOCALS) and not code.co_name.startswith("<")
    return is_function and bool(code.co_consts) and isinstance(code.co_consts[0], str)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields a code object and those of functions, comprehensions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def globals_of(code: types.CodeType) -> GlobalNames:
    """Returns the global names that code uses, from its instructions; attributes do not count."""
    names: set[str] = set()
    assigned: set[str] = set()
    attributes: set[str] = set()
    for part in nested(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _READS:
                names.add(instruction.argval)
            elif instruction.opname in _ASSIGNS:
                assigned.add(instruction.argval)
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(instruction.argval)
    return GlobalNames(names=frozenset(names), assigned=frozenset(assigned), attributes=frozenset(attributes))


def imports_of(code: types.CodeType) -> list[str]:
    """Returns the modules that code may import when it runs, sorted; relative ones with dots.

    Of `from a import b` both `a` and `a.b` are there, because b may be a module or not.
    """
    found: set[str] = set()
    for part in nested(code):
        constants: list[object] = []
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                constants.append(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                level, names = constants[-2:]  # what the compiler pushes before an import
                module = "." * (level if isinstance(level, int) else 0) + instruction.argval
                found.add(module)
                separator = "" if module.endswith(".") else "."
                found.update(f"{module}{separator}{name}" for name in (names if isinstance(names, tuple) else ()))
    return sorted(found)
