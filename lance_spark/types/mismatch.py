"""Shows two schemas side by side, for error messages."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import types as spark

from lance_spark.types.fields import storage_type
from lance_spark.types.tree import pair_names

_MOST_LINES = 60
_MOST_WIDTH = 60


def side_by_side(schema: spark.StructType, target: pa.Schema, problems: Collection[str]) -> str:
    """Returns the columns of a DataFrame and a table as two aligned trees, with marked mismatches.

    Args:
        schema: Schema of the DataFrame.
        target: Schema of the table.
        problems: Dotted paths of the mismatches. Nested fields are shown only around them.
    """
    rows = _rows(schema, target, "", 0, problems)
    if len(rows) > _MOST_LINES:
        fitting = sum(not marked for _, _, marked in rows)
        rows = [row for row in rows if row[2]][:_MOST_LINES]
        rows.append((f"... and {fitting} that fit", "", False))
    width = max([len("DataFrame"), *(len(source_line) for source_line, _, _ in rows)])
    lines = [f"  {'DataFrame':{width}} | table"]
    for source_line, target_line, marked in rows:
        lines.append(f"{'!' if marked else ' '} {source_line:{width}} | {target_line}".rstrip())
    return "\n".join(lines)


def _rows(
    have: spark.StructType,
    want: pa.Schema | pa.StructType,
    prefix: str,
    depth: int,
    problems: Collection[str],
) -> list[tuple[str, str, bool]]:
    positions = pair_names(have.names, want.names)
    rows: list[tuple[str, str, bool]] = []
    for target in want:
        path = f"{prefix}{target.name}"
        at = positions.get(target.name)
        target_line = _line(target.name, str(target.type), nullable=target.nullable, depth=depth)
        if at is None:
            rows.append(("", target_line, path in problems))
            continue
        source = have[at]
        below = _has_problem_below(path, problems)
        rows.append((_spark_line(source, depth), target_line, path in problems or below))
        kind = storage_type(target)
        if below and isinstance(source.dataType, spark.StructType) and pa.types.is_struct(kind):
            rows += _rows(source.dataType, kind, f"{path}.", depth + 1, problems)
    unknown = [field for i, field in enumerate(have) if i not in positions.values()]
    return rows + [(_spark_line(field, depth), "", True) for field in unknown]


def _has_problem_below(path: str, problems: Collection[str]) -> bool:
    return any(problem.startswith(f"{path}.") for problem in problems)


def _spark_line(field: spark.StructField, depth: int) -> str:
    return _line(field.name, field.dataType.simpleString(), nullable=field.nullable, depth=depth)


def _line(name: str, kind: str, *, nullable: bool, depth: int) -> str:
    text = f"{'  ' * depth}{name}: {' '.join(kind.split())}{'' if nullable else ' not null'}"
    return text if len(text) <= _MOST_WIDTH else f"{text[: _MOST_WIDTH - 3]}..."
