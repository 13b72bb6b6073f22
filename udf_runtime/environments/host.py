"""Environments of a machine: built once, shared by all processes, removed by last use.

    <folder>/<environment>/environment.json   written last: the environment is complete
    <folder>/<environment>/venv/              its interpreter and installed packages
    <folder>/<environment>/archives/          files of archives
    <folder>/<environment>.lock               lock: shared by users, exclusive to build or remove
    <folder>/<environment>.failed             reason of the last failure
    <folder>/runtime-<digest>/                this package, for their processes

The name of an environment consists of its manifest's checksum and the machine's platform. If a
process dies, the system releases its locks, and the next process starts its build again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from udf_runtime.environments.installer import InstallError, check_interpreter, hint_for, install, site_packages
from udf_runtime.environments.manifest import current_python
from udf_runtime.environments.runtime_files import runtime_folder
from udf_runtime.environments.unpacked import ArchiveError, unpack
from udf_runtime.errors import EnvironmentBuildError
from udf_runtime.execute.isolation.process import Interpreter

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects
    from udf_runtime.environments.manifest import Manifest
    from udf_runtime.environments.variables import Variables

_log = logging.getLogger(__name__)

FAILED_FOR_S = 60.0
"""Seconds until a machine repeats a failed build."""

DEFAULT_BYTES = 50 << 30

_READY = "environment.json"
_FORM = re.compile(r"[0-9a-f]{32}-cp\d+-\w+-\w+")
"""The form of an environment's name; folders with other names are foreign."""


