"""Calls of table functions: from a source to batches of exactly the declared columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.errors import UdfOutputError, UdfProcessDiedError, UdfRuntimeError
from udf_runtime.execute.call_context import passes_through
from udf_runtime.execute.conversion.columns import is_data_frame
from udf_runtime.execute.conversion.outputs import Output
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.process import Interpreter, ProcessEndedError, ProcessSpec
from udf_runtime.execute.isolation.process_registry import ProcessRegistry
from udf_runtime.execute.result import cause_of, raised_for


class TableSource(Protocol):
    """The argument of a table function: the rows of a query."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""

    def count_rows(self) -> int:
        """Returns the number of rows."""

    def to_batches(self, *, batch_size: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yields the rows; memory: a few batches."""

    def to_arrow(self) -> pa.Table:
        """Returns all rows at once."""

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not imported for its type
        """Returns all rows at once, as a data frame."""


def call_table(
    udf: UDF, source: TableSource, interpreter: Interpreter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the results of a table function for a source, batch by batch.

    Args:
        udf: The table function.
        source: The argument of the function.
        interpreter: The Python of the function's environment, for a child process; None is this
            process.

    Raises:
        UdfFailedError: The function raised.
        UdfOutputError: The function yielded a value with other columns.
        UdfProcessDiedError: The process ended.
    """
    return (
        _call_here(udf, source)
        if interpreter is None
        else _call_in_process(interpreter, udf, source)
    )


def _call_in_process(
    interpreter: Interpreter, udf: UDF, source: TableSource
) -> Iterator[pa.RecordBatch]:
    payload = udf.dumps()
    process = ProcessRegistry(Owner.current()).start(
        udf, payload, ProcessSpec(interpreter=interpreter)
    )
    start = interpreter.make_start(payload, None)
    try:
        yield from process.open(udf, start, None).call_table(source)
    except ProcessEndedError as error:
        raise UdfProcessDiedError(
            udf=udf.name, exit_code=error.exit_code, output=error.output
        ) from None
    finally:
        process.kill()


def _call_here(udf: UDF, source: TableSource) -> Iterator[pa.RecordBatch]:
    fields: Any = udf.data_type
    schema = pa.schema(list(fields))
    try:
        results = udf.load()(source)
        if (
            not isinstance(results, Iterable)
            or isinstance(results, (pa.RecordBatch, pa.Table))
            or is_data_frame(results)
        ):
            results = iter([results])
        for part in results:
            yield from _make_batches(udf, part, schema)
    except UdfRuntimeError:
        raise
    except BaseException as error:
        if passes_through(error):
            raise
        raise raised_for(error, udf=udf.name, row=None) from cause_of(error)


def _make_batches(udf: UDF, part: object, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if is_data_frame(part):
        yield _make_batch(
            udf, {str(name): column for name, column in part.items()}, schema, is_frame=True
        )
        return
    for batch in part.to_batches() if isinstance(part, pa.Table) else [part]:
        if not isinstance(batch, pa.RecordBatch):
            raise _make_error(udf, f"got {type(batch).__name__}")
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        yield _make_batch(udf, columns, schema, is_frame=False)


def _make_batch(
    udf: UDF, columns: Mapping[str, Any], schema: pa.Schema, *, is_frame: bool
) -> pa.RecordBatch:
    if list(columns) != schema.names:
        raise _make_error(udf, f"got columns {', '.join(columns)}")
    arrays = []
    for field in schema:
        output = Output(
            udf.name, field.type, is_columns=False, nan_is_null=is_frame, column=field.name
        )
        array = output.from_batch(columns[field.name], len(columns[field.name]))
        if array.null_count and not field.nullable:
            raise _make_error(udf, f"NULL in column {field.name!r}, which is not nullable")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _make_error(udf: UDF, what: str) -> UdfOutputError:
    fields: Any = udf.data_type
    expected = ", ".join(f"{field.name}: {field.type}" for field in fields)
    return UdfOutputError(
        f"The table function {udf.name!r} yielded other columns: {what}, expected {expected}. "
        "Yield record batches, tables or data frames of exactly output_schema.",
        udf=udf.name,
    )
