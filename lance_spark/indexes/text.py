"""Definitions of text indexes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lance_spark.errors import OptionError
from lance_spark.indexes.definition import IndexDefinition

_TOKENIZERS = ("simple", "whitespace", "raw")
_LEAST_MEMORY_BYTES = 16 << 20


def text_indexes(
    columns: str | Sequence[str],
    *,
    name: str | None,
    replace: bool,
    memory_bytes: int | None,
    tokens: Mapping[str, object],
) -> list[IndexDefinition]:
    """Returns the definition of a text index for each column.

    Args:
        columns: The columns.
        name: Name of the index of a single column; None for the column's name and `_idx`.
        replace: Whether the indexes replace existing indexes of their names.
        memory_bytes: Memory of a task that builds an index; None leaves the size to Lance.
        tokens: Options of the tokenizer, by pylance's names.

    Raises:
        OptionError: An option is not valid.
    """
    column_names = [columns] if isinstance(columns, str) else list(columns)
    if not column_names or len(set(column_names)) != len(column_names):
        raise OptionError("field_names", columns, "a column, or a list of columns, each once")
    if name is not None and len(column_names) > 1:
        raise OptionError("name", name, "nothing where there are several columns: each index is named after its own")
    if tokens["base_tokenizer"] not in _TOKENIZERS:
        raise OptionError("base_tokenizer", tokens["base_tokenizer"], ", ".join(_TOKENIZERS))
    longest = tokens["max_token_length"]
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 1):
        raise OptionError("max_token_length", longest, "a number of letters, 1 or more, or None")
    parameters = dict(tokens)
    if memory_bytes is not None:
        if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int) or memory_bytes < _LEAST_MEMORY_BYTES:
            raise OptionError("writer_heap_size", memory_bytes, f"bytes, {_LEAST_MEMORY_BYTES} or more, or None")
        parameters["memory_limit"] = memory_bytes >> 20
    return [
        IndexDefinition(
            name=f"{column}_idx" if name is None else name,
            column=column,
            kind="FTS",
            parameters=parameters,
            replace=replace,
        )
        for column in column_names
    ]
