"""The failed calls of a row, or of a batch for UDFs over batches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from udf_runtime.errors import ServiceUnavailableError
from udf_runtime.execute.result import RowFailure, row_failure
from udf_runtime.policies.error_policy import Decision
from udf_runtime.policies.http import find_http_retry

if TYPE_CHECKING:
    from udf_runtime.execute.call_context import CallContext

_GIVE_UP = Decision(action="give_up")


class Attempts:
    """Counts the failed calls of a unit, and asks the error policy after each failure.

    Attributes:
        count: Number of failed calls.
    """

    __slots__ = ("_context", "_waived", "count")

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._waived = 0
        self.count = 0

    def decide(self, error: BaseException) -> Decision:
        """Counts a failed call, and returns the policy's decision. Waits before a retry."""
        decision = self._decide(error)
        if decision.action != "retry":
            return decision
        try:
            self._context.wait(decision.delay_s)
        except ServiceUnavailableError:
            return _GIVE_UP
        return decision

    async def decide_async(self, error: BaseException) -> Decision:
        """Does the same as `decide`, on the event loop."""
        decision = self._decide(error)
        if decision.action != "retry":
            return decision
        gate = self._context.gate
        try:
            await (
                asyncio.sleep(decision.delay_s)
                if gate is None
                else gate.wait_async(decision.delay_s)
            )
        except ServiceUnavailableError:
            return _GIVE_UP
        return decision

    def is_refusal(self, error: BaseException) -> bool:
        """Tells whether the service takes no calls, so fewer rows per call do not help."""
        matcher = find_http_retry(self._context.policy, error)
        return matcher is not None and matcher.is_refusal(error)

    def describe(
        self, error: BaseException, decision: Decision, *, row: int, depth: int = 0
    ) -> RowFailure:
        """Returns the record of a row without a value, after a decision to skip or to give up."""
        most = self._context.policy.max_attempts(error)
        if decision.action == "skip":
            return row_failure(
                error, row=row, attempt=self.count, max_attempts=most, bisect_depth=depth
            )
        gate = self._context.gate
        given_up = None if gate is None else gate.health.error
        failure = row_failure(
            given_up or error, row=row, attempt=self.count, max_attempts=most, outcome="unavailable"
        )
        return failure if given_up is None else replace(failure, message=given_up.reason)

    def _decide(self, error: BaseException) -> Decision:
        context = self._context
        self.count += 1
        if context.gate is not None:
            health, matcher = context.gate.health, find_http_retry(context.policy, error)
            self._waived += health.note_failure(error, matcher)
            if health.error is not None and (
                matcher is not None or isinstance(error, ServiceUnavailableError)
            ):
                return _GIVE_UP
        return context.policy.decide(
            error, attempt=self.count, rng=context.rng, waived=self._waived
        )
