"""The cost of rows: a number, or a function of the inputs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from udf_runtime import UDF, Manifest, UdfDefinitionError, udf
from udf_runtime.execute.batches.costs import compute_costs

TEXTS = pa.record_batch({"text": ["one", None, "three"]})


def size(cost: Any) -> UDF:
    def size(text: str) -> int:
        return len(text)

    return udf(size, cost=cost)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (None, None),
        (2, [2, 2, 2]),
        (pc.utf8_length, [3, 0, 5]),
        (lambda text: [len(word or "") / 2 for word in text.to_pylist()], [1.5, 0, 2.5]),
    ],
)
def test_a_cost_is_a_number_or_a_function_of_the_inputs(cost: Any, expected: list[float] | None):
    for function in (size(cost), UDF.loads(size(cost).dumps())):
        costs = compute_costs(function, TEXTS)
        assert (None if costs is None else costs.tolist()) == expected
    assert size(cost).version == size(None).version, "a cost changes no result"


def test_a_function_of_costs_travels_with_a_udf_of_an_environment():
    manifest = Manifest.create_pip("m").pip(["six==1.16.0"]).build()
    function = UDF.loads(size(pc.utf8_length).with_manifest(manifest).dumps())
    costs = compute_costs(function, TEXTS)
    assert costs is not None
    assert costs.tolist() == [3, 0, 5]


def test_a_cost_of_a_udf_over_record_batches_gets_the_batch():
    def rows(batch: pa.RecordBatch) -> pa.Array:
        return batch["text"]

    function = udf(rows, data_type=pa.string(), cost=lambda batch: pc.utf8_length(batch["text"]))
    costs = compute_costs(function, TEXTS)
    assert costs is not None
    assert costs.tolist() == [3, 0, 5]


@pytest.mark.parametrize("cost", [-1, "2", float("nan"), True])
def test_a_wrong_cost_is_refused_at_the_definition(cost: Any):
    with pytest.raises(
        UdfDefinitionError, match=r"cost=.* is neither a number|'cost' has the wrong value"
    ):
        size(cost)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (lambda text: 1 / 0, "cost= of UDF 'size' raised ZeroDivisionError"),
        (lambda text: [1.0], r"array of shape \(1,\) for a batch of 3 rows"),
        (lambda text: [1.0, -2.0, 0.0], "no number of 0 or more"),
    ],
)
def test_a_function_without_a_cost_for_each_row_is_an_error(cost: Any, message: str):
    with pytest.raises(UdfDefinitionError, match=message):
        compute_costs(size(cost), TEXTS)
