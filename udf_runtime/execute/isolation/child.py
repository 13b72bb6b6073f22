"""The process of a UDF: a server for the tasks of a machine, one task at a time.

The command is `python -m udf_runtime.execute.isolation.child LISTENER LIFE DESCRIPTOR...`, in the
environment of the UDF. PyArrow is the only other package that the process needs.

Each connection to the listening socket is a stream of frames. The first connection of a task is
served in the main thread, because the UDF may use signals, or objects of its thread. Further
connections of the same task have threads of their own, and share the loaded UDF.

LIFE is a pipe of the supervisor. A byte ends the process in order after the current connection,
with `teardown()`. The end of the pipe ends the process at once. The other descriptors only stay
open, for example to hold a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import faulthandler
import io
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, cast

import cloudpickle
import pyarrow as pa

from udf_runtime.checkpoint.chunks import ChunkFolder
from udf_runtime.definition import UDF, Kind, forget_instances
from udf_runtime.definition.artifacts import use_copies
from udf_runtime.environments.machine_cache import hold_entry
from udf_runtime.environments.variables import Variables
from udf_runtime.execute.calls.time_limit import has_many_hung_calls
from udf_runtime.execute.isolation.protocol.frames import (
    ChildStart,
    Failure,
    Reply,
    Tag,
    from_ipc,
    prepare,
    to_ipc,
    wait_closed,
)
from udf_runtime.execute.isolation.protocol.parent import (
    Parent,
    ParentLimiter,
    ParentObjects,
    ParentTable,
)
from udf_runtime.execute.isolation.protocol.sockets import is_own_user
from udf_runtime.execute.result import BatchResult, shortened, trace_of, type_name
from udf_runtime.execute.runner import UdfRunner
from udf_runtime.execute.tables import call_table
from udf_runtime.execute.threads import hook_imports
from udf_runtime.policies.matchers import message_of

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects


def main(listener: int, life: int) -> None:
    """Serves tasks until the supervisor ends the process."""
    # Ctrl-C reaches every process of the terminal; the task decides, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a crashing process has no time to flush
    faulthandler.enable()  # for the log: the place of a crash in native code
    _run_or_end(lambda: _Server(socket.socket(fileno=listener), life).run())


def _run_or_end(work: Callable[[], None]) -> None:
    """Runs a part of the server; after an error the process ends with its descendants."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - a process without this part would let its tasks wait
        with contextlib.suppress(OSError):
            traceback.print_exc()
        _end()


