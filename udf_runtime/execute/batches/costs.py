"""The cost of rows, by the setting `cost` of a UDF."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.definition.stateful import Stateful
from udf_runtime.errors import UdfDefinitionError, end_sentence

Costs: TypeAlias = npt.NDArray[np.float64]


def compute_costs(udf: UDF, batch: pa.RecordBatch) -> Costs | None:
    """Returns the cost of each row of a batch; None for a UDF without a cost.

    Runs before the calls of the UDF, in the process of the caller.

    Args:
        udf: The UDF.
        batch: The inputs of the UDF.

    Raises:
        UdfDefinitionError: The function raised, or returned something else than a number of 0 or
            more for each row. NULL counts as 0.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from udf_runtime import udf
        >>> from udf_runtime.execute.batches.costs import compute_costs
        >>> @udf(data_type=pa.string(), cost=lambda text: pc.multiply(pc.utf8_length(text), 0.5))
        ... def ask(text: str) -> str:
        ...     return text.upper()
        >>> compute_costs(ask, pa.record_batch({"text": ["one", "three"]})).tolist()
        [1.5, 2.5]
    """
    cost = udf.cost.load() if isinstance(udf.cost, Stateful) else udf.cost
    if cost is None:
        return None
    if not callable(cost):
        return np.full(batch.num_rows, float(cost))
    costs = _evaluate(cost, udf, batch)
    if costs.shape != (batch.num_rows,) or not (np.isfinite(costs) & (costs >= 0)).all():
        raise UdfDefinitionError(
            f"The function cost= of UDF {udf.name!r} returned an array of shape {costs.shape} for a batch of "
            f"{batch.num_rows} rows, or a cost that is no number of 0 or more. Return a number for each row."
        )
    return costs


def _evaluate(cost: Callable[..., object], udf: UDF, batch: pa.RecordBatch) -> Costs:
    """Returns the result of a cost function as numbers. NULL becomes 0."""
    try:
        result = cost(*([batch] if udf.input_columns is None else batch.columns))
        costs = np.asarray(result, dtype=np.float64)
    except Exception as error:
        raise UdfDefinitionError(
            f"The function cost= of UDF {udf.name!r} raised {type(error).__name__}: {end_sentence(str(error))} "
            "The function gets the input arrays, and returns an array with a number for each row."
        ) from error
    # A NULL input, such as a text to measure, has a NULL cost.
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return np.where(np.asarray(result.is_null()), 0.0, costs)
    return costs
