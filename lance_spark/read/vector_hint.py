"""The conversion of a column of lists to a column of vectors, for errors: :func:`vector_hint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.types.fields import Kind, quote_identifier

if TYPE_CHECKING:
    import lance


def vector_hint(dataset: lance.LanceDataset, column: str) -> str | None:
    """Returns the call that makes vectors of a column of lists; None for another column.

    Reads the first list of the column for the length of the vectors.
    """
    kind = dataset.schema.field(column).type if column in dataset.schema.names else None
    if kind is None or not is_list_of_numbers(kind):
        return None
    scanner = dataset.scanner(columns={column: quote_identifier(column)}, limit=1)
    (first,) = scanner.to_table()[column].to_pylist() or [None]
    length = str(len(first)) if first else "N"
    alteration = f"{{'path': {column!r}, 'data_type': pa.list_(pa.float32(), {length})}}"
    return f"make vectors of {length} numbers with table.alter_columns({alteration})"


def is_list_of_numbers(kind: Kind) -> bool:
    """Tells whether a type is of lists of numbers without a fixed length."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )
