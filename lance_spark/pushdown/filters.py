"""Translates Spark predicates to Lance SQL.

The planner rule describes Spark's filter condition as JSON. :func:`translate` turns the JSON into
Lance SQL that selects **at least** the rows that Spark keeps. Spark filters again: extra rows cost
time, and absent rows would be lost. A condition without a faithful translation is therefore left
out.

`LancePredicates.java` sends the JSON:

- `{"op": "and" | "or", "args": [two or more]}`, `{"op": "not", "args": [one]}`
- `{"op": "=" | "<=>" | "<" | "<=" | ">" | ">=", "args": [value, value]}`
- `{"op": "in", "args": [value, literal, ...]}`, with an optional `"most"`: the longest list to send
  to every task, instead of `MAX_IN_VALUES`
- `{"op": "is_null" | "is_not_null", "args": [column]}`
- `{"op": "starts_with" | "ends_with" | "contains", "args": [value, literal]}`
- `{"op": "like", "args": [value, literal], "escape": "<one character>"}`
- `{"op": "unknown"}`: anything else, such as casts, functions, UDFs, subqueries and runtime filters
- a column as value: `{"op": "col", "name": ["a", "b"], "type": "<Spark catalog string>"}`, with the
  path of a field in structs
- a literal as value: `{"op": "lit", "type": "<Spark catalog string>", "value": v}`. `v` is null for
  NULL, a JSON boolean, a string for text, base64 for binary, and else a number as text: integers
  and decimals in plain digits, floats as Java prints them (with `NaN` and `Infinity`), days since
  the epoch for dates, microseconds since the epoch for timestamps
- a boolean column or literal as predicate

Negations move down to the leaves (De Morgan's laws hold in three-valued logic). Each leaf, negated
or not, then needs only its own superset. A leaf without a translation restricts nothing, under AND,
OR and NOT alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from lance_spark.pushdown.literals import (
    NEVER,
    Comparison,
    Domain,
    UntranslatableError,
    domain_of,
    quote,
)

Predicate = Mapping[str, Any]

MAX_IN_VALUES = 1_000
"""Longest IN list to send to every task. 1,000 values parse in 5 to 25 ms, and 10,000 in 40 ms. A
longer list becomes a range."""

MAX_SQL_CHARS = 256 << 10
"""Maximum length of a filter. Each task parses the filter once, at about 4 ms per 10,000
characters."""

MAX_EXACT_CHARS = 16 << 10
"""Maximum length, as JSON, of a predicate that counts as exactly translated. No part of such a
predicate is left out."""

MAX_DEPTH = 16
"""Maximum nesting of AND and OR. Lance's parser fails at about 50 parentheses."""

ROW_COLUMNS = ("_rowid", "_rowaddr")
"""Columns that Lance adds to every table, both uint64."""


def translate(predicate: Predicate, schema: pa.Schema) -> str | None:
    """Returns Lance SQL that selects at least the rows for which a Spark predicate is TRUE.

    Args:
        predicate: The condition as described above.
        schema: Arrow schema of the table as Lance stores it.

    Returns:
        The SQL, or None if no restriction is known. `FALSE` if no row can match.
    """
    sql = _translate(predicate, negated=False, schema=schema, depth=0)
    return None if sql is None or len(sql) > MAX_SQL_CHARS else sql


def is_exact(predicate: Predicate, schema: pa.Schema) -> bool:
    """Tells whether :func:`translate` selects exactly the rows that Spark keeps.

    Lance may then apply a limit above Spark's filter. Always false for long predicates, because
    their translation may leave parts out.
    """
    return len(json.dumps(predicate)) <= MAX_EXACT_CHARS and _is_exact(
        predicate, False, schema, depth=0
    )


def is_comparable(name: str, spark_type: str, schema: pa.Schema) -> bool:
    """Tells whether a top-level column can be compared with literals of its Spark type."""
    try:
        _comparable({"op": "col", "name": [name], "type": spark_type}, schema)
    except UntranslatableError:
        return False
    return True


