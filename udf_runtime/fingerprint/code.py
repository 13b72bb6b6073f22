"""The bytecode of a function as plain values, and the names in the bytecode."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import re
import types
from collections.abc import Iterator

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ASSIGNS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_IMPORTERS = frozenset({"import_module", "__import__"})

_SILENT = frozenset({"NOP", "CACHE", "EXTENDED_ARG", "RESUME", "PRECALL"})
"""Instructions without an effect. The compiler places some of these by line numbers."""

_GOTO = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})

_JOINED = re.compile("((?:LOAD|STORE)_FAST(?:_BORROW)?)_((?:LOAD|STORE)_FAST(?:_BORROW)?)")
_OPPOSITES = {"POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE"}

_SURROUNDINGS = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})
"""Names in the body of a class: the compiler assigns a docstring, a line, and a set."""

# Flags for the call and the run of a function. Flags of __future__ imports and nesting are left
# out.
CALL_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GlobalNames:
    """Names in code, including nested code.

    Attributes:
        names: Globals with reads, builtins included.
        assigned: Globals with assignments or deletions.
        attributes: Names of attributes with reads, of any object.
        assigned_attributes: Names of attributes with assignments, of any object.
    """

    names: frozenset[str]
    assigned: frozenset[str]
    attributes: frozenset[str]
    assigned_attributes: frozenset[str]


def code_parts(code: types.CodeType) -> Iterator[object]:
    """Yields the effect of a code object as plain values.

    Names, lines, docstrings and the layout of the bytecode do not count, because the compiler
    threads jumps and places no-ops by line numbers, so the layout follows the formatting of the
    source.
    """
    yield code.co_flags & CALL_FLAGS
    yield (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    yield code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    yield from _Flow(code).steps()


class _Flow:
    """The instructions of a code object as a graph, numbered by a walk from the entry."""

    def __init__(self, code: types.CodeType) -> None:
        self._instructions = [
            part for whole in dis.get_instructions(code) for part in _split_instruction(whole)
        ]
        self._place: dict[int, int] = {}
        for place, instruction in enumerate(self._instructions):
            self._place.setdefault(instruction.offset, place)
        self._handlers = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]  # typeshed lacks it

    def steps(self) -> Iterator[object]:
        """Yields each reachable instruction, with the numbers of its successors."""
        numbers: dict[int, int] = {}
        waiting = [self._effective(0)]
        while waiting:
            place = waiting.pop()
            if place not in numbers:
                numbers[place] = len(numbers)
                waiting.extend(self._successors(place))
        for place in numbers:
            instruction = self._instructions[place]
            successors = tuple(numbers[successor] for successor in self._successors(place))
            yield (
                _normalize_name(instruction)[0],
                self._operand(place),
                successors,
                self._handler(place)[1:],
            )

    def _effective(self, place: int) -> int:
        """Returns the first instruction with an effect, along the jumps from a place."""
        visited = set()
        while (following := self._pass(place)) is not None and place not in visited:
            visited.add(place)  # an endless loop may have no effect
            place = following
        return place

    def _pass(self, place: int) -> int | None:
        """Returns the place after an instruction without an effect; None for other instructions."""
        name = self._instructions[place].opname
        if name in _GOTO:
            return self._target(place)
        if name in _SILENT:
            return place + 1
        behind = self._instructions[place + 1] if name == "LOAD_CONST" else None
        is_surrounding = (
            behind is not None and behind.opname == "STORE_NAME" and behind.argval in _SURROUNDINGS
        )
        return place + 2 if is_surrounding else None

    def _target(self, place: int) -> int:
        return self._place[self._instructions[place].argval]

    def _jump(self, place: int) -> int:
        """Returns the target of a conditional jump, through jumps with the same condition."""
        name, target = self._instructions[place].opname, self._effective(self._target(place))
        while "OR_POP" in name and self._instructions[target].opname == name:
            target = self._effective(self._target(target))
        return target

    def _handler(self, place: int) -> tuple[int, int, bool] | tuple[()]:
        offset = self._instructions[place].offset
        for entry in self._handlers:
            if entry.start <= offset < entry.end:
                return (self._effective(self._place[entry.target]), entry.depth, entry.lasti)
        return ()

    def _successors(self, place: int) -> tuple[int, ...]:
        instruction = self._instructions[place]
        jump = (
            (self._jump(place),)
            if instruction.opcode in _JUMPS and instruction.opname not in _GOTO
            else ()
        )
        if instruction.opname in _GOTO:
            onward: tuple[int, ...] = (place,)
        else:
            onward = () if instruction.opname in _ENDS else (self._effective(place + 1),)
        branches = (*onward, *jump) if _normalize_name(instruction)[1] else (*jump, *onward)
        return (*self._handler(place)[:1], *branches)

    def _operand(self, place: int) -> object:
        """Returns the operand of an instruction: a constant, a name, or a plain number."""
        instruction = self._instructions[place]
        if instruction.opcode in _JUMPS or instruction.arg is None:
            return None  # a successor
        if instruction.opcode in dis.hasconst:
            return (instruction.argval,)
        if isinstance(instruction.argval, str) and instruction.opcode in dis.hasname:
            # The low bits of some operands describe the use of the name, for example in a call.
            return (instruction.argval, instruction.argrepr)
        return instruction.argval


def _split_instruction(instruction: dis.Instruction) -> list[dis.Instruction]:
    """Returns an instruction, or both parts of a joint load and store of a line."""
    names = _JOINED.fullmatch(instruction.opname)
    if names is None:
        return [instruction]
    pairs = zip(names.groups(), instruction.argval, strict=True)
    return [
        instruction._replace(opname=name, opcode=dis.opmap[name], argval=variable)
        for name, variable in pairs
    ]


def _normalize_name(instruction: dis.Instruction) -> tuple[str, bool]:
    """Returns the name of an instruction, and whether the name is of the opposite condition.

    The layout determines the direction and the condition of a conditional jump.
    """
    name = instruction.opname.replace("JUMP_FORWARD_IF", "JUMP_IF").replace(
        "JUMP_BACKWARD_IF", "JUMP_IF"
    )
    opposite = _OPPOSITES.get(name)
    return (name, False) if opposite is None else (opposite, True)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields a code object and its nested functions, comprehensions and classes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def globals_of(code: types.CodeType) -> GlobalNames:
    """Returns the names of globals and attributes in the instructions of code."""
    names: dict[str, set[str]] = {
        "names": set(),
        "assigned": set(),
        "attributes": set(),
        "assigned_attributes": set(),
    }
    for part in nested(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _READS:
                names["names"].add(instruction.argval)
            elif instruction.opname in _ASSIGNS:
                names["assigned"].add(instruction.argval)
            elif instruction.opname in _ATTRIBUTES:
                names["attributes"].add(instruction.argval)
            elif instruction.opname == "STORE_ATTR":
                names["assigned_attributes"].add(instruction.argval)
    return GlobalNames(**{key: frozenset(value) for key, value in names.items()})


def imports_of(code: types.CodeType) -> list[str]:
    """Returns the modules in `import` statements, sorted; relative modules with dots.

    `from a import b` yields both `a` and `a.b`, because b may be a module.
    """
    modules: set[str] = set()
    for part in nested(code):
        constants: list[object] = []
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                constants.append(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                level, names = constants[-2:]  # values pushed by the compiler before an import
                module = "." * (level if isinstance(level, int) else 0) + instruction.argval
                modules.add(module)
                separator = "" if module.endswith(".") else "."
                modules.update(
                    f"{module}{separator}{name}"
                    for name in (names if isinstance(names, tuple) else ())
                )
    return sorted(modules)


def dynamic_imports_of(code: types.CodeType) -> set[str]:
    """Returns possible names of modules in code with calls of `import_module` or `__import__`."""
    parts = list(nested(code))
    if not any(_IMPORTERS.intersection(part.co_names) for part in parts):
        return set()
    return {constant for part in parts for constant in part.co_consts if isinstance(constant, str)}
