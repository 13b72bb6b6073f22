"""Limits on the calls of a service: the setting of a UDF, and a budget per minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import cloudpickle

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.unpickling import loads

MINUTE_S = 60.0
_BURST_S = 2.0
"""Seconds of the limit that may be used at once, so calls spread over the minute."""

_STEP_S = 0.5
"""Amounts within this time are stored together, with the times of the first and last amount."""


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """The calls and tokens that a service accepts per minute, for a whole job over all executors.

    A call is a call of the function: a row for a scalar UDF, a batch for a UDF over batches. Calls
    spread over the minute, with at most two seconds of the limit at once. In any minute, the driver
    grants at most the limit to the processes of the job. A process may hold granted calls of about
    two seconds for later, and at least one, and collects the tokens of a large call. A minute
    exceeds the limit at most by these. Two jobs do not share a limit.

    Attributes:
        calls_per_minute: Maximum calls in any minute; None: no limit.
        tokens_per_minute: Maximum tokens in any minute; None: no limit.
        tokens: Function of the arguments of a call that returns the number of its tokens; required
            with `tokens_per_minute`. It runs in the process of the UDF. Its error is an error of
            the call.

    Example:
        >>> from udf_runtime import RateLimit, udf
        >>> limit = RateLimit(calls_per_minute=600, tokens_per_minute=90_000, tokens=len)
        >>> @udf(rate_limit=limit)
        ... async def label(text: str) -> str:
        ...     return text
        >>> label.rate_limit.calls_per_minute
        600
    """

    calls_per_minute: float | None = None
    tokens_per_minute: float | None = None
    tokens: Callable[..., object] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        tokens = self.tokens
        # Only a process that calls the function unpickles it, with the packages of the UDF.
        provider = (
            tokens
            if tokens is None or isinstance(tokens, _PickledFunction)
            else _PickledFunction(tokens)
        )
        return _rebuild_limit, (self.calls_per_minute, self.tokens_per_minute, provider)

    def __post_init__(self) -> None:
        for name in ("calls_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UdfDefinitionError(
                    f"The argument {name}={value!r} of RateLimit is not possible. Give a number above 0, or None."
                )
        if self.calls_per_minute is None and self.tokens_per_minute is None:
            raise UdfDefinitionError(
                "The RateLimit has no limit. Give calls_per_minute or tokens_per_minute."
            )
        if (self.tokens is None) != (self.tokens_per_minute is None):
            raise UdfDefinitionError(
                "The arguments tokens_per_minute and tokens of RateLimit belong together. Give both, or neither."
            )


class _PickledFunction:
    """A function that is unpickled at its first call."""

    def __init__(self, function: Callable[..., object] | None, payload: bytes = b"") -> None:
        self._function = function
        self._payload = payload or cloudpickle.dumps(function)

    def __reduce__(self) -> tuple[object, ...]:
        return _PickledFunction, (None, self._payload)

    def __call__(self, *arguments: object) -> object:
        if self._function is None:
            self._function = loads(self._payload)  # within the pickle of a UDF, which is code
        return self._function(*arguments)


def _rebuild_limit(
    calls: float | None, tokens: float | None, function: Callable[..., object] | None
) -> RateLimit:
    return RateLimit(calls_per_minute=calls, tokens_per_minute=tokens, tokens=function)


class MinuteBudget:
    """What may be used now of a limit per minute. Pure: the caller gives the time.

    Amounts accrue evenly, up to two seconds of the limit, and any 60 seconds have at most the
    limit. An amount above the limit is taken alone.
    """

    def __init__(self, per_minute: float) -> None:
        """Starts with two seconds of the limit, and at least 1."""
        self._limit = per_minute
        self._most = max(1.0, per_minute / MINUTE_S * _BURST_S)
        self._level = self._most
        self._updated: float | None = None
        self._spent: deque[tuple[float, float, float]] = deque()  # first time, last time, amount
        self._spent_sum = 0.0

    def wait_s(self, amount: float, at: float) -> float:
        """Returns the seconds until an amount may be spent; 0.0: now."""
        self._update(at)
        shortage = min(amount, self._most) - self._level
        if shortage > 1e-9:
            return shortage / self._limit * MINUTE_S
        if self._spent and self._spent_sum + amount > self._limit + 1e-9:
            return max(0.001, self._spent[0][1] + MINUTE_S - at)
        return 0.0

    def spend(self, amount: float, at: float) -> None:
        """Spends an amount at a time, also if the amount exceeds the available amount."""
        self._update(at)
        self._level -= amount
        self._spent_sum += amount
        start = at
        if self._spent and at - self._spent[-1][0] < _STEP_S:
            start, _, earlier_amount = self._spent.pop()
            amount += earlier_amount
        self._spent.append((start, at, amount))

    def available(self, at: float) -> int:
        """Returns the whole amount that may be spent now."""
        self._update(at)
        room = max(self._limit - self._spent_sum, 0.0 if self._spent else 1.0)
        return max(0, math.floor(min(self._level, room) + 1e-9))

    def _update(self, at: float) -> None:
        passed = 0.0 if self._updated is None else max(0.0, at - self._updated)
        self._updated = at
        self._level = min(self._most, self._level + passed * self._limit / MINUTE_S)
        while self._spent and self._spent[0][1] <= at - MINUTE_S:
            self._spent_sum -= self._spent.popleft()[2]