def _is_exact(predicate: Predicate, negated: bool, schema: pa.Schema, *, depth: int) -> bool:
    op = str(predicate.get("op"))
    if op == "not":
        return _is_exact(predicate["args"][0], not negated, schema, depth=depth)
    if op in ("and", "or"):
        inside = depth < MAX_DEPTH
        return inside and all(
            _is_exact(arg, negated, schema, depth=depth + 1) for arg in predicate["args"]
        )
    try:
        return op in LEAVES and _is_exact_leaf(op, predicate, negated, schema)
    except UntranslatableError:
        return False


def _is_exact_leaf(op: str, predicate: Predicate, negated: bool, schema: pa.Schema) -> bool:
    if LEAVES[op](predicate, negated, schema) is None:
        return False
    args = predicate.get("args", ())
    if op == "like":
        return not _literal_prefix(args[1]["value"] or "", predicate["escape"])[1]
    return len(args) <= MAX_IN_VALUES


def _translate(predicate: Predicate, *, negated: bool, schema: pa.Schema, depth: int) -> str | None:
    """As :func:`translate`, for the predicate or its negation. None restricts nothing."""
    op = predicate.get("op")
    if depth > MAX_DEPTH:
        return None
    if op == "not":
        return _translate(predicate["args"][0], negated=not negated, schema=schema, depth=depth)
    if op in ("and", "or"):
        parts = [
            _translate(arg, negated=negated, schema=schema, depth=depth + 1)
            for arg in predicate["args"]
        ]
        return _all_of(parts) if (op == "and") != negated else _any_of(parts)
    leaf = LEAVES.get(str(op))
    if leaf is None:
        return None
    try:
        return leaf(predicate, negated, schema)
    except UntranslatableError:
        return None


def _all_of(parts: Sequence[str | None]) -> str | None:
    if NEVER in parts:
        return NEVER
    conjuncts: list[str] = []
    room = MAX_SQL_CHARS // 2
    for part in dict.fromkeys(parts):
        # Leaving a conjunct out only lets more rows through.
        if part is not None and len(part) + 7 <= room and not _is_implied(part, parts):
            room -= len(part) + 7
            conjuncts.append(part)
    return (
        " AND ".join(_wrap(part) for part in conjuncts)
        if len(conjuncts) > 1
        else next(iter(conjuncts), None)
    )


def _is_implied(part: str, parts: Sequence[str | None]) -> bool:
    """Tells whether `x IS NOT NULL` follows from another conjunct.

    Spark adds this test to most filters, and an index would be searched for it too.
    """
    column = part.removesuffix(" IS NOT NULL")
    if column == part or " " in column:
        return False
    tests = (
        f"{column} = ",
        f"{column} < ",
        f"{column} <= ",
        f"{column} > ",
        f"{column} >= ",
        f"{column} <> ",
        f"{column} IN (",
    )
    return any(
        conjunct is not None and conjunct.startswith((*tests, f"starts_with({column}, "))
        for conjunct in parts
    )


def _any_of(parts: Sequence[str | None]) -> str | None:
    if any(part is None for part in parts):
        return None
    alternatives = [part for part in dict.fromkeys(parts) if part is not None and part != NEVER]
    if not alternatives:
        return NEVER
    sql = (
        " OR ".join(_wrap(part) for part in alternatives)
        if len(alternatives) > 1
        else alternatives[0]
    )
    return sql if len(sql) <= MAX_SQL_CHARS // 2 else None


def _wrap(sql: str) -> str:
    # Only AND and OR need parentheses, but a string literal may hold these words. The test ignores
    # the difference.
    return f"({sql})" if " AND " in sql or " OR " in sql else sql


@dataclass(frozen=True, slots=True)
class _Column:
    sql: str
    stored: pa.DataType
    domain: Domain | None
    spark_type: str


def _column(value: Predicate, schema: pa.Schema) -> _Column:
    """Finds the stored column of a Spark column.

    Raises:
        UntranslatableError: The value is not a column, is stored differently, is inside a list, or
            has a name that Lance SQL cannot express.
    """
    if value.get("op") != "col":
        raise UntranslatableError
    path: list[str] = list(value["name"])
    # Lance SQL cannot express a backtick in a quoted name (measured: a doubled backtick is taken
    # literally).
    if not all(path) or any("`" in part for part in path):
        raise UntranslatableError
    stored = _stored_type(path, schema)
    return _Column(".".join(f"`{part}`" for part in path), stored, domain_of(stored), value["type"])


