"""A process of a UDF, from the view of the task that holds the process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.definition.artifacts import ArtifactCopy
from udf_runtime.environments.variables import Variables
from udf_runtime.errors import UdfFailedError, UdfOutputError, UdfRuntimeError
from udf_runtime.execute.conversion.casts import cast
from udf_runtime.execute.isolation.devices import DeviceRequest
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.protocol.frames import (
    PROTOCOL,
    ChildStart,
    Failure,
    Payload,
    Reply,
    Tag,
    from_ipc,
    prepare,
    read_frame,
    to_ipc,
    wait_closed,
    wait_readable,
    write_frame,
)
from udf_runtime.execute.isolation.protocol.parent_rpc import ParentRpc
from udf_runtime.execute.isolation.protocol.shared_batch import SharedBatch
from udf_runtime.execute.isolation.protocol.sockets import connect
from udf_runtime.execute.result import BatchResult
from udf_runtime.execute.threads import THREAD_NAMES, thread_variables

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFolder
    from udf_runtime.execute.limits import Limiter
    from udf_runtime.execute.tables import TableSource

WorkAhead: TypeAlias = "Callable[[], None]"
"""Prepares the next batch, if possible without a wait. Called several times during a call."""

QUIT_WAIT_S = 5.0
DEATH_CHECK_S = 0.2
_OF_ANOTHER_PYTHON = (
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "__PYVENV_LAUNCHER__",
    "VIRTUAL_ENV",
)


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

    def make_start(self, payload: bytes, chunks: ChunkFolder | None) -> ChildStart:
        """Returns the first message to a process.

        Args:
            payload: The pickled UDF.
            chunks: Folder of a chunker's chunks; None for other UDFs.
        """
        return ChildStart(
            udf=payload,
            chunks=None if chunks is None else (chunks.root, chunks.job),
            variables=self.variables,
            copies=self.copies,
            entries=self.entries,
        )

    def environment(self, num_cpus: float | None = None) -> dict[str, str]:
        """Returns the environment variables at the process start, without values of the UDF.

        Native libraries read limits on threads at their import, so these variables are present at
        the start, also with values of the UDF.

        Args:
            num_cpus: Cores of the process.
        """
        own_limits = {
            name: value for name, value in self.variables.in_clear().items() if name in THREAD_NAMES
        }
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
        return {
            **inherited,
            **own_variables,
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """The processes of a UDF. A picklable value, for a single machine.

    Attributes:
        interpreter: The Python of the processes.
        devices: The devices of each process; None: no device is reserved.
        owner: The process whose end ends the processes; None is this process.
    """

    interpreter: Interpreter = field(default_factory=Interpreter)
    devices: DeviceRequest | None = None
    owner: Owner | None = None

    def digest(self, udf: UDF, payload: bytes) -> str:
        """Returns a digest of the dependencies of a UDF's process."""
        interpreter, start = self.interpreter, self.interpreter.environment(udf.num_cpus)
        parts = [
            PROTOCOL,
            *(
                UDF.payload_digest(payload),
                interpreter.command,
                interpreter.folder,
                start["PYTHONPATH"],
            ),
            *(
                {name: start.get(name) for name in THREAD_NAMES},
                repr(self.devices),
                repr(interpreter.copies),
            ),
            dict(sorted(interpreter.variables.in_clear().items())),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ProcessEndedError(Exception):
    """The process ended without a result. Internal: the runner raises another error instead.

    Attributes:
        exit_code: Exit status; negative for the number of a signal.
        loaded: Whether the UDF was loaded, so a row may be to blame.
        called: Whether the process had received the rows.
        output: Last output of the process.
    """

    def __init__(
        self, exit_code: int, *, loaded: bool, called: bool = False, output: str = ""
    ) -> None:
        super().__init__(f"the child process ended with {exit_code}")
        self.exit_code = exit_code
        self.loaded = loaded
        self.called = called
        self.output = output


class UdfProcess:
    """A process of a UDF, held by this task. Thread-safe.

    Attributes:
        folder: Folder of the process.
        is_loaded: Whether the process has loaded the UDF.
    """

    def __init__(self, folder: str, control: socket.socket, *, is_loaded: bool = False) -> None:
        """Takes the folder of the process and the connection to its supervisor."""
        self.is_loaded = is_loaded
        self.folder = folder
        self._control = control
        self._lock = threading.Lock()
        self._report: dict[str, object] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process can still serve."""
        return self.wait_end(0) is None

    def open(self, udf: UDF, start: ChildStart, chunks: ChunkFolder | None) -> UdfConnection:
        """Returns a connection to the process; does not wait for the load of the UDF.

        Args:
            udf: The UDF.
            start: The first message.
            chunks: Folder of a chunker's chunks.

        Raises:
            ProcessEndedError: The process has ended.
        """
        try:
            connection = connect(os.path.join(self.folder, "calls"))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self.make_ended_error() from error
        return UdfConnection(self, connection, udf, start, chunks)

    def note(self, request: bytes) -> None:
        """Sends requests to the supervisor, which may have ended."""
        with contextlib.suppress(OSError):
            self._control.sendall(request)

    def wait_end(self, timeout_s: float) -> dict[str, object] | None:
        """Returns the report of the ended process; None if the process runs after the timeout."""
        with self._lock:
            if self._report is None and wait_readable(self._control.fileno(), timeout_s):
                self._report = self._receive_report()
            return self._report

    def release(self) -> None:
        """Leaves the process idle for other tasks."""
        self.note(b"R")
        self._control.close()

    def close(self) -> None:
        """Ends the process in order, with `teardown()`; kills the process after some seconds."""
        self.note(b"Q")
        self.wait_end(QUIT_WAIT_S)
        self.kill()

    def terminate(self) -> None:
        """Kills the process and returns; a thread in a call gets its error."""
        self.note(b"K")

    def kill(self) -> None:
        """Kills the process and the processes started by the UDF."""
        self.terminate()
        if self.wait_end(QUIT_WAIT_S) is None:
            self._report = {}  # the system may need longer to free the memory of a killed process
        self._control.close()

    def make_ended_error(self) -> ProcessEndedError:
        """Returns the error for a process that has ended, or is ending."""
        # Its connection is closed. A process that closes a connection of a task is useless.
        report = self.wait_end(QUIT_WAIT_S)
        if report is None:
            self.terminate()
            report = self.wait_end(QUIT_WAIT_S) or {}
        exit_code, output = report.get("exit_code", -9), report.get("output", "")
        return ProcessEndedError(int(str(exit_code)), loaded=self.is_loaded, output=str(output))

    def _receive_report(self) -> dict[str, object]:
        received = b""
        with contextlib.suppress(OSError):
            while part := self._control.recv(1 << 16):
                received += part
        # A killed supervisor sends nothing.
        report: dict[str, object] = json.loads(received) if received.endswith(b"}") else {}
        return report


class UdfConnection:
    """A connection to a process with a UDF. Serves a single caller at a time.

    Attributes:
        process: The process.
        is_served: Whether the process has answered.
        load_s: Seconds until the first answer, which follows the load of the UDF.
    """

    def __init__(
        self,
        process: UdfProcess,
        connection: socket.socket,
        udf: UDF,
        start: ChildStart,
        chunks: ChunkFolder | None,
    ) -> None:
        """Sends the UDF; does not wait for its load."""
        self.process = process
        self.is_served = False
        self.load_s = 0.0
        self._connection = connection
        self._fd = connection.fileno()
        self._udf = udf
        self._chunks = chunks
        prepare(connection)
        with contextlib.suppress(
            ProcessEndedError
        ):  # raised by the first call, which knows the lost rows
            self._send(Tag.START, pickle.dumps(start))

    def call(
        self,
        batch: pa.RecordBatch | SharedBatch,
        limiter: Limiter | None = None,
        work_ahead: WorkAhead | None = None,
    ) -> BatchResult:
        """Returns the process's result for a batch.

        Args:
            batch: The rows.
            limiter: Grants the calls of the batch.
            work_ahead: Runs while the process computes.

        Raises:
            ProcessEndedError: The process ended first.
            UdfFailedError: The error of the runner in the process, with a picklable cause.
            UdfRuntimeError: Other errors of this package in the process.
        """
        rpc = ParentRpc(self._chunks, limiter=limiter)
        with self._calling(rpc, functools.partial(self._send_batch, batch)):
            tag, payload = self._receive(rpc, work_ahead)
            if tag is Tag.NEXT:
                # An iterator UDF reads ahead. No further batch is present here, so its stream ends,
                # and another stream begins after this batch.
                self._send(Tag.END)
                tag, payload = self._receive(rpc)
            if tag is not Tag.RECORD:
                raise self._make_unexpected_error(tag, payload)
            answer: Reply = pickle.loads(payload)  # noqa: S301 - from a process of this user, which has our rights anyway
            values = from_ipc(self._expect(Tag.VALUES, rpc)).column(0)
        if not values.type.equals(
            self._udf.result_type
        ):  # an extension type without a registration in this process
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
            UdfRuntimeError: The error of the process.
            Exception: The error of a read from the source.
        """
        rpc = ParentRpc(source=source)
        with self._calling(rpc, functools.partial(self._send, Tag.TABLE)):
            while True:
                tag, payload = self._receive(rpc)
                if tag is Tag.END:
                    return
                if tag is not Tag.VALUES:
                    error = self._make_unexpected_error(tag, payload)
                    # The function only passed the error on.
                    raise error if rpc.table_error is None else rpc.table_error
                yield from_ipc(payload)

    def close(self) -> bool:
        """Ends the stream, and tells whether the process serves on."""
        try:
            self._send(Tag.QUIT)
        except ProcessEndedError:
            self.drop()
            return False
        serves_on = wait_closed(self._fd, QUIT_WAIT_S)
        self.drop()
        return serves_on and self.process.alive

    def drop(self) -> None:
        """Closes a connection without an end of its stream."""
        self._connection.close()

    @contextlib.contextmanager
    def _calling(self, rpc: ParentRpc, send: Callable[[], None]) -> Iterator[None]:
        """Begins a call after the load of the UDF; the supervisor knows of calls in progress."""
        began_s = time.perf_counter()
        self._expect(Tag.NEXT, rpc)
        if not self.is_served:
            self.load_s = time.perf_counter() - began_s
        self.is_served = self.process.is_loaded = True
        self.process.note(b"+")
        try:
            send()
            try:
                yield
            except ProcessEndedError as error:
                error.called = True
                raise
        finally:
            self.process.note(b"-")

    def _send(self, tag: Tag, payload: Payload = b"", file: SharedBatch | None = None) -> None:
        try:
            write_frame(self._fd, tag, payload)
            if file is not None:
                file.send(self._connection)
        except BrokenPipeError as error:
            raise self.process.make_ended_error() from error

    def _send_batch(self, batch: pa.RecordBatch | SharedBatch) -> None:
        if isinstance(batch, SharedBatch):
            self._send(Tag.SHARED, file=batch)
        else:
            self._send(Tag.BATCH, to_ipc(batch))

    def _receive(
        self, rpc: ParentRpc, work_ahead: WorkAhead | None = None
    ) -> tuple[Tag, pa.Buffer]:
        """Returns the next frame that is no request; answers requests."""
        while True:
            tag, payload = self._read(work_ahead)
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

    def _read(self, work_ahead: WorkAhead | None = None) -> tuple[Tag, pa.Buffer]:
        # A process forked by the UDF may hold the connection open long after the death, so ask
        # the supervisor, too.
        wait_s = 0.0
        while not wait_readable(self._fd, wait_s):
            if not self.process.alive and not wait_readable(self._fd, 0):
                raise self.process.make_ended_error()
            if work_ahead is not None:
                work_ahead()
            wait_s = DEATH_CHECK_S
        frame = read_frame(self._fd)
        if frame is None:
            raise self.process.make_ended_error()
        return frame

    def _expect(self, expected: Tag, rpc: ParentRpc) -> pa.Buffer:
        tag, payload = self._receive(rpc)
        if tag is not expected:
            raise self._make_unexpected_error(tag, payload)
        return payload

    def _make_unexpected_error(self, tag: Tag, payload: pa.Buffer) -> Exception:
        if tag is not Tag.ERROR:
            return UdfOutputError(
                f"The process of UDF {self._udf.name!r} sent a frame {tag.name} out of turn. Report this error.",
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


def _load_error(payload: bytes | None) -> BaseException | None:
    if payload is None:
        return None
    try:
        error = pickle.loads(payload)  # noqa: S301 - as in call
    except Exception:  # noqa: BLE001 - the class of a user's exception may exist in the child only
        return None
    return error if isinstance(error, BaseException) else None