class _Server:
    """Accepts connections: the main thread serves the first connection of a task."""

    def __init__(self, listener: socket.socket, life: int) -> None:
        self._listener = listener
        self._life = life
        self._loaded = LoadedUdf()
        self._accepted: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        self._current: socket.socket | None = None  # of the main thread, from its acceptance on
        self._is_ending = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serves connections until the end in order, and calls `teardown()`."""
        threading.Thread(
            target=_run_or_end, args=(self._accept,), name="connections", daemon=True
        ).start()
        while (connection := self._accepted.get()) is not None:
            self._loaded.serve(connection, is_main=True)
            with self._lock:
                if (
                    self._current is connection
                ):  # otherwise the next connection waits for this thread
                    self._current = None
                connection.close()
                if has_many_hung_calls():
                    self._is_ending = True  # the next task starts another process
                    self._accepted.put(None)
        forget_instances()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._life, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._life in ready:
                if not os.read(self._life, 1):
                    _end()
                self._accepted.put(None)
                poll.unregister(self._life)
            if self._listener.fileno() in ready:
                self._assign(self._listener.accept()[0])

    def _assign(self, connection: socket.socket) -> None:
        if not is_own_user(connection):
            connection.close()
            return
        prepare(connection)
        with self._lock:
            if self._is_ending:
                connection.close()
                return
            # The main thread may still leave the stream of a task that has ended.
            is_main = self._current is None or wait_closed(self._current.fileno(), 0)
            if is_main:
                self._current = connection
                self._accepted.put(connection)
        if not is_main:
            threading.Thread(
                target=self._serve_in_thread, args=(connection,), name="connection", daemon=True
            ).start()

    def _serve_in_thread(self, connection: socket.socket) -> None:
        with connection:
            self._loaded.serve(connection, is_main=False)


class LoadedUdf:
    """The UDF of the process, loaded by the first connection in the main thread."""

    def __init__(self) -> None:
        self._udf: UDF | None = None
        self._call_slots: asyncio.Semaphore | None = None
        self._main_has_tried = threading.Event()

    def serve(self, connection: socket.socket, *, is_main: bool) -> None:
        """Serves a connection to its end."""
        runner_side = Parent(connection)
        try:
            self._serve(runner_side, is_main=is_main)
        except BaseException as error:  # noqa: BLE001 - errors of user code are answers, so no reply was possible
            if isinstance(error, BrokenPipeError) and error.__cause__ is None:
                return  # the task has ended
            with contextlib.suppress(OSError):
                traceback.print_exc()

    def _serve(self, runner_side: Parent, *, is_main: bool) -> None:
        _, payload = runner_side.read()
        start = cast(ChildStart, pickle.loads(payload))  # noqa: S301 - from a process of this user, which may do all that this process may do
        serving = _Serving(runner_side, start.variables)
        try:
            udf, runner = self._load(runner_side, start, is_main=is_main)
        except BaseException as error:  # noqa: BLE001 - the task receives any error of user code
            serving.send_error(error)
            return
        finally:
            self._main_has_tried.set()
        with runner:
            serving.serve(runner, udf)

    def _load(
        self, runner_side: Parent, start: ChildStart, *, is_main: bool
    ) -> tuple[UDF, UdfRunner]:
        if not is_main:
            self._main_has_tried.wait()
        if self._udf is None:
            # Set here instead of at the start of the process, because the system shows start
            # variables to other users.
            os.environ.update(start.variables.in_clear())
            hook_imports()
            for entry in start.entries:
                hold_entry(entry)
            use_copies(start.copies)
            # The task deduplicates the inputs.
            self._udf = dataclasses.replace(UDF.loads(start.udf), deduplicate=False)
            self._call_slots = asyncio.Semaphore(self._udf.calls_in_flight)
        objects = cast("Objects", ParentObjects(runner_side))  # a process only puts chunks
        chunks = None if start.chunks is None else ChunkFolder(objects, *start.chunks)
        limiter = ParentLimiter(runner_side)
        runner = UdfRunner(self._udf, chunks=chunks, limiter=limiter, call_slots=self._call_slots)
        if self._udf.kind is Kind.TABLE:
            self._udf.load()
        else:
            runner.load()
        return self._udf, runner


class _Serving:
    """Answers the batches of a connection until `QUIT`."""

    def __init__(self, parent: Parent, variables: Variables) -> None:
        self._variables = variables
        self._parent = parent
        self._quit = False
        self._table = False

    def serve(self, runner: UdfRunner, udf: UDF) -> None:
        while not self._quit:
            try:
                for result in runner.run(self._read_batches()):
                    self._send_result(result)
                if self._table:
                    self._table = False
                    for batch in call_table(udf, ParentTable(self._parent)):
                        self._parent.write(Tag.VALUES, to_ipc(batch))
                    self._parent.write(Tag.END)
            except BrokenPipeError:
                raise
            except BaseException as error:  # noqa: BLE001 - the task receives any error of user code
                self.send_error(error)

    def _send_result(self, result: BatchResult) -> None:
        failures = tuple(
            dataclasses.replace(
                failure,
                message=self._variables.redact(failure.message),
                trace=self._variables.redact(failure.trace),
            )
            for failure in result.failures
        )
        reply = Reply(
            failures=failures,
            retries=result.retries,
            seconds=result.seconds,
            batch_rows=result.batch_rows,
            limit_s=result.limit_s,
        )
        values = to_ipc(pa.record_batch([result.values], names=["values"]))
        self._parent.write(Tag.RECORD, pickle.dumps(reply))
        self._parent.write(Tag.VALUES, values)

    def send_error(self, error: BaseException) -> None:
        cause = error.__cause__
        failure = Failure(
            error=self._pickle_error(error),
            cause=None if cause is None else self._pickle_error(cause),
            error_type=type_name(error),
            message=self._variables.redact(shortened(message_of(error))),
            trace=self._variables.redact(trace_of(error)),
        )
        self._parent.write(Tag.ERROR, pickle.dumps(failure))

    def _pickle_error(self, error: BaseException) -> bytes | None:
        try:
            payload: bytes = cloudpickle.dumps(error)
            pickle.loads(payload)  # noqa: S301 - made in the line above; an exception may pickle well and fail to load
        except Exception:  # noqa: BLE001 - a user's exception may raise anything here; its text is sent anyway
            return None
        # A secret may occur in several places of the object, so only the redacted text is sent.
        return None if self._variables.shows_in(payload) else payload

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            tag, payload = self._parent.read_next()
            if tag is not Tag.BATCH:
                self._quit = tag is Tag.QUIT
                self._table = tag is Tag.TABLE
                return
            yield from_ipc(payload)


def _end() -> NoReturn:
    """Ends the process, and the processes started by the UDF.

    The rest of a long call has no use: no cleanup, no wait for threads.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    for inherited in map(int, sys.argv[1:]):
        os.set_inheritable(inherited, False)  # not for processes of the UDF
    main(int(sys.argv[1]), int(sys.argv[2]))
