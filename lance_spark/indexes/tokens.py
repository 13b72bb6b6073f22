"""Words of a text as a full-text index stores them: :func:`tokenize`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from lance_spark.errors import OptionError
from lance_spark.indexes.listing import column_paths, find_index, kind_of

if TYPE_CHECKING:
    import lance
    from lance import FtsToken, IndexDescription


def tokenize(dataset: lance.LanceDataset, text: str, *, column: str | None, index_name: str | None) -> list[FtsToken]:
    """Splits a text with the tokenizer of an index, given by its column or its name.

    Raises:
        OptionError: Neither or both are given, or the column or index has no words.
        IndexNotFoundError: The index does not exist.
    """
    from lance import tokenize as split

    if (column is None) == (index_name is None):
        raise OptionError("column", column, "either column or index_name: Specify exactly one of them")
    index = _index_of(dataset, column) if index_name is None else find_index(dataset, index_name)
    if index is None or kind_of(index.index_type) != "FTS":
        name, value = ("column", column) if index_name is None else ("index_name", index_name)
        raise OptionError(name, value, "a full-text index", problem="does not have a full text search index")
    details: dict[str, Any] = index.details or {}
    return split(text, **{name: details[name] for name in inspect.signature(split).parameters if name in details})


def _index_of(dataset: lance.LanceDataset, column: str | None) -> IndexDescription | None:
    indexes = [
        index
        for index in dataset.describe_indices()
        if column in column_paths(dataset, index) and kind_of(index.index_type) == "FTS"
    ]
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise OptionError("index_name", None, names, problem=f"is missing, and column {column!r} has several indexes")
    return indexes[0] if indexes else None
