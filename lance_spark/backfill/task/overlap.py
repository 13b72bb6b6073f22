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

from lance_spark.locations import is_local
from lance_spark.staging.area import Staging

T = TypeVar("T")

_WRITES_BEHIND = 4
"""Maximum number of pending writes of any size. Each holds the values of a batch at most."""

_SMALL_WRITES_BEHIND = 32
_SMALL_WRITE_BYTES = 16 << 20
"""Maximum number and bytes of the pending writes if there are more: a small file has two writes."""


class ReadAhead(Generic[T]):
    """Takes the items of an iterable in a thread, at most `depth` items ahead of the consumer."""

    def __init__(self, items: Iterable[T], depth: int) -> None:
        """Starts the thread, which also runs the code of the iterable and closes it."""
        self._room = threading.Semaphore(depth)
        self._ready: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(items,), name="lance-spark-read", daemon=True
        )
        self._thread.start()

    @property
    def has_item(self) -> bool:
        """Whether :meth:`take` returns or raises at once."""
        return not self._ready.empty()

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


class WriteRoom:
    """Bounds the pending writes of a task: a few writes of any size, or many small writes."""

    def __init__(self, count: int, *, small_count: int, small_bytes: int) -> None:
        """Takes the number of writes of any size, and the bounds of more writes."""
        self._count, self._small_count, self._small_bytes = count, small_count, small_bytes
        self._pending = self._pending_bytes = 0
        self._changed = threading.Condition()

    def enter(self, nbytes: int) -> None:
        """Waits for room, and adds a write."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(nbytes))
            self._pending, self._pending_bytes = self._pending + 1, self._pending_bytes + nbytes

    def leave(self, nbytes: int) -> None:
        """Removes a write."""
        with self._changed:
            self._pending, self._pending_bytes = self._pending - 1, self._pending_bytes - nbytes
            self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        if self._pending < self._count:
            return True
        return (
            self._pending < self._small_count and self._pending_bytes + nbytes <= self._small_bytes
        )


class WriteBehind:
    """Runs writes one after another in a thread. Callers wait while `room` has no room."""

    def __init__(self, room: WriteRoom) -> None:
        """Starts no thread before the first write."""
        self._room = room
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any], int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, write: Callable[[], T], nbytes: int = 0) -> Future[T]:
        """Adds a write of so many bytes, and returns its result."""
        self._room.enter(nbytes)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lance-spark-write", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._jobs.put((future, write, nbytes))
        return future

    def close(self) -> None:
        """Ends the thread after the pending writes."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, write, nbytes = job
            try:
                future.set_result(write())
            except BaseException as error:  # noqa: BLE001 - the caller raises the error
                future.set_exception(error)
            finally:
                del job, write
                self._room.leave(nbytes)


class WriteLanes:
    """Threads for the writes of several files at once. All writes of a file are in one lane."""

    def __init__(self, count: int, room: WriteRoom) -> None:
        self._lanes = [WriteBehind(room) for _ in range(count)]
        self._order = itertools.cycle(self._lanes)

    def next(self) -> WriteBehind:
        """Returns the lane for the next file."""
        return next(self._order)

    def close(self) -> None:
        """Ends the threads after the pending writes."""
        for lane in self._lanes:
            lane.close()


def task_lanes(staging: Staging) -> WriteLanes:
    """Returns the threads for the files of a task."""
    room = WriteRoom(
        _WRITES_BEHIND, small_count=_SMALL_WRITES_BEHIND, small_bytes=_SMALL_WRITE_BYTES
    )
    # A file system answers sooner than another thread.
    return WriteLanes(1 if is_local(staging.uri) else staging.open_files, room)


class Writes:
    """The writes of one range or file. After an error, no further write of the range runs."""

    def __init__(self, thread: WriteBehind) -> None:
        self._thread = thread
        self._error: BaseException | None = None
        self._last: Future[None] | None = None

    def submit(self, write: Callable[[], None], nbytes: int = 0) -> None:
        """Adds a write of so many bytes.

        Raises:
            BaseException: The error of an earlier write.
        """
        self._raise_error()
        self._last = self._thread.submit(functools.partial(self._write, write), nbytes)

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
