"""The process of a UDF, started by a runner.

The command is `python -m udf_runtime.execute.isolation.child PARENT_PID`, in the environment of the
UDF. PyArrow is the only other package that the process needs.

Batches come on standard input and results go to standard output, as frames. Both are moved to other
descriptors before any user code runs, so output of a UDF goes to standard error, and its standard
input is empty. The process ends with its parent, together with all processes started by the UDF. A
thread waits for the end of the input and regularly checks the parent, because another process
forked from the parent may hold the input open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import io
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn, cast

import cloudpickle
import pyarrow as pa

from udf_runtime.checkpoint.chunks import ChunkFolder
from udf_runtime.definition import UDF, Kind
from udf_runtime.definition.artifacts import use_copies
from udf_runtime.environments.machine_cache import hold_entry
from udf_runtime.environments.variables import Variables
from udf_runtime.execute.isolation.frames import (
    ChildStart,
    Failure,
    Reply,
    Tag,
    from_ipc,
    to_ipc,
    wait_closed,
)
from udf_runtime.execute.isolation.parent import Parent, ParentObjects, ParentTable
from udf_runtime.execute.result import BatchResult, shortened, trace_of, type_name
from udf_runtime.execute.runner import UdfRunner
from udf_runtime.execute.tables import call_table
from udf_runtime.execute.threads import hook_imports
from udf_runtime.policies.matchers import message_of

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects

PARENT_CHECK_S = 1.0


def main(parent: int) -> None:
    """Serves the parent process until its `QUIT`, or its end."""
    # Ctrl-C reaches every process of the terminal; the parent decides, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reading, writing = _take_standard_streams()
    faulthandler.enable()  # for the log: the place of a crash in native code
    runner_side = Parent(reading, writing)
    threading.Thread(target=_end_with, args=(parent, reading), name="parent", daemon=True).start()
    try:
        _serve(runner_side)
    except BaseException:  # noqa: BLE001 - the process ends with its descendants after any error
        # Errors of user code are answers; an error here means that no reply was possible.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        _end()


def _serve(runner_side: Parent) -> None:
    _, payload = runner_side.read()
    serving = _Serving(runner_side)
    try:
        start = cast(ChildStart, pickle.loads(payload))  # noqa: S301 - from the parent, which started this process
        # Set here instead of at the start of the process, because the system shows start variables
        # to other users.
        os.environ.update(start.variables.in_clear())
        serving.variables = start.variables
        hook_imports()
        for entry in start.entries:
            hold_entry(entry)
        use_copies(start.copies)
        udf = UDF.loads(start.udf)
        objects = cast("Objects", ParentObjects(runner_side))  # a process only puts chunks
        chunks = None if start.chunks is None else ChunkFolder(objects, *start.chunks)
        # The parent deduplicates the inputs.
        runner = UdfRunner(dataclasses.replace(udf, deduplicate=False), chunks=chunks)
        if udf.kind is Kind.TABLE:
            udf.load()
        else:
            runner.load()
    except BaseException as error:  # noqa: BLE001 - the parent receives any error of user code
        serving.send_error(error)
        return
    with runner:
        serving.serve(runner, udf)


class _Serving:
    """Answers batches until `QUIT`."""

    def __init__(self, parent: Parent) -> None:
        self.variables = Variables()
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
            except BaseException as error:  # noqa: BLE001 - as in main
                self.send_error(error)

    def _send_result(self, result: BatchResult) -> None:
        failures = tuple(
            dataclasses.replace(
                failure, message=self.variables.redact(failure.message), trace=self.variables.redact(failure.trace)
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
            message=self.variables.redact(shortened(message_of(error))),
            trace=self.variables.redact(trace_of(error)),
        )
        self._parent.write(Tag.ERROR, pickle.dumps(failure))

    def _pickle_error(self, error: BaseException) -> bytes | None:
        try:
            payload: bytes = cloudpickle.dumps(error)
            pickle.loads(payload)  # noqa: S301 - made in the line above; an exception may pickle well and fail to load
        except Exception:  # noqa: BLE001 - a user's exception may raise anything here; its text is sent anyway
            return None
        # A secret may occur in several places of the object, so only the redacted text is sent.
        return None if self.variables.shows_in(payload) else payload

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            self._parent.write(Tag.NEXT)
            tag, payload = self._parent.read()
            if tag is not Tag.BATCH:
                self._quit = tag is Tag.QUIT
                self._table = tag is Tag.TABLE
                return
            yield from_ipc(payload)


def _take_standard_streams() -> tuple[int, int]:
    """Returns descriptors for frames; user code prints to standard error, its input is empty."""
    reading, writing = os.dup(0), os.dup(1)  # not inherited by processes of the UDF
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a crashing process has no time to flush
    return reading, writing


def _end_with(parent: int, reading: int) -> None:
    """Ends the process, and the processes started by the UDF, after the parent's end."""
    while os.getppid() == parent and not wait_closed(reading, PARENT_CHECK_S):
        pass
    _end()


def _end() -> NoReturn:
    """Ends the process, and the processes started by the UDF.

    The rest of a long call has no use: no cleanup, no wait for threads.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
