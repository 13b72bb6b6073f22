"""The UDF processes of an owner on this machine: :class:`ProcessRegistry`.

    <folder of temporary files>/lance-spark-<user>/processes/<owner>/<key>-<id>/control
                                                                               /calls

A model may take minutes to load. So a process outlives its task, the Python worker of Spark and the
job, and the next task with the same key takes the process. The owner is the executor's JVM, or
without Spark the process itself. An entry is alive while the supervisor of its process accepts
connections to `control`; `calls` is the socket of the process itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.resources
import json
import operator
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from udf_runtime.definition import UDF
from udf_runtime.errors import EnvironmentBuildError
from udf_runtime.execute.isolation.devices import DeviceLease, DeviceRequest
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.private_folder import open_private_folder, private_folder_path
from udf_runtime.execute.isolation.process import Interpreter, ProcessSpec, UdfProcess
from udf_runtime.execute.isolation.process_limits import read_idle_s, read_memory_bytes
from udf_runtime.execute.isolation.protocol.sockets import connect, listen

_ANSWER_WAIT_S = 30.0
_JUST_ENDED_S = 1.0
_PATIENCE_S = 60.0
"""A task that waits longer for devices ends any idle process on the devices."""

_KEY_CHARS = 24
_NEW = ".new-"
"""Prefix of an entry whose sockets do not listen yet."""

_HEX = "0123456789abcdef"

_started: list[
    subprocess.Popen[bytes]
] = []  # supervisors that this process has started, to collect their exit status


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state of a process.

    Attributes:
        folder: Folder of its sockets.
        pid: Number of the process.
        idle_s: Seconds since its last task; None during a task.
        resident_bytes: Resident memory of the process and the processes started by the UDF.
    """

    folder: str
    pid: int
    idle_s: float | None
    resident_bytes: int


