"""The runner from the view of the UDF's process: frames in both directions, and requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from udf_runtime.execute.isolation.protocol.frames import (
    Payload,
    Tag,
    from_ipc,
    read_frame,
    write_frame,
)
from udf_runtime.execute.isolation.protocol.shared_batch import receive_batch


class Parent:
    """Reads frames of the runner, and writes frames to the runner. Thread-safe.

    The answer to a thread's request is read before any other frame.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        self._reads = threading.RLock()
        self._writes = threading.Lock()

    def read(self) -> tuple[Tag, pa.Buffer]:
        """Returns the next frame.

        Raises:
            BrokenPipeError: The runner is gone, or has another protocol.
        """
        try:
            with self._reads:
                frame = read_frame(self._fd)
        except Exception as error:
            # An answer with this error would leave the two sides at different frames.
            raise BrokenPipeError from error
        if frame is None:
            raise BrokenPipeError
        return frame

    def write(self, tag: Tag, payload: Payload = b"") -> None:
        """Writes a frame.

        Raises:
            BrokenPipeError: The runner is gone.
        """
        with self._writes:
            write_frame(self._fd, tag, payload)

    def read_next(self) -> tuple[Tag, pa.Buffer]:
        """Asks for the next batch, and returns the runner's answer; requests of threads wait.

        Raises:
            BrokenPipeError: The runner is gone.
            OSError: This process may open no further file, so a shared batch did not arrive.
        """
        with self._reads:
            self.write(Tag.NEXT)
            tag, payload = self.read()
            if tag is Tag.SHARED:
                return Tag.BATCH, receive_batch(self._connection)
            return tag, payload

    def ask(self, operation: str, *arguments: object, data: bytes | pa.Buffer = b"") -> pa.Buffer:
        """Returns the runner's answer to a request.

        Raises:
            OSError: The runner refused, with its reason.
            BrokenPipeError: The runner is gone.
        """
        with self._reads:
            with self._writes:
                write_frame(self._fd, Tag.ASK, json.dumps([operation, *arguments]).encode())
                write_frame(self._fd, Tag.DATA, data)
            tag, payload = self.read()
        if tag is Tag.REFUSED:
            raise OSError(payload.to_pybytes().decode())
        return payload


class ParentObjects:
    """The store of a chunker's chunks: the runner writes them. Supports `put` only."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def put(self, path: str, data: bytes) -> None:
        """Makes or replaces an object.

        Raises:
            OSError: The store failed.
        """
        self._parent.ask("put", path, data=data)


class ParentLimiter:
    """The rate limit of a job: the runner grants the calls of this process."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def acquire(self, tokens: int, waiting: int) -> float:
        """Takes a call and its tokens, or returns the seconds until the next try; 0.0: taken.

        Raises:
            BrokenPipeError: The runner is gone.
        """
        return float(self._parent.ask("credit", tokens, waiting).to_pybytes())


class ParentTable:
    """The source of a table function: the runner reads the table."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return pa.ipc.read_schema(self._parent.ask("schema"))

    def count_rows(self) -> int:
        """Returns the number of rows."""
        return int(self._parent.ask("count").to_pybytes())

    def to_batches(self, *, batch_size: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yields the rows; memory: a few batches."""
        number = int(self._parent.ask("open", batch_size).to_pybytes())
        try:
            while (payload := self._parent.ask("next", number)).size:
                yield from_ipc(payload)
        finally:
            with suppress(OSError):
                self._parent.ask("close", number)

    def to_arrow(self) -> pa.Table:
        """Returns all rows at once."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not imported for its type
        """Returns all rows at once, as a data frame."""
        return self.to_arrow().to_pandas()
