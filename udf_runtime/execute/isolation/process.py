"""A child process that runs a UDF, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys

import cloudpickle
import pyarrow as pa

from udf_runtime.checkpoint.chunks import ChunkFolder
from udf_runtime.definition import UDF
from udf_runtime.errors import UdfFailedError, UdfOutputError, UdfRuntimeError
from udf_runtime.execute.casts import cast
from udf_runtime.execute.inputs import OpenBlobs, open_in_memory
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
from udf_runtime.execute.result import BatchResult

QUIT_WAIT_S = 5.0
DEATH_CHECK_S = 0.2


class ProcessEndedError(Exception):
    """The child ended without an answer. Internal: a runner turns it into an error of its caller.

    Attributes:
        exit_code: Exit status; negative for the signal that ended it.
        loaded: Whether the UDF had been loaded, so that a row may be to blame.
    """

    def __init__(self, exit_code: int, *, loaded: bool) -> None:
        super().__init__(f"the child process ended with {exit_code}")
        self.exit_code = exit_code
        self.loaded = loaded


class UdfProcess:
    """One child process with one UDF. Serves one caller at a time.

    Attributes:
        loaded: Whether the child has said that it has loaded the UDF and can serve.
    """

    def __init__(self, udf: UDF, payload: bytes, open_blobs: OpenBlobs, chunks: ChunkFolder | None) -> None:
        """Starts the process and sends it the UDF; does not wait until it is loaded."""
        self._udf = udf
        self.loaded = False
        # `bufsize=0`: frames are written and read through the descriptors themselves.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of this package
            [sys.executable, "-P", "-m", "udf_runtime.execute.isolation.child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
        )
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        opener = None if open_blobs is open_in_memory else cloudpickle.dumps(open_blobs)
        with contextlib.suppress(ProcessEndedError):  # said by the first call, which knows what was lost
            self._send(Tag.START, pickle.dumps(Start(udf=payload, open_blobs=opener, chunks=pickle.dumps(chunks))))

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process can still serve."""
        return self._process.poll() is None

    def call(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the child's result for a batch.

        Raises:
            ProcessEndedError: The process ended first.
            UdfFailedError: As the runner in the child raised it, with its cause where that can be
                pickled.
            UdfRuntimeError: Likewise, for the other errors of this package.
        """
        self._expect(Tag.NEXT)
        self.loaded = True
        self._send(Tag.BATCH, to_ipc(batch))
        tag, payload = self._receive()
        if tag is Tag.NEXT:
            # An iterator UDF that reads ahead. There is nothing ahead here: its stream ends, and
            # another one begins behind this batch.
            self._send(Tag.END)
            tag, payload = self._receive()
        if tag is not Tag.RECORD:
            raise self._unexpected(tag, payload)
        answer: Answer = pickle.loads(payload)  # noqa: S301 - from the child, which has our rights anyway
        values = from_ipc(self._expect(Tag.VALUES)).column(0)
        if not values.type.equals(self._udf.result_type):  # an extension type that this process has not registered
            values = cast(values, self._udf.result_type)
        return BatchResult(values=values, failures=answer.failures, retries=answer.retries, seconds=answer.seconds)

    def close(self) -> None:
        """Lets an idle process leave by itself, and kills it if it does not within some seconds."""
        with contextlib.suppress(ProcessEndedError, subprocess.TimeoutExpired):  # what is left is killed below
            self._send(Tag.QUIT)
            self._process.wait(QUIT_WAIT_S)
        self.kill()

    def terminate(self) -> None:
        """Kills the process and returns; the thread that waits in `call` gets its error."""
        self._process.kill()

    def kill(self) -> None:
        """Kills the process, and gives back what belongs to it."""
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _send(self, tag: Tag, payload: bytes | pa.Buffer = b"") -> None:
        try:
            write_frame(self._to, tag, payload)
        except BrokenPipeError as error:
            raise self._ended() from error

    def _receive(self) -> tuple[Tag, pa.Buffer]:
        # A process that the UDF forked may hold the pipe open when the child is long dead: look at
        # the child, too.
        while not wait_readable(self._from, DEATH_CHECK_S):
            if not self.alive and not wait_readable(self._from, 0):
                raise self._ended()
        frame = read_frame(self._from)
        if frame is None:
            raise self._ended()
        return frame

    def _expect(self, wanted: Tag) -> pa.Buffer:
        tag, payload = self._receive()
        if tag is not wanted:
            raise self._unexpected(tag, payload)
        return payload

    def _unexpected(self, tag: Tag, payload: pa.Buffer) -> Exception:
        if tag is not Tag.ERROR:
            return UdfOutputError(
                f"a frame {tag.name} came out of turn - from the child process of UDF {self._udf.name!r} - report this",
                udf=self._udf.name,
            )
        failure: Failure = pickle.loads(payload)  # noqa: S301 - as in call
        error = _loaded(failure.error)
        if not isinstance(error, UdfRuntimeError):
            cause = error
            error = UdfFailedError(
                udf=self._udf.name,
                row=None,
                error_type=failure.error_type,
                error_message=failure.message,
                error_trace=failure.trace,
            )
        else:
            cause = _loaded(failure.cause)
        error.__cause__ = cause
        return error

    def _ended(self) -> ProcessEndedError:
        # Its pipes are closed, so it is ending; a process that closed them and lives on is of no
        # use any more.
        try:
            self._process.wait(QUIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return ProcessEndedError(self._process.returncode, loaded=self.loaded)


def _environment() -> dict[str, str]:
    """Returns this process's environment with its module path, so that the child finds modules."""
    path = [entry or os.getcwd() for entry in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _loaded(payload: bytes | None) -> BaseException | None:
    if payload is None:
        return None
    try:
        error = pickle.loads(payload)  # noqa: S301 - as in call
    except Exception:  # noqa: BLE001 - the class of a user's exception may exist in the child only
        return None
    return error if isinstance(error, BaseException) else None
