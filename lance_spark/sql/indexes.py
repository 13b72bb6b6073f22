"""Indexes of a table in SQL: `CREATE INDEX`, `DROP INDEX`. On the driver; tasks build the index."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.stored_json import parse_json
from lance_spark.table.connections.connection import open_table
from lance_spark.table.table import Table

_FROM_STATEMENT = (
    "self",
    "column",
    "field_names",
    "vector_column_name",
    "index_type",
    "name",
    "replace",
    "config",
)
"""Parameters of the table API that come from the statement rather than its options."""


def create_index(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Runs `CREATE INDEX name ON t USING type (column) OPTIONS (...)`.

    Raises:
        IndexExistsError: An index of this name exists.
        OptionError, UnsupportedOperationError: The kind, column or options are not valid.
        LanceSparkError: See the method of :class:`lance_spark.Table` for this kind.
    """
    options = dict(arguments["parameters"])
    kind = options.pop("type", "")
    build(
        _open_table(arguments),
        arguments["columns"],
        kind,
        name=arguments["index"],
        options=options,
        replace=False,
    )
    return {}


def drop_index(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Runs `DROP INDEX name ON t`.

    Raises:
        IndexNotFoundError: No index has this name.
    """
    _open_table(arguments).drop_index(arguments["index"])
    return {}


def list_indexes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns name, kind and columns of each index."""
    table = _open_table(arguments)
    return {
        "indexes": [
            {
                "name": i.name,
                "type": table.index_stats(i.name).index_type,
                "columns": list(i.columns),
            }
            for i in table.list_indices()
        ]
    }


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
        columns: A list with a single column.
        kind: `BTREE` or another scalar kind (also if empty), `FTS`, or `IVF_PQ` or another vector
            kind; in any case.
        name: Name of the index; by default the column's name and `_idx`.
        options: Further parameters, as text, of the table API's method for this kind.
        replace: Whether to replace an index of the same name.

    Raises:
        OptionError, UnsupportedOperationError: The kind, column or options are not valid.
        LanceSparkError: See the method of :class:`lance_spark.Table` for this kind.
    """
    if len(columns) != 1:
        raise UnsupportedOperationError(
            f"An index has one column, not {', '.join(columns)}. Nothing was changed. Make an index for each column."
        )
    kind = kind.upper() or "BTREE"
    options = options or {}
    method: Any
    call_arguments: dict[str, Any]
    if kind == "FTS":
        method, call_arguments = table.create_fts_index, {"field_names": columns[0]}
    elif kind.startswith("IVF_"):
        method, call_arguments = (
            table.create_index,
            {"vector_column_name": columns[0], "index_type": kind},
        )
    else:
        method, call_arguments = (
            table.create_scalar_index,
            {"column": columns[0], "index_type": kind},
        )
    _check_options(
        kind,
        options,
        [key for key in inspect.signature(method).parameters if key not in _FROM_STATEMENT],
    )
    parameters = {key: option_value(text) for key, text in options.items()}
    method(**call_arguments, name=name, replace=replace, **parameters)


def _check_options(kind: str, options: Mapping[str, str], parameters: Sequence[str]) -> None:
    for key, text in options.items():
        if key not in parameters:
            choices = f"for {kind}: {', '.join(parameters)}" if parameters else f"none for {kind}"
            raise OptionError(f"OPTIONS ({key})", text, choices)


def option_value(text: str) -> object:
    """Returns the number or truth value of a text, else the text."""
    try:
        value = parse_json(text.lower())
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def _open_table(arguments: Mapping[str, Any]) -> Table:
    ref = CatalogLocation.of(arguments).existing(arguments["name"])
    return open_table(ref.uri, storage_options=ref.storage)
