"""Streams of batches for other libraries."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_spark.read.streams import stream_of

BATCH = pa.record_batch({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", None, "z"]})


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"a": pa.int64(), "s": pa.string()}, metadata={"k": "v"}),
        pa.schema({"a": pa.int64(), "s": pa.large_string()}),
        pa.schema({"a": pa.int32(), "s": pa.string()}),
    ],
    ids=["metadata", "offsets", "numbers"],
)
def test_rows_of_another_schema_are_converted(schema: pa.Schema) -> None:
    rows = stream_of(schema, [BATCH], 2).read_all()
    rows.validate(full=True)
    assert rows.schema.equals(schema, check_metadata=True) and rows.to_pylist() == BATCH.to_pylist()


def test_rows_that_do_not_fit_a_schema_are_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid):
        stream_of(pa.schema({"a": pa.int64(), "s": pa.int64()}), [BATCH]).read_all()
