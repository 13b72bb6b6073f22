"""The messages between a runner and the process that runs a UDF for it: a tag, a length and bytes.

The child asks for each batch (`NEXT`); the runner answers with `BATCH`, with `END` (no more in this
stream) or with `QUIT`. For each batch the child answers with `RECORD` (a pickled :class:`Answer`)
and `VALUES`, or with `ERROR` (a pickled :class:`Failure`).
"""

from __future__ import annotations

import enum
import os
import select
import struct
from dataclasses import dataclass

import pyarrow as pa

from udf_runtime.execute.result import RowFailure

_HEAD = struct.Struct(">cQ")
_MOST_WRITTEN_BYTES = 1 << 30  # Linux writes no more than 2 GiB at once


class Tag(enum.Enum):
    """What a frame means."""

    START = b"S"
    NEXT = b"N"
    BATCH = b"B"
    END = b"Z"
    QUIT = b"Q"
    RECORD = b"R"
    VALUES = b"V"
    ERROR = b"E"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the child needs first.

    Attributes:
        udf: The pickled UDF.
        open_blobs: What opens its blobs, pickled; None is the default.
        chunks: Where a chunker's chunks go, pickled.
    """

    udf: bytes
    open_blobs: bytes | None
    chunks: bytes


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
