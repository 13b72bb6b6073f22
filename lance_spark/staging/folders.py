"""Folders, which only local file systems have.

Made along with files, and taken away again when they are empty.
"""

from __future__ import annotations

import os
import shutil

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

    Args:
        uri: Location of the table.
        made: What :func:`first_missing_folder` said before anything was written.
    """
    if not is_local(uri):
        return
    for folder in ("data", STAGING, os.path.dirname(STAGING)):
        remove_if_empty(os.path.join(uri, folder))
    folder = uri
    while made is not None and len(folder) >= len(made) and remove_if_empty(folder):
        folder = os.path.dirname(folder)


def prune_folders(uri: str, folder: str) -> None:
    """Deletes a folder below the staging folder with all that is in it, and the folders above it that are empty then.

    Args:
        uri: Location of the table.
        folder: The folder of a job, or of an attempt of one, relative to the table.
    """
    if not is_local(uri):
        return
    shutil.rmtree(os.path.join(uri, folder), ignore_errors=True)
    top = os.path.dirname(STAGING)
    while folder != top and remove_if_empty(os.path.join(uri, os.path.dirname(folder))):
        folder = os.path.dirname(folder)


def remove_if_empty(folder: str) -> bool:
    """Deletes a folder if nothing is in it, and tells whether it did."""
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
