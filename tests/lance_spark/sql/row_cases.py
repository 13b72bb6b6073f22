"""Cases of `DELETE`, `UPDATE` and `MERGE`: rows before, statement, rows after.

Every case of Spark's suites for the three statements has a counterpart with the same name in `Case.covers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_STAFF = pa.schema(
    [pa.field("pk", pa.int32(), nullable=False), ("n", pa.int32()), ("dep", pa.string())]
)
_COORDINATES = pa.struct([("x", pa.int32()), ("y", pa.string())])
_DEEP = pa.struct(
    [
        ("x", pa.int32()),
        ("in", pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.string()))])),
    ]
)
_STRICT = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.int64())])

TABLES = {
    "staff": _STAFF,
    "places": _STAFF.append(pa.field("at", _COORDINATES)),
    "deep": pa.schema([_STAFF.field("pk"), ("s", _DEEP), ("dep", pa.string())]),
    "strict": pa.schema([_STAFF.field("pk"), ("s", _STRICT), ("dep", pa.string())]),
    "keyed": pa.schema(
        [_STAFF.field("pk"), ("id", pa.int32()), ("n", pa.int32()), ("dep", pa.string())]
    ),
    "void": pa.schema([_STAFF.field("pk"), ("v", pa.null()), ("dep", pa.string())]),
    "texts": pa.schema([_STAFF.field("pk"), ("n", pa.string()), ("dep", pa.string())]),
    "numbers": pa.schema([("n", pa.int32())]),
}
"""Schemas by name."""

Rows = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class RowCase:
    """Rows before, a statement and rows after.

    Attributes:
        covers: Name of the case in Spark's suite, with a number where the case has several statements.
        before: Rows of the table.
        statement: Statements, separated by semicolons; `{t}` is the table.
        after: Rows of the table afterwards. By default the rows before.
        fails: Pattern of the error of the last statement.
        table: Name of the schema.
        counts: The numbers that the last statement returns.
    """

    covers: str
    before: Rows
    statement: str
    after: Rows | None = None
    fails: str = ""
    table: str = "staff"
    counts: tuple[int, ...] | None = None


_THREE: Rows = ((1, 100, "a"), (2, 200, "b"), (3, 300, "a"))
_GAP: Rows = ((1, 1, "a"), (2, 2, "b"), (3, None, "a"))
_FIVE: Rows = ((1, 100, "a"), (2, 200, "b"), (3, 300, "a"), (4, 400, "a"), (5, 500, "a"))
_PLACES: Rows = ((1, 1, "a", {"x": 3, "y": "p"}), (2, 2, "b", {"x": 2, "y": "q"}))
_DEEP_ROW: Rows = ((1, {"x": 2, "in": {"a": [1, 2], "m": [("k", "w")]}}, "a"),)
_STRICT_ROWS: Rows = tuple((i, {"a": i, "b": 11 * i}, "a") for i in (1, 2))
_NUMBERS: Rows = ((1,), (9,), (8,), (4,))
_RECURSIVE = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 5) "

_IDS = "(SELECT v FROM VALUES (1), (NULL) AS d(v))"
_PLAIN_IDS = "(SELECT v FROM VALUES (1), (NULL) AS d(v) WHERE v IS NOT NULL)"
_DEPS = "(SELECT v FROM VALUES ('b') AS d(v))"
_NO_IDS = "(SELECT id FROM range(0))"

_CONDITIONS: dict[str, tuple[Rows, str, set[int]]] = {
    "basic filters": (_GAP, "n <= 1", {1}),
    "literal false condition": (_GAP, "false", set()),
    "literal true condition": (_GAP, "true", {1, 2, 3}),
    "NULL condition on non-null column": (_GAP, "pk = NULL", set()),
    "NULL equality": (((1, 1, None), (2, 2, "a")), "dep = NULL", set()),
    "NULL-safe equality": (((1, 1, None), (2, 2, "a")), "dep <=> NULL", {1}),
    "non-existing records": (_GAP, "n > 1000", set()),
    "IN predicates": (_GAP, "n IN (1, NULL)", {1}),
    "NOT IN predicates 1": (_GAP, "n NOT IN (NULL, 1)", set()),
    "NOT IN predicates 2": (_GAP, "n NOT IN (1, 10)", {2}),
    "IN subqueries 1": (_GAP, f"n IN {_IDS} AND dep IN (SELECT v FROM VALUES ('a') AS d(v))", {1}),
    "IN subqueries 2": (
        _GAP,
        "n IS NULL OR n IN (SELECT v + 1 FROM VALUES (1), (NULL) AS d(v))",
        {2, 3},
    ),
    "IN subqueries 3": (
        _GAP,
        "n IN (SELECT v + 2 FROM VALUES (0), (NULL) AS d(v)) AND dep = 'a'",
        set(),
    ),
    "multi-column IN subqueries": (
        _GAP,
        "(n, dep) IN (SELECT * FROM VALUES (1, 'a'), (2, 'z') AS d(v, w))",
        {1},
    ),
    "NOT IN subqueries 1": (_GAP, f"n NOT IN {_IDS}", set()),
    "NOT IN subqueries 2": (_GAP, f"n NOT IN {_PLAIN_IDS}", {2}),
    "NOT IN subqueries 3": (_GAP, f"n NOT IN {_IDS} OR dep IN ('b', 'z')", {2}),
    "NOT IN subqueries 4": (
        _GAP,
        f"n NOT IN {_PLAIN_IDS} AND EXISTS (SELECT 1 FROM {_DEPS} d WHERE dep = d.v)",
        {2},
    ),
    "NOT IN subqueries 5": (
        _GAP,
        f"t.n NOT IN {_PLAIN_IDS} OR EXISTS (SELECT 1 FROM {_DEPS} d WHERE t.dep = d.v)",
        {2},
    ),
    "NOT IN over empty subquery": (_GAP, f"n NOT IN {_NO_IDS}", {1, 2, 3}),
    "EXISTS subquery 1": (_GAP, f"EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v)", {1}),
    "EXISTS subquery 2": (_GAP, f"EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v + 1)", {2}),
    "EXISTS subquery 3": (
        _GAP,
        f"EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v) OR t.n IS NULL",
        {1, 3},
    ),
    "EXISTS subquery 4": (
        _GAP,
        f"EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v) AND EXISTS (SELECT 1 FROM {_DEPS} e WHERE t.dep = e.v)",
        set(),
    ),
    "NOT EXISTS subquery 1": (
        _GAP,
        f"NOT EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v + 1) AND NOT EXISTS (SELECT 1 FROM {_DEPS} e WHERE t.dep = e.v)",
        {1, 3},
    ),
    "NOT EXISTS subquery 2": (
        _GAP,
        f"NOT EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v + 1)",
        {1, 3},
    ),
    "NOT EXISTS subquery 3": (
        _GAP,
        f"NOT EXISTS (SELECT 1 FROM {_IDS} d WHERE t.n = d.v) OR t.n = 1",
        {1, 2, 3},
    ),
    "a scalar subquery": (_GAP, "n <= (SELECT min(v) FROM VALUES (1), (9), (NULL) AS d(v))", {1}),
    "subquery on source table": (_GAP, "pk IN (SELECT pk FROM {t} WHERE dep = 'a')", {1, 3}),
    "supported predicates 1": (_THREE, "dep = 'a'", {1, 3}),
    "supported predicates 2": (_THREE, "n = 100 OR n < 300", {1, 2}),
    "unsupported predicates": (_THREE, "abs(n) = 300 AND length(dep) < 2", {3}),
    "a group of rows and a subquery": (_THREE, "dep = 'a' AND n IN (SELECT 100)", {1}),
    "rows of several fragments": (_FIVE, "pk IN (2, 100) OR n BETWEEN 400 AND 500", {2, 4, 5}),
    "metadata columns": (_THREE, "_rowid IN (SELECT _rowid FROM {t} WHERE n = 200)", {2}),
    "aliases": (_THREE, "t.n <= 100 OR t.dep = 'b'", {1, 2}),
}


def _without(rows: Rows, keys: set[int]) -> Rows:
    return tuple(row for row in rows if row[0] not in keys)


def _with_dep(rows: Rows, keys: set[int], dep: str) -> Rows:
    return tuple((*row[:2], dep) if row[0] in keys else row for row in rows)


_BY_CONDITION = (
    *(
        RowCase(
            f"delete with {name}",
            rows,
            f"DELETE FROM {{t}} AS t WHERE {condition}",
            _without(rows, keys),
            counts=(len(keys),),
        )
        for name, (rows, condition, keys) in _CONDITIONS.items()
    ),
    *(
        RowCase(
            f"update with {name}",
            rows,
            f"UPDATE {{t}} AS t SET dep = 'new' WHERE {condition}",
            _with_dep(rows, keys, "new"),
            counts=(len(keys),),
        )
        for name, (rows, condition, keys) in _CONDITIONS.items()
    ),
)

DELETES = (
    RowCase("delete without condition", _THREE, "DELETE FROM {t}", ()),
    RowCase("delete from empty tables", (), "DELETE FROM {t} WHERE n <= 1", ()),
    RowCase("EXPLAIN only delete", _THREE, "EXPLAIN DELETE FROM {t} WHERE n <= 1000"),
    RowCase(
        "delete with analysis failure",
        _THREE,
        "DELETE FROM {t} WHERE none = 1",
        fails="UNRESOLVED_COLUMN",
    ),
    RowCase(
        "delete with nondeterministic conditions",
        _THREE,
        "DELETE FROM {t} WHERE n <= 100 AND rand() > 0.5",
        fails="INVALID_NON_DETERMINISTIC_EXPRESSIONS",
    ),
    RowCase(
        "delete with conditions on nested columns 1",
        _PLACES,
        "DELETE FROM {t} WHERE at.x = n + 2",
        _PLACES[1:],
        table="places",
    ),
    RowCase(
        "delete with conditions on nested columns 2",
        _PLACES,
        "DELETE FROM {t} t WHERE t.at.x = n",
        _PLACES[:1],
        table="places",
    ),
    RowCase(
        "delete with NULL equality on VOID column",
        ((1, None, "a"), (2, None, "b")),
        "DELETE FROM {t} WHERE v = NULL",
        table="void",
    ),
    RowCase(
        "delete from table with recursive CTE",
        _NUMBERS,
        _RECURSIVE + "DELETE FROM {t} WHERE n IN (SELECT n FROM s)",
        ((8,), (9,)),
        table="numbers",
    ),
    RowCase(
        "delete with CTE",
        _THREE,
        "WITH old AS (SELECT pk FROM {t} WHERE dep = 'a') DELETE FROM {t} WHERE pk IN (SELECT pk FROM old)",
        _THREE[1:2],
    ),
    RowCase(
        "delete using view",
        _THREE,
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT pk FROM {t} WHERE dep = 'a'; "
        "DELETE FROM {t} WHERE pk IN (SELECT pk FROM of_rows)",
        _THREE[1:2],
    ),
    RowCase(
        "delete refreshes relation cache",
        ((1, 1, "a"), (2, 1, "b"), (3, 2, "b")),
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT * FROM {t} WHERE n = 1; CACHE TABLE of_rows; "
        "DELETE FROM {t} WHERE pk = 1; INSERT INTO {t} SELECT pk + 10, n, dep FROM of_rows; UNCACHE TABLE of_rows",
        ((2, 1, "b"), (3, 2, "b"), (12, 1, "b")),
    ),
    RowCase(
        "delete from table containing added column with default value",
        _THREE,
        "ALTER TABLE {t} ADD COLUMN txt STRING DEFAULT 'first'",
        fails="DEFAULT|default",
    ),
    RowCase(
        "delete from table with table constraints",
        _THREE,
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (pk > 0)",
        fails="CONSTRAINT|constraint",
    ),
)

UPDATES = (
    RowCase(
        "update without condition",
        _THREE,
        "UPDATE {t} SET n = -1",
        tuple((i, -1, d) for i, _, d in _THREE),
    ),
    RowCase("update empty tables", (), "UPDATE {t} SET dep = 'x' WHERE n <= 1", ()),
    RowCase("EXPLAIN only update", _THREE, "EXPLAIN UPDATE {t} SET dep = 'x' WHERE pk = 1"),
    RowCase(
        "update aligns assignments",
        ((1, 11, "a"), (2, 22, "a")),
        "UPDATE {t} SET `dep` = concat(dep, n), n = `n` - pk WHERE pk <=> 1",
        ((1, 10, "a11"), (2, 22, "a")),
    ),
    RowCase(
        "update with analysis failure",
        _THREE,
        "UPDATE {t} SET none = -1",
        fails="UNRESOLVED_COLUMN",
    ),
    RowCase(
        "update with assignments to row ID",
        _THREE,
        "UPDATE {t} SET pk = 10 WHERE n = 100",
        ((10, 100, "a"), *_THREE[1:]),
    ),
    RowCase(
        "update with default values",
        _THREE,
        "UPDATE {t} SET n = DEFAULT WHERE pk = 1",
        ((1, None, "a"), *_THREE[1:]),
    ),
    RowCase(
        "update with nondeterministic conditions",
        _THREE,
        "UPDATE {t} SET dep = 'x' WHERE n <= 100 AND rand() > 0.5",
        fails="INVALID_NON_DETERMINISTIC_EXPRESSIONS",
    ),
    RowCase(
        "update with nondeterministic assignments",
        _THREE,
        "UPDATE {t} SET n = CAST(rand() AS INT) WHERE pk <= 2",
        ((1, 0, "a"), (2, 0, "b"), (3, 300, "a")),
    ),
    RowCase(
        "update with constraint violation",
        _THREE,
        "UPDATE {t} SET pk = NULL WHERE dep = 'a'",
        fails="NOT_NULL|NULL",
    ),
    RowCase(
        "update with NOT NULL checks",
        _STRICT_ROWS,
        "UPDATE {t} SET s = named_struct('a', NULL, 'b', -1L) WHERE pk = 1",
        fails="NOT_NULL_ASSERT_VIOLATION|NULL",
        table="strict",
    ),
    RowCase(
        "update nested struct fields 1",
        _DEEP_ROW,
        "UPDATE {t} SET s.x = -1, s.in.m = map('k', 'v'), s.in.a = array(-1)",
        ((1, {"x": -1, "in": {"a": [-1], "m": [("k", "v")]}}, "a"),),
        table="deep",
    ),
    RowCase(
        "update nested struct fields 2",
        _DEEP_ROW,
        "UPDATE {t} SET s.x = NULL, s.in = NULL WHERE pk = 1",
        ((1, {"x": None, "in": None}, "a"),),
        table="deep",
    ),
    RowCase(
        "update nested struct fields 3",
        _DEEP_ROW,
        "UPDATE {t} SET s = named_struct('x', 1, 'in', named_struct('a', array(1), 'm', NULL))",
        ((1, {"x": 1, "in": {"a": [1], "m": None}}, "a"),),
        table="deep",
    ),
    RowCase(
        "update fields inside NULL structs",
        ((1, 1, "a", None),),
        "UPDATE {t} SET at.x = -1 WHERE pk = 1",
        ((1, 1, "a", {"x": -1, "y": None}),),
        table="places",
    ),
    RowCase(
        "update with conditions on nested columns",
        _PLACES,
        "UPDATE {t} SET n = -1 WHERE at.x = n + 2",
        ((1, -1, "a", {"x": 3, "y": "p"}), _PLACES[1]),
        table="places",
    ),
    RowCase(
        "update with schema pruning",
        tuple((*row, {"x": 1, "y": "p"}) for row in _THREE),
        "UPDATE {t} SET n = -1, dep = 'x' WHERE pk = 1",
        ((1, -1, "x", {"x": 1, "y": "p"}), *((*row, {"x": 1, "y": "p"}) for row in _THREE[1:])),
        table="places",
    ),
    RowCase(
        "update table with recursive CTE",
        _NUMBERS,
        _RECURSIVE + "UPDATE {t} SET n = n + 1 WHERE n IN (SELECT n FROM s)",
        ((2,), (5,), (8,), (9,)),
        table="numbers",
    ),
    RowCase(
        "update with CTE",
        _THREE,
        "WITH more AS (SELECT pk, n + 50 AS n, dep FROM {t} WHERE n > 100) "
        "UPDATE {t} t SET n = -1 WHERE t.dep = 'a' AND EXISTS (SELECT 1 FROM more WHERE more.pk = t.pk)",
        (*_THREE[:2], (3, -1, "a")),
    ),
    RowCase(
        "update with uncorrelated scalar subquery on source table",
        _THREE,
        "UPDATE {t} SET n = (SELECT max(n) FROM {t} WHERE dep = 'a') WHERE dep = 'a'",
        ((1, 300, "a"), *_THREE[1:]),
    ),
    RowCase(
        "update using view",
        _THREE,
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT l.pk, r.dep FROM {t} l LEFT JOIN {t} r ON l.pk = r.pk AND r.pk < 2; "
        "UPDATE {t} t SET n = -1 WHERE t.dep = 'a' AND EXISTS (SELECT 1 FROM of_rows v WHERE v.pk = t.pk AND v.dep = 'a')",
        ((1, -1, "a"), *_THREE[1:]),
    ),
    RowCase(
        "update refreshes relation cache",
        ((1, 1, "a"), (2, 1, "b"), (3, 2, "b")),
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT * FROM {t} WHERE n = 1; CACHE TABLE of_rows; "
        "UPDATE {t} SET n = n + 10 WHERE pk = 1; INSERT INTO {t} SELECT pk + 10, n, dep FROM of_rows; UNCACHE TABLE of_rows",
        ((1, 11, "a"), (2, 1, "b"), (3, 2, "b"), (12, 1, "b")),
    ),
    RowCase(
        "update table containing added column with default value",
        _THREE,
        "ALTER TABLE {t} ADD COLUMN txt STRING; UPDATE {t} SET dep = DEFAULT WHERE pk = 2; ALTER TABLE {t} ALTER COLUMN txt SET DEFAULT 'x'",
        tuple((*row, None) for row in ((1, 100, "a"), (2, 200, None), (3, 300, "a"))),
        fails="DEFAULT|default",
    ),
    RowCase(
        "update char/varchar columns",
        _THREE,
        "ALTER TABLE {t} ADD COLUMN s STRUCT<c: CHAR(3), v: VARCHAR(5)>; UPDATE {t} SET s = named_struct('c', 'z', 'v', 'z'); "
        "UPDATE {t} SET s.c = 'x', s.v = 'y' WHERE dep = 'a'",
        tuple(
            (*row, {"c": "x  " if row[2] == "a" else "z  ", "v": "y" if row[2] == "a" else "z"})
            for row in _THREE
        ),
    ),
)


def _merge(source: str, *clauses: str, on: str = "t.pk = s.pk") -> str:
    return f"MERGE INTO {{t}} t USING {source} s ON {on} {' '.join(clauses)}"


def _values(*rows: tuple[Any, ...], columns: str = "pk, n, dep") -> str:
    literals = (
        ", ".join("NULL" if value is None else repr(value) for value in row) for row in rows
    )
    return f"(SELECT * FROM VALUES {', '.join(f'({row})' for row in literals)} AS v({columns}))"


_SOURCE = _values((1, 10, "x"), (2, 20, "y"), (3, 30, "z"))
_FROM_TWO = _values((2, 20, "y"), (4, 40, "z"))
_TWICE = f"(SELECT * FROM {_values((1, 10, 'x'))} UNION ALL SELECT * FROM {_values((1, 11, 'y'))})"
_INSERT = "WHEN NOT MATCHED THEN INSERT *"
_UPDATE = "WHEN MATCHED THEN UPDATE SET *"
_MATCHED, _NOT_MATCHED, _BY_SOURCE = (
    "WHEN MATCHED THEN",
    "WHEN NOT MATCHED THEN",
    "WHEN NOT MATCHED BY SOURCE THEN",
)
_CONDITIONAL = _values((1, 10, "x"), (2, 20, "y"), (6, 60, "z"))

MERGES = (
    RowCase(
        "merge into empty table with NOT MATCHED clause",
        (),
        _merge(_SOURCE, _INSERT),
        ((1, 10, "x"), (2, 20, "y"), (3, 30, "z")),
    ),
    RowCase(
        "merge into empty table with conditional NOT MATCHED clause",
        (),
        _merge(_SOURCE, "WHEN NOT MATCHED AND s.pk >= 2 THEN INSERT *"),
        ((2, 20, "y"), (3, 30, "z")),
    ),
    RowCase(
        "merge into empty table with multiple NOT MATCHED clause",
        (),
        _merge(
            _SOURCE,
            "WHEN NOT MATCHED AND s.pk >= 2 THEN INSERT *",
            "WHEN NOT MATCHED THEN INSERT (pk, dep) VALUES (s.pk, 'low')",
        ),
        ((1, None, "low"), (2, 20, "y"), (3, 30, "z")),
    ),
    RowCase(
        "merge into table rewritten as INSERT",
        _THREE,
        _merge(
            _values((3, 1, "x"), (4, 40, "y"), (5, 50, "z")),
            "WHEN NOT MATCHED AND s.pk < 5 THEN INSERT (pk, n, dep) VALUES (s.pk, -s.n, concat(s.dep, '_low'))",
            "WHEN NOT MATCHED AND s.pk >= 5 THEN INSERT (pk, n, dep) VALUES (s.pk, s.n, concat(s.dep, '_high'))",
        ),
        (*_THREE, (4, -40, "y_low"), (5, 50, "z_high")),
    ),
    RowCase(
        "merge with literal false ON condition",
        _THREE,
        _merge(_SOURCE, f"{_MATCHED} UPDATE SET t.n = -1", on="false"),
    ),
    RowCase(
        "merge with literal true ON condition",
        _THREE,
        _merge(_SOURCE, f"{_MATCHED} UPDATE SET t.n = -1", on="true"),
        fails="MERGE_CARDINALITY_VIOLATION",
    ),
    RowCase(
        "merge with statically empty source and only MATCHED clauses",
        _THREE,
        _merge("(SELECT 1 AS pk WHERE false)", f"{_MATCHED} UPDATE SET t.n = -1"),
    ),
    RowCase(
        "merge into with conditional WHEN MATCHED clause (update)",
        _THREE,
        _merge(_SOURCE, "WHEN MATCHED AND s.pk = 2 THEN UPDATE SET *"),
        (_THREE[0], (2, 20, "y"), _THREE[2]),
    ),
    RowCase(
        "merge into with conditional WHEN MATCHED clause (delete)",
        _THREE,
        _merge(_SOURCE, "WHEN MATCHED AND t.n = 200 THEN DELETE"),
        (_THREE[0], _THREE[2]),
    ),
    RowCase(
        "merge into with assignments to primary key in NOT MATCHED BY SOURCE",
        _THREE[:2],
        _merge(
            _values((1, 10, "x")),
            f"{_MATCHED} UPDATE SET t.n = -1",
            f"{_BY_SOURCE} UPDATE SET t.pk = -1",
        ),
        ((-1, 200, "b"), (1, -1, "a")),
    ),
    RowCase(
        "merge into with assignments to primary key in MATCHED",
        _THREE[:2],
        _merge(
            _values((1, 10, "x")),
            f"{_MATCHED} UPDATE SET t.pk = -1",
            f"{_BY_SOURCE} UPDATE SET t.n = -1",
        ),
        ((-1, 100, "a"), (2, -1, "b")),
    ),
    RowCase(
        "merge with all types of clauses",
        _FIVE,
        _merge(
            _values((3, 0, "x"), (4, 0, "x"), (5, 0, "x"), (6, 0, "x")),
            f"{_MATCHED} UPDATE SET t.n = t.n + 1",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, 0, 'new')",
            f"{_BY_SOURCE} DELETE",
        ),
        ((3, 301, "a"), (4, 401, "a"), (5, 501, "a"), (6, 0, "new")),
    ),
    RowCase(
        "merge with all types of clauses (update and insert star)",
        _THREE,
        _merge(
            _CONDITIONAL,
            "WHEN MATCHED AND t.pk = 1 THEN UPDATE SET *",
            "WHEN NOT MATCHED AND s.pk = 6 THEN INSERT *",
            "WHEN NOT MATCHED BY SOURCE AND t.pk = t.n / 100 THEN DELETE",
        ),
        ((1, 10, "x"), (2, 200, "b"), (6, 60, "z")),
    ),
    RowCase(
        "merge with all types of conditional clauses",
        _FIVE,
        _merge(
            _values((3, 0, "x"), (4, 0, "x"), (6, 0, "x"), (7, 0, "x")),
            "WHEN MATCHED AND t.pk = 4 THEN UPDATE SET t.n = t.n + 1",
            "WHEN NOT MATCHED AND pk = 6 THEN INSERT (pk, n, dep) VALUES (s.pk, 0, 'new')",
            "WHEN NOT MATCHED BY SOURCE AND n = 100 THEN DELETE",
        ),
        (_FIVE[1], _FIVE[2], (4, 401, "a"), _FIVE[4], (6, 0, "new")),
    ),
    RowCase(
        "merge with one NOT MATCHED BY SOURCE clause",
        _THREE,
        _merge(_FROM_TWO, f"{_BY_SOURCE} DELETE"),
        _THREE[1:2],
    ),
    RowCase(
        "merge with one conditional NOT MATCHED BY SOURCE clause",
        _THREE,
        _merge(_FROM_TWO, "WHEN NOT MATCHED BY SOURCE AND n = 100 THEN UPDATE SET n = -1"),
        ((1, -1, "a"), *_THREE[1:]),
    ),
    RowCase(
        "merge with MATCHED and NOT MATCHED BY SOURCE clauses",
        _THREE,
        _merge(
            _FROM_TWO,
            f"{_MATCHED} DELETE",
            "WHEN NOT MATCHED BY SOURCE AND n = 100 THEN UPDATE SET n = -1",
        ),
        ((1, -1, "a"), _THREE[2]),
    ),
    RowCase(
        "merge with NOT MATCHED and NOT MATCHED BY SOURCE clauses",
        _THREE,
        _merge(
            _FROM_TWO,
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (pk, -1, 'new')",
            f"{_BY_SOURCE} DELETE",
        ),
        (_THREE[1], (4, -1, "new")),
    ),
    RowCase(
        "merge with multiple NOT MATCHED BY SOURCE clauses",
        _THREE,
        _merge(
            _FROM_TWO,
            "WHEN NOT MATCHED BY SOURCE AND n = 100 THEN UPDATE SET n = n + 1",
            "WHEN NOT MATCHED BY SOURCE AND n = 300 THEN DELETE",
        ),
        ((1, 101, "a"), _THREE[1]),
    ),
    RowCase(
        "merge with MATCHED BY SOURCE clause and NULL values",
        ((1, None, 100, "a"), (2, 2, 200, "b"), (3, 3, 300, "a")),
        _merge(
            _values((1, None, 10, "x"), (6, 2, 20, "y"), (7, 3, 30, "z"), columns="pk, id, n, dep"),
            _UPDATE,
            on="t.id = s.id AND t.id < 3",
        ),
        ((1, None, 100, "a"), (3, 3, 300, "a"), (6, 2, 20, "y")),
        table="keyed",
    ),
    RowCase(
        "merge with CTE",
        _THREE,
        f"WITH c AS (SELECT pk + 1 AS pk, n, dep FROM {_values((0, 10, 'x'), (1, 20, 'y'))}) "
        + _merge("c", _UPDATE),
        ((1, 10, "x"), (2, 20, "y"), _THREE[2]),
    ),
    RowCase(
        "merge with CTE over the target",
        _THREE,
        "WITH c AS (SELECT pk, n + 50 AS n, dep FROM {t} WHERE n > 100) "
        + _merge(
            "c",
            f"{_MATCHED} UPDATE SET n = s.n",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, s.n, 'new')",
            on="t.pk = s.pk AND t.dep = 'a'",
        ),
        ((1, 100, "a"), (2, 200, "b"), (2, 250, "new"), (3, 350, "a")),
    ),
    RowCase(
        "merge with cached source",
        _THREE,
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT pk, n * 2 AS n, dep FROM {t} WHERE pk > 1; CACHE TABLE of_rows; "
        + _merge("of_rows", f"{_MATCHED} UPDATE SET n = s.n", f"{_BY_SOURCE} DELETE")
        + "; UNCACHE TABLE of_rows",
        ((2, 400, "b"), (3, 600, "a")),
    ),
    RowCase(
        "merge with subquery as source",
        ((1, 100, "a"), (6, 600, "b")),
        _merge(
            f"(SELECT * FROM {_SOURCE} WHERE pk = 2 UNION ALL SELECT * FROM {_SOURCE} WHERE pk IN (1, 6))",
            _UPDATE,
            _INSERT,
        ),
        ((1, 10, "x"), (2, 20, "y"), (6, 600, "b")),
    ),
    RowCase(
        "merge cardinality check with conditional MATCHED clause (delete)",
        _THREE,
        _merge(_TWICE, "WHEN MATCHED AND s.n = 11 THEN DELETE"),
        fails="MERGE_CARDINALITY_VIOLATION",
    ),
    RowCase(
        "merge cardinality check with unconditional MATCHED clause (delete)",
        _THREE,
        _merge(_TWICE, f"{_MATCHED} DELETE"),
        _THREE[1:],
    ),
    RowCase(
        "merge cardinality check with only NOT MATCHED clauses",
        _THREE,
        _merge(
            f"(SELECT * FROM {_TWICE} UNION ALL SELECT 4, 40, 'z' UNION ALL SELECT 4, 41, 'z')",
            _INSERT,
        ),
        (*_THREE, (4, 40, "z"), (4, 41, "z")),
    ),
    RowCase(
        "merge cardinality check with small target and large source",
        _THREE,
        _merge(
            f"(SELECT * FROM {_TWICE} UNION ALL SELECT CAST(id AS INT), 0, 'z' FROM range(10, 2000))",
            _UPDATE,
        ),
        fails="MERGE_CARDINALITY_VIOLATION",
    ),
    RowCase(
        "merge cardinality check without equality condition and only MATCHED clauses",
        _THREE,
        _merge(_TWICE, _UPDATE, on="t.pk > s.pk"),
        fails="MERGE_CARDINALITY_VIOLATION",
    ),
    RowCase(
        "merge cardinality check without equality condition",
        _THREE,
        _merge(_TWICE, _UPDATE, _INSERT, on="t.pk > s.pk"),
        fails="MERGE_CARDINALITY_VIOLATION",
    ),
    RowCase(
        "self merge",
        _THREE,
        _merge("{t}", "WHEN MATCHED AND t.n = 100 THEN UPDATE SET n = t.n + 1", _INSERT),
        ((1, 101, "a"), *_THREE[1:]),
    ),
    RowCase(
        "merge with self subquery",
        _THREE,
        _merge(
            "(SELECT r.pk FROM {t} r JOIN (SELECT * FROM VALUES (1), (2), (9) AS d(v)) ON r.pk = v)",
            "WHEN MATCHED AND t.n = 100 THEN UPDATE SET n = t.n + 1",
            f"{_NOT_MATCHED} INSERT (dep, n, pk) VALUES ('new', 300, 1)",
        ),
        ((1, 101, "a"), *_THREE[1:]),
    ),
    RowCase(
        "self merge with a filter",
        _THREE,
        _merge(
            "(SELECT * FROM {t} WHERE n <= 200)",
            f"{_MATCHED} UPDATE SET n = t.n + 1",
            _INSERT,
            on="t.pk = s.pk AND t.dep = 'a'",
        ),
        ((1, 101, "a"), (2, 200, "b"), (2, 200, "b"), (3, 300, "a")),
    ),
    RowCase(
        "merge with extra columns in source",
        _THREE,
        _merge(
            _values(("z", 1, 10, "x"), ("z", 4, 40, "y"), columns="extra, pk, n, dep"),
            f"{_MATCHED} UPDATE SET n = s.n + 1",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, s.n, s.dep)",
            f"{_BY_SOURCE} DELETE",
        ),
        ((1, 11, "a"), (4, 40, "y")),
    ),
    *(
        RowCase(
            name,
            ((1, None, 100, "a"), (2, 2, 200, "b")),
            _merge(
                _values((5, None, 10, "x"), (6, 2, 20, "y"), columns="pk, id, n, dep"),
                _UPDATE if "ON" not in name else f"{_MATCHED} UPDATE SET n = s.n",
                _INSERT,
                on=on,
            ),
            after,
            table="keyed",
        )
        for name, on, after in (
            (
                "merge with NULL values in target and source",
                "t.id = s.id",
                ((1, None, 100, "a"), (5, None, 10, "x"), (6, 2, 20, "y")),
            ),
            ("merge with <=>", "t.id <=> s.id", ((5, None, 10, "x"), (6, 2, 20, "y"))),
            (
                "merge with NULL ON condition",
                "t.id = s.id AND NULL",
                ((1, None, 100, "a"), (2, 2, 200, "b"), (5, None, 10, "x"), (6, 2, 20, "y")),
            ),
        )
    ),
    RowCase(
        "merge with NULL clause conditions",
        _THREE,
        _merge(
            _FROM_TWO,
            "WHEN MATCHED AND NULL THEN UPDATE SET n = s.n",
            "WHEN NOT MATCHED AND NULL THEN INSERT *",
            "WHEN NOT MATCHED BY SOURCE AND NULL THEN DELETE",
        ),
    ),
    RowCase(
        "merge with multiple matching clauses",
        _THREE,
        _merge(
            _values((1, 10, "x")),
            "WHEN MATCHED AND t.pk = 1 THEN UPDATE SET n = t.n + 5",
            "WHEN MATCHED AND t.n = 100 THEN UPDATE SET n = t.n + 2",
            "WHEN NOT MATCHED BY SOURCE AND t.pk = 2 THEN UPDATE SET n = n - 1",
            "WHEN NOT MATCHED BY SOURCE AND t.n = 200 THEN DELETE",
        ),
        ((1, 105, "a"), (2, 199, "b"), (3, 300, "a")),
    ),
    RowCase(
        "merge resolves and aligns columns by name",
        _THREE,
        _merge(_values((10, "x", 1), (40, "y", 4), columns="n, dep, pk"), _UPDATE, _INSERT),
        ((1, 10, "x"), *_THREE[1:], (4, 40, "y")),
    ),
    RowCase(
        "merge refreshed relation cache",
        ((1, 100, "a"), (2, 100, "b"), (3, 300, "a")),
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT * FROM {t} WHERE n = 100; CACHE TABLE of_rows; "
        + _merge(_values((1, 5, "x")), _UPDATE)
        + "; INSERT INTO {t} SELECT pk + 10, n, dep FROM of_rows; UNCACHE TABLE of_rows",
        ((1, 5, "x"), (2, 100, "b"), (3, 300, "a"), (12, 100, "b")),
    ),
    *(
        RowCase(
            f"merge with updates to nested struct fields in {kind} clauses {number}",
            _DEEP_ROW,
            _merge(f"(SELECT {key} AS pk)", f"{clause} UPDATE SET {assignments}")
            .replace(" s ON", " src ON")
            .replace("s.pk", "src.pk"),
            ((1, value, "a"),),
            table="deep",
        )
        for kind, key, clause in (
            ("MATCHED", 1, _MATCHED),
            ("NOT MATCHED BY SOURCE", 5, _BY_SOURCE),
        )
        for number, (assignments, value) in enumerate(
            (
                (
                    "s.x = -1, s.in.m = map('k', 'v'), s.in.a = array(-1)",
                    {"x": -1, "in": {"a": [-1], "m": [("k", "v")]}},
                ),
                ("s.x = NULL, s.in = NULL", {"x": None, "in": None}),
                (
                    "s = named_struct('x', 1, 'in', named_struct('a', array(1), 'm', NULL))",
                    {"x": 1, "in": {"a": [1], "m": None}},
                ),
            ),
            1,
        )
    ),
    RowCase(
        "merge with default values",
        _THREE,
        _merge(
            _FROM_TWO,
            f"{_MATCHED} UPDATE SET n = DEFAULT",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, DEFAULT, 'new')",
            f"{_BY_SOURCE} UPDATE SET dep = DEFAULT",
        ),
        ((1, 100, None), (2, None, "b"), (3, 300, None), (4, None, "new")),
    ),
    RowCase(
        "merge into table containing added column with default value",
        _THREE,
        "CREATE TABLE {t}_default (pk INT NOT NULL, n INT NOT NULL DEFAULT -1)",
        fails="DEFAULT|default",
    ),
    RowCase(
        "merge with char/varchar columns",
        _THREE,
        "ALTER TABLE {t} ADD COLUMN s STRUCT<c: CHAR(3), v: VARCHAR(5)>; "
        "UPDATE {t} SET s = named_struct('c', 'z', 'v', 'z'); "
        + _merge(
            "(SELECT 1 AS pk)",
            f"{_MATCHED} UPDATE SET s.c = 'x1', s.v = 'x2'",
            f"{_BY_SOURCE} UPDATE SET s.c = 'y1', s.v = 'y2'",
        ).replace(" s ON t.pk = s.pk", " src ON t.pk = src.pk"),
        tuple(
            (*row, {"c": "x1 " if row[0] == 1 else "y1 ", "v": "x2" if row[0] == 1 else "y2"})
            for row in _THREE
        ),
    ),
    *(
        RowCase(
            f"merge with NOT NULL checks in {kind}",
            _STRICT_ROWS,
            _merge(f"(SELECT {key} AS pk)", f"{clause} {action}").replace(
                " s ON t.pk = s.pk", " src ON t.pk = src.pk"
            ),
            fails="NOT_NULL_ASSERT_VIOLATION|NULL",
            table="strict",
        )
        for kind, key, clause, action in (
            ("MATCHED", 1, _MATCHED, "UPDATE SET s = named_struct('a', NULL, 'b', -1L)"),
            (
                "NOT MATCHED BY SOURCE",
                7,
                _BY_SOURCE,
                "UPDATE SET s = named_struct('a', NULL, 'b', -1L)",
            ),
            (
                "NOT MATCHED",
                7,
                _NOT_MATCHED,
                "INSERT (pk, s, dep) VALUES (7, named_struct('a', NULL, 'b', -1L), 'x')",
            ),
        )
    ),
    *(
        RowCase(
            f"unsupported merge into conditions: {condition} in {place}",
            _THREE,
            statement,
            fails="MERGE|AGGREGATE|DETERMINISTIC",
        )
        for condition in ("s.pk < rand()", "max(s.pk) < 10", "s.pk IN (SELECT pk FROM {t})")
        for place, statement in {
            "ON": _merge(_SOURCE, _UPDATE, on=f"t.pk = s.pk AND {condition}"),
            "UPDATE": _merge(_SOURCE, f"WHEN MATCHED AND {condition} THEN UPDATE SET *"),
            "DELETE": _merge(_SOURCE, f"WHEN MATCHED AND {condition} THEN DELETE"),
            "INSERT": _merge(_SOURCE, f"WHEN NOT MATCHED AND {condition} THEN INSERT *"),
            "BY SOURCE": _merge(
                _SOURCE,
                f"WHEN NOT MATCHED BY SOURCE AND {condition.replace('s.pk', 't.pk')} THEN DELETE",
            ),
        }.items()
    ),
    *(
        RowCase(
            name,
            _FIVE,
            _merge(
                _values((1, 0, "x"), (2, 0, "x"), (6, 0, "x")),
                f"{_MATCHED} UPDATE SET t.n = t.n + 1",
                f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, 0, 'new')",
                *extra,
                on=f"t.pk = s.pk AND {filters}",
            ),
            after,
        )
        for name, filters, extra, after in (
            (
                "all target filters are evaluated on data source side",
                "t.DeP IN ('a', 'q')",
                (),
                ((1, 101, "a"), (2, 0, "new"), *_FIVE[1:], (6, 0, "new")),
            ),
            (
                "some target filters are evaluated on data source side",
                "t.dep IN ('a', 'b') AND t.n != -1",
                (),
                ((1, 101, "a"), (2, 201, "b"), *_FIVE[2:], (6, 0, "new")),
            ),
            (
                "pushable target filters are preserved with NOT MATCHED BY SOURCE clause",
                "t.DeP IN ('a', 'q')",
                (f"{_BY_SOURCE} DELETE",),
                ((1, 101, "a"), (2, 0, "new"), (6, 0, "new")),
            ),
        )
    ),
    RowCase(
        "merge into table with recursive CTE",
        _NUMBERS,
        _RECURSIVE
        + "MERGE INTO {t} t USING s ON t.n = s.n WHEN MATCHED THEN UPDATE SET t.n = t.n - 1 "
        "WHEN NOT MATCHED THEN INSERT (n) VALUES (-s.n) WHEN NOT MATCHED BY SOURCE THEN UPDATE SET t.n = t.n + 1",
        ((-5,), (-3,), (-2,), (0,), (3,), (9,), (10,)),
        table="numbers",
    ),
    RowCase(
        "merge with type coercion from INT to STRING",
        ((1, "100", "a"), (2, "200", "b")),
        _merge(
            _values((1, 999, "x"), (4, 400, "y")),
            f"{_MATCHED} UPDATE SET n = s.n, dep = s.dep",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, s.n, s.dep)",
        ),
        ((1, "999", "x"), (2, "200", "b"), (4, "400", "y")),
        table="texts",
    ),
    RowCase(
        "merge into table with analysis failure",
        _THREE,
        _merge(_SOURCE, f"{_MATCHED} UPDATE SET n = s.none", _INSERT),
        fails="UNRESOLVED_COLUMN",
    ),
    RowCase(
        "merge into table using nested view",
        _THREE,
        "CREATE OR REPLACE TEMPORARY VIEW of_rows AS SELECT l.pk, l.n * 2 AS n, r.dep FROM {t} l LEFT JOIN {t} r ON l.pk = r.pk AND r.pk < 3; "
        "CREATE OR REPLACE TEMPORARY VIEW of_view AS SELECT * FROM of_rows; "
        + _merge(
            "of_view",
            f"{_MATCHED} UPDATE SET n = s.n, dep = s.dep",
            f"{_NOT_MATCHED} INSERT (pk, n, dep) VALUES (s.pk, s.n, 'new')",
            on="t.pk = s.pk AND t.dep = 'a'",
        ),
        ((1, 200, "a"), (2, 200, "b"), (2, 400, "new"), (3, 600, None)),
    ),
    RowCase(
        "merge does not set every column of a wide row",
        tuple((*row, {"x": 1, "y": "p"}) for row in _THREE),
        _merge(
            _FROM_TWO,
            "WHEN MATCHED AND t.n = 200 THEN UPDATE SET dep = s.dep",
            f"{_BY_SOURCE} UPDATE SET n = -1",
        ),
        (
            (1, -1, "a", {"x": 1, "y": "p"}),
            (2, 200, "y", {"x": 1, "y": "p"}),
            (3, -1, "a", {"x": 1, "y": "p"}),
        ),
        table="places",
    ),
    RowCase(
        "merge with names in other case",
        _THREE,
        _merge(
            _values((1, 10, "x"), (4, 40, "y"), columns="PK, N, DEP"),
            "WHEN NOT MATCHED AND s.pk >= 2 THEN INSERT *",
        ),
        (*_THREE, (4, 40, "y")),
    ),
    *(
        RowCase(
            f"Merge metrics with {name}",
            _FIVE,
            _merge(_values((1, 0, "x"), (2, 0, "y"), (7, 70, "z")), *clauses),
            after,
            counts=counts,
        )
        for name, clauses, after, counts in (
            (
                "matched clause",
                ("WHEN MATCHED AND t.n < 200 THEN UPDATE SET n = 1000",),
                ((1, 1000, "a"), *_FIVE[1:]),
                (1, 1, 0, 0),
            ),
            (
                "matched and not matched clause",
                (f"{_MATCHED} UPDATE SET n = 9999", "WHEN NOT MATCHED AND n > 20 THEN INSERT *"),
                ((1, 9999, "a"), (2, 9999, "b"), *_FIVE[2:], (7, 70, "z")),
                (3, 2, 0, 1),
            ),
            (
                "matched and not matched by source clauses: update",
                (
                    "WHEN MATCHED AND t.n < 200 THEN UPDATE SET n = 1000",
                    "WHEN NOT MATCHED BY SOURCE AND n > 400 THEN UPDATE SET n = -1",
                ),
                ((1, 1000, "a"), *_FIVE[1:4], (5, -1, "a")),
                (2, 2, 0, 0),
            ),
            (
                "matched, not matched, and not matched by source clauses: delete",
                (
                    "WHEN MATCHED AND t.n < 200 THEN DELETE",
                    "WHEN NOT MATCHED AND s.pk < 10 THEN INSERT (pk, n, dep) VALUES (s.pk, -1, 'new')",
                    "WHEN NOT MATCHED BY SOURCE AND n > 400 THEN DELETE",
                ),
                (*_FIVE[1:4], (7, -1, "new")),
                (3, 0, 2, 1),
            ),
        )
    ),
    RowCase(
        "merge handles metadata columns",
        _FIVE,
        _merge(
            "(SELECT _rowid AS r, pk FROM {t} WHERE pk IN (2, 4))",
            "WHEN MATCHED AND t.pk = 2 THEN UPDATE SET n = 0",
            f"{_MATCHED} DELETE",
            on="t._rowid = s.r",
        ),
        (_FIVE[0], (2, 0, "b"), _FIVE[2], _FIVE[4]),
    ),
)

CASES = (*_BY_CONDITION, *DELETES, *UPDATES, *MERGES)
