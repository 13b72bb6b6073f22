"""UDFs of whole batches: a call per batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from udf_runtime.execute.call_context import CallContext, load_function
from udf_runtime.execute.calls.bisection import BatchBisection
from udf_runtime.execute.inputs import vector_arguments
from udf_runtime.execute.result import BatchResult


class VectorCalls:
    """Calls a function once per batch. Thread-safe if the user's function is."""

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self.context = context
        self.function = load_function(context.udf)
        self.output = context.output()

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
        """
        start_s = self.context.clock()
        bisection = BatchBisection(self.context, self._call)
        values = bisection.run(batch)
        return bisection.result(values, self.context.clock() - start_s)

    def close(self) -> None:
        """Does nothing, because the calls hold no resources."""

    def _call(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        return self.output.from_batch(self.function(*vector_arguments(self.context.udf.kind, batch)), batch.num_rows)
