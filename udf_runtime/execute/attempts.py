"""The failed calls of a row, or of a batch for UDFs over batches."""

from __future__ import annotations

from udf_runtime.execute.call_context import CallContext
from udf_runtime.policies.error_policy import Decision


class Attempts:
    """Counts the failed calls of a unit, and asks the error policy after each failure.

    Attributes:
        count: Number of failed calls.
    """

    __slots__ = ("_context", "count")

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self.count = 0

    def decide(self, error: BaseException) -> Decision:
        """Counts a failed call, and returns the policy's decision."""
        self.count += 1
        return self._context.policy.decide(error, attempt=self.count, rng=self._context.rng)