def platform_tag(python_version: str) -> str:
    """Returns the dependencies of compiled packages, for example `cp311-linux-x86_64`."""
    return f"cp{python_version.replace('.', '')}-{sys.platform}-{platform.machine()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCache:
    """The environments of a machine. A picklable value; safe for concurrent processes and threads.

    Attributes:
        folder: Folder of the environments. None: `~/.cache/lance-spark/environments`, or a
            temporary folder of the user without a home directory.
        most_bytes: Maximum bytes of all environments. Above this size, a build removes the least
            recently used environments, except environments in use: a process uses an opened
            environment until its end.
    """

    folder: str | None = None
    most_bytes: int = DEFAULT_BYTES

    def open(self, manifest: Manifest, objects: Objects, variables: Variables) -> Interpreter:
        """Returns the Python of a manifest's environment; builds a missing environment.

        This process uses the environment until its end. Runs on the UDF's machine. A single process
        builds the environment, and concurrent processes wait. All calls within a minute get the
        error of a failed build.

        Args:
            manifest: The manifest.
            objects: Store of its archives.
            variables: Values of its environment variables.

        Raises:
            EnvironmentBuildError: This machine cannot build the environment.
        """
        folder, name = self._folder(manifest), _name(manifest)
        place = os.path.join(folder, name)
        try:
            with _opening:
                environment = _read_ready(folder, name) if place in _locks else None
                if environment is None:
                    if place in _locks:  # the environment of this lock is gone
                        os.close(_locks.pop(place))
                    environment, _locks[place] = self._open_locked(manifest, folder, name, objects, variables)
            return environment.interpreter(folder, name, variables)
        except (ArchiveError, InstallError, OSError) as error:
            raise _make_error(manifest, error) from error

    def _open_locked(
        self, manifest: Manifest, folder: str, name: str, objects: Objects, variables: Variables
    ) -> tuple[_Environment, int]:
        """Returns an environment and the descriptor of a shared lock, for this process to keep."""
        lock = os.open(os.path.join(folder, f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                fcntl.flock(lock, fcntl.LOCK_SH)
                environment = _read_ready(folder, name)
                if environment is not None:
                    os.utime(os.path.join(folder, name, _READY))
                    return environment, lock
                # The lock is released for a moment, so the environment is checked again.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _read_ready(folder, name) is None:
                    self._make(manifest, folder, name, objects, variables, lock)
        except BaseException:
            os.close(lock)
            raise

    def _make(
        self, manifest: Manifest, folder: str, name: str, objects: Objects, variables: Variables, lock: int
    ) -> None:
        """Builds an environment, under its lock."""
        failed = os.path.join(folder, f"{name}.failed")
        _raise_recent(manifest, failed)
        place, start_s = os.path.join(folder, name), time.perf_counter()
        shutil.rmtree(place, ignore_errors=True)
        try:
            os.makedirs(place, mode=0o700)
            environment = _build(manifest, place, runtime_folder(folder), objects, variables, lock)
            with open(os.path.join(place, ".ready"), "w", encoding="utf-8") as file:
                json.dump(
                    dataclasses.asdict(environment) | {"bytes": _measure(place), "manifest": manifest.to_dict()}, file
                )
            os.rename(file.name, os.path.join(place, _READY))
        except (ArchiveError, InstallError, OSError) as error:
            shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError), open(failed, "w", encoding="utf-8") as file:
                json.dump(_reason_and_hint(error), file)
            raise
        _log.info("environment %s of manifest %r: %.1f s", name, manifest.name, time.perf_counter() - start_s)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(failed)
            self._remove_least_used(folder, name)
        except OSError as error:
            _log.warning("environments that are not used were not removed: %s", error)

    def _remove_least_used(self, folder: str, new_name: str) -> None:
        """Removes environments over the size limit, and leftovers of killed builds."""
        entries = set(os.listdir(folder))
        names = {name for name in entries if _FORM.fullmatch(name) and f"{name}.lock" in entries}
        sizes = {name: _read_size(folder, name) for name in names}
        total = sum(sizes.values())
        for name in sorted(names - {new_name}, key=lambda candidate: _read_last_use(folder, candidate)):
            if total <= self.most_bytes and _read_last_use(folder, name) > 0:
                continue
            with _locked_if_unused(os.path.join(folder, f"{name}.lock")) as unused:
                if unused:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name, _READY))
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                    total -= sizes[name]

    def _folder(self, manifest: Manifest) -> str:
        """Returns the folder; makes a missing folder, for this user alone.

        Raises:
            EnvironmentBuildError: The folder cannot be made, or another user may write there.
        """
        try:
            if self.folder is not None:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                _refuse_others(self.folder)
                return os.path.abspath(self.folder)
            home = os.path.expanduser("~")
            if os.path.isabs(home) and os.access(home, os.W_OK) and os.path.isdir(home):
                folder = os.path.join(home, ".cache", "lance-spark", "environments")
            else:
                folder = os.path.join(tempfile.gettempdir(), f"lance-spark-{os.getuid()}", "environments")
                parent = os.path.dirname(folder)
                os.makedirs(parent, mode=0o700, exist_ok=True)
                _refuse_others(parent)
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise _make_error(manifest, error) from error
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """The stored facts of an environment.

    Attributes:
        python: Path of its interpreter; None is the running interpreter, with all its modules.
        path: Folders on its module path.
    """

    python: str | None
    path: tuple[str, ...]

    def interpreter(self, folder: str, name: str, variables: Variables) -> Interpreter:
        """Returns the Python for UDFs in this environment."""
        # This package comes first, in the release of the parent process.
        path = (runtime_folder(folder), *self.path, *(_list_own_path() if self.python is None else ()))
        return Interpreter(
            python=self.python or sys.executable, path=path, folder=os.path.join(folder, name), variables=variables
        )


_locks: dict[str, int] = {}  # descriptors of the locks of environments that this process uses until its end
_opening = threading.Lock()