def _stored_type(path: list[str], schema: pa.Schema) -> pa.DataType:
    name, *inner_names = path
    indices = schema.get_all_field_indices(name)
    if not indices and not inner_names and name in ROW_COLUMNS:
        return pa.uint64()
    if len(indices) != 1:
        raise UntranslatableError
    field = schema.field(indices[0])
    _refuse_extension(field)
    for part in inner_names:
        if not pa.types.is_struct(field.type) or len(field.type.get_all_field_indices(part)) != 1:
            raise UntranslatableError
        field = field.type.field(part)
        _refuse_extension(field)
    stored: pa.DataType = field.type
    return stored


def _refuse_extension(field: pa.Field[Any]) -> None:
    """Refuses extension types such as blobs and JSON: their stored values differ from Spark's."""
    metadata = field.metadata or {}
    if isinstance(field.type, pa.BaseExtensionType) or any(
        key.startswith((b"ARROW:extension", b"lance-encoding:blob")) for key in metadata
    ):
        raise UntranslatableError


def _comparable(value: Predicate, schema: pa.Schema) -> tuple[_Column, Domain]:
    column = _column(value, schema)
    if column.domain is None or not column.domain.accepts(column.spark_type):
        raise UntranslatableError
    return column, column.domain


def _literal(value: Predicate, domain: Domain) -> Any:  # noqa: ANN401 - a JSON value
    """Returns the JSON value of a literal. None is NULL.

    Raises:
        UntranslatableError: The value is not a literal, or its type does not match the column.
    """
    if value.get("op") != "lit":
        raise UntranslatableError
    if value["value"] is not None and not domain.accepts(value["type"]):
        raise UntranslatableError
    return value["value"]


_NEGATION: dict[Comparison, Comparison] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_MIRROR: dict[Comparison, Comparison] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}


