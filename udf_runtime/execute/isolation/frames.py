"""The messages between a runner and the process that runs a UDF for it: a tag, a length and bytes.

The child asks for each batch (`NEXT`); the runner answers with `BATCH`, with `END` (no more in this
stream) or with `QUIT`. For each batch the child answers with `RECORD` (a pickled :class:`Answer`)
and `VALUES`, or with `ERROR` (a pickled :class:`Failure`). A table function is called by `TABLE`;
the child answers with `VALUES`, one per batch, and with `END` or `ERROR`.

What a call needs that only the runner has, the child asks for in between: `ASK` (JSON: an operation
and its arguments) and `DATA`, which `REPLY` or `REFUSED` (a text) answers.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import select
import struct
from dataclasses import dataclass, field

import pyarrow as pa

from udf_runtime.environments.variables import Variables
from udf_runtime.execute.result import RowFailure

_HEAD = struct.Struct(">cQ")
_PIPE_BYTES = 1 << 20
_MOST_WRITTEN_BYTES = 1 << 30  # Linux writes no more than 2 GiB at once


class Tag(enum.Enum):
    """What a frame means."""

    START = b"S"
    NEXT = b"N"
    BATCH = b"B"
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
class Start:
    """What the child needs first.

    Attributes:
        udf: The pickled UDF.
        chunks: Root and job of the folder that a chunker's chunks go to; None without one.
        variables: Environment variables to set.
    """

    udf: bytes
    chunks: tuple[str, str] | None
    variables: Variables = field(default_factory=Variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A result without its values."""

    failures: tuple[RowFailure, ...]
    retries: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error that ends a run in the child, and its cause: each pickled where that is possible."""

    error: bytes | None
    cause: bytes | None
    error_type: str
    message: str
    trace: str


def write_frame(fd: int, tag: Tag, payload: bytes | pa.Buffer = b"") -> None:
    """Writes a frame whole.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    body = memoryview(payload)
    _write(fd, memoryview(_HEAD.pack(tag.value, len(body))))
    _write(fd, body)


def read_frame(fd: int) -> tuple[Tag, pa.Buffer] | None:
    """Reads a frame; None: the other side is gone (also in the middle of a frame).

    The payload's memory is aligned as Arrow wants it.
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
    """Waits until there is something to read, the end included; False where nothing came."""
    # Not `select`, which knows no descriptors from 1024 on.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def wait_closed(fd: int, timeout_s: float) -> bool:
    """Waits until all who write into a pipe have closed it; False where it is open."""
    poll = select.poll()
    poll.register(fd, 0)  # POLLHUP comes unasked
    return bool(poll.poll(timeout_s * 1000))


def enlarge(fd: int) -> None:
    """Gives a pipe room for a megabyte, so that its two ends wait for each other less often."""
    with contextlib.suppress(OSError, AttributeError):  # the system allows less, or knows no such thing
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def to_ipc(batch: pa.RecordBatch) -> pa.Buffer:
    """Returns a batch with its schema as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_ipc(payload: pa.Buffer) -> pa.RecordBatch:
    """Returns the batch of an Arrow IPC stream; it shares the payload's memory."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


def _write(fd: int, body: memoryview) -> None:
    done = 0
    while done < len(body):
        done += os.write(fd, body[done : done + _MOST_WRITTEN_BYTES])


def _read(fd: int, into: memoryview) -> bool:
    done = 0
    while done < len(into):
        count = os.readv(fd, [into[done : done + _MOST_WRITTEN_BYTES]])
        if count == 0:
            return False
        done += count
    return True
