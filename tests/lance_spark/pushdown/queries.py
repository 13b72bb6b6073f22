"""Random queries for the differential test, as SQL over a table `{t}`. Each is a branch of one UNION with columns (q,
row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lance_spark.pushdown.filters import translate
from tests.lance_spark.pushdown.datasets import Dataset
from tests.lance_spark.pushdown.predicates import (
    TYPES,
    Predicate,
    combined,
    leaves,
    stored_values,
    to_sql,
    trees,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomQuery:
    """One case.

    Attributes:
        sql: Its SELECT with the columns `q` (0, later replaced by its number) and `row` (text), over `{t}`.
        predicate: Its filter, if the query is a single filter over one scan.
    """

    sql: str
    predicate: Predicate | None = None

    def branch(self, number: int, table: str) -> str:
        """Returns the query as number so and so, on a table."""
        return "(" + self.sql.replace("{q}", str(number)).replace("{t}", table) + ")"


def leaf_of(dataset: Dataset, index: int, op: str | None = None) -> st.SearchStrategy[Predicate]:
    """Predicates of one operation on a drawn column."""
    values = stored_values(dataset.table[f"c{index}"].combine_chunks())
    return leaves(
        [f"c{index}"], dataset.names[index], op, present=[v for v in values if v is not None]
    )


def any_leaf(dataset: Dataset) -> st.SearchStrategy[Predicate]:
    """Predicates of one operation on any column, including fields of the nested column."""
    numbers = leaves(["id"], "int64", present=range(dataset.table.num_rows))
    nested = [
        leaves(["s", "n"], "int32"),
        leaves(["s", "x y"], "string"),
        leaves(["s", "deep", "D"], "int64"),
        leaves(["s", "deep", "f"], "float64"),
        st.sampled_from(("is_null", "is_not_null")).map(
            lambda op: {"op": op, "args": [{"op": "col", "name": ["s"], "type": "struct"}]}
        ),
    ]
    return st.one_of(*(leaf_of(dataset, i) for i in range(len(dataset.names))), numbers, *nested)


@st.composite
def directed(
    draw: st.DrawFn, dataset: Dataset, pairs: Sequence[tuple[str, str]]
) -> list[RandomQuery]:
    """Filters with each of these operations on types, four tests in one filter.

    All tests are translatable; without any, Hypothesis would fail.
    """
    order = draw(st.permutations([(dataset.names.index(name), op) for name, op in pairs]))
    queries: list[RandomQuery] = []
    for at in range(0, len(order), 4):
        parts = [draw(_pushable(dataset, index, op)) for index, op in order[at : at + 4]]
        predicate = _joined(parts, draw(st.integers(0, 2)))
        queries.append(filtered(predicate, draw(projections(dataset))))
    return queries


def _pushable(dataset: Dataset, index: int, op: str) -> st.SearchStrategy[Predicate]:
    plain = leaf_of(dataset, index, op)
    either = st.tuples(plain, st.integers(0, 4)).map(
        lambda drawn: drawn[0] if drawn[1] else {"op": "not", "args": [drawn[0]]}
    )
    return either.filter(lambda predicate: translate(predicate, dataset.table.schema) is not None)


def _joined(parts: list[Predicate], shape: int) -> Predicate:
    if len(parts) < 4 or shape == 0:
        return {"op": "and", "args": parts} if len(parts) > 1 else parts[0]
    inner, outer = ("and", "or") if shape == 1 else ("or", "and")
    return {
        "op": outer,
        "args": [{"op": inner, "args": parts[:2]}, {"op": inner, "args": parts[2:]}],
    }


@st.composite
def random_filters(draw: st.DrawFn, dataset: Dataset, count: int) -> list[RandomQuery]:
    """Filters of any shape."""
    return [
        filtered(draw(trees(any_leaf(dataset))), draw(projections(dataset))) for _ in range(count)
    ]


def filtered(predicate: Predicate, projected: str) -> RandomQuery:
    """Returns a filter over one scan."""
    sql = f"SELECT {{q}} AS q, {projected} AS row FROM {{t}} WHERE {to_sql(predicate)}"
    return RandomQuery(sql=sql, predicate=predicate)


def projections(dataset: Dataset) -> st.SearchStrategy[str]:
    """Some columns as one text."""
    nested = ("s", "s.n", "s.`x y`", "s.deep", "s.deep.D", "s.items", "s.items.k")
    names = st.sampled_from((*(f"c{i}" for i in range(len(dataset.names))), *nested))
    return st.lists(names, max_size=3, unique=True).map(
        lambda chosen: (
            "CAST(struct(id"
            + "".join(f", {c} AS x{i}" for i, c in enumerate(chosen))
            + ") AS STRING)"
        )
    )


def fallible(dataset: Dataset) -> st.SearchStrategy[Predicate]:
    """Tests with NULL for some values; made strict, they raise for these values in ANSI mode."""
    some = st.integers(-1, dataset.table.num_rows)
    texts = (
        some.map(lambda n: f"try_mod(10, id - {n}) <> 3"),
        some.map(lambda n: f"try_cast(s.deep.D AS INT) > {n}"),
        some.map(lambda n: f"try_cast(s.n AS TINYINT) <= {n}"),
        some.map(lambda n: f"try_cast(s.`x y` AS INT) = {n}"),
    )
    return st.one_of(*texts).map(lambda sql: {"op": "sql", "sql": f"({sql})"})


def strict(sql: str) -> str:
    """Returns a query whose fallible tests raise in ANSI mode."""
    return sql.replace("try_", "")


@st.composite
def fallible_filters(draw: st.DrawFn, dataset: Dataset, count: int) -> list[RandomQuery]:
    """Filters of fallible tests and others; half of them are a conjunction with a safe test at the end."""
    either = combined(st.one_of(fallible(dataset), any_leaf(dataset)))
    last = st.tuples(fallible(dataset), any_leaf(dataset)).map(
        lambda parts: {"op": "and", "args": list(parts)}
    )
    return [filtered(draw(st.one_of(either, last)), "CAST(id AS STRING)") for _ in range(count)]


@st.composite
def shapes(
    draw: st.DrawFn, dataset: Dataset, count: int, *, ansi: bool = True
) -> list[RandomQuery]:
    """Queries of different shapes: repeated use of a table, aggregates, limits; without ANSI mode, also fallible
    tests.
    """

    def where() -> str:
        if ansi:
            return to_sql(draw(trees(any_leaf(dataset))))
        return strict(to_sql(draw(trees(st.one_of(fallible(dataset), any_leaf(dataset))))))

    def text(*columns: str) -> str:
        return (
            "CAST(struct("
            + ", ".join(f"{c} AS x{i}" for i, c in enumerate(columns))
            + ") AS STRING)"
        )

    n, m, few = (draw(st.integers(0, most)) for most in (dataset.table.num_rows + 3, 8, 4))
    again = where()
    column = draw(st.sampled_from([f"c{i}" for i in range(len(dataset.names))]))
    aggregates = ["count(*)", "count(1) + 1", f"count({column})", "count(s)", "min(id)", "max(id)"]
    for i, name in enumerate(dataset.names):
        # The order of the rows decides which zero is the minimum of floats.
        if not pa.types.is_floating(TYPES[name]):
            aggregates += [f"min(c{i})", f"max(c{i})"]
    chosen = draw(st.lists(st.sampled_from(aggregates), min_size=1, max_size=4, unique=True))
    # In ANSI mode a sum of integers of 64 bits is an error if it overflows, in every engine.
    whole = [
        f"c{i}"
        for i, name in enumerate(dataset.names)
        if pa.types.is_integer(TYPES[name]) and not (ansi and TYPES[name].bit_width == 64)
    ]
    exact = [
        f"c{i}" for i, name in enumerate(dataset.names) if not pa.types.is_floating(TYPES[name])
    ]
    keys = draw(
        st.lists(st.sampled_from(["id", "s.n", *exact]), min_size=1, max_size=2, unique=True)
    )
    summed = draw(
        st.lists(
            st.sampled_from([*aggregates, *(f"sum({c}) + 1" for c in whole)]),
            max_size=4,
            unique=True,
        )
    )
    side = draw(
        st.sampled_from(("JOIN", "LEFT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
    )
    both = (
        text("a.id")
        if "SEMI" in side or "ANTI" in side
        else text("a.id", f"a.{column}", "b.id", "b.s.n")
    )
    sql: list[str] = [
        (
            f"SELECT {{q}} AS q, {both} AS row FROM (SELECT * FROM {{t}} WHERE {where()}) a {side} "
            f"(SELECT * FROM {{t}} WHERE {where()}) b ON a.id = b.id"
        ),
        (
            f"SELECT {{q}} AS q, {text('id', column)} AS row FROM {{t}} WHERE {where()} UNION ALL "
            f"SELECT {{q}} AS q, {text('id', column)} AS row FROM {{t}} WHERE {where()}"
        ),
        f"SELECT {{q}} AS q, {text('id')} AS row FROM {{t}} WHERE id >= (SELECT max(id) FROM {{t}} WHERE {where()}) - 5 OR {where()}",
        f"SELECT {{q}} AS q, {text('id', 's.n')} AS row FROM {{t}} WHERE id IN (SELECT id FROM {{t}} WHERE {where()}) AND {where()}",
        (
            f"SELECT {{q}} AS q, {text('a.id')} AS row FROM {{t}} a WHERE NOT EXISTS "
            f"(SELECT 1 FROM (SELECT * FROM {{t}} WHERE {where()}) b WHERE b.id = a.id + 1)"
        ),
        f"SELECT {{q}} AS q, {text(*chosen)} AS row FROM {{t}}",
        f"SELECT {{q}} AS q, {text(*chosen)} AS row FROM {{t}} WHERE {where()}",
        f"SELECT {{q}} AS q, {text('id % 3', 'count(*)', 'max(s.n)')} AS row FROM {{t}} WHERE {where()} GROUP BY id % 3",
        f"SELECT {{q}} AS q, {text(*keys, *summed)} AS row FROM {{t}} GROUP BY {', '.join(keys)}",
        f"SELECT {{q}} AS q, {text(*exact[:2], 'id')} AS row FROM (SELECT DISTINCT {', '.join([*exact[:2], 'id'])} FROM {{t}})",
        f"SELECT {{q}} AS q, {text('count(DISTINCT s.n)', 'count(*)', 'sum(id)')} AS row FROM {{t}}",
        f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM (SELECT * FROM {{t}} LIMIT {n})",
        f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM (SELECT * FROM {{t}} WHERE {where()} LIMIT {n})",
        f"SELECT {{q}} AS q, {text('id', column)} AS row FROM (SELECT * FROM {{t}} WHERE {where()} ORDER BY id DESC LIMIT {n})",
        f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM (SELECT s.n FROM {{t}} LIMIT {n} OFFSET 3)",
        f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM (SELECT * FROM {{t}} WHERE {where()} LIMIT {n} OFFSET {few})",
        f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM (SELECT id FROM (SELECT id FROM {{t}} WHERE {where()} OFFSET {few}) LIMIT {m})",
        # Spark may choose any rows for a limit, but they must come from the table.
        (
            f"SELECT {{q}} AS q, {text('id')} AS row FROM (SELECT id FROM {{t}} WHERE {again} LIMIT {m} OFFSET {few}) "
            f"WHERE id NOT IN (SELECT id FROM {{t}} WHERE {again})"
        ),
        (
            f"SELECT {{q}} AS q, {text('count(*)')} AS row FROM ((SELECT id FROM {{t}} WHERE {where()} LIMIT {few}) UNION ALL "
            f"(SELECT id FROM {{t}} WHERE {where()} LIMIT {m}) LIMIT {n})"
        ),
        (
            f"SELECT {{q}} AS q, {text('id')} AS row FROM ((SELECT id, s.n FROM {{t}} WHERE {where()}) UNION "
            f"(SELECT id, s.n FROM {{t}} WHERE {where()}) ORDER BY id LIMIT {m} OFFSET {few})"
        ),
        (
            f"SELECT {{q}} AS q, {text('id')} AS row FROM {{t}} WHERE id < {n} AND "
            f"EXISTS (SELECT 1 FROM {{t}} WHERE {where()} LIMIT 2 OFFSET {few})"
        ),
        (
            f"SELECT {{q}} AS q, {text('a.id')} AS row FROM {{t}} a WHERE EXISTS (SELECT 1 FROM (SELECT id FROM {{t}} WHERE {where()} "
            f"UNION ALL SELECT id FROM {{t}} WHERE {where()}) b WHERE b.id = a.id)"
        ),
        (
            f"SELECT {{q}} AS q, {text('id')} AS row FROM {{t}} WHERE id = (SELECT id FROM {{t}} WHERE {where()} "
            f"ORDER BY id DESC LIMIT 1 OFFSET {few}) OR id IN (SELECT id + 1 FROM {{t}} WHERE {where()})"
        ),
        (
            f"SELECT {{q}} AS q, {text('a.id')} AS row FROM (SELECT * FROM {{t}} WHERE {where()}) a "
            f"WHERE a.s.n NOT IN (SELECT s.n FROM {{t}} WHERE s.n IS NOT NULL AND {where()})"
        ),
        (
            f"SELECT {{q}} AS q, {text('a.id', '(SELECT max(b.s.n) FROM {t} b WHERE b.id = a.id AND b.id > 3)')} AS row "
            f"FROM (SELECT * FROM {{t}} WHERE {where()}) a"
        ),
        (
            f"SELECT {{q}} AS q, {text('v.id', '(SELECT count(*) FROM {t} WHERE ' + where() + ')')} AS row FROM "
            f"(WITH v AS (SELECT * FROM {{t}} WHERE {where()}) SELECT a.id FROM v a JOIN v b ON a.id = b.id WHERE b.id > 3) v"
        ),
        f"SELECT {{q}} AS q, {text('id', 'n')} AS row FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM {{t}} WHERE {where()})",
        f"SELECT {{q}} AS q, {text('id')} AS row FROM (SELECT id FROM {{t}} WHERE {where()} EXCEPT SELECT id FROM {{t}} WHERE {where()})",
    ]
    return [RandomQuery(sql=s) for s in draw(st.permutations(sql))[:count]]


def union(queries: Sequence[RandomQuery], table: str) -> str:
    """Returns all queries as one."""
    return " UNION ALL ".join(query.branch(number, table) for number, query in enumerate(queries))


def rows_by_query(rows: Sequence[Any]) -> dict[int, list[str]]:
    """Returns each query's rows, in an order independent of Spark's."""
    by_query: dict[int, list[str]] = {}
    for row in rows:
        by_query.setdefault(int(row["q"]), []).append(str(row["row"]))
    return {number: sorted(texts) for number, texts in by_query.items()}
