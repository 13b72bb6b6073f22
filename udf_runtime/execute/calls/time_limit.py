"""A limit on the time of a call.

Signals reach the main thread only, so a call with a limit runs in its own thread. If the call is
late, the caller abandons the thread and continues at once, even if the call waits in native code.
The abandoned thread gets an exception at its next Python instruction, and its result is dropped.

Limits: a call that never releases the interpreter lock is not noticed. A call that waits forever in
native code keeps its thread and its objects. The function runs in another thread than the caller's,
namely the same thread from batch to batch, until a call is late.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from udf_runtime.execute.call_context import HungCallsError

MOST_HUNG_CALLS = 64
"""A UDF with more hung calls would fill the process with threads."""

_abandoned: weakref.WeakSet[threading.Thread] = (
    weakref.WeakSet()
)  # threads of late calls in this process


def has_many_hung_calls() -> bool:
    """Tells whether a process with several runners, one after the other, is full of hung calls."""
    return sum(thread.is_alive() for thread in _abandoned) >= MOST_HUNG_CALLS


class TimeLimit:
    """Calls a function with a time limit per call; each calling thread has a helper thread."""

    def __init__(self, udf: str, function: Callable[..., object], limit_s: float) -> None:
        """Stores the arguments; starts no thread.

        Args:
            udf: Name of the UDF, for messages.
            function: The function to call.
            limit_s: Seconds per call.
        """
        self._udf = udf
        self._function = function
        self._limit_s = limit_s
        self._own = threading.local()
        self._helpers: list[_Helper] = []
        self._lock = threading.Lock()

    def extend(self, results: list[object], arguments: Iterator[tuple[object, ...]]) -> None:
        """Appends the result for each argument; another call continues after a failed row.

        Raises:
            TimeoutError: A call exceeded the limit. Its result is never appended.
            BaseException: Any error of the function.
            HungCallsError: Too many calls never ended.
        """
        work = _Work(arguments)
        helper = self._find_helper()
        helper.queue.put(work)
        late = False
        wait_s = self._limit_s
        try:
            while not late and not work.done.wait(wait_s):
                late, wait_s = work.give_up_if_late(self._limit_s)
        except BaseException:  # the caller is interrupted, and the remaining rows are abandoned
            work.give_up()
            self._abandon(helper)
            raise
        results.extend(work.results)
        if late:
            self._abandon(helper)
            raise TimeoutError(f"the call took longer than the timeout of {self._limit_s} s")
        if work.error is not None:
            raise work.error

    def close(self) -> None:
        """Ends the idle threads; a thread in a late call ends with its call."""
        with self._lock:
            for helper in self._helpers:
                helper.queue.put(None)
            self._helpers = [helper for helper in self._helpers if helper.thread.is_alive()]

    def _find_helper(self) -> _Helper:
        helper: _Helper | None = getattr(self._own, "helper", None)
        if helper is None or not helper.thread.is_alive():
            with self._lock:
                self._helpers = [peer for peer in self._helpers if peer.thread.is_alive()]
                hung = sum(peer.abandoned for peer in self._helpers)
                if hung >= MOST_HUNG_CALLS:
                    raise HungCallsError(
                        udf=self._udf,
                        row=None,
                        error_type="TimeoutError",
                        error_message=f"{hung} calls took longer than the timeout of {self._limit_s} s "
                        "and have not ended",
                        error_trace="",
                    )
                helper = _Helper(self._udf, self._function)
                self._helpers.append(helper)
            self._own.helper = helper
        return helper

    def _abandon(self, helper: _Helper) -> None:
        self._own.helper = None
        helper.abandoned = True
        _abandoned.add(helper.thread)
        helper.queue.put(None)
        if helper.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(helper.thread.ident), ctypes.py_object(_GivenUpError)
            )


class _GivenUpError(SystemExit):
    """Ends an abandoned thread; Python reports no SystemExit of a thread."""


class _Work:
    """Rows to call, and their results; shared by the caller and a helper thread."""

    __slots__ = ("arguments", "done", "error", "given_up", "lock", "results", "started_s")

    def __init__(self, arguments: Iterator[tuple[object, ...]]) -> None:
        self.arguments = arguments
        self.results: list[object] = []
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.given_up = False
        self.started_s: float | None = None

    def give_up(self) -> None:
        with self.lock:
            self.given_up = True

    def give_up_if_late(self, limit_s: float) -> tuple[bool, float]:
        """Returns whether the current call is late, else its remaining seconds."""
        with self.lock:
            if self.started_s is None:  # between two rows, or all done
                return False, limit_s
            left_s = limit_s - (time.monotonic() - self.started_s)
            if left_s > 0:
                return False, left_s
            self.given_up = True
            return True, 0.0

    def run(self, function: Callable[..., object]) -> None:
        try:
            for row in self.arguments:
                self.started_s = time.monotonic()
                value = function(*row)
                with self.lock:
                    # Under the lock, a call is either in time and counted, or late and dropped.
                    self.started_s = None
                    if self.given_up:
                        return
                    self.results.append(value)
        except BaseException as error:  # noqa: BLE001 - the caller's policy decides
            with self.lock:
                self.started_s = None
                if not self.given_up:
                    self.error = error
        finally:
            self.done.set()


class _Helper:
    """A daemon thread, so a hung call does not keep the process from ending."""

    __slots__ = ("abandoned", "queue", "thread")

    def __init__(self, udf: str, function: Callable[..., object]) -> None:
        self.abandoned = False
        self.queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=_run_queue, args=(self.queue, function), name=f"udf-{udf}-timed", daemon=True
        )
        self.thread.start()


def _run_queue(work: queue.SimpleQueue[_Work | None], function: Callable[..., object]) -> None:
    while (item := work.get()) is not None:
        item.run(function)
        if item.given_up:
            return
        del item  # otherwise an idle thread keeps the last batch alive
