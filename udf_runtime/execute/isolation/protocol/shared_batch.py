"""Batches in files in memory: written before their call, and read by the process of the UDF."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket

import pyarrow as pa

from udf_runtime.execute.isolation.protocol.frames import from_ipc, to_ipc, write_all

_LEAST_BYTES = 4 << 20
"""Minimum bytes of a shared batch. Smaller batches pass a socket in a few milliseconds, with less
CPU time than for the pages of the memory."""


class SharedBatch:
    """A batch in a file in memory. The memory is free after all mappings and the file.

    Attributes:
        batch: The batch in the shared memory.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Copies a batch.

        Raises:
            OSError: The system has too little memory, or does not allow files in memory.
        """
        self._file = os.memfd_create("udf-batch")
        try:
            write_all(self._file, to_ipc(batch))
            self.batch = from_ipc(_map(self._file))
        except BaseException:
            os.close(self._file)
            raise

    def send(self, connection: socket.socket) -> None:
        """Sends the file after its frame.

        Raises:
            BrokenPipeError: The reader is gone.
        """
        try:
            socket.send_fds(connection, [b"\0"], [self._file])
        except ConnectionResetError as error:
            raise BrokenPipeError from error

    def close(self) -> None:
        """Closes the file. The batch stays until its last use."""
        os.close(self._file)


def share(batch: pa.RecordBatch) -> SharedBatch | None:
    """Copies a large batch into shared memory, if the system allows the copy."""
    if hasattr(os, "memfd_create") and batch.nbytes >= _LEAST_BYTES:
        with contextlib.suppress(OSError):
            return SharedBatch(batch)
    return None


def receive_batch(connection: socket.socket) -> pa.Buffer:
    """Receives the file of a batch over a connection, and returns a copy of its contents.

    A mapping would hold the file open as long as user code keeps any part of the batch.

    Raises:
        BrokenPipeError: The other side is gone.
        OSError: This process may open no further file. The connection is ready for the next frame.
    """
    marker, files, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not marker:
        raise BrokenPipeError
    if not files:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        return _read_all(files[0])
    finally:
        os.close(files[0])


def _read_all(file: int) -> pa.Buffer:
    content = pa.allocate_buffer(os.fstat(file).st_size)
    view, done = memoryview(content), 0
    while done < len(view):
        done += os.preadv(file, [view[done:]], done)
    return content


def _map(file: int) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(file, os.fstat(file).st_size, access=mmap.ACCESS_READ))
