"""Texts and HTML of a table for a terminal and a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.columns.binding import Binding
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.errors import StoredUdfError, counted
from lance_spark.types.leaves import displayed_values

if TYPE_CHECKING:
    import lance

_ROWS = 5
_CHARS = 80
_TABLES = 100


def describe(name: str, dataset: lance.LanceDataset) -> str:
    """Returns one line: name, version, rows, and columns with their types and UDFs."""
    columns = ", ".join(
        f"{field.name}: {field.type}{_describe_udf(field)}" for field in dataset.schema
    )
    return f"Table({name!r}, version {dataset.version}, {counted(dataset.count_rows(), 'row')}, columns [{columns}])"


def render_html(name: str, dataset: lance.LanceDataset) -> str:
    """Returns an HTML table: columns with their types and UDFs, and the first rows, shortened."""
    fields = list(dataset.schema)
    head = "".join(
        f"<th>{html.escape(f.name)}<br><small>{html.escape(str(f.type) + _describe_udf(f))}</small></th>"
        for f in fields
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shorten(value))}</td>" for value in row) + "</tr>"
        for row in zip(
            *map(displayed_values, dataset.scanner(limit=_ROWS).to_table().columns), strict=True
        )
    )
    title = (
        f"{html.escape(name)}: version {dataset.version}, {counted(dataset.count_rows(), 'row')}"
    )
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def render_tables(uri: str, names: list[str]) -> str:
    """Returns an HTML list of the tables of a folder, the first hundred."""
    items = "".join(f"<li>{html.escape(name)}</li>" for name in names[:_TABLES])
    more = f"<li>… and {len(names) - _TABLES:,} more</li>" if len(names) > _TABLES else ""
    return f"<p>{html.escape(uri)}: {counted(len(names), 'table')}</p><ul>{items}{more}</ul>"


def _describe_udf(field: pa.Field[Any]) -> str:
    text = (field.metadata or {}).get(BINDING_KEY.encode())
    if text is None:
        return ""
    try:
        binding = Binding.from_json(text.decode(), field.name)
    except StoredUdfError:
        return " = ?()"
    return f" = {binding.udf_name}(){', auto_backfill' if binding.auto_backfill else ''}"


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"
