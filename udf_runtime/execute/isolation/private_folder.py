"""Folders of this user on this machine: :func:`open_private_folder`."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress


def open_private_folder(name: str) -> int:
    """Returns a descriptor of a folder for this user alone, below the folder of temporary files.

    All processes of the user on this machine get the same folder. A missing folder is made with
    mode 700. Open files of the folder relative to the descriptor (`dir_fd`), because a path may
    lead to another folder a moment later.

    Args:
        name: Name of the folder, without separators.

    Raises:
        PermissionError: The folder is a link, belongs to another user, or others have access.
        OSError: The folder cannot be made.

    Example:
        >>> import os
        >>> from udf_runtime.execute.isolation.private_folder import open_private_folder
        >>> descriptor = open_private_folder("devices")
        >>> os.fstat(descriptor).st_mode & 0o777 == 0o700
        True
        >>> os.close(descriptor)
    """
    path = private_folder_path(name)
    parent = os.path.dirname(path)
    outer = _open_folder(parent, parent, None)
    try:
        return _open_folder(name, path, outer)
    finally:
        os.close(outer)


def private_folder_path(name: str) -> str:
    """Returns the path of :func:`open_private_folder`, for example to connect to a socket."""
    return os.path.join(tempfile.gettempdir(), f"lance-spark-{os.getuid()}", name)


def _open_folder(name: str, path: str, outer: int | None) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=outer)
    try:
        folder = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=outer
        )
    except NotADirectoryError:  # of a link, too
        raise _make_refusal(path) from None
    about = os.fstat(folder)
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        os.close(folder)
        raise _make_refusal(path)
    return folder


def _make_refusal(path: str) -> PermissionError:
    return PermissionError(
        f"The folder {path} belongs to another user, is a link, or others have access. Remove the folder, or set "
        "TMPDIR to a folder of this user."
    )
