"""Supervises the process of a UDF, also after the end of the task that started the process.

The command is `python -I -S -c SOURCE DESCRIPTOR`, with the source of this module: the supervisor
needs no package, and starts fast. Standard input holds a JSON object with the fields of
:class:`_Start`. DESCRIPTOR is the connection of the starting task.

The supervisor starts the UDF's process, passes its output on, and waits for its end. Tasks connect
to the socket `control`. Requests are single bytes:

    T  take the process: answers `1`, or `2` if the UDF is loaded, and this connection holds the
       process; or `0`
    +  a call of the UDF begins (from the holder)
    -  a call of the UDF has ended (from the holder)
    R  release the process: it is idle from now on (from the holder)
    Q  end the process in order, with `teardown()` (from the holder)
    K  kill the process (from the holder)
    E  end the process in order if it is idle: answers `1` after its end, or `0`
    S  answers the process's state as a JSON object

At the end of the process, the holder receives a JSON object with `exit_code` and `output`.

The process ends after the end of its owner, after an idle time, and after the end of its holder
during a call. It stays idle if the holder ends between two calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import IO, Any

TICK_S = 0.5
TEARDOWN_S = 10.0
"""Seconds for the end in order, until the process is killed."""

KEPT_OUTPUT_CHARS = 4096
"""Length of the last output of a process, stored for the error of its death."""

_LONGEST_LINE_BYTES = 1 << 16
_OUTPUT_WAIT_S = 1.0
_KIB = 1024


class _Start:
    """The description of a process.

    Attributes:
        folder: Folder of the process's sockets.
        owner: Number of the owner and time of its start.
        idle_s: Seconds until an idle process ends.
        command: Command line of the process.
        environment: Its environment variables.
        hidden: Texts to replace in its output.
        control: Descriptor of the listening socket for tasks.
        life: Descriptor of a pipe to the process.
        inherited: Descriptors for the process only.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.folder: str = values["folder"]
        self.owner: tuple[int, str] = (values["owner"][0], values["owner"][1])
        self.idle_s: float = values["idle_s"]
        self.command: list[str] = values["command"]
        self.environment: dict[str, str] = values["environment"]
        self.hidden: list[str] = values["hidden"]
        self.control: int = values["control"]
        self.life: int = values["life"]
        self.inherited: list[int] = values["inherited"]


