"""The messages between a runner and the process of its UDF: a tag, a length and bytes.

A connection begins with `START` (a pickled :class:`ChildStart`) from the runner.
The child asks for each batch (`NEXT`); the runner answers with `BATCH`, with `SHARED` (a byte with
the descriptor of a file in memory follows), with `END` (the end of this stream) or with `QUIT`. For
each batch the child answers with `RECORD` (a pickled :class:`Reply`) and `VALUES`, or with `ERROR`
(a pickled :class:`Failure`). `TABLE` calls a table function; the child answers with `VALUES` per
batch, and with `END` or `ERROR`.

In between, the child asks for resources of the runner: `ASK` (JSON: an operation and its arguments)
and `DATA`. The runner answers with `REPLY` or `REFUSED` (a text).
"""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from udf_runtime.definition.artifacts import ArtifactCopy
from udf_runtime.environments.variables import Variables
from udf_runtime.execute.result import RowFailure

PROTOCOL = 2
"""Number of this protocol. Processes of releases with another protocol serve no task."""

_HEAD = struct.Struct(">cQ")
_BUFFER_BYTES = 1 << 20
_MOST_WRITTEN_BYTES = 1 << 30  # Linux writes at most 2 GiB at once
_MOST_WRITTEN_PARTS = 512  # and at most 1024 parts


class Tag(enum.Enum):
    """The meaning of a frame."""

    START = b"S"
    NEXT = b"N"
    BATCH = b"B"
    SHARED = b"M"
    TABLE = b"T"
    END = b"Z"
    QUIT = b"Q"
    RECORD = b"R"
    VALUES = b"V"
    ERROR = b"E"
    ASK = b"A"
    DATA = b"D"
    REPLY = b"P"
    REFUSED = b"F"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStart:
    """The first message to the child.

    Attributes:
        udf: The pickled UDF.
        chunks: Root and job of the folder for a chunker's chunks; None for other UDFs.
        variables: Environment variables to set.
        copies: Copies of the UDF's artifacts.
        entries: Entries of the machine's cache for the process to hold.
    """

    udf: bytes
    chunks: tuple[str, str] | None
    variables: Variables = field(default_factory=Variables)
    copies: tuple[ArtifactCopy, ...] = ()
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A result without its values."""

    failures: tuple[RowFailure, ...]
    retries: int
    seconds: float
    batch_rows: int | None = None
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error that ends a run in the child, and its cause: each pickled if possible."""

    error: bytes | None
    cause: bytes | None
    error_type: str
    message: str
    trace: str


Payload: TypeAlias = "bytes | pa.Buffer | Sequence[bytes | pa.Buffer]"
"""The bytes of a frame, also in parts."""


def write_frame(fd: int, tag: Tag, payload: Payload = b"") -> None:
    """Writes a whole frame.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    parts = [payload] if isinstance(payload, (bytes, pa.Buffer)) else payload
    body = [memoryview(part) for part in parts]
    write_all(fd, [memoryview(_HEAD.pack(tag.value, sum(map(len, body)))), *body])


def read_frame(fd: int) -> tuple[Tag, pa.Buffer] | None:
    """Reads a frame; None if the other side is gone (also in the middle of a frame).

    The payload's memory has Arrow's alignment.
    """
    head = pa.allocate_buffer(_HEAD.size)
    if not _read(fd, memoryview(head)):
        return None
    tag, size = _HEAD.unpack(head)
    payload = pa.allocate_buffer(size)
    if size and not _read(fd, memoryview(payload)):
        return None
    return Tag(tag), payload


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Waits for data or the end of the stream; False after the timeout."""
    # `select` does not support descriptors from 1024 on.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def wait_closed(fd: int, timeout_s: float) -> bool:
    """Waits until the other side has closed its socket; False if the socket is open."""
    poll = select.poll()
    poll.register(fd, 0)  # POLLHUP needs no request
    return bool(poll.poll(timeout_s * 1000))


def prepare(connection: socket.socket) -> None:
    """Prepares a socket for frames.

    Reads and writes wait, regardless of the default timeout of user code for sockets. A buffer of
    a megabyte lets the two ends wait for each other less often.
    """
    connection.setblocking(True)
    with contextlib.suppress(OSError):  # a lower limit of the system
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


class _StreamParts(io.RawIOBase):
    """A file for Arrow that keeps the written parts. The buffers of a batch are not copied."""

    def __init__(self) -> None:
        self.parts: list[bytes | pa.Buffer] = []

    def writable(self) -> bool:
        """Tells that parts may be written."""
        return True

    def write(self, part: Any) -> int:  # noqa: ANN401 - the type of the base
        """Keeps a part: Arrow writes bytes and its own buffers."""
        self.parts.append(part)
        return len(memoryview(part))


def to_ipc(batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
    """Returns the parts of an Arrow IPC stream with a batch, mostly memory of the batch."""
    sink = _StreamParts()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    return sink.parts


def from_ipc(payload: pa.Buffer) -> pa.RecordBatch:
    """Returns the batch of an Arrow IPC stream; the batch shares the payload's memory."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


def write_all(fd: int, parts: Sequence[bytes | pa.Buffer | memoryview]) -> None:
    """Writes all bytes of all parts.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    rest = deque(memoryview(part) for part in parts if memoryview(part))
    while rest:
        pieces = [
            part[:_MOST_WRITTEN_BYTES] for part in itertools.islice(rest, _MOST_WRITTEN_PARTS)
        ]
        pieces = pieces if sum(map(len, pieces)) <= _MOST_WRITTEN_BYTES else pieces[:1]
        try:
            count = os.writev(fd, pieces)
        except ConnectionResetError as error:  # the reader was gone with unread frames
            raise BrokenPipeError from error
        while rest and count >= len(rest[0]):
            count -= len(rest.popleft())
        if count:
            rest[0] = rest[0][count:]


def _read(fd: int, into: memoryview) -> bool:
    position = 0
    while position < len(into):
        try:
            count = os.readv(fd, [into[position : position + _MOST_WRITTEN_BYTES]])
        except ConnectionResetError:
            count = 0
        if count == 0:
            return False
        position += count
    return True
