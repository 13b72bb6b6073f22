"""Waits before the calls of a UDF: for the service's `Retry-After`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from udf_runtime.execute.service_health import ServiceHealth

_A = TypeVar("_A", bound=tuple[object, ...])


class CallGate:
    """Each call of a UDF waits here before it begins. Thread-safe.

    Calls begin in the order of their arrival.

    Attributes:
        health: The state of the service.
    """

    def __init__(self, health: ServiceHealth, sleep: Callable[[float], object], clock: Callable[[], float]) -> None:
        """Takes the state of the service, a wait in a thread, and a clock in seconds."""
        self.health = health
        self._sleep = sleep
        self._clock = clock
        self._turn = threading.Lock()
        self._async_turn = asyncio.Lock()

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

    def admit(self) -> None:
        """Waits until a call may begin.

        Raises:
            ServiceUnavailableError: The service was given up.
        """
        with self._turn:
            while (pause_s := self.health.pause_s()) > 0:
                self._sleep(pause_s)

    async def admit_async(self) -> None:
        """Does the same as `admit`, on the event loop."""
        async with self._async_turn:
            while (pause_s := self.health.pause_s()) > 0:
                await asyncio.sleep(pause_s)

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
        return self.health.take_held_s()

    def _admit_row(self, arguments: _A) -> _A:
        self.admit()
        return arguments
