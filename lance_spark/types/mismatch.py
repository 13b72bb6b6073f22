"""Two schemas side by side, for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from lance_spark.types.fields import storage_type
from lance_spark.types.tree import pair_names

_MOST_LINES = 60
_MOST_WIDTH = 60


def side_by_side(schema: spark.StructType, target: pa.Schema, problems: Collection[str]) -> str:
    """Returns the columns of a DataFrame and a table as two aligned trees, misfits marked.

    Args:
        schema: The DataFrame's.
        target: The table's.
        problems: Dotted paths of what does not fit; only around them nested fields are shown.
    """
    rows = _rows(list(schema.fields), list(target), "", 0, problems)
    if len(rows) > _MOST_LINES:
        fitting = sum(not marked for _, _, marked in rows)
        rows = [row for row in rows if row[2]][:_MOST_LINES]
        rows.append((f"... and {fitting} that fit", "", False))
    width = max([len("DataFrame"), *(len(left) for left, _, _ in rows)])
    lines = [f"  {'DataFrame':{width}} | table"]
    lines += [f"{'!' if marked else ' '} {left:{width}} | {right}".rstrip() for left, right, marked in rows]
    return "\n".join(lines)


def _rows(
    have: list[spark.StructField], want: list[pa.Field[Any]], prefix: str, depth: int, problems: Collection[str]
) -> list[tuple[str, str, bool]]:
    found = pair_names([f.name for f in have], [f.name for f in want])
    rows: list[tuple[str, str, bool]] = []
    for target in want:
        path = f"{prefix}{target.name}"
        at = found.get(target.name)
        right = _line(target.name, str(target.type), nullable=target.nullable, depth=depth)
        if at is None:
            rows.append(("", right, path in problems))
            continue
        source = have[at]
        left = _line(source.name, source.dataType.simpleString(), nullable=source.nullable, depth=depth)
        below = any(problem.startswith(f"{path}.") for problem in problems)
        rows.append((left, right, path in problems or below))
        kind = storage_type(target)
        if below and isinstance(source.dataType, spark.StructType) and pa.types.is_struct(kind):
            rows += _rows(list(source.dataType.fields), list(kind), f"{path}.", depth + 1, problems)
    rows += [
        (_line(f.name, f.dataType.simpleString(), nullable=f.nullable, depth=depth), "", True)
        for i, f in enumerate(have)
        if i not in found.values()
    ]
    return rows


def _line(name: str, kind: str, *, nullable: bool, depth: int) -> str:
    text = f"{'  ' * depth}{name}: {' '.join(kind.split())}{'' if nullable else ' not null'}"
    return text if len(text) <= _MOST_WIDTH else f"{text[: _MOST_WIDTH - 3]}..."
