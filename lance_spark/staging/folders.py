"""Folders of a table, made along with files on a local file system, and removed when empty."""

from __future__ import annotations

import os

from lance_spark.dataset import FOLDER, is_local

STAGING = f"{FOLDER}/staging"


def first_missing_folder(uri: str) -> str | None:
    """Returns the topmost folder that making a table here would make.

    None where the folder is there, or on an object store.
    """
    missing = None
    folder = uri
    while is_local(uri) and not os.path.isdir(folder):
        missing, folder = folder, os.path.dirname(folder)
    return missing


def remove_empty_folders(uri: str, *, made: str | None) -> None:
    """Deletes the folders of a table that was never committed; no folder that holds a file goes.

    `made` is what :func:`first_missing_folder` said before anything was written.
    """
    if not is_local(uri):
        return
    for folder in ("data", STAGING, FOLDER):
        _remove_if_empty(os.path.join(uri, folder))
    folder = uri
    while made is not None and len(folder) >= len(made) and _remove_if_empty(folder):
        folder = os.path.dirname(folder)


def _remove_if_empty(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
