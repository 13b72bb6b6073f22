"""Copies of this package for processes in other environments, which may lack this package."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.resources
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable

_PACKAGES = ("udf_runtime", "cloudpickle")


def runtime_folder(folder: str) -> str:
    """Returns a subfolder with exactly the packages for the run of UDFs.

    The name is a digest of the content, so releases do not mix. Safe for concurrent processes.

    Raises:
        OSError: The folder cannot be written.
    """
    digest, files = _read_release()
    runtime = os.path.join(folder, f"runtime-{digest}")
    if os.path.isdir(runtime):
        return runtime
    temporary = tempfile.mkdtemp(dir=folder, prefix=".runtime-")
    try:
        for name, content in files.items():
            path = os.path.join(temporary, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        with contextlib.suppress(OSError):  # another process was first
            os.rename(temporary, runtime)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not os.path.isdir(runtime):
        raise OSError(f"{runtime} cannot be made")
    return runtime


@functools.cache
def _read_release() -> tuple[str, dict[str, bytes]]:
    """Returns a digest of the packages' files, and the files by name: half a megabyte.

    A process reads the files once for all tasks and keeps them, so a folder never has files of a
    later release than the name says.
    """
    files = {name: file.read_bytes() for name, file in _list_sources()}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()[:32], files


def _list_sources() -> Iterator[tuple[str, Traversable]]:
    for package in _PACKAGES:
        # Not `__file__`: the package may lie in a zip file.
        yield from _list_python_files(importlib.resources.files(package), package)


def _list_python_files(place: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for child in place.iterdir():
        if child.is_dir() and child.name != "__pycache__":
            yield from _list_python_files(child, f"{name}/{child.name}")
        elif child.name.endswith(".py"):
            yield f"{name}/{child.name}", child
