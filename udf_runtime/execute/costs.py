"""The cost of rows, by the setting `cost` of a UDF."""

from __future__ import annotations

import math
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

    Runs before the rows are called, in the process of the caller.

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
        >>> from udf_runtime.execute.costs import compute_costs
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
    arguments = [batch] if udf.input_columns is None else batch.columns
    try:
        result = cost(*arguments)
        costs = np.asarray(result, dtype=np.float64)
        if isinstance(result, (pa.Array, pa.ChunkedArray)):
            # A NULL input, such as a text to measure, has a NULL cost.
            costs = np.where(np.asarray(result.is_null()), 0.0, costs)
    except Exception as error:
        raise UdfDefinitionError(
            f"The function cost= of UDF {udf.name!r} raised {type(error).__name__}: {end_sentence(str(error))} "
            "The function gets the input arrays, and returns an array with a number for each row."
        ) from error
    if costs.shape != (batch.num_rows,) or not all(math.isfinite(value) and value >= 0 for value in costs):
        raise UdfDefinitionError(
            f"The function cost= of UDF {udf.name!r} returned an array of shape {costs.shape} for a batch of "
            f"{batch.num_rows} rows, or a cost that is no number of 0 or more. Return a number for each row."
        )
    return costs
