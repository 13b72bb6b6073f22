"""A child process that runs a UDF, as its parent sees it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.environments.variables import Variables
from udf_runtime.errors import EnvironmentBuildError, UdfFailedError, UdfOutputError, UdfRuntimeError
from udf_runtime.execute.casts import cast
from udf_runtime.execute.isolation.frames import (
    Answer,
    Failure,
    Start,
    Tag,
    enlarge,
    from_ipc,
    read_frame,
    to_ipc,
    wait_readable,
    write_frame,
)
from udf_runtime.execute.isolation.questions import Questions
from udf_runtime.execute.result import BatchResult

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFolder
    from udf_runtime.execute.isolation.interpreter import Interpreter
    from udf_runtime.execute.tables import TableSource

QUIT_WAIT_S = 5.0
DEATH_CHECK_S = 0.2
OUTPUT_WAIT_S = 1.0
KEPT_OUTPUT_CHARS = 4096
"""Characters of what a process printed last that are kept for the error of its death."""

_LONGEST_LINE_BYTES = 1 << 16


class ProcessEndedError(Exception):
    """The child ended without an answer. Internal: a runner turns it into an error of its caller.

    Attributes:
        exit_code: Exit status; negative for the signal that ended it.
        loaded: Whether the UDF had been loaded, so that a row may be to blame.
        output: What it printed last.
    """

    def __init__(self, exit_code: int, *, loaded: bool, output: str = "") -> None:
        super().__init__(f"the child process ended with {exit_code}")
        self.exit_code = exit_code
        self.loaded = loaded
        self.output = output


class UdfProcess:
    """One child process with one UDF. Serves one caller at a time.

    Attributes:
        loaded: Whether the child has said that it has loaded the UDF and can serve.
    """

    def __init__(self, udf: UDF, payload: bytes, interpreter: Interpreter, chunks: ChunkFolder | None) -> None:
        """Starts the process and sends it the UDF; does not wait until it is loaded.

        Raises:
            EnvironmentBuildError: The environment's interpreter is not there any more.
        """
        self._udf = udf
        self.loaded = False
        self._chunks = chunks
        try:
            # `bufsize=0`: frames are written and read through the descriptors themselves. A session
            # of its own, so that what the UDF starts can be ended with it.
            self._process = subprocess.Popen(  # noqa: S603 - an interpreter, and a module of this package
                [*interpreter.command, "-m", "udf_runtime.execute.isolation.child", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=interpreter.environment(),
                start_new_session=True,
            )
        except OSError as error:
            if udf.manifest is None:
                raise
            raise EnvironmentBuildError(
                manifest=udf.manifest.name,
                reason=f"its Python cannot be started: {error}",
                hint="the folder of environments was changed from outside; run the job again",
            ) from error
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._to, self._from):
            enlarge(descriptor)
        self._output = _Output(self._process.stderr, interpreter.variables)
        place = None if chunks is None else (chunks.root, chunks.job)
        start = Start(udf=payload, chunks=place, variables=interpreter.variables)
        with contextlib.suppress(ProcessEndedError):  # said by the first call, which knows what was lost
            self._send(Tag.START, pickle.dumps(start))

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
        questions = Questions(self._chunks)
        self._expect(Tag.NEXT, questions)
        self.loaded = True
        self._send(Tag.BATCH, to_ipc(batch))
        tag, payload = self._receive(questions)
        if tag is Tag.NEXT:
            # An iterator UDF that reads ahead. There is nothing ahead here: its stream ends, and
            # another one begins behind this batch.
            self._send(Tag.END)
            tag, payload = self._receive(questions)
        if tag is not Tag.RECORD:
            raise self._unexpected(tag, payload)
        answer: Answer = pickle.loads(payload)  # noqa: S301 - from the child, which has our rights anyway
        values = from_ipc(self._expect(Tag.VALUES, questions)).column(0)
        if not values.type.equals(self._udf.result_type):  # an extension type that this process has not registered
            values = cast(values, self._udf.result_type)
        return BatchResult(values=values, failures=answer.failures, retries=answer.retries, seconds=answer.seconds)

    def call_table(self, source: TableSource) -> Iterator[pa.RecordBatch]:
        """Yields what a table function makes of a source.

        Raises:
            ProcessEndedError: The process ended first.
            UdfRuntimeError: As the child raised it.
            Exception: What the source raised while it was read.
        """
        questions = Questions(source=source)
        self._expect(Tag.NEXT, questions)
        self.loaded = True
        self._send(Tag.TABLE)
        while True:
            tag, payload = self._receive(questions)
            if tag is Tag.END:
                return
            if tag is not Tag.VALUES:
                error = self._unexpected(tag, payload)
                # The function only passed it on.
                raise error if questions.failed is None else questions.failed
            yield from_ipc(payload)

    def close(self) -> None:
        """Lets an idle process leave by itself, and kills it if it does not within some seconds."""
        with contextlib.suppress(ProcessEndedError, subprocess.TimeoutExpired):  # what is left is killed below
            self._send(Tag.QUIT)
            self._process.wait(QUIT_WAIT_S)
        self.kill()

    def terminate(self) -> None:
        """Kills the process and returns; the thread that waits in `call` gets its error."""
        self._kill_group()

    def kill(self) -> None:
        """Kills the process with those that the UDF started, and gives back what belongs to it."""
        self._kill_group()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _kill_group(self) -> None:
        # It leads a group, in which all are that it has started, unless they left it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _send(self, tag: Tag, payload: bytes | pa.Buffer = b"") -> None:
        try:
            write_frame(self._to, tag, payload)
        except BrokenPipeError as error:
            raise self._ended() from error

    def _receive(self, questions: Questions) -> tuple[Tag, pa.Buffer]:
        """Returns the next frame that is no question; answers those."""
        while True:
            tag, payload = self._read()
            if tag is not Tag.ASK:
                return tag, payload
            operation, *arguments = json.loads(payload.to_pybytes())
            _, data = self._read()
            try:
                answer = questions.answer(operation, arguments, data)
            except Exception as error:  # noqa: BLE001 - whatever a store raises is the answer
                self._send(Tag.REFUSED, str(error).encode())
            else:
                self._send(Tag.REPLY, answer)

    def _read(self) -> tuple[Tag, pa.Buffer]:
        # A process that the UDF forked may hold the pipe open when the child is long dead: look at
        # the child, too.
        while not wait_readable(self._from, DEATH_CHECK_S):
            if not self.alive and not wait_readable(self._from, 0):
                raise self._ended()
        frame = read_frame(self._from)
        if frame is None:
            raise self._ended()
        return frame

    def _expect(self, wanted: Tag, questions: Questions) -> pa.Buffer:
        tag, payload = self._receive(questions)
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(QUIT_WAIT_S)
        self._kill_group()
        self._process.wait()
        return ProcessEndedError(self._process.returncode, loaded=self.loaded, output=self._output.last())


class _Output:
    """What a child prints: passed on to standard error line by line, and its end kept."""

    def __init__(self, pipe: IO[bytes] | None, variables: Variables) -> None:
        self._pipe = pipe
        self._variables = variables
        self._kept = ""
        self._thread = threading.Thread(target=self._pass_on, name="udf-output", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Returns what was printed last by a process that has ended."""
        self._thread.join(OUTPUT_WAIT_S)
        return self._kept

    def _pass_on(self) -> None:
        if self._pipe is None:
            return
        # The stream may be closed or replaced in this process: it is looked up for each line.
        with self._pipe as pipe:
            while line := pipe.readline(_LONGEST_LINE_BYTES):
                text = self._variables.redact(line.decode(errors="replace"))
                self._kept = (self._kept + text)[-KEPT_OUTPUT_CHARS:]
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()


def _loaded(payload: bytes | None) -> BaseException | None:
    if payload is None:
        return None
    try:
        error = pickle.loads(payload)  # noqa: S301 - as in call
    except Exception:  # noqa: BLE001 - the class of a user's exception may exist in the child only
        return None
    return error if isinstance(error, BaseException) else None
