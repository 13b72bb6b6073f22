"""Error texts that leave a task can be encoded, regardless of the user's exception."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

from udf_runtime import UDF, skip_on_error, udf, udtf
from udf_runtime.errors import UdfFailedError
from udf_runtime.execute import BatchResult, UdfRunner, call_table

TEXT = "cut \ud83d emoji"


@udf(data_type=pa.int64())
def scalar(id: int) -> int:
    raise ValueError(TEXT)


@udf(data_type=pa.int64())
def vector(id: pa.Array) -> pa.Array:
    raise ValueError(TEXT)


@udtf(output_schema=pa.schema([("n", pa.int64())]))
def table(source: object) -> pa.Table:
    raise ValueError(TEXT)


def _run(function: UDF) -> Iterator[BatchResult]:
    return UdfRunner(function).run([pa.record_batch({"id": [1]})])


@pytest.mark.parametrize("function", [scalar, vector, table], ids=lambda function: function.name)
def test_the_error_of_a_function_can_be_encoded_with_its_causes(function: UDF) -> None:
    batches = call_table(function, None) if function is table else _run(function)  # type: ignore[arg-type]
    with pytest.raises(UdfFailedError) as caught:
        list(batches)
    text = "".join(traceback.format_exception(caught.value))
    assert r"cut \ud83d emoji" in text.encode("utf-8").decode()
    assert r"cut \ud83d emoji" in caught.value.error_trace.encode("utf-8").decode()


def test_the_record_of_a_skipped_row_can_be_encoded() -> None:
    function = udf(scalar.load(), data_type=pa.int64(), on_error=skip_on_error())
    (result,) = _run(function)
    (failure,) = result.failures
    assert failure.message.encode("utf-8").decode() == r"cut \ud83d emoji"
    assert failure.trace.encode("utf-8")
