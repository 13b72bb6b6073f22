"""Files of this machine as archives: modules, a workspace, installed packages."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import site
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from udf_runtime.environments.host import platform_tag
from udf_runtime.environments.manifest import Archive, ArchiveRole, current_python
from udf_runtime.environments.unpacked import PART_BYTES, part_path
from udf_runtime.errors import UdfDefinitionError, end_sentence

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects

MOST_WORKSPACE_BYTES = 1 << 30
"""Maximum bytes of a workspace, because a larger workspace contains unintended data."""

_LEFT_OUT = {"__pycache__", "node_modules", "spark-warehouse", "metastore_db", "derby.log"}
_LEFT_OUT_SUFFIXES = (".pyc", ".lance")
_NOT_IN_PROCESSES = ("pyspark/jars/", "pyspark/examples/")
"""Files without use in a UDF's process: 400 MB for a JVM that the process lacks."""

_COPY_BYTES = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive
_zips: dict[str, str] = {}  # paths of the archives made by this process, by digest


def module_archives(modules: Sequence[str | ModuleType], folder: str | None) -> tuple[Archive, ...]:
    """Returns an archive of modules and packages; () without modules.

    Args:
        modules: Paths of `.py` files and of folders of packages, importable names, or modules.
        folder: Folder of the zip file; None is a temporary folder of this process.

    Raises:
        UdfDefinitionError: A module is missing, or is a built distribution.
    """
    if not modules:
        return ()
    files: dict[str, str] = {}
    for module in modules:
        path = _find_path(module)
        if os.path.isdir(path):
            files |= {f"{os.path.basename(path)}/{name}": file for name, file in _list_files(path)}
        else:
            files[os.path.basename(path)] = path
    return (_zip_files(files.items(), "modules", None, folder),)


def workspace_archive(root: str, folder: str | None = None) -> Archive:
    """Returns an archive of a working directory.

    Hidden files and folders, virtual environments, caches, Lance tables and links to outside files
    are left out.

    Raises:
        UdfDefinitionError: The directory is the home directory or the root, has more than a
            gibibyte, or contains an unreadable file, for example a concurrently deleted file.
    """
    root = os.path.realpath(root)
    if root in (os.path.realpath(os.path.expanduser("~")), os.path.realpath("/")):
        raise UdfDefinitionError(
            f"The working directory {root} holds more than code, and cannot be captured. Change to the folder of the "
            "project first."
        )
    files = list(_list_files(root))
    try:
        sizes = {name: os.path.getsize(path) for name, path in files}
    except OSError as error:  # deleted concurrently
        raise _make_error("workspace", error, root) from error
    size = sum(sizes.values())
    if size > MOST_WORKSPACE_BYTES:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        raise UdfDefinitionError(
            f"The working directory has {size >> 20} MiB, and at most {MOST_WORKSPACE_BYTES >> 20} are captured. "
            f"Folder: {root}, largest: {', '.join(largest)}. Change to the folder of the code, or move data out of it."
        )
    return _zip_files(files, "workspace", None, folder)


def site_archive(folder: str | None = None) -> Archive:
    """Returns an archive of the packages installed for this process.

    The archive covers all folders of the module path except the standard library and the working
    directory. The first folder on the path takes precedence.
    """
    files: dict[str, str] = {}
    for place in _package_folders():
        for name, path in _list_files(place, hidden=True):
            if not name.startswith(_NOT_IN_PROCESSES):
                files.setdefault(name, path)
    return _zip_files(files.items(), "site-packages", platform_tag(current_python()), folder)


def upload(archives: Iterable[Archive], objects: Objects, *, delete_local: bool = False) -> None:
    """Writes archives into a store, unless present; memory holds a single part at a time.

    Raises:
        UdfDefinitionError: An archive is neither in the store nor made by this process.
        OSError: The store failed.
    """
    for archive in archives:
        marker = f"{part_path(archive.sha256, 0).rpartition('/')[0]}/complete"
        path = _zips.get(archive.sha256)
        if objects.get(marker) is not None:
            continue
        if path is None or not os.path.exists(path):
            raise UdfDefinitionError(
                f"The {archive.role} archive {archive.sha256[:12]} of the manifest is not in this store, and this "
                "process has not made it. Build the manifest again here, or capture the environment through this "
                "connection."
            )
        with open(path, "rb") as file:
            number = 0
            while part := file.read(PART_BYTES):
                objects.put(part_path(archive.sha256, number), part)
                number += 1
        objects.put(marker, str(archive.size).encode())
        if delete_local:
            os.unlink(_zips.pop(archive.sha256))