class ProcessRegistry:
    """The UDF processes of an owner.

    Example:
        >>> from udf_runtime.execute.isolation.owner import Owner
        >>> from udf_runtime.execute.isolation.process_registry import ProcessRegistry
        >>> ProcessRegistry(Owner.current()).list_states()
        []
    """

    def __init__(self, owner: Owner) -> None:
        """Makes the folder of all owners, for this user alone.

        Raises:
            PermissionError: Another user has access to the folder.
        """
        os.close(open_private_folder("processes"))
        self._owner = owner
        self._folder = os.path.join(private_folder_path("processes"), owner.name)

    def take(self, key: str) -> UdfProcess | None:
        """Returns an idle process with a key, held by this task; None if no process is idle."""
        for folder in self._list_entries(key[:_KEY_CHARS]):
            control = _ask(folder, b"T")
            if control is None:
                continue
            answer = _receive_byte(control)
            if answer in (b"1", b"2"):
                control.settimeout(None)
                return UdfProcess(folder, control, is_loaded=answer == b"2")
            control.close()
        return None

    def list_states(self) -> list[ProcessState]:
        """Returns the states of all processes."""
        return _read_states(self._list_entries())

    def end_idle(self, state: ProcessState) -> bool:
        """Ends a process in order, and waits for its end; False if a task has taken the process."""
        return _end_idle(state)

    def make_room(self) -> None:
        """Ends idle processes until all processes fit into `LANCE_SPARK_UDF_MEMORY`.

        The least recently used process ends first.

        Raises:
            UdfDefinitionError: The variable has no size.
        """
        states = self.list_states()
        excess = sum(state.resident_bytes for state in states) - read_memory_bytes()
        idle = [(state.idle_s, state) for state in states if state.idle_s is not None]
        for _, state in sorted(idle, key=operator.itemgetter(0), reverse=True):
            if excess > 0 and self.end_idle(state):
                excess -= state.resident_bytes

    def end_all_idle(self) -> None:
        """Ends all idle processes in order."""
        for state in self.list_states():
            self.end_idle(state)

    def take_or_start(self, udf: UDF, payload: bytes, spec: ProcessSpec) -> UdfProcess:
        """Returns an idle process as :meth:`take`, or a new process as :meth:`start`.

        A task that waits for devices also takes a process that becomes idle during the wait.
        """
        key = spec.digest(udf, payload)
        process = self.take(key)
        if process is not None:
            return process
        if spec.devices is None:
            return self._start_on(None, udf, payload, spec)
        with contextlib.closing(_wait_for_devices(spec.devices)) as attempts:
            for lease in attempts:
                process = (
                    self.take(key) if lease is None else self._start_on(lease, udf, payload, spec)
                )
                if process is not None:
                    break
        assert process is not None  # otherwise the last attempt raises
        return process

    def start(self, udf: UDF, payload: bytes, spec: ProcessSpec) -> UdfProcess:
        """Starts a process for a UDF, held by this task.

        While the task waits for devices, idle processes on the devices end.

        Args:
            udf: The UDF.
            payload: The pickled UDF.
            spec: Python and devices of the process.

        Raises:
            DevicesBusyError: The devices were not free in time.
            EnvironmentBuildError: The environment's interpreter is missing.
            OSError: The system does not allow another process or socket.
        """
        if spec.devices is None:
            return self._start_on(None, udf, payload, spec)
        with contextlib.closing(_wait_for_devices(spec.devices)) as attempts:
            lease = next(lease for lease in attempts if lease is not None)
            return self._start_on(lease, udf, payload, spec)

    def _start_on(
        self, lease: DeviceLease | None, udf: UDF, payload: bytes, spec: ProcessSpec
    ) -> UdfProcess:
        with contextlib.nullcontext() if lease is None else lease:
            _check_interpreter(udf, spec.interpreter)
            self.make_room()
            environment = spec.interpreter.environment(udf.num_cpus)
            process = self._start(
                spec.digest(udf, payload),
                {
                    "owner": [self._owner.pid, self._owner.start],
                    "idle_s": read_idle_s(),
                    "command": [
                        *spec.interpreter.command,
                        "-m",
                        "udf_runtime.execute.isolation.child",
                    ],
                    "environment": environment if lease is None else environment | lease.variables,
                    "hidden": spec.interpreter.variables.hidden_texts,
                },
                () if lease is None else lease.descriptors,
            )
            if lease is not None:
                lease.name_holder(process.folder)
            return process

    def _start(self, key: str, start: dict[str, object], inherited: Sequence[int]) -> UdfProcess:
        _started[:] = [supervisor for supervisor in _started if supervisor.poll() is None]
        _remove_leftovers(os.path.dirname(self._folder))
        entry = f"{key[:_KEY_CHARS]}-{secrets.token_hex(4)}"
        new, folder = (os.path.join(self._folder, name) for name in (_NEW + entry, entry))
        _make_folder(new)
        life, life_end = os.pipe()
        control, control_end = socket.socketpair()
        try:
            with (
                control_end,
                listen(os.path.join(new, "control")) as tasks,
                listen(os.path.join(new, "calls")) as calls,
            ):
                os.rename(new, folder)
                child = [calls.fileno(), life, *inherited]
                parts = {
                    "folder": folder,
                    "control": tasks.fileno(),
                    "life": life_end,
                    "inherited": child,
                }
                _started.append(
                    _start_supervisor(
                        {**start, **parts}, control_end, [tasks.fileno(), life_end, *child]
                    )
                )
        except BaseException:
            control.close()
            for path in (new, folder):
                shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            os.close(life)
            os.close(life_end)
        return UdfProcess(folder, control)

    def _list_entries(self, prefix: str = "") -> Iterator[str]:
        """Yields the folders of processes, the last started first."""
        try:
            entries = [
                entry
                for entry in os.scandir(self._folder)
                if entry.name.startswith(prefix or tuple(_HEX))
            ]
        except FileNotFoundError:
            return
        for entry in sorted(entries, key=_read_start, reverse=True):
            yield entry.path


