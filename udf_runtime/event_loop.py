"""The event loop of this process, in a thread of its own: async UDFs and their clients share it."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

_T = TypeVar("_T")

_END_WAIT_S = 1.0


def run_coroutine(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine on the event loop of this process, and returns its result.

    Any thread may call this function, except a coroutine of the loop. If the wait is interrupted,
    the coroutine is cancelled.

    Raises:
        BaseException: Any error of the coroutine.
    """
    return Coroutines().run(coroutine)


class CallsStoppedError(Exception):
    """A call was cancelled, or not started, because its run has ended."""


class Coroutines:
    """Coroutines of several threads that can be cancelled together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._stopped = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Does the same as :func:`run_coroutine`, until `stop`.

        Raises:
            CallsStoppedError: Another thread called `stop`.
            BaseException: Any error of the coroutine.
        """
        with self._lock:
            if self._stopped.is_set():
                coroutine.close()
                raise CallsStoppedError
            future = asyncio.run_coroutine_threadsafe(coroutine, _get_loop().loop)
            self._futures.add(future)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if self._stopped.is_set() and isinstance(error, CancelledError):
                raise CallsStoppedError from None
            raise
        finally:
            with self._lock:
                self._futures.discard(future)

    def stop(self) -> None:
        """Cancels the coroutines; their threads, and later calls of `run`, get an error."""
        with self._lock:
            self._stopped.set()
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    def resume(self) -> None:
        """Allows new coroutines, after all stopped threads have ended."""
        self._stopped.clear()


def finish(result: object) -> object:
    """Returns the result of a function that may be async: runs a coroutine, else returns it as is.

    Raises:
        BaseException: Any error of the coroutine.
    """
    return run_coroutine(result) if inspect.iscoroutine(result) else result


class _LoopThread:
    """A running event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="event-loop-of-udfs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_ending:
            try:
                self.loop.run_forever()
            except (
                SystemExit,
                KeyboardInterrupt,
            ):  # raised by a task that the user's code has started
                continue

    def end(self) -> None:
        """Ends the loop, unless a call blocks the loop."""
        self._is_ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_END_WAIT_S)
        if not self._thread.is_alive():
            self.loop.close()


_lock = threading.Lock()
_running: _LoopThread | None = None


def _get_loop() -> _LoopThread:
    """Returns the loop of this process, and starts the loop at the first use."""
    global _running  # noqa: PLW0603 - one loop per process
    with _lock:
        if _running is None:
            _running = _LoopThread()
        return _running


def _forget_loop() -> None:
    """Forgets the loop in a forked process, because its thread stays in the parent."""
    global _lock, _running
    _lock, _running = threading.Lock(), None


def _end_loop() -> None:
    if _running is not None:
        _running.end()


os.register_at_fork(after_in_child=_forget_loop)
atexit.register(_end_loop)
