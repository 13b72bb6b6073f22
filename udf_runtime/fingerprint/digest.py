"""A digest of the behaviour of code, the same in every process.

The digest of a function covers its bytecode, names and constants, its attributes, defaults and
closure, and each global in its code, recursively through functions and classes. Docstrings,
comments, formatting and line numbers do not count. The digest of a class covers its bases,
annotations and members. The digest of an object covers its class and the state for pickling. Order
counts if Python keeps an order: in sequences, dicts and the bodies of classes.

The walk ends here:

* Installed libraries (the standard library, `site-packages`, this package) count by module and
  qualified name, except for the module of the digested function itself. Your own code, including a
  notebook's, counts by content.
* A global with an assignment in the function itself (`global model; model = load()`) and an
  attribute with an assignment in the function are state of a process, and count by their names.
* Your own module, imported inside a function or used as an object, counts by the syntax trees of
  its source and of all your modules among its imports.

The digest holds bytecode, so a new minor version of Python gives new digests. Set `version=` for
tables with a longer life than a version of Python. No digested code runs here. An object without a
stable content raises an error.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import hashlib
import math
import re
import struct
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from udf_runtime.errors import UdfDefinitionError, end_sentence, refuse_driver_object
from udf_runtime.fingerprint.classes import (
    adapter_parts,
    annotations_of,
    class_members,
    field_parts,
    model_parts,
)
from udf_runtime.fingerprint.code import code_parts, dynamic_imports_of, globals_of, imports_of
from udf_runtime.fingerprint.data import data_parts
from udf_runtime.fingerprint.provenance import is_library
from udf_runtime.fingerprint.sources import source_digests

SCHEME = 2
"""Number of the scheme of :func:`fingerprint`. A change of any digest needs the next number."""

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)


@runtime_checkable
class Fingerprinted(Protocol):
    """An object with its own parts for a digest."""

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns values that determine the behaviour of the object."""


def fingerprint(*parts: object, what: str = "this definition") -> str:
    """Returns the digest of code and values: the number of the scheme and 32 hex digits.

    The digest is the same in every process of a minor version of Python.

    Args:
        parts: Functions, classes, objects and data, in their order.
        what: The subject of the digest, for an error message: "UDF 'f'".

    Raises:
        UdfDefinitionError: An object in the code (a lock, an open file, a connection) has no
            content for a digest, or changing content.
    """
    walk = Walk(what)
    digest = walk.digest(parts)
    if walk.reduced and Walk(what).digest(parts) != digest:
        raise walk.refusal(
            f"an object has another pickled form each time (one of {', '.join(walk.reduced)})"
        )
    return f"{SCHEME}-{digest}"


class Walk:
    """A walk over a graph of objects, written into a single hash.

    Repeated objects are written as their number.

    Attributes:
        outer: The walk over a set or dict, if this walk digests a key of the set or dict; None for
            the first walk.
        active: Ids of the objects in progress.
        path: Description of the way to the current object, shared with the outer walk.
        root: The first object of the walk, the subject of the digest.
        reduced: Names of classes with their own pickling, shared with the outer walk.
    """

    def __init__(self, what: str, outer: Walk | None = None) -> None:
        self._what = what
        self._hash = hashlib.blake2b(digest_size=16)
        # The walk keeps the objects alive, so the id of a temporary object is never used again.
        self._met: dict[int, tuple[int, object]] = {}
        self.outer = outer
        self.active: set[int] = set()
        self.path: list[str] = [] if outer is None else outer.path
        self.root: object = None if outer is None else outer.root
        self.reduced: dict[str, None] = {} if outer is None else outer.reduced

    def digest(self, parts: Iterable[object]) -> str:
        """Returns the digest of values in their order."""
        try:
            for part in parts:
                self.add(part)
        except RecursionError as error:
            raise self.refusal("it is nested too deeply") from error
        return self.hexdigest()

    def hexdigest(self) -> str:
        """Returns the digest of the values so far."""
        return self._hash.hexdigest()

    def refusal(self, reason: str) -> UdfDefinitionError:
        """Returns the error for an undigestible object at the current place."""
        return UdfDefinitionError(
            f"The automatic version would differ between processes: {end_sentence(reason)} "
            f"Place: {self._describe_place()}. Give version='...', and change the version whenever results change."
        )

    def _describe_place(self) -> str:
        # The nearest steps are the most useful; a long way is cut in its middle.
        steps = self.path if len(self.path) <= 6 else [*self.path[:2], "...", *self.path[-3:]]
        return f"{self._what}: {' > '.join(steps)}" if steps else self._what

    def _write(self, tag: str, content: bytes = b"") -> None:
        name = tag.encode()
        self._hash.update(struct.pack("<IQ", len(name), len(content)))
        self._hash.update(name)
        self._hash.update(content)

    def _write_sequence(self, tag: str, items: Iterable[object]) -> None:
        count = 0
        self._write(tag + "[")
        for item in items:
            self.add(item)
            count += 1
        self._write("]", str(count).encode())

    def _write_unordered(
        self, tag: str, items: Iterable[tuple[object, tuple[object, ...]]]
    ) -> None:
        """Writes pairs in the order of their keys' digests, which depends on no hash seed."""
        ordered = []
        for key, rest in items:
            key_walk = type(self)(self._what, outer=self)
            key_walk.add(key)
            ordered.append((key_walk.hexdigest(), rest))
        self._write(tag + "{", str(len(ordered)).encode())
        for digest, rest in sorted(ordered, key=lambda pair: pair[0]):
            self._write("key", digest.encode())
            for item in rest:
                self.add(item)

    def _write_named(self, tag: str, step: str, items: Mapping[str, object]) -> None:
        """Writes values with their names, in the order of the mapping."""
        self._write(tag, str(len(items)).encode())
        for name in items:
            self._write("name", name.encode())
            self.path.append(step.format(name))
            self.add(items[name])
            self.path.pop()

    def add(self, value: object) -> None:
        """Writes a single value."""
        if self._write_atom(value):
            return
        if type(value) is tuple:
            # Not numbered, because the compiler decides which equal tuples of constants are a
            # single object.
            self._write_sequence("tuple", value)
        elif isinstance(value, types.CodeType):
            self._write_sequence("code", self._code_parts(value))
        elif type(value) is frozenset:
            self._write_unordered("frozenset", ((item, ()) for item in value))
        elif isinstance(value, (types.BuiltinFunctionType, *_DESCRIPTORS)):
            self._write_builtin(value)
        elif isinstance(value, types.MethodType):
            self._write_sequence("method", (value.__func__, value.__self__))
        elif isinstance(value, types.ModuleType):
            self._write_module(value)
        elif not self._write_if_met(value):
            self.active.add(id(value))
            self._write_object(value)
            self.active.discard(id(value))

    def _write_atom(self, value: object) -> bool:
        if isinstance(value, (types.NoneType, types.EllipsisType, types.NotImplementedType)):
            self._write(repr(value))
        elif type(value) is str:
            self._write_text(value)
        elif type(value) is int or type(value) is bool:
            self._write(type(value).__name__, hex(value).encode())
        elif type(value) is float:
            self._write("float", struct.pack("<d", math.nan if math.isnan(value) else value))
        elif type(value) is complex:
            self._write("complex", struct.pack("<dd", value.real, value.imag))
        elif type(value) is bytes or type(value) is bytearray:
            self._write(type(value).__name__, bytes(value))
        else:
            return False
        return True

    def _write_text(self, value: str) -> None:
        for match in _ADDRESS.finditer(value):
            if self.has_met(int(match.group(), 0)):
                raise self.refusal(f"a text holds the address of an object: {value[:80]!r}")
        self._write("str", value.encode("utf-8", "surrogatepass"))

    def has_met(self, number: int) -> bool:
        """Tells whether a number is the address of an object of the walk."""
        return number in self._met or (self.outer is not None and self.outer.has_met(number))

    def _write_module(self, module: types.ModuleType) -> None:
        self._write("module", module.__name__.encode())
        if not is_library(module.__name__):
            self._write_sources(source_digests([module.__name__]))

    def _write_sources(self, digests: Mapping[str, str]) -> None:
        self._write("sources", repr(sorted(digests.items())).encode("utf-8", "surrogatepass"))

    def _write_if_met(self, value: object) -> bool:
        number = self._met.get(id(value))
        if number is not None:
            self._write("met", str(number[0]).encode())
            return True
        outer = self.outer
        while outer is not None:
            # A key of a dict or a member of a set refers back to the dict or set, so a number would
            # depend on the order of the walk.
            if id(value) in outer.active:
                self._write("outer", type(value).__qualname__.encode())
                return True
            outer = outer.outer
        self._met[id(value)] = (len(self._met), value)
        if self.root is None:
            self.root = value
        return False

    def _write_object(self, value: object) -> None:
        refuse_driver_object(value, self._describe_place)
        if isinstance(value, types.FunctionType):
            self._write_function(value)
        elif isinstance(value, type):
            self._write_class(value)
        elif (data := self._data_parts(value)) is not None:
            self._write_sequence("data", data)
        elif (adapter := adapter_parts(value)) is not None:
            self._write_sequence("adapter", adapter)
        elif isinstance(value, Fingerprinted):
            self._write_sequence("own", value.fingerprint_parts())
        elif not self._write_container(value) and not self._write_wrapper(value):
            self._write_instance(value)

    def _write_container(self, value: object) -> bool:
        if type(value) is list:
            self._write_sequence("list", value)
        elif type(value) is dict or type(value) is types.MappingProxyType:
            self._write_dict(value)
        elif type(value) is set:
            self._write_unordered("set", ((item, ()) for item in value))
        else:
            return False
        return True

    def _write_dict(self, value: Mapping[object, object]) -> None:
        self._write_sequence("dict", value.items())

    def _code_parts(self, code: types.CodeType) -> Iterator[object]:
        return code_parts(code)

    def _data_parts(self, value: object) -> Iterator[object] | None:
        return data_parts(value)

    def _write_wrapper(self, value: object) -> bool:
        """Writes an object around functions: a property, a partial, or the like of an lru_cache."""
        inner = getattr(value, "__wrapped__", None)
        if isinstance(value, (staticmethod, classmethod)):
            self._write_sequence(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._write_sequence("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self._write_sequence("cached_property", (value.func,))
        elif isinstance(value, functools.partial):
            self._write_sequence("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.UnionType):
            self._write_sequence("union", value.__args__)
        elif isinstance(inner, types.FunctionType) and is_library(_find_module(type(value))):
            self._write_sequence("wrapped", (type(value), *self._wrapped_parts(inner)))
        else:
            return False
        return True

    def _write_builtin(self, value: object) -> None:
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            owner = getattr(value, "__objclass__", None)
        name = str(getattr(value, "__qualname__", None))
        self._write("builtin", f"{getattr(value, '__module__', None)}.{name}".encode())
        self.path.append(f"the object of {name}()")
        self.add(owner)
        self.path.pop()

    def _write_function(self, function: types.FunctionType) -> None:
        # The globals show the origin of the code; functools.wraps replaces __module__.
        module = str(function.__globals__.get("__name__"))
        self.path.append(f"function {function.__qualname__}")
        if self._goes_by_name(module):
            self._write("library function", f"{module}.{function.__qualname__}".encode())
            if getattr(sys.modules.get(module), function.__name__, None) is not function:
                # A library's decorator made the function around another object, or the function is
                # a library's closure over values.
                inner = getattr(function, "__wrapped__", None)
                cells = map(_read_cell, function.__closure__ or ())
                registry = getattr(function, "registry", None)
                self._write_sequence(
                    "made of", cells if inner is None else (*self._wrapped_parts(inner), registry)
                )
        else:
            self._write("function")
            self.add(function.__code__)
            self._write_sequence("defaults", function.__defaults__ or ())
            self._write_named("keyword defaults", "default of {!r}", function.__kwdefaults__ or {})
            closure = zip(
                function.__code__.co_freevars,
                map(_read_cell, function.__closure__ or ()),
                strict=True,
            )
            self._write_named("closure", "closure variable {!r}", dict(closure))
            self._write_own_attributes(function)
            self._write_globals(function)
        self.path.pop()

    def _wrapped_parts(self, inner: object) -> tuple[object, ...]:
        """Returns the relevant parts of a function in a wrapper, which may read its annotations."""
        return (inner, annotations_of(inner))

    def _write_own_attributes(self, function: types.FunctionType) -> None:
        state = globals_of(function.__code__).assigned_attributes
        attributes = {name: value for name, value in vars(function).items() if name not in state}
        self._write_named("attributes", "attribute {!r}", attributes)

    def _goes_by_name(self, module: str) -> bool:
        """Tells whether a module counts by name: all libraries except the digested module."""
        return is_library(module) and getattr(self.root, "__module__", None) != module

    def _write_globals(self, function: types.FunctionType) -> None:
        reads = globals_of(function.__code__)
        used_globals: dict[str, object] = {}
        for name in reads.names:
            value = function.__globals__.get(name, _UNBOUND)
            if (
                value is _UNBOUND
                or name in reads.assigned
                or (name.startswith("__") and name.endswith("__"))
            ):
                continue  # a builtin, undefined, state of the process, or the module's own name: the code has it
            if isinstance(value, types.ModuleType) and not is_library(value.__name__):
                used_globals |= _collect_used(value, reads.attributes, prefix=name)
            used_globals[name] = value
        self._write_named(
            "globals", "global {!r}", {name: used_globals[name] for name in sorted(used_globals)}
        )
        self._write_imports(function)

    def _write_imports(self, function: types.FunctionType) -> None:
        code = function.__code__
        names = [*imports_of(code), *dynamic_imports_of(code)]
        self._write_sources(source_digests(names, function.__globals__.get("__package__")))

    def _write_class(self, cls: type) -> None:
        module = _find_module(cls)
        if self._goes_by_name(module):
            self._write("library class", f"{module}.{cls.__qualname__}".encode())
            return
        self.path.append(f"class {cls.__qualname__}")
        self._write("class", cls.__name__.encode())
        self._write_sequence("bases", (type(cls), *cls.__bases__))
        self._write_class_content(cls)
        self.path.pop()

    def _write_class_content(self, cls: type) -> None:
        self._write_named("annotations", "annotation of {!r}", annotations_of(cls))
        if issubclass(cls, enum.Enum):
            self._write_sequence(
                "members", ((name, item.value) for name, item in cls.__members__.items())
            )
        if dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            self._write_sequence("fields", map(field_parts, fields))
            if metadata := {field.name: field.metadata for field in fields if field.metadata}:
                self._write_named("field metadata", "metadata of the field {!r}", metadata)
        if (model := model_parts(cls)) is not None:
            self._write_sequence("model", model)
        self._write_named("class members", "attribute {!r}", class_members(cls))

    def _write_instance(self, value: object) -> None:
        cls = type(value)
        name = f"{_find_module(cls)}.{cls.__qualname__}"
        self.path.append(f"object of class {name}")
        if _has_own_reduction(cls):
            self.reduced[name] = None
        try:
            # 4 is a fixed protocol instead of the newest, because the answer of an object may
            # depend on the protocol.
            special = copyreg.dispatch_table.get(cls)
            reduced = value.__reduce_ex__(4) if special is None else special(value)
        except Exception as error:
            raise self.refusal(
                f"an object cannot be digested ({type(error).__name__}: {error})"
            ) from error
        self._write("instance")
        self.add(cls)
        if isinstance(reduced, str):
            self._write("global", reduced.encode())
        else:
            make, args, *rest = reduced
            # __newobj__ and similar functions only name the class again, which is already written.
            self.add(make if make not in _MAKERS else None)
            self.add(args)
            self.add(rest[0] if rest else None)
            for items in rest[1:3]:
                self._write_sequence("items", items if items is not None else ())
        self.path.pop()


class _Unbound(enum.Enum):
    """Stands for a variable without a value."""

    UNBOUND = "unbound"


_UNBOUND = _Unbound.UNBOUND

_ADDRESS = re.compile(r"(?<![0-9a-zA-Z])(?:0x[0-9a-f]{8,16}|[1-9][0-9]{9,19})(?![0-9a-zA-Z])")
"""A number in a text, possibly the address of an object."""

_MAKERS: tuple[Callable[..., object], ...] = (
    copyreg.__newobj__,  # type: ignore[attr-defined]
    copyreg.__newobj_ex__,  # type: ignore[attr-defined]
)


def _read_cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNBOUND  # a function of an enclosing function that is still undefined


def _find_module(cls: type) -> str:
    module: object = cls.__module__
    return (
        module if isinstance(module, str) else "builtins"
    )  # some classes written in C have a descriptor here


def _has_own_reduction(cls: type) -> bool:
    """Tells whether the class itself, instead of Python, makes the pickled form of its objects."""
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return cls in copyreg.dispatch_table or any(
        getattr(cls, n, None) is not getattr(object, n, None) for n in names
    )


def _collect_used(
    module: types.ModuleType, attributes: frozenset[str], prefix: str
) -> dict[str, object]:
    """Returns the attributes of a user's module with possible uses in code, by their names."""
    used_attributes: dict[str, object] = {}
    modules: list[tuple[str, types.ModuleType]] = [(prefix, module)]
    visited: set[int] = set()
    while modules:
        path, current = modules.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        for name in sorted(attributes & vars(current).keys()):
            value = vars(current)[name]
            used_attributes[f"{path}.{name}"] = value
            if isinstance(value, types.ModuleType) and not is_library(value.__name__):
                modules.append((f"{path}.{name}", value))
    return used_attributes