class _Supervisor:
    def __init__(self, start: _Start, holder: socket.socket) -> None:
        self._start = start
        self._holder: socket.socket | None = holder
        self._calls = 0
        self._is_loaded = False
        self._idle_since_s = time.monotonic()
        self._ends_by_s: float | None = None
        self._waiting: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(fileno=start.control)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(holder, selectors.EVENT_READ, self._answer_holder)
        wakes, wake = os.pipe()
        for descriptor in (wakes, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the end of the process wakes the loop
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._selector.register(wakes, selectors.EVENT_READ, lambda _: os.read(wakes, 1024))
        self._process = subprocess.Popen(  # noqa: S603 - the command of the starting task
            [*start.command, *map(str, start.inherited)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=start.environment,
            pass_fds=start.inherited,
            start_new_session=True,
        )
        for descriptor in start.inherited:
            os.close(descriptor)
        self._output = _Output(self._process.stdout, start.hidden)

    def run(self) -> None:
        """Serves tasks until the end of the process."""
        while self._process.poll() is None:
            for key, _ in self._selector.select(TICK_S):
                key.data(key.fileobj)
            self._check_time()
        self.kill()  # the processes started by the UDF
        report = {"exit_code": self._process.returncode, "output": self._output.last()}
        self._remove_folder()
        for connection in (self._holder, *self._waiting):
            if connection is not None:
                answer = b"1" if connection is not self._holder else json.dumps(report).encode()
                with contextlib.suppress(OSError):
                    connection.sendall(answer)
                connection.close()

    def kill(self) -> None:
        """Kills the process and the processes started by the UDF."""
        self._ends_by_s = 0.0  # no other task takes the process
        # The process leads a group with all its descendants, unless a descendant left the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _check_time(self) -> None:
        now_s = time.monotonic()
        if self._ends_by_s is not None:
            if now_s > self._ends_by_s:
                self.kill()
        elif not _is_alive(*self._start.owner):
            if self._calls:
                self.kill()
            self._end_in_order()
        elif self._holder is None and now_s - self._idle_since_s > self._start.idle_s:
            self._end_in_order()

    def _end_in_order(self) -> None:
        if self._ends_by_s is None:
            self._ends_by_s = time.monotonic() + TEARDOWN_S
            with contextlib.suppress(OSError):
                os.write(self._start.life, b"Q")

    def _accept(self, _: object) -> None:
        connection, _address = self._listener.accept()
        if _is_own_user(connection):
            self._selector.register(connection, selectors.EVENT_READ, self._answer)
        else:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        """Answers the first request of a connection."""
        self._selector.unregister(connection)
        request = _receive(connection)
        is_idle = self._holder is None and self._ends_by_s is None
        if request == b"T" and is_idle and _send(connection, b"2" if self._is_loaded else b"1"):
            self._holder = connection
            self._selector.register(connection, selectors.EVENT_READ, self._answer_holder)
            return
        if request == b"E" and is_idle:
            self._end_in_order()
            self._waiting.append(connection)
            return
        if request == b"S":
            _send(connection, json.dumps(self._state()).encode())
        elif request:
            _send(connection, b"0")
        connection.close()

    def _answer_holder(self, connection: socket.socket) -> None:
        requests = _receive(connection, 1024)
        if not requests:
            if self._calls:
                self.kill()
            self._leave_idle(connection)
            return
        for request in requests.decode():
            if request in "+-":
                self._is_loaded = True
                self._calls += 1 if request == "+" else -1
            elif request == "K":
                self.kill()
            elif request == "Q":
                self._end_in_order()
            elif request == "R":
                self._leave_idle(connection)
                return

    def _leave_idle(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._holder = None
        self._calls = 0
        self._idle_since_s = time.monotonic()
        connection.close()

    def _state(self) -> dict[str, object]:
        idle_s = None if self._holder is not None else time.monotonic() - self._idle_since_s
        pid = self._process.pid
        return {"pid": pid, "idle_s": idle_s, "resident_bytes": _measure(pid)}

    def _remove_folder(self) -> None:
        shutil.rmtree(self._start.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the owner has other processes
            os.rmdir(os.path.dirname(self._start.folder))


class _Output:
    """Output of the process: passed on to standard error line by line, with its end stored."""

    def __init__(self, pipe: IO[bytes] | None, hidden: list[str]) -> None:
        self._pipe = pipe
        self._hidden = hidden
        self._kept = ""
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Returns the last output of the ended process."""
        self._thread.join(_OUTPUT_WAIT_S)
        return self._kept

    def _pass_on(self) -> None:
        while self._pipe is not None and (line := self._pipe.readline(_LONGEST_LINE_BYTES)):
            text = line.decode(errors="replace")
            for hidden in self._hidden:
                text = text.replace(hidden, "***")
            self._kept = (self._kept + text)[-KEPT_OUTPUT_CHARS:]
            with contextlib.suppress(OSError):
                os.write(2, text.encode())


def _receive(connection: socket.socket, size: int = 1) -> bytes:
    try:
        return connection.recv(size)
    except OSError:
        return b""


def _send(connection: socket.socket, data: bytes) -> bool:
    """Tells whether the other side can read the data."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def _is_own_user(connection: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the mode of the folder alone
    form = struct.Struct("3i")
    _, user, _ = form.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    )
    return bool(user == os.getuid())


def _is_alive(pid: int, start: str) -> bool:
    fields = _read_stat(str(pid))
    if fields is not None:
        return fields[0] != "Z" and fields[19] == start
    if os.path.exists("/proc/self/stat"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _measure(pid: int) -> int:
    """Returns the resident bytes of a process and the processes in its session."""
    if not os.path.exists("/proc/self/stat"):
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        return _KIB * int(subprocess.run(command, capture_output=True, check=False).stdout or 0)  # noqa: S603 - a fixed command
    stats = [_read_stat(name) for name in os.listdir("/proc") if name.isdecimal()]
    pages = sum(int(fields[21]) for fields in stats if fields is not None and fields[3] == str(pid))
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read_stat(pid: str) -> list[str] | None:
    """Returns the fields of `/proc/<pid>/stat` after the name: state, parent, group, session."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def main(descriptor: int) -> None:
    """Supervises a process until its end."""
    start = _Start(json.loads(sys.stdin.buffer.read()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the terminal
    supervisor = _Supervisor(start, socket.socket(fileno=descriptor))
    try:
        supervisor.run()
    finally:
        supervisor.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
