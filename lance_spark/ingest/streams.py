"""Arrow data in the objects of any library, as a stream of record batches: :func:`open_stream`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.errors import SchemaMismatchError, SourceError
from lance_spark.lance_compat import plain
from lance_spark.types.model_schema import is_model

_VIEWS = ((pa.string_view(), pa.string()), (pa.binary_view(), pa.binary()))
"""Views, which Polars exports, and the types that Lance stores for them."""


def is_spark(data: object) -> bool:
    """Tells whether data is a Spark DataFrame, classic or of Connect."""
    return isinstance(data, DataFrame) or type(data).__module__.startswith("pyspark.sql.connect")


def is_iterator(data: object) -> bool:
    """Tells whether data is an iterator over parts, and no Arrow stream itself."""
    return (
        isinstance(data, Iterator)
        and not hasattr(data, "schema")
        and not hasattr(data, "__arrow_c_stream__")
    )


def open_stream(
    data: object, *, has_target: bool = False
) -> pa.Table | pa.RecordBatchReader | None:
    """Returns Arrow data as a table or as a stream; None for data in another form.

    A stream reads one batch at a time. The sources are tables and record batches of Arrow, datasets
    and scanners of PyArrow and pylance, lazy frames of Polars, objects of the Arrow PyCapsule
    interface, and iterators over these.

    Args:
        data: The data.
        has_target: Whether batches of an iterator become the types of a target, and may differ.

    Raises:
        SchemaMismatchError: An iterator yields no batches, or other objects.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data
    if _is_of("pyarrow.dataset", "Dataset", data):
        return _as_reader(data, data.scanner().to_reader())  # type: ignore[attr-defined]
    if _is_of("pyarrow.dataset", "Scanner", data):
        return _as_reader(data, data.to_reader())  # type: ignore[attr-defined]
    if _is_of("polars", "LazyFrame", data):
        return _as_reader(data, _collect(data))
    if isinstance(data, pa.ChunkedArray) or _is_of("pandas", "DataFrame", data):
        return None
    if hasattr(data, "__arrow_c_stream__"):
        return _as_reader(data, data)
    if hasattr(data, "__arrow_c_array__") and not (
        isinstance(data, pa.Array) and not pa.types.is_struct(data.type)
    ):
        return pa.Table.from_batches([pa.record_batch(data)])
    return _join_batches(data, has_target) if isinstance(data, Iterator) else None


def _is_of(module: str, name: str, data: object) -> bool:
    """Tells whether data is of a class, without an import of its module."""
    # An object of the class exists only after an import, and an import of pandas costs a second.
    imported = sys.modules.get(module)
    return imported is not None and isinstance(data, getattr(imported, name, ()))


def _collect(frame: Any) -> Any:  # noqa: ANN401 - classes of an optional package
    """Returns the rows of a lazy frame as a stream, or as a frame before Polars 1.34."""
    return frame.collect_batches() if hasattr(frame, "collect_batches") else frame.collect()


def _as_reader(data: object, stream: Any) -> pa.RecordBatchReader:  # noqa: ANN401 - any object with an Arrow stream
    """Returns the stream of data as a reader, with errors of this package."""
    reader, name = pa.RecordBatchReader.from_stream(stream), type(data).__name__

    def read() -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError, RuntimeError) as error:
                text = plain(error).partition(". Detail: Python exception:")[0]
                raise SourceError(
                    f"The {name} cannot be read: {text.rstrip('.')}. Nothing was written. Correct its source or query.",
                    source=name,
                ) from error
            yield batch

    return pa.RecordBatchReader.from_batches(reader.schema, read())


def _join_batches(parts: Iterator[object], has_target: bool) -> pa.RecordBatchReader:
    """Returns record batches, tables and frames as a stream. Reads the first batch."""

    def all_batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            if isinstance(part, pa.RecordBatch):
                yield part
                continue
            rows = None if is_iterator(part) else open_stream(part)
            if rows is None:
                raise refuse_form(part)
            yield from rows.to_reader() if isinstance(rows, pa.Table) else rows

    stream = all_batches()
    first = next(stream, None)
    if first is None:
        raise SchemaMismatchError(
            "The iterator yields no batches, so the data has no columns. Nothing was written. Yield at least one batch."
        )

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        has_names = has_target and sorted(batch.schema.names) == sorted(first.schema.names)
        if has_names or batch.schema.equals(first.schema):
            return batch
        raise SchemaMismatchError(
            f"A batch of the data has the columns {_describe(batch.schema)}, and the first batch has "
            f"{_describe(first.schema)}. Nothing was written. Give all batches the same columns and types."
        )

    return pa.RecordBatchReader.from_batches(
        first.schema, map(check, itertools.chain([first], stream))
    )


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def refuse_form(data: object) -> SchemaMismatchError:
    """Returns the error for an object that is no data for a table."""
    if isinstance(data, Mapping) or is_model(type(data)):
        return SchemaMismatchError(
            f"A single {type(data).__name__} is no data for a table. Nothing was written. Pass a list, even for one "
            "row. An iterator yields lists, frames or batches."
        )
    return SchemaMismatchError(
        f"{type(data).__name__} is no data for a table. Nothing was written. Give a Spark or pandas DataFrame, Arrow, "
        "a list of dicts or of pydantic models, a dict of lists, or an iterator over batches."
    )


def storable_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns a field without views, as Lance stores texts, binaries and dictionaries."""
    return field.with_type(_storable_type(field.type))


def _storable_type(kind: Any) -> Any:  # noqa: ANN401 - types of PyArrow, and their parts
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _storable_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([storable_field(child) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(storable_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(storable_field(kind.value_field))
    return next((stored for view, stored in _VIEWS if kind == view), kind)
