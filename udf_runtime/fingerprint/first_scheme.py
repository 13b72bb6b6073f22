"""Digests of the first scheme, without a number: tables of earlier releases hold such versions.

If a UDF and a stored binding have the same version under the first scheme, the UDF is the UDF of
the binding. These digests never change.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping

import pyarrow as pa

from udf_runtime.fingerprint.classes import CLASS_SURROUNDINGS, field_parts
from udf_runtime.fingerprint.code import CALL_FLAGS, imports_of
from udf_runtime.fingerprint.data import data_parts, is_numpy_value
from udf_runtime.fingerprint.digest import Walk
from udf_runtime.fingerprint.sources import raw_digest
from udf_runtime.optional import np


def is_first_digest(version: str) -> bool:
    """Tells whether a version is a digest of the first scheme."""
    return re.fullmatch("[0-9a-f]{32}", version) is not None


def first_digest(*parts: object, what: str) -> str:
    """Returns the digest of code and values under the first scheme.

    Raises:
        UdfDefinitionError: An object has no content for a digest.
    """
    return _FirstWalk(what).digest(parts)


class _FirstWalk(Walk):
    """A walk that ignores orders, attributes of functions, and imports of imported modules."""

    def _write_named(self, tag: str, step: str, items: Mapping[str, object]) -> None:
        super()._write_named(tag, step, dict(sorted(items.items())))

    def _write_text(self, value: str) -> None:
        self._write("str", value.encode("utf-8", "surrogatepass"))

    def _write_module(self, module: types.ModuleType) -> None:
        self._write("module", module.__name__.encode())

    def _write_dict(self, value: Mapping[object, object]) -> None:
        self._write_unordered("dict", ((key, (item,)) for key, item in value.items()))

    def _code_parts(self, code: types.CodeType) -> Iterator[object]:
        yield code.co_code
        yield code.co_flags & CALL_FLAGS
        yield (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        yield (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        yield code.co_exceptiontable
        yield (None, *code.co_consts[1:]) if _has_docstring(code) else code.co_consts

    def _data_parts(self, value: object) -> Iterator[object] | None:
        if is_numpy_value(value):
            return _numpy_parts(np.asarray(value))
        if isinstance(value, np.dtype):
            return iter(("dtype", value.str, value.descr if value.names else ()))
        if isinstance(value, pa.DictionaryArray):
            return iter(
                (
                    "array",
                    value.type,
                    len(value),
                    *list(data_parts(value.dictionary_decode()) or ())[3:],
                )
            )
        pandas_parts = _pandas_parts(value)
        return (
            data_parts(value)
            if pandas_parts is None and not _is_categorical_type(value)
            else pandas_parts
        )

    def _wrapped_parts(self, inner: object) -> tuple[object, ...]:
        return (inner,)

    def _write_own_attributes(self, function: types.FunctionType) -> None:
        """Writes no bytes: the first scheme ignores the attributes of functions."""

    def _write_imports(self, function: types.FunctionType) -> None:
        package = function.__globals__.get("__package__")
        digests = {name: raw_digest(name, package) for name in imports_of(function.__code__)}
        self._write_named("imports", "import of {!r}", digests)

    def _write_class_content(self, cls: type) -> None:
        members = {name: item for name, item in vars(cls).items() if name not in CLASS_SURROUNDINGS}
        if issubclass(cls, enum.Enum):
            names = set(cls.__members__)
            members = {
                k: v for k, v in members.items() if k not in names and not k[:1] == "_" == k[-1:]
            }
            self._write_sequence(
                "members", ((name, item.value) for name, item in cls.__members__.items())
            )
        if dataclasses.is_dataclass(cls):
            self._write_sequence("fields", map(field_parts, dataclasses.fields(cls)))
        self._write_named("class members", "attribute {!r}", members)


def _has_docstring(code: types.CodeType) -> bool:
    """Tells whether the first constant is a docstring; without a docstring code has none."""
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    if flag is not None:
        return bool(code.co_flags & flag)
    is_function = bool(code.co_flags & inspect.CO_NEWLOCALS) and not code.co_name.startswith("<")
    return is_function and bool(code.co_consts) and isinstance(code.co_consts[0], str)


def _numpy_parts(array: np.ndarray) -> Iterator[object]:
    yield from ("ndarray", array.dtype, array.shape)
    yield array.tolist() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()


def _pandas_parts(value: object) -> Iterator[object] | None:
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return None
    if isinstance(value, pandas.DataFrame):
        columns = [value.iloc[:, i] for i in range(value.shape[1])]
        return iter(("DataFrame", value.columns, value.index, columns))
    if isinstance(value, pandas.Series):
        return iter(("Series", value.name, str(value.dtype), value.index, value.to_numpy()))
    if isinstance(value, pandas.Index):
        return iter(("Index", list(value.names), str(value.dtype), value.to_numpy()))
    return None


def _is_categorical_type(value: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.CategoricalDtype)
