"""Predicates for the tests in three forms: the rule's JSON, Spark SQL, and an evaluation by a reference.

The reference follows Spark's rules for three-valued logic, NaN (equal to itself, greater than everything), -0.0 (equal
to 0.0), and the order of strings and binaries by their bytes. The reference depends on neither Spark nor Lance.
"""

from __future__ import annotations

import base64
import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from lance_spark.types import to_spark_schema
from tests.strategies import leaf_values

Predicate = dict[str, Any]

COMPARISONS = ("=", "<=>", "<", "<=", ">", ">=")
_TEXT_OPS = ("starts_with", "ends_with", "contains", "like")

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal128(9, 2)": pa.decimal128(9, 2),
    "decimal128(38, 10)": pa.decimal128(38, 10),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "dictionary<string>": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "fixed_size_binary": pa.binary(3),
    "date32": pa.date32(),
    "timestamp[s, zone]": pa.timestamp("s", "UTC"),
    "timestamp[ms, zone]": pa.timestamp("ms", "Asia/Kathmandu"),
    "timestamp[us, zone]": pa.timestamp("us", "UTC"),
    "timestamp[ns, zone]": pa.timestamp("ns", "+05:45"),
    "timestamp[s]": pa.timestamp("s"),
    "timestamp[ms]": pa.timestamp("ms"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ns]": pa.timestamp("ns"),
}
"""Every stored type whose comparisons are pushed, by its name in docs/pushdown.md."""


def operations(name: str) -> tuple[str, ...]:
    """Operations that are pushed for a type."""
    every = (*COMPARISONS, "in", "is_null", "is_not_null")
    if name == "bool":
        return (*every, "col")
    return (*every, *_TEXT_OPS) if _is_text(TYPES[name]) else every


def _is_text(kind: pa.DataType) -> bool:
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored))


@functools.cache
def spark_type(kind: pa.DataType) -> str:
    """Returns Spark's name for a stored type."""
    return to_spark_schema(pa.schema([pa.field("c", kind)])).fields[0].dataType.simpleString()


def column(path: Sequence[str], kind: pa.DataType) -> Predicate:
    """Returns a column reference."""
    return {"op": "col", "name": list(path), "type": spark_type(kind)}


