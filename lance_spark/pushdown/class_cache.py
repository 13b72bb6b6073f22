"""Compiled classes of the planner rule, kept on disk for the next session.

Compiling takes a second or two of each session's start. The file is in the user's cache folder
(`$XDG_CACHE_HOME` or `~/.cache`), as Python's own compiled modules may be; it is read only where
no other user can write it, and is not needed: without it the rule is compiled.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from logging import getLogger
from pathlib import Path

_LOG = getLogger(__name__)

_DIGEST_BYTES = 32
"""A file is the SHA-256 digest of an archive, and the archive."""

_FILES = 8
"""Files that are kept: one for each release of this package, of Spark and of Java."""


def cache_file(*parts: str) -> Path | None:
    """Returns the file for classes that were compiled from these texts; None without a home."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part.encode())
    base = next(filter(os.path.isabs, (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"))), None)
    return None if base is None else Path(base, "lance-spark", f"rule-{digest.hexdigest()[:32]}.bin")


def load_classes(file: Path) -> dict[str, bytes] | None:
    """Returns the classes by their paths; None without a file that this user alone can write."""
    try:
        if any(_is_open_to_others(path) for path in (file, file.parent)):
            _LOG.info("%s is not read, because others may write it", file)
            return None
        content = file.read_bytes()
        if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
            _LOG.info("%s is damaged, and not read", file)
            return None
        with zipfile.ZipFile(io.BytesIO(content[_DIGEST_BYTES:])) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.info("%s is not read: %s", file, error)
        return None


def save_classes(file: Path, classes: Mapping[str, bytes]) -> None:
    """Writes the classes at once or not at all, and deletes the oldest files of many."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, code in classes.items():
                archive.writestr(path, code)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(hashlib.sha256(packed.getvalue()).digest() + packed.getvalue())
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        kept = sorted(file.parent.glob("rule-*.bin"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _LOG.info("compiled classes are not kept in %s: %s", file.parent, error)


def _is_open_to_others(path: Path) -> bool:
    """Tells whether another user than this process's may write a file or a folder."""
    about = path.stat()
    return hasattr(os, "getuid") and (about.st_uid != os.getuid() or bool(about.st_mode & 0o022))
