"""Folders of a table, created with files on a local file system, and removed when empty."""

from __future__ import annotations

import os

from lance_spark.dataset import FOLDER, is_local

STAGING = f"{FOLDER}/staging"


def first_missing_folder(uri: str) -> str | None:
    """Returns the topmost missing folder of a new table's location.

    None if the folder exists, or on an object store.
    """
    missing_folder = None
    folder = uri
    while is_local(uri) and not os.path.isdir(folder):
        missing_folder, folder = folder, os.path.dirname(folder)
    return missing_folder


def remove_empty_folders(uri: str, *, made: str | None) -> None:
    """Deletes the empty folders of a table without a commit, and keeps folders with files.

    `made` is the result of :func:`first_missing_folder` before the first write.
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
