"""Indexes of a table in SQL: `CREATE INDEX`, `DROP INDEX`. On the driver; tasks build them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.sql.place import Place
from lance_spark.stored_json import parse_json
from lance_spark.table.connection import open_table
from lance_spark.table.table import Table

_FROM_STATEMENT = ("self", "column", "field_names", "vector_column_name", "index_type", "name", "replace")
"""Parameters of the table API that are no options: the statement says them."""


def create_index(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Carries out `CREATE INDEX name ON t USING type (column) OPTIONS (...)`.

    Raises:
        IndexExistsError: There is one of this name.
        OptionError, UnsupportedOperationError: It cannot be made so.
        LanceSparkError: As of the method of :class:`lance_spark.Table` that builds it.
    """
    given = dict(arguments["parameters"])
    kind = given.pop("type", "")
    build(_table(arguments), arguments["columns"], kind, name=arguments["index"], options=given, replace=False)
    return {}


def drop_index(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Carries out `DROP INDEX name ON t`.

    Raises:
        IndexNotFoundError: There is none of this name.
    """
    _table(arguments).drop_index(arguments["index"])
    return {}


def list_indexes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns name, kind and columns of each index."""
    found = _table(arguments).list_indices()
    return {"indexes": [{"name": i.name, "type": i.index_type, "columns": list(i.columns)} for i in found]}


def build(
    table: Table,
    columns: Sequence[str],
    kind: str,
    *,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
    replace: bool = True,
) -> None:
    """Builds an index of any kind.

    Args:
        table: The table.
        columns: The column; there has to be one.
        kind: `BTREE` and the like (also where it is empty), `FTS`, or `IVF_PQ` and the like; in any
            case.
        name: Name of the index; by default the column's and `_idx`.
        options: Further parameters of the method of the table API that builds this kind, as text.
        replace: Whether it takes the place of an index of its name.

    Raises:
        OptionError, UnsupportedOperationError: It cannot be made so.
        LanceSparkError: As of the method of :class:`lance_spark.Table` that builds it.
    """
    if len(columns) != 1:
        raise UnsupportedOperationError(
            f"an index is of one column, not of {', '.join(columns)} - nothing was changed - make one for each"
        )
    kind = kind.upper() or "BTREE"
    method: Any
    given: dict[str, Any]
    if kind == "FTS":
        method, given = table.create_fts_index, {"field_names": columns[0]}
    elif kind.startswith("IVF_"):
        method, given = table.create_index, {"vector_column_name": columns[0], "index_type": kind}
    else:
        method, given = table.create_scalar_index, {"column": columns[0], "index_type": kind}
    given |= {"name": name, "replace": replace}
    known = [key for key in inspect.signature(method).parameters if key not in _FROM_STATEMENT]
    for key in options or {}:
        if key not in known:
            choices = f"none for {kind}" if not known else f"for {kind}: {', '.join(known)}"
            raise OptionError(f"OPTIONS ({key})", (options or {})[key], choices)
    method(**given, **{key: option_value(text) for key, text in (options or {}).items()})


def option_value(text: str) -> object:
    """Returns a number or a truth value where the text is one, else the text."""
    try:
        value = parse_json(text.lower())
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def _table(arguments: Mapping[str, Any]) -> Table:
    ref = Place.of(arguments).existing(arguments["name"])
    return open_table(ref.uri, storage_options=ref.storage)