def literal(kind: pa.DataType, value: Any) -> Predicate:
    """Returns a literal for a value of the stored type, in the form of `tests.strategies.leaf_values`."""
    spark = spark_type(kind)
    if value is None or spark in ("boolean", "string"):
        text = value
    elif spark == "binary":
        text = base64.b64encode(value).decode()
    elif spark in ("float", "double"):
        number = (
            struct.unpack("<f", struct.pack("<f", value))[0] if spark == "float" else float(value)
        )
        text = "NaN" if math.isnan(number) else repr(number).replace("inf", "Infinity")
    elif spark.startswith("timestamp"):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        text = str(value * 10**6 // per_second)
    else:
        text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return {"op": "lit", "type": spark, "value": text}


def leaves(
    path: Sequence[str], name: str, op: str | None = None, *, present: Sequence[Any] = ()
) -> st.SearchStrategy[Predicate]:
    """Predicates of one operation on one column; some literals are values of the data, so that some rows match."""
    kind = TYPES[name]
    values = leaf_values(kind.value_type if pa.types.is_dictionary(kind) else kind)
    if present:
        values = st.one_of(st.sampled_from(list(present)), st.sampled_from(list(present)), values)
    literals = values.map(lambda value: literal(kind, value))
    reference = column(path, kind)

    def build(chosen: str) -> st.SearchStrategy[Predicate]:
        if chosen == "col":
            return st.just(reference)
        if chosen in ("is_null", "is_not_null"):
            return st.just({"op": chosen, "args": [reference]})
        if chosen == "in":
            with_null = st.one_of(st.just([]), st.just([]), st.just([literal(kind, None)]))
            return st.tuples(st.lists(literals, min_size=1, max_size=4), with_null).map(
                lambda parts: {"op": "in", "args": [reference, *parts[0], *parts[1]]}
            )
        if chosen in _TEXT_OPS:
            return st.tuples(values, st.integers(0, 3), st.integers(0, 4)).map(
                lambda parts: _text_test(chosen, reference, *parts)
            )
        sides = st.booleans()
        return st.tuples(literals, sides).map(
            lambda parts: {
                "op": chosen,
                "args": [reference, parts[0]] if parts[1] else [parts[0], reference],
            }
        )

    return st.sampled_from(operations(name)).flatmap(build) if op is None else build(op)


def _text_test(op: str, reference: Predicate, text: str, start: int, size: int) -> Predicate:
    part = (
        text[start : start + size]
        if op == "contains"
        else text[:size]
        if op != "ends_with"
        else text[-size:]
        if size
        else ""
    )
    if op != "like":
        return {"op": op, "args": [reference, literal(pa.string(), part)]}
    escaped = "".join(f"\\{c}" if c in "\\%_" else c for c in part)
    pattern = escaped + ("%", "_", "%_", "")[start]
    return {"op": "like", "args": [reference, literal(pa.string(), pattern)], "escape": "\\"}


def trees(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    """Predicates with AND, OR and NOT over these, sometimes with an untranslatable part."""
    return combined(st.one_of(*[inner] * 8, st.just({"op": "unknown"})))


def combined(leaf: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    """Predicates with AND, OR and NOT over these."""
    return st.recursive(
        leaf,
        lambda below: st.one_of(
            below.map(lambda arg: {"op": "not", "args": [arg]}),
            st.tuples(st.sampled_from(("and", "or")), st.lists(below, min_size=2, max_size=3)).map(
                lambda parts: {"op": parts[0], "args": parts[1]}
            ),
        ),
        max_leaves=5,
    )


def walk(predicate: Predicate) -> list[Predicate]:
    """Returns a predicate and all predicates below."""
    if predicate["op"] in ("and", "or", "not"):
        return [predicate, *(inner for arg in predicate["args"] for inner in walk(arg))]
    return [predicate]


# --- the reference ---------------------------------------------------------------------------------------------------------------


def judge(
    predicate: Predicate, row: Mapping[str, Any], kinds: Mapping[str, pa.DataType]
) -> bool | None:
    """Returns the result of Spark's logic for a row, with values in the form of `tests.strategies.facts`. Unknown is
    TRUE.
    """
    op, args = predicate["op"], predicate.get("args", [])
    if op == "unknown":
        return True
    if op == "not":
        inner = judge(args[0], row, kinds)
        return None if inner is None else not inner
    if op in ("and", "or"):
        results = [judge(arg, row, kinds) for arg in args]
        decisive = op == "or"
        return decisive if decisive in results else None if None in results else not decisive
    if op in ("col", "lit"):
        return _value(predicate, row, kinds)  # type: ignore[no-any-return]
    if op in ("is_null", "is_not_null"):
        return (_value(args[0], row, kinds) is None) == (op == "is_null")
    first, *rest = [_value(arg, row, kinds) for arg in args]
    if op == "in":
        return None if first is None else True if first in rest else None if None in rest else False
    if op == "<=>":
        return bool(first == rest[0])
    if first is None or rest[0] is None:
        return None
    return bool(
        _TESTS[op](first, rest[0]) if op != "like" else _like(first, rest[0], predicate["escape"])
    )


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "starts_with": lambda a, b: a.startswith(b),
    "ends_with": lambda a, b: a.endswith(b),
    "contains": lambda a, b: b in a,
}


def _like(text: bytes, pattern: bytes, escape: str) -> bool:
    content, rest = text.decode("utf-8", "surrogatepass"), pattern.decode("utf-8", "surrogatepass")

    def match(at: int, p: int) -> bool:
        if p == len(rest):
            return at == len(content)
        if rest[p] == "%":
            return any(match(i, p + 1) for i in range(at, len(content) + 1))
        if at == len(content):
            return False
        if rest[p] == escape:
            return content[at] == rest[p + 1] and match(at + 1, p + 2)
        return rest[p] in ("_", content[at]) and match(at + 1, p + 1)

    return match(0, 0)


def _value(value: Predicate, row: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> Any:
    """Returns a comparable form: bytes for text and binaries, (is NaN, number) for floats, exact numbers in Spark's unit for the rest."""
    if value["op"] == "lit":
        return _of_literal(value["type"], value["value"])
    name = ".".join(value["name"])
    return _of_fact(kinds[name], row[name])


def _of_literal(spark: str, text: Any) -> Any:
    if text is None or spark == "boolean":
        return text
    if spark == "string":
        return text.encode("utf-8", "surrogatepass")
    if spark == "binary":
        return base64.b64decode(text)
    if spark in ("float", "double"):
        return _float(float(text))
    return Fraction(Decimal(text))


def _of_fact(kind: pa.DataType, fact: Any) -> Any:
    if fact is None or pa.types.is_boolean(kind):
        return fact
    if _is_text(kind):
        return fact.encode("utf-8", "surrogatepass")
    if pa.types.is_floating(kind):
        return _float(math.nan if fact == "NaN" else struct.unpack(">d", fact)[0])
    if pa.types.is_timestamp(kind):
        return Fraction(fact * 10**6, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit])
    return fact if isinstance(fact, bytes) else Fraction(fact)


def _float(number: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(number) else (False, number + 0.0)


# --- Spark SQL -------------------------------------------------------------------------------------------------------------------


def to_sql(predicate: Predicate) -> str:
    """Returns a predicate in Spark SQL. Unknown becomes a TRUE expression that is opaque to the rule."""
    op, args = predicate["op"], predicate.get("args", [])
    if op == "unknown":
        return "(rand() >= 0)"
    if op == "sql":
        return str(predicate["sql"])
    if op == "col":
        return ".".join("`" + part.replace("`", "``") + "`" for part in predicate["name"])
    if op == "lit":
        return _literal_sql(predicate["type"], predicate["value"])
    if op == "not":
        return f"(NOT {to_sql(args[0])})"
    if op in ("and", "or"):
        return "(" + f" {op.upper()} ".join(to_sql(arg) for arg in args) + ")"
    first, *rest = [to_sql(arg) for arg in args]
    if op in ("is_null", "is_not_null"):
        return f"({first} IS {'NOT ' if op == 'is_not_null' else ''}NULL)"
    if op == "in":
        return f"({first} IN ({', '.join(rest)}))"
    if op in ("starts_with", "ends_with", "contains"):
        return f"{op.replace('_', '')}({first}, {rest[0]})"
    return f"({first} {op.upper()} {rest[0]})"


def _literal_sql(spark: str, text: Any) -> str:
    if text is None:
        return f"CAST(NULL AS {spark})"
    if spark == "boolean":
        return str(text).upper()
    if spark == "string":
        return f"CAST(X'{text.encode('utf-8').hex()}' AS STRING)"
    if spark == "binary":
        return f"X'{base64.b64decode(text).hex()}'"
    if spark in ("float", "double"):
        return f"CAST('{text}' AS {spark})"
    if spark == "date":
        return f"date_from_unix_date({text})"
    if spark == "timestamp":
        return (
            f"timestamp_micros({text}L)"
            if text != str(-(2**63))
            else "timestamp_micros(-9223372036854775807L - 1L)"
        )
    if spark == "timestamp_ntz":
        return f"CAST(timestamp_micros({text}L) AS TIMESTAMP_NTZ)"
    return f"CAST('{text}' AS {spark})"


# --- fixed examples --------------------------------------------------------------------------------------------------------------


def sorted_examples(name: str) -> list[Any]:
    """Returns a few values of a type, in its order, for checks without random data."""
    if name == "bool":
        return [False, True]
    if name.startswith("float"):
        return [-1.5, 0.0, 2.0]
    if "decimal" in name:
        return [Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")]
    kind = TYPES[name]
    if "string" in name or name == "dictionary<string>":
        return ["", "ab", "b%_"]
    if "binary" in name:
        return [b"\x00ab", b"abc", b"\xffab"]
    return [0, 1, 7] if pa.types.is_integer(kind) else [-3, 0, 7]


def with_null(values: list[Any], kind: pa.DataType) -> Any:
    """Returns the values as an array of a stored type, with a NULL at the end."""
    if pa.types.is_dictionary(kind):
        return pa.array([*values, None]).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array([*values, None], pa.int32() if kind.bit_width == 32 else pa.int64()).view(
            kind
        )
    if pa.types.is_float16(kind):
        return pa.array([*(np.float16(v) for v in values), None], kind)
    return pa.array([*values, None], kind)


def samples(name: str, op: str, value: Any, second: Any) -> list[Predicate]:
    """Returns predicates of one operation on a column `c`, for two of its values."""
    reference = column(["c"], TYPES[name])
    if op == "col":
        return [reference]
    if op in ("is_null", "is_not_null"):
        return [{"op": op, "args": [reference]}]
    if op == "in":
        return [
            {
                "op": op,
                "args": [reference, literal(TYPES[name], value), literal(TYPES[name], second)],
            }
        ]
    if op == "like":
        escaped = "".join(f"\\{c}" if c in "\\%_" else c for c in value)
        return [
            {"op": op, "args": [reference, literal(pa.string(), pattern)], "escape": "\\"}
            for pattern in (escaped, escaped + "%")
        ]
    if op in ("starts_with", "ends_with", "contains"):
        parts = {"starts_with": value[:1], "ends_with": value[-1:], "contains": value[1:2]}
        return [{"op": op, "args": [reference, literal(pa.string(), parts[op])]}]
    return [{"op": op, "args": [reference, literal(TYPES[name], value)]}]


def stored_values(array: Any) -> list[Any]:
    """Values in the form of `leaf_values`: integers for moments, Python objects for the rest."""
    if pa.types.is_dictionary(array.type):
        return stored_values(array.dictionary_decode())
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return list(array.to_pylist())
