"""Background threads of a task: reading ahead of the calls of a UDF, and writing behind them.

The calls stay in the main thread of a task. pylance refuses an object in two threads at once, so
each thread has datasets, readers and files of its own.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Takes the items of an iterable in a thread, at most `depth` items ahead of the consumer."""

    def __init__(self, items: Iterable[T], depth: int) -> None:
        """Starts the thread, which also runs the code of the iterable and closes it."""
        self._room = threading.Semaphore(depth)
        self._ready: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(items,), name="lance-spark-read", daemon=True)
        self._thread.start()

    def take(self) -> T:
        """Waits for the next item.

        Raises:
            BaseException: The error of the iterable; StopIteration at the end.
        """
        item, error = self._ready.get()
        if error is not None:
            self._ready.put((None, error))
            raise error
        self._room.release()
        return cast("T", item)

    def close(self) -> None:
        """Ends the thread after the item in progress."""
        self._stopped = True
        self._room.release()
        self._thread.join()

    def _run(self, items: Iterable[T]) -> None:
        iterator = iter(items)
        try:
            while True:
                self._room.acquire()
                if self._stopped:
                    break
                self._ready.put((next(iterator), None))
        except BaseException as error:  # noqa: BLE001 - the consumer raises the error
            self._ready.put((None, error))
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()


class WriteBehind:
    """Runs writes one after another in a thread. Callers wait while `room` has no room."""

    def __init__(self, room: threading.Semaphore) -> None:
        """Starts no thread before the first write."""
        self._room = room
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, write: Callable[[], T]) -> Future[T]:
        """Adds a write, and returns its result."""
        self._room.acquire()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lance-spark-write", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._jobs.put((future, write))
        return future

    def close(self) -> None:
        """Ends the thread after the pending writes."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, write = job
            try:
                future.set_result(write())
            except BaseException as error:  # noqa: BLE001 - the caller raises the error
                future.set_exception(error)
            finally:
                del job, write
                self._room.release()


class WriteLanes:
    """Threads for the writes of several files at once. Each file has all of its writes in one lane.

    Callers wait while `depth` writes of all lanes are pending.
    """

    def __init__(self, count: int, depth: int) -> None:
        room = threading.Semaphore(depth)
        self._lanes = [WriteBehind(room) for _ in range(count)]
        self._order = itertools.cycle(self._lanes)

    def next(self) -> WriteBehind:
        """Returns the lane for the next file."""
        return next(self._order)

    def close(self) -> None:
        """Ends the threads after the pending writes."""
        for lane in self._lanes:
            lane.close()


class Writes:
    """The writes of one range or file. After an error, no further write of the range runs."""

    def __init__(self, thread: WriteBehind) -> None:
        self._thread = thread
        self._error: BaseException | None = None
        self._last: Future[None] | None = None

    def submit(self, write: Callable[[], None]) -> None:
        """Adds a write.

        Raises:
            BaseException: The error of an earlier write.
        """
        self._raise_error()
        self._last = self._thread.submit(functools.partial(self._write, write))

    def join(self) -> None:
        """Waits for all writes.

        Raises:
            BaseException: The first error of a write.
        """
        if self._last is not None:
            self._last.result()
        self._raise_error()

    def _write(self, write: Callable[[], None]) -> None:
        if self._error is None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - raised by the next step of the range
                self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