def _compare(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    column_side, value_side = predicate["args"]
    op = cast(Comparison, predicate["op"])
    if column_side.get("op") == "lit":
        column_side, value_side, op = value_side, column_side, _MIRROR[op]
    if negated:
        op = _NEGATION[op]
    column, domain = _comparable(column_side, schema)
    if value_side.get("op") == "col":
        return f"{column.sql} {op} {_same_type(column, value_side, schema).sql}"
    value = _literal(value_side, domain)
    return NEVER if value is None else domain.compare(column.sql, op, value)


def _same_type(column: _Column, second_value: Predicate, schema: pa.Schema) -> _Column:
    """Returns the second column if both columns can be compared.

    Floats cannot: Lance compares NaNs by their bits.
    """
    second, _ = _comparable(second_value, schema)
    if (
        second.stored != column.stored
        or pa.types.is_floating(column.stored)
        or pa.types.is_dictionary(column.stored)
    ):
        raise UntranslatableError
    return second


def _null_safe_equal(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    column_side, value_side = predicate["args"]
    if column_side.get("op") == "lit":
        column_side, value_side = value_side, column_side
    if value_side.get("op") == "lit" and value_side["value"] is None:
        return _null_test(column_side, schema, is_null=not negated)
    column, domain = _comparable(column_side, schema)
    if value_side.get("op") == "col":
        same = "IS DISTINCT FROM" if negated else "IS NOT DISTINCT FROM"
        return f"{column.sql} {same} {_same_type(column, value_side, schema).sql}"
    value = _literal(value_side, domain)
    if not negated:
        return domain.compare(column.sql, "=", value)
    return _any_of([f"{column.sql} IS NULL", domain.compare(column.sql, "<>", value)])


def _in(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    column, domain = _comparable(predicate["args"][0], schema)
    literals = [_literal(arg, domain) for arg in predicate["args"][1:]]
    values = [value for value in dict.fromkeys(literals) if value is not None]
    if negated:
        # x NOT IN (.., NULL) is never TRUE.
        return NEVER if None in literals else _none_of(column, domain, values)
    if len(values) > predicate.get("most", MAX_IN_VALUES):
        return _range(column, domain, values)
    return _one_of(column, domain, values)


def _none_of(column: _Column, domain: Domain, values: Sequence[Any]) -> str | None:
    if len(values) > MAX_IN_VALUES:
        return None
    return _all_of([domain.compare(column.sql, "<>", value) for value in values])


def _one_of(column: _Column, domain: Domain, values: Sequence[Any]) -> str | None:
    equal = f"{column.sql} = "
    tests = [test for value in values if (test := domain.compare(column.sql, "=", value)) != NEVER]
    if len(tests) > 1 and all(test.startswith(equal) for test in tests):
        return f"{column.sql} IN ({', '.join(test.removeprefix(equal) for test in tests)})"
    return _any_of(tests)


def _range(column: _Column, domain: Domain, values: Sequence[Any]) -> str | None:
    """Returns the range of many integers. Spark alone filters other types."""
    if not pa.types.is_integer(column.stored):
        return None
    numbers = [int(value) for value in values]
    return _all_of(
        [
            domain.compare(column.sql, ">=", min(numbers)),
            domain.compare(column.sql, "<=", max(numbers)),
        ]
    )


def _is_null(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    return _null_test(
        predicate["args"][0], schema, is_null=(predicate["op"] == "is_null") != negated
    )


def _null_test(value: Predicate, schema: pa.Schema, *, is_null: bool) -> str:
    return f"{_column(value, schema).sql} IS {'' if is_null else 'NOT '}NULL"


def _column_and_pattern(predicate: Predicate, schema: pa.Schema) -> tuple[_Column, str | None]:
    column, domain = _comparable(predicate["args"][0], schema)
    pattern: str | None = _literal(predicate["args"][1], domain)
    if "string" not in domain.spark_types:
        raise UntranslatableError
    return column, pattern


def _text_match(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    column, pattern = _column_and_pattern(predicate, schema)
    if pattern is None:
        return NEVER
    return f"{'NOT ' if negated else ''}{predicate['op']}({column.sql}, {quote(pattern)})"


def _like(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    """Tests for the prefix before LIKE's first wildcard, a superset without a negation."""
    column, pattern = _column_and_pattern(predicate, schema)
    if pattern is None:
        return NEVER
    prefix, rest = _literal_prefix(pattern, predicate["escape"])
    if not rest:
        return f"{column.sql} {'<>' if negated else '='} {quote(prefix)}"
    if negated or not prefix:
        return None
    return f"starts_with({column.sql}, {quote(prefix)})"


def _literal_prefix(pattern: str, escape: str) -> tuple[str, str]:
    """Returns the text before the first wildcard with resolved escapes, and the rest."""
    prefix = ""
    at = 0
    while at < len(pattern):
        if pattern[at] in "%_":
            break
        if pattern[at] == escape:
            # Spark raises an error for any other character after an escape.
            if pattern[at + 1 : at + 2] not in ("%", "_", escape):
                raise UntranslatableError
            at += 1
        prefix += pattern[at]
        at += 1
    return prefix, pattern[at:]


def _boolean_column(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
    column, domain = _comparable(predicate, schema)
    if "boolean" not in domain.spark_types:
        raise UntranslatableError
    return domain.compare(column.sql, "=", not negated)


def _boolean_literal(predicate: Predicate, negated: bool, _schema: pa.Schema) -> str | None:
    if predicate["type"] != "boolean" and predicate["value"] is not None:
        raise UntranslatableError
    return None if predicate["value"] is (not negated) else NEVER


LEAVES: dict[str, Callable[[Predicate, bool, pa.Schema], str | None]] = {
    "=": _compare,
    "<": _compare,
    "<=": _compare,
    ">": _compare,
    ">=": _compare,
    "<=>": _null_safe_equal,
    "in": _in,
    "is_null": _is_null,
    "is_not_null": _is_null,
    "starts_with": _text_match,
    "ends_with": _text_match,
    "contains": _text_match,
    "like": _like,
    "col": _boolean_column,
    "lit": _boolean_literal,
}
"""Translations by operation. Arguments: predicate, whether it is negated, stored schema."""