def _wait_for_devices(devices: DeviceRequest) -> Generator[DeviceLease | None, None, None]:
    """Yields as :meth:`DeviceRequest.attempts`; after each None, an idle process ends.

    The process has some of the devices, and may belong to another session. The longest idle
    process ends first. In the first minute a process stays that has just ended a task, because its
    next task may follow.
    """
    began_s = time.monotonic()
    with contextlib.closing(devices.attempts()) as attempts:
        for lease in attempts:
            yield lease
            is_patient = not devices.assigned and time.monotonic() - began_s < _PATIENCE_S
            least_idle_s = _JUST_ENDED_S if is_patient else 0.0
            states = _read_states(devices.list_holders() if lease is None else ())
            idle = [(state.idle_s, state) for state in states if state.idle_s is not None]
            longest_s, state = max(idle, key=operator.itemgetter(0), default=(-1.0, None))
            if state is not None and longest_s >= least_idle_s:
                _end_idle(state)


def _read_states(folders: Iterable[str]) -> list[ProcessState]:
    states = []
    for folder in folders:
        if control := _ask(folder, b"S"):
            with control:
                answer = _receive(control)
            if answer.endswith(b"}"):
                states.append(ProcessState(folder=folder, **json.loads(answer)))
    return states


def _end_idle(state: ProcessState) -> bool:
    control = _ask(state.folder, b"E")
    if control is None:
        return True
    with control:
        return _receive_byte(control) != b"0"


def _start_supervisor(
    start: dict[str, object], holder: socket.socket, descriptors: list[int]
) -> subprocess.Popen[bytes]:
    supervisor = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of this package
        [sys.executable, "-I", "-S", "-c", _read_supervisor(), str(holder.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[*descriptors, holder.fileno()],
        start_new_session=True,  # neither Ctrl-C nor the end of the worker's group reaches the processes
    )
    if supervisor.stdin is not None:
        # A supervisor that has ended closes its connection, and the first call raises.
        with contextlib.suppress(BrokenPipeError), supervisor.stdin as stdin:
            stdin.write(json.dumps(start).encode())
    return supervisor


@functools.cache
def _read_supervisor() -> str:
    # Not `__file__`: the package may lie in a zip file.
    return (
        importlib.resources.files("udf_runtime.execute.isolation")
        .joinpath("supervisor.py")
        .read_text()
    )


def _check_interpreter(udf: UDF, interpreter: Interpreter) -> None:
    if interpreter.python is None or os.access(interpreter.python, os.X_OK) or udf.manifest is None:
        return
    raise EnvironmentBuildError(
        manifest=udf.manifest.name,
        reason=f"its Python cannot be started: {interpreter.python} is missing",
        hint="Another program changed the folder of environments. Run the job again.",
    )


def _remove_leftovers(folder: str) -> None:
    """Removes folders of ended owners whose supervisors were killed."""
    for name in os.listdir(folder):
        pid, _, start = name.partition("-")
        if not pid.isdecimal() or Owner(pid=int(pid), start=start).is_alive:
            continue
        with contextlib.suppress(OSError):  # a supervisor removes its own folder at the same time
            for entry in os.listdir(os.path.join(folder, name)):
                if control := _ask(os.path.join(folder, name, entry), b"S"):
                    control.close()
            os.rmdir(os.path.join(folder, name))


def _make_folder(folder: str) -> None:
    """Makes a folder of a process; the last process of the owner may remove the outer folder."""
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(folder, mode=0o700)
            return
    os.makedirs(folder, mode=0o700)


def _ask(folder: str, request: bytes) -> socket.socket | None:
    """Returns a connection to a supervisor after a request; None if the process has ended."""
    try:
        control = connect(os.path.join(folder, "control"))
    except FileNotFoundError:
        return None
    except ConnectionRefusedError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    control.settimeout(_ANSWER_WAIT_S)
    with contextlib.suppress(OSError):
        control.sendall(request)
    return control


def _receive_byte(control: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return control.recv(1)
    return b""


def _receive(control: socket.socket) -> bytes:
    """Returns all answers until the supervisor closes the connection."""
    received = b""
    with contextlib.suppress(OSError):
        while part := control.recv(1 << 16):
            received += part
    return received


def _read_start(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


@atexit.register
def _leave_supervisors() -> None:
    """Leaves the supervisors running at the end of this process, without Python's warning."""
    for supervisor in _started:
        supervisor.returncode = supervisor.poll() or 0
