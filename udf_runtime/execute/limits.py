"""Waits before the calls of a UDF: for the service's `Retry-After`, and for a rate limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from udf_runtime.errors import UdfDefinitionError
from udf_runtime.event_loop import CallsStoppedError
from udf_runtime.execute.service_health import ServiceHealth
from udf_runtime.policies.rate_limit import MinuteBudget, RateLimit

_A = TypeVar("_A", bound=tuple[object, ...])

CountTokens = Callable[..., object]


class Limiter(Protocol):
    """Grants calls within a rate limit. Thread-safe, and never blocks."""

    def acquire(self, tokens: int, waiting: int) -> float:
        """Takes a call and its tokens, or returns the seconds until the next try; 0.0: taken.

        Args:
            tokens: Tokens of the call.
            waiting: Number of calls that wait in this process, including the call.
        """


class ProcessLimiter:
    """Grants calls of this process alone, by its clock: for a UDF that runs outside of a job."""

    def __init__(self, limit: RateLimit, clock: Callable[[], float]) -> None:
        """Takes the limit, and a clock in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = (
            None if limit.calls_per_minute is None else MinuteBudget(limit.calls_per_minute)
        )
        self._tokens = (
            None if limit.tokens_per_minute is None else MinuteBudget(limit.tokens_per_minute)
        )

    def acquire(self, tokens: int, waiting: int) -> float:  # noqa: ARG002 - of the protocol
        """Takes a call and its tokens, or returns the seconds until the next try; 0.0: taken."""
        with self._lock:
            at = self._clock()
            amounts = [(self._calls, 1), (self._tokens, tokens)]
            budgets = [(budget, amount) for budget, amount in amounts if budget is not None]
            wait_s = max(budget.wait_s(amount, at) for budget, amount in budgets)
            if wait_s == 0:
                for budget, amount in budgets:
                    budget.spend(amount, at)
        return wait_s


class CallGate:
    """Each call of a UDF waits here before it begins. Thread-safe.

    Calls begin in the order of their arrival.

    Attributes:
        health: The state of the service.
        limiter: Grants calls within the rate limit; None: without a rate limit.
    """

    def __init__(
        self,
        health: ServiceHealth,
        *,
        sleep: Callable[[float], object],
        clock: Callable[[], float],
        limiter: Limiter | None = None,
        tokens: CountTokens | None = None,
    ) -> None:
        """Prepares the gate.

        Args:
            health: The state of the service.
            sleep: Waits a number of seconds in a thread.
            clock: Returns seconds.
            limiter: Grants calls within the rate limit; None: without a rate limit.
            tokens: Counts the tokens of a call from its arguments.
        """
        self.health = health
        self._sleep = sleep
        self._clock = clock
        self.limiter = limiter
        self._tokens = tokens
        self._turn = threading.Lock()
        self._async_turn = asyncio.Lock()
        self._count_lock = threading.Lock()
        self._waiting = 0
        self._waited_s = 0.0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Lets no further call begin; the calls get an error that no policy handles."""
        self._stopped.set()

    def resume(self) -> None:
        """Allows calls again, after all stopped threads have ended."""
        self._stopped.clear()

    def observe(self, function: Callable[..., object]) -> Callable[..., object]:
        """Returns a function that also notes each answer of the service."""

        def call(*arguments: object) -> object:
            result = function(*arguments)
            self.health.note_success()
            return result

        return call

    def admit_rows(self, rows: Iterator[_A]) -> Iterator[_A]:
        """Yields the arguments of calls, each when its call may begin.

        Raises:
            ServiceUnavailableError: The service was given up. The iterator continues with the next
                row.
        """
        return map(self._admit_row, rows)

    def admit(self, *arguments: object) -> None:
        """Waits until a call with these arguments may begin.

        Raises:
            ServiceUnavailableError: The service was given up.
            Exception: The function that counts tokens failed.
        """
        tokens = self._count_tokens(arguments)
        self._add_waiting(1)
        try:
            with self._turn:
                while (wait_s := self._try(tokens)) > 0:
                    self._sleep(wait_s)
        finally:
            self._add_waiting(-1)

    async def admit_async(self, *arguments: object) -> None:
        """Does the same as `admit`, on the event loop."""
        tokens = self._count_tokens(arguments)
        self._add_waiting(1)
        try:
            async with self._async_turn:
                while (wait_s := self._try(tokens)) > 0:
                    await asyncio.sleep(wait_s)
        finally:
            self._add_waiting(-1)

    def wait(self, delay_s: float) -> None:
        """Waits before the next attempt of a row, while other calls may begin.

        Raises:
            ServiceUnavailableError: The service was given up.
        """
        until = self._clock() + delay_s
        while (pause_s := self.health.pause_s(until)) > 0:
            self._sleep(pause_s)

    async def wait_async(self, delay_s: float) -> None:
        """Does the same as `wait`, on the event loop."""
        until = self._clock() + delay_s
        while (pause_s := self.health.pause_s(until)) > 0:
            await asyncio.sleep(pause_s)

    def take_waited_s(self) -> float:
        """Returns the seconds in which no call might begin, since the last look.

        Other waits between two attempts of a row do not count.
        """
        with self._count_lock:
            waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s + self.health.take_held_s()

    def _admit_row(self, arguments: _A) -> _A:
        self.admit(*arguments)
        return arguments

    def _try(self, tokens: int) -> float:
        """Takes the call at the head of the queue, or returns the seconds until the next try."""
        if self._stopped.is_set():
            raise CallsStoppedError
        pause_s = self.health.pause_s()
        if pause_s > 0 or self.limiter is None:
            return pause_s
        wait_s = self.limiter.acquire(tokens, self._waiting)
        with self._count_lock:
            self._waited_s += wait_s
        return wait_s

    def _add_waiting(self, count: int) -> None:
        with self._count_lock:
            self._waiting += count

    def _count_tokens(self, arguments: tuple[object, ...]) -> int:
        if self._tokens is None:
            return 0
        tokens = self._tokens(*arguments)
        try:
            return max(0, int(tokens))  # type: ignore[call-overload, no-any-return]  # checked here
        except (TypeError, ValueError, OverflowError) as error:
            raise UdfDefinitionError(
                f"The function tokens= of a RateLimit returned {type(tokens).__name__}. Return a whole number."
            ) from error
