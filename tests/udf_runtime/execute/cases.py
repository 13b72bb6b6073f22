"""UDFs, batches and recorders for the tests of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from udf_runtime.definition import UDF, Kind
from udf_runtime.definition.spec import Settings
from udf_runtime.execute import BatchResult, UdfRunner
from udf_runtime.policies import ErrorPolicy, OnError

INT = pa.int64()


def make(
    function: Callable[..., object],
    kind: Kind = Kind.SCALAR,
    data_type: pa.DataType = INT,
    *,
    on_error: OnError = None,
    timeout: float | None = None,
    inputs: Sequence[str] | None = None,
    **settings,
) -> UDF:
    """Returns a UDF of an unannotated function over the column `x`, or over the given columns."""
    takes_batches = kind in (Kind.RECORD_BATCH, Kind.RECORD_BATCH_ITER)
    return UDF.define(
        function,
        kind=kind,
        data_type=data_type,
        input_columns=None if takes_batches else inputs or ["x"],
        version="1",
        settings=Settings(on_error=ErrorPolicy.of(on_error), timeout=timeout, **settings),
    )


def batches_of(*columns: Sequence[object] | pa.Array) -> list[pa.RecordBatch]:
    """Returns one batch per sequence, each with a column `x`."""
    return [
        pa.record_batch({"x": column if isinstance(column, pa.Array) else pa.array(column, INT)})
        for column in columns
    ]


def run(udf: UDF, *batches: pa.RecordBatch, **options) -> list[BatchResult]:
    """Runs a UDF without real waits."""
    with UdfRunner(udf, **{"sleep": lambda _: None, **options}) as runner:
        return list(runner.run(batches))


def values_of(results: Iterable[BatchResult]) -> list[list[object]]:
    return [result.values.to_pylist() for result in results]


def failed_rows(result: BatchResult) -> list[int]:
    return [failure.row for failure in result.failures]


class Pulled:
    """An iterator over batches that counts its batches."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches: Iterator[pa.RecordBatch] = iter(batches)
        self.count = 0

    def __iter__(self) -> Pulled:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self.batches)
        self.count += 1
        return batch