def _renew_lock() -> None:
    """Renews the lock in a forked process, because a thread of the parent may hold the lock."""
    global _opening  # noqa: PLW0603 - one lock per process
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _build(
    manifest: Manifest, place: str, runtime: str, objects: Objects, variables: Variables, lock: int
) -> _Environment:
    """Builds the content of an environment's folder.

    Raises:
        ArchiveError: As in `unpack`.
        InstallError: As in `install`, or the manifest has packages for another platform.
        OSError: The disk is full, or the store failed.
    """
    path, packages = list[str](), list[str]()
    for number, archive in enumerate(manifest.archives):
        if archive.platform not in (None, platform_tag(current_python())):
            raise InstallError(
                f"its packages are for {archive.platform}, and this machine is {platform_tag(current_python())}",
                "capture the environment on a machine like the executors, or name the packages with create_pip",
            )
        folder = os.path.join(place, "archives", f"{number}-{archive.role}")
        unpack(archive, objects, folder)
        (packages if archive.role == "site-packages" else path).append(folder)
    if manifest.skip_site_packages:
        environment = _Environment(python=None, path=tuple(path))
    else:
        python = install(manifest, os.path.join(place, "venv"), runtime=runtime, variables=variables, lock=lock)
        _add_packages(python, packages)
        environment = _Environment(python=python, path=tuple(path))
    interpreter = environment.interpreter(os.path.dirname(place), os.path.basename(place), variables)
    check_interpreter(interpreter, manifest.python_version)
    return environment


def _add_packages(python: str, folders: list[str]) -> None:
    """Adds folders of packages to a virtual environment, with their `.pth` files."""
    if not folders:
        return
    with open(os.path.join(site_packages(python), "archives.pth"), "w", encoding="utf-8") as file:
        file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in folders)


def _list_own_path() -> tuple[str, ...]:
    return tuple(os.path.abspath(entry) for entry in sys.path if entry)


def _read_ready(folder: str, name: str) -> _Environment | None:
    """Returns a complete environment; None if a build is necessary."""
    try:
        _refuse_others(os.path.join(folder, name))
        with open(os.path.join(folder, name, _READY), encoding="utf-8") as file:
            stored = json.load(file)
        environment = _Environment(python=stored["python"], path=tuple(stored["path"]))
        is_gone = environment.python is not None and not os.path.exists(environment.python)  # a link, maybe a dead link
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return None if is_gone else environment


def _refuse_others(folder: str) -> None:
    """Raises an error for a folder that another user owns or may write to.

    Raises:
        PermissionError: A user with write access chooses the code of UDFs.
    """
    about = os.stat(folder)
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(
            f"The folder of environments belongs to another user, or others may write to it. Folder: {folder}. Give a "
            "folder of this user with mode 700."
        )


def _name(manifest: Manifest) -> str:
    return f"{manifest.checksum[:32]}-{platform_tag(manifest.python_version)}"


def _raise_recent(manifest: Manifest, failed: str) -> None:
    """Raises the error of a build on this machine less than a minute ago."""
    try:
        age_s = time.time() - os.stat(failed).st_mtime
        with open(failed, encoding="utf-8") as file:
            reason, hint = json.load(file)
    except (FileNotFoundError, ValueError, TypeError):
        return
    if age_s < FAILED_FOR_S:
        raise EnvironmentBuildError(manifest=manifest.name, reason=reason, hint=hint)


def _make_error(manifest: Manifest, error: Exception) -> EnvironmentBuildError:
    reason, hint = _reason_and_hint(error)
    return EnvironmentBuildError(manifest=manifest.name, reason=reason, hint=hint)


def _reason_and_hint(error: Exception) -> tuple[str, str]:
    if isinstance(error, InstallError):
        return error.reason, error.hint
    if isinstance(error, ArchiveError):
        return str(error), "build the manifest again, and register the UDF again"
    return str(error), hint_for(str(error))


def _measure(place: str) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _read_size(folder: str, name: str) -> int:
    """Returns the bytes of an environment; 0 for an incomplete environment."""
    try:
        with open(os.path.join(folder, name, _READY), encoding="utf-8") as file:
            return int(json.load(file)["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _read_last_use(folder: str, name: str) -> float:
    """Returns the time of the last use of an environment; 0 for an incomplete environment."""
    try:
        return os.stat(os.path.join(folder, name, _READY)).st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked_if_unused(path: str) -> Iterator[bool]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