def _find_path(module: str | ModuleType) -> str:
    """Returns the file or the folder of a module."""
    if isinstance(module, ModuleType):
        module = module.__name__
    if not isinstance(module, str):
        raise UdfDefinitionError(
            f"The value {module!r} of py_modules is no module. Give paths, importable names, or modules themselves."
        )
    path = os.path.abspath(os.path.expanduser(module))
    if module.endswith((".whl", ".zip", ".egg", ".tar.gz")):
        raise UdfDefinitionError(
            f"The file {module} of py_modules is a built distribution. Put it into a folder that the executors see. "
            "Give the folder to find_links, and the name of the distribution to pip."
        )
    is_path = os.path.isdir(path) or (os.path.isfile(path) and path.endswith(".py"))
    return path if is_path else _locate_module(module)


def _locate_module(module: str) -> str:
    """Returns the file or the folder of an importable top-level module."""
    try:
        spec = find_spec(module) if all(part.isidentifier() for part in module.split(".")) else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or "." in module:
        raise UdfDefinitionError(
            f"The value {module!r} of py_modules is no module here. Give the path of a .py file or of a package's "
            "folder, or the name of a top-level module."
        )
    location = next(iter(spec.submodule_search_locations or ()), spec.origin)
    if location is None or not os.path.exists(location):
        raise UdfDefinitionError(
            f"The module {module!r} of py_modules is in no file of its own. Give a path."
        )
    return os.path.realpath(location)


def _package_folders() -> list[str]:
    import sysconfig

    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    standard |= {os.path.join(place, "lib-dynload") for place in list(standard)}
    working_folder, folders = os.path.realpath(os.getcwd()), list[str]()
    for entry in [*sys.path, *site.getsitepackages()]:
        place = os.path.realpath(entry or os.getcwd())
        if (
            os.path.isdir(place)
            and place != working_folder
            and place not in standard
            and place not in folders
        ):
            folders.append(place)
    return folders


def _list_files(root: str, *, hidden: bool = False) -> Iterator[tuple[str, str]]:
    """Yields name and path of the files of a folder, sorted by name."""
    inside = os.path.realpath(root) + os.sep
    for place, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not _is_left_out(name, hidden=hidden)
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        for name in sorted(names):
            path = os.path.join(place, name)
            real = os.path.realpath(path)
            if _is_left_out(name, hidden=hidden) or not os.path.isfile(real):
                continue
            if not hidden and not real.startswith(inside):
                continue
            yield os.path.relpath(path, root).replace(os.sep, "/"), path


def _is_left_out(name: str, *, hidden: bool) -> bool:
    return (
        name in _LEFT_OUT
        or name.endswith(_LEFT_OUT_SUFFIXES)
        or (name.startswith(".") and not hidden)
    )


def _zip_files(
    files: Iterable[tuple[str, str]], role: ArchiveRole, platform: str | None, folder: str | None
) -> Archive:
    """Makes a zip file in a folder of this process, and returns its archive."""
    if folder is None:
        folder = _make_own_folder()
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".archive-")
    try:
        with (
            os.fdopen(handle, "wb") as out,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped,
        ):
            for name, path in sorted(files):
                info = zipfile.ZipInfo(name, _DATE)
                info.external_attr = (
                    stat.S_IFREG | (0o755 if os.access(path, os.X_OK) else 0o644)
                ) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                with open(path, "rb") as source, zipped.open(info, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
        with open(temporary, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path = os.path.join(folder, f"{role}-{digest[:16]}.zip")
        os.replace(temporary, path)
    except OSError as error:
        raise _make_error(role, error, folder) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    _zips[digest] = path
    return Archive(sha256=digest, size=os.path.getsize(path), role=role, platform=platform)


def _make_own_folder() -> str:
    global _folder  # noqa: PLW0603 - one folder per process, removed with it
    if _folder is None:
        _folder = tempfile.mkdtemp(prefix="lance-spark-archives-")
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder


_folder: str | None = None


def _make_error(role: ArchiveRole, error: OSError, folder: str) -> UdfDefinitionError:
    return UdfDefinitionError(
        f"The {role} archive cannot be made: {end_sentence(str(error))} Folder: {folder}. Check the files and the "
        "space in the folder."
    )
