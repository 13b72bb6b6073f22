"""A child process of a UDF, from the view of its parent."""

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
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.definition.artifacts import ArtifactCopy
from udf_runtime.environments.variables import Variables
from udf_runtime.errors import EnvironmentBuildError, UdfFailedError, UdfOutputError, UdfRuntimeError
from udf_runtime.execute.casts import cast
from udf_runtime.execute.isolation.devices import DeviceRequest
from udf_runtime.execute.isolation.frames import (
    ChildStart,
    Failure,
    Reply,
    Tag,
    enlarge,
    from_ipc,
    read_frame,
    to_ipc,
    wait_readable,
    write_frame,
)
from udf_runtime.execute.isolation.parent_rpc import ParentRpc
from udf_runtime.execute.result import BatchResult
from udf_runtime.execute.threads import THREAD_NAMES, thread_variables

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFolder
    from udf_runtime.execute.tables import TableSource

QUIT_WAIT_S = 5.0
DEATH_CHECK_S = 0.2
OUTPUT_WAIT_S = 1.0
KEPT_OUTPUT_CHARS = 4096
"""Length of the last output of a process, stored for the error of its death."""

_LONGEST_LINE_BYTES = 1 << 16
_OF_ANOTHER_PYTHON = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python for processes of UDFs. A picklable value, for a single machine.

    Attributes:
        python: Path of the interpreter; None is the Python of this process, with its modules.
        path: First entries of its module path.
        folder: Folder of its environment.
        variables: Environment variables that the process sets before it loads the UDF.
        copies: Copies of the UDF's artifacts.
    """

    python: str | None = None
    path: tuple[str, ...] = ()
    folder: str | None = None
    variables: Variables = field(default_factory=Variables)
    copies: tuple[ArtifactCopy, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Entries of the machine's cache in use: the environment, and copies of artifacts."""
        environment = () if self.folder is None else (self.folder,)
        return (*environment, *(copy.entry for copy in self.copies))

    @property
    def command(self) -> list[str]:
        """Command line of the interpreter, without a module."""
        # Without the working directory on the module path, which may hold unrelated files.
        return [self.python or sys.executable, "-P"]

    def environment(self, num_cpus: float | None = None) -> dict[str, str]:
        """Returns the environment variables at the process start, without values of the UDF.

        Native libraries read limits on threads at their import, so these variables are present at
        the start, also with values of the UDF.

        Args:
            num_cpus: Cores of the process.
        """
        own_limits = {name: value for name, value in self.variables.in_clear().items() if name in THREAD_NAMES}
        return {**self._environment(), **thread_variables(num_cpus), **own_limits}

    def _environment(self) -> dict[str, str]:
        if self.python is None:
            path = [entry or os.getcwd() for entry in sys.path]
            return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
        # The system does not show variables that a process sets by itself.
        left_out = {*_OF_ANOTHER_PYTHON, *self.variables.in_clear()}
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        own_variables = {"PYTHONPATH": os.pathsep.join(self.path)}
        if self.folder is not None:
            own_variables["VIRTUAL_ENV"] = self.folder
        # Programs of the environment's packages come first.
        programs = os.path.dirname(self.python)
        return {**inherited, **own_variables, "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """The processes of a UDF. A picklable value, for a single machine.

    Attributes:
        interpreter: The Python of the processes.
        devices: The devices of each process; None: no device is reserved.
    """

    interpreter: Interpreter = field(default_factory=Interpreter)
    devices: DeviceRequest | None = None


class ProcessEndedError(Exception):
    """The child ended without a result. Internal: the runner raises another error instead.

    Attributes:
        exit_code: Exit status; negative for the number of a signal.
        loaded: Whether the UDF was loaded, so a row may be to blame.
        output: Last output of the process.
    """

    def __init__(self, exit_code: int, *, loaded: bool, output: str = "") -> None:
        super().__init__(f"the child process ended with {exit_code}")
        self.exit_code = exit_code
        self.loaded = loaded
        self.output = output


class UdfProcess:
    """A child process with a UDF. Serves a single caller at a time.

    Attributes:
        loaded: Whether the child has reported the load of the UDF.
    """

    def __init__(self, udf: UDF, payload: bytes, processes: ProcessSpec, chunks: ChunkFolder | None) -> None:
        """Waits for devices, starts the process and sends the UDF; does not wait for its load.

        Raises:
            DevicesBusyError: The devices were not free in time.
            EnvironmentBuildError: The environment's interpreter is missing.
        """
        self._udf = udf
        self.loaded = False
        self._chunks = chunks
        interpreter = processes.interpreter
        lease = None if processes.devices is None else processes.devices.acquire()
        try:
            # `bufsize=0`: frames are written and read through the descriptors themselves. The
            # process gets its own session, so processes started by the UDF can be ended with the
            # session.
            self._process = subprocess.Popen(  # noqa: S603 - an interpreter, and a module of this package
                [*interpreter.command, "-m", "udf_runtime.execute.isolation.child", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**interpreter.environment(udf.num_cpus), **({} if lease is None else lease.variables)},
                pass_fds=() if lease is None else lease.descriptors,
                start_new_session=True,
            )
        except OSError as error:
            if udf.manifest is None:
                raise
            raise EnvironmentBuildError(
                manifest=udf.manifest.name,
                reason=f"its Python cannot be started: {error}",
                hint="Another program changed the folder of environments. Run the job again.",
            ) from error
        finally:
            if lease is not None:
                lease.close()
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._to, self._from):
            enlarge(descriptor)
        self._output = _Output(self._process.stderr, interpreter.variables)
        place = None if chunks is None else (chunks.root, chunks.job)
        start = ChildStart(
            udf=payload,
            chunks=place,
            variables=interpreter.variables,
            copies=interpreter.copies,
            entries=interpreter.entries,
        )
        with contextlib.suppress(ProcessEndedError):  # raised by the first call, which knows the lost rows
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
            UdfFailedError: The error of the runner in the child, with a picklable cause.
            UdfRuntimeError: Other errors of this package in the child.
        """
        rpc = ParentRpc(self._chunks)
        self._expect(Tag.NEXT, rpc)
        self.loaded = True
        self._send(Tag.BATCH, to_ipc(batch))
        tag, payload = self._receive(rpc)
        if tag is Tag.NEXT:
            # An iterator UDF reads ahead. No further batch is present here, so its stream ends, and
            # another stream begins after this batch.
            self._send(Tag.END)
            tag, payload = self._receive(rpc)
        if tag is not Tag.RECORD:
            raise self._make_unexpected_error(tag, payload)
        answer: Reply = pickle.loads(payload)  # noqa: S301 - from the child, which has our rights anyway
        values = from_ipc(self._expect(Tag.VALUES, rpc)).column(0)
        if not values.type.equals(self._udf.result_type):  # an extension type without a registration in this process
            values = cast(values, self._udf.result_type)
        return BatchResult(
            values=values,
            failures=answer.failures,
            retries=answer.retries,
            seconds=answer.seconds,
            batch_rows=answer.batch_rows,
            limit_s=answer.limit_s,
        )

    def call_table(self, source: TableSource) -> Iterator[pa.RecordBatch]:
        """Yields the results of a table function for a source.

        Raises:
            ProcessEndedError: The process ended first.
            UdfRuntimeError: The error of the child.
            Exception: The error of a read from the source.
        """
        rpc = ParentRpc(source=source)
        self._expect(Tag.NEXT, rpc)
        self.loaded = True
        self._send(Tag.TABLE)
        while True:
            tag, payload = self._receive(rpc)
            if tag is Tag.END:
                return
            if tag is not Tag.VALUES:
                error = self._make_unexpected_error(tag, payload)
                # The function only passed the error on.
                raise error if rpc.table_error is None else rpc.table_error
            yield from_ipc(payload)

    def close(self) -> None:
        """Lets an idle process exit by itself, and kills the process after some seconds."""
        with contextlib.suppress(ProcessEndedError, subprocess.TimeoutExpired):  # a surviving process is killed below
            self._send(Tag.QUIT)
            self._process.wait(QUIT_WAIT_S)
        self.kill()

    def terminate(self) -> None:
        """Kills the process and returns; a thread in `call` gets its error."""
        self._kill_group()

    def kill(self) -> None:
        """Kills the process and the processes started by the UDF, and frees its resources."""
        self._kill_group()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _kill_group(self) -> None:
        # The process leads a group with all its descendants, unless a descendant left the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _send(self, tag: Tag, payload: bytes | pa.Buffer = b"") -> None:
        try:
            write_frame(self._to, tag, payload)
        except BrokenPipeError as error:
            raise self._make_ended_error() from error

    def _receive(self, rpc: ParentRpc) -> tuple[Tag, pa.Buffer]:
        """Returns the next frame that is no request; answers requests."""
        while True:
            tag, payload = self._read()
            if tag is not Tag.ASK:
                return tag, payload
            operation, *arguments = json.loads(payload.to_pybytes())
            _, data = self._read()
            try:
                answer = rpc.answer(operation, arguments, data)
            except Exception as error:  # noqa: BLE001 - the answer is any error of a store
                self._send(Tag.REFUSED, str(error).encode())
            else:
                self._send(Tag.REPLY, answer)

    def _read(self) -> tuple[Tag, pa.Buffer]:
        # A process forked by the UDF may hold the pipe open long after the child's death, so check
        # the child, too.
        while not wait_readable(self._from, DEATH_CHECK_S):
            if not self.alive and not wait_readable(self._from, 0):
                raise self._make_ended_error()
        frame = read_frame(self._from)
        if frame is None:
            raise self._make_ended_error()
        return frame

    def _expect(self, expected: Tag, rpc: ParentRpc) -> pa.Buffer:
        tag, payload = self._receive(rpc)
        if tag is not expected:
            raise self._make_unexpected_error(tag, payload)
        return payload

    def _make_unexpected_error(self, tag: Tag, payload: pa.Buffer) -> Exception:
        if tag is not Tag.ERROR:
            return UdfOutputError(
                f"The child process of UDF {self._udf.name!r} sent a frame {tag.name} out of turn. Report this error.",
                udf=self._udf.name,
            )
        failure: Failure = pickle.loads(payload)  # noqa: S301 - as in call
        error = _load_error(failure.error)
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
            cause = _load_error(failure.cause)
        error.__cause__ = cause
        return error

    def _make_ended_error(self) -> ProcessEndedError:
        # Its pipes are closed, so the process is ending; a process with closed pipes is useless.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(QUIT_WAIT_S)
        self._kill_group()
        self._process.wait()
        return ProcessEndedError(self._process.returncode, loaded=self.loaded, output=self._output.last())


class _Output:
    """Output of a child: passed on to standard error line by line, with its end stored."""

    def __init__(self, pipe: IO[bytes] | None, variables: Variables) -> None:
        self._pipe = pipe
        self._variables = variables
        self._kept = ""
        self._thread = threading.Thread(target=self._pass_on, name="udf-output", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Returns the last output of an ended process."""
        self._thread.join(OUTPUT_WAIT_S)
        return self._kept

    def _pass_on(self) -> None:
        if self._pipe is None:
            return
        # The stream may be closed or replaced in this process, so each line looks up the stream.
        with self._pipe as pipe:
            while line := pipe.readline(_LONGEST_LINE_BYTES):
                text = self._variables.redact(line.decode(errors="replace"))
                self._kept = (self._kept + text)[-KEPT_OUTPUT_CHARS:]
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()


def _load_error(payload: bytes | None) -> BaseException | None:
    if payload is None:
        return None
    try:
        error = pickle.loads(payload)  # noqa: S301 - as in call
    except Exception:  # noqa: BLE001 - the class of a user's exception may exist in the child only
        return None
    return error if isinstance(error, BaseException) else None
