"""The process that runs a UDF for a runner.

It is started as `python -m udf_runtime.execute.isolation.child PARENT_PID`.

Batches come on standard input and results go to standard output, as frames. Both are moved to other
descriptors before any of the user's code runs, so what a UDF prints goes to standard error and what
it reads from standard input is empty. The process ends with its parent: a thread waits for the end
of the input, and looks from time to time whether the parent is still there, since the input may be
held open by another process that was forked from the parent.
"""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import cast

import cloudpickle
import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.execute.inputs import OpenBlobs
from udf_runtime.execute.isolation.frames import (
    Answer,
    Failure,
    Start,
    Tag,
    from_ipc,
    read_frame,
    to_ipc,
    wait_readable,
    write_frame,
)
from udf_runtime.execute.result import shortened, trace_of, type_name
from udf_runtime.execute.runner import UdfRunner
from udf_runtime.policies.matchers import message_of

PARENT_CHECK_S = 1.0

Frame = tuple[Tag, pa.Buffer]


def main(parent: int) -> None:
    """Serves the parent process until it says that it is done, or is gone."""
    # Ctrl-C reaches every process of the terminal; the parent decides what it means, and ends this
    # one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reading, writing = _take_standard_streams()
    faulthandler.enable()  # where native code crashed, for the log
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read_frames, args=(reading, frames, parent), name="parent", daemon=True).start()
    _, payload = frames.get()
    serving = _Serving(frames, writing)
    try:
        start = cast(Start, pickle.loads(payload))  # noqa: S301 - from the parent, which started this process
        open_blobs: OpenBlobs | None = None if start.open_blobs is None else cloudpickle.loads(start.open_blobs)
        chunks = pickle.loads(start.chunks)  # noqa: S301 - likewise
        runner = UdfRunner(UDF.loads(start.udf), open_blobs=open_blobs, chunks=chunks)
        runner.load()
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raised, the parent gets to know it
        serving.send_error(error)
        return
    with runner:
        serving.serve(runner)


class _Serving:
    """Answers batches until `QUIT`."""

    def __init__(self, frames: queue.SimpleQueue[Frame], writing: int) -> None:
        self._frames = frames
        self._writing = writing
        self._quit = False

    def serve(self, runner: UdfRunner) -> None:
        while not self._quit:
            try:
                for result in runner.run(self._batches()):
                    answer = Answer(failures=result.failures, retries=result.retries, seconds=result.seconds)
                    values = to_ipc(pa.record_batch([result.values], names=["values"]))
                    write_frame(self._writing, Tag.RECORD, pickle.dumps(answer))
                    write_frame(self._writing, Tag.VALUES, values)
            except BrokenPipeError:
                return
            except BaseException as error:  # noqa: BLE001 - as in main
                self.send_error(error)

    def send_error(self, error: BaseException) -> None:
        cause = error.__cause__
        failure = Failure(
            error=_pickled(error),
            cause=None if cause is None else _pickled(cause),
            error_type=type_name(error),
            message=shortened(message_of(error)),
            trace=trace_of(error),
        )
        write_frame(self._writing, Tag.ERROR, pickle.dumps(failure))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            write_frame(self._writing, Tag.NEXT)
            tag, payload = self._frames.get()
            if tag is not Tag.BATCH:
                self._quit = tag is Tag.QUIT
                return
            yield from_ipc(payload)


def _take_standard_streams() -> tuple[int, int]:
    """Returns descriptors of the frames; user code prints to standard error and reads nothing."""
    reading, writing = os.dup(0), os.dup(1)  # not inherited by processes that the UDF starts
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a process that is about to crash has no time to flush
    return reading, writing


def _read_frames(reading: int, frames: queue.SimpleQueue[Frame], parent: int) -> None:
    while True:
        while not wait_readable(reading, PARENT_CHECK_S):
            if os.getppid() != parent:
                os._exit(1)
        frame = read_frame(reading)
        if frame is None:
            # The parent is gone. No process wants the rest of a call that may take long:
            # no cleanup, no waiting for threads.
            os._exit(1)
        frames.put(frame)
        if frame[0] is Tag.QUIT:
            return


def _pickled(error: BaseException) -> bytes | None:
    try:
        payload: bytes = cloudpickle.dumps(error)
        pickle.loads(payload)  # noqa: S301 - made in the line above; an exception may pickle well and fail to load
    except Exception:  # noqa: BLE001 - a user's exception may raise anything here; its text is sent anyway
        return None
    return payload


if __name__ == "__main__":
    main(int(sys.argv[1]))
