"""UNIX sockets in private folders."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

_LONGEST_ADDRESS_BYTES = 100
"""Linux has 108 bytes for the path of a socket, macOS has 104."""

_CREDENTIALS = struct.Struct("3i")


def listen(path: str) -> socket.socket:
    """Returns a listening socket at a path in a private folder.

    Raises:
        OSError: The path is too long for this system, or the folder does not allow sockets.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_address(path) as address:
            listener.bind(address)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: str) -> socket.socket:
    """Returns a connection to a socket of the same user.

    Raises:
        FileNotFoundError: No process has ever listened there.
        ConnectionRefusedError: The process has ended.
        PermissionError: A process of another user listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    if is_own_user(connection):
        return connection
    connection.close()
    raise PermissionError(
        f"A process of another user listens at {path}. Remove the folder of this socket."
    )


def is_own_user(connection: socket.socket) -> bool:
    """Tells whether the other side is a process of this user; True if the system cannot tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder of the socket is closed to other users
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.getuid())


@contextlib.contextmanager
def _short_address(path: str) -> Iterator[str]:
    """Yields a path of the same socket that the system accepts."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS_BYTES:
        yield path
        return
    if not os.path.isdir("/proc/self/fd"):
        raise OSError(
            f"The path of a socket is too long for this system: {path}. Set TMPDIR to a shorter folder."
        )
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
