"""Environments of one machine: made once, shared by all processes, the least used removed first.

    <folder>/<environment>/environment.json   written last: the environment can be used
    <folder>/<environment>/venv/              its interpreter and installed packages
    <folder>/<environment>/archives/          files that came along
    <folder>/<environment>.lock               locked: shared by users, exclusively to make or remove
    <folder>/<environment>.failed             why the last attempt failed
    <folder>/runtime-<digest>/                this package, for their processes

An environment is named by its manifest's checksum and the machine's platform. A process that dies
leaves its locks to the system, and what it had begun to the next one, which starts anew.
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
from udf_runtime.execute.isolation.interpreter import Interpreter

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects
    from udf_runtime.environments.manifest import Manifest
    from udf_runtime.environments.variables import Variables

_log = logging.getLogger(__name__)

FAILED_FOR_S = 60.0
"""Seconds in which a failed attempt is not tried again on a machine."""

DEFAULT_BYTES = 50 << 30

_READY = "environment.json"
_FORM = re.compile(r"[0-9a-f]{32}-cp\d+-\w+-\w+")
"""The form of an environment's name; a folder of another name is of others."""


def platform_tag(python_version: str) -> str:
    """Returns what compiled packages depend on, as `cp311-linux-x86_64`."""
    return f"cp{python_version.replace('.', '')}-{sys.platform}-{platform.machine()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCache:
    """The environments of a machine. A picklable value; safe beside other processes and threads.

    Attributes:
        folder: Where they are; None: `~/.cache/lance-spark/environments`, or a folder of the user
            among the temporary ones where there is no home.
        most_bytes: Bytes that they may have together. Above it, those that were used longest ago
            are removed when one is made, but never one in use: a process that has opened one uses
            it to its end.
    """

    folder: str | None = None
    most_bytes: int = DEFAULT_BYTES

    def open(self, manifest: Manifest, objects: Objects, variables: Variables) -> Interpreter:
        """Returns the Python of a manifest's environment, which is made unless it is there.

        This process uses it to its end. Runs where the UDF does. Of several processes one makes it,
        and the others wait; a failure is the answer to all that ask within a minute.

        Args:
            manifest: Which one.
            objects: Where its archives are.
            variables: Values of its environment variables.

        Raises:
            EnvironmentBuildError: It cannot be made here.
        """
        folder, name = self._folder(manifest), _name(manifest)
        place = os.path.join(folder, name)
        try:
            with _opening:
                found = _ready(folder, name) if place in _held else None
                if found is None:
                    if place in _held:  # what it was locked for is gone
                        os.close(_held.pop(place))
                    found, _held[place] = self._opened(manifest, folder, name, objects, variables)
            return found.interpreter(folder, name, variables)
        except (ArchiveError, InstallError, OSError) as error:
            raise _failure(manifest, error) from error

    def _opened(
        self, manifest: Manifest, folder: str, name: str, objects: Objects, variables: Variables
    ) -> tuple[_Environment, int]:
        """Returns an environment with the descriptor of a shared lock, for this process to keep."""
        held = os.open(os.path.join(folder, f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                fcntl.flock(held, fcntl.LOCK_SH)
                found = _ready(folder, name)
                if found is not None:
                    os.utime(os.path.join(folder, name, _READY))
                    return found, held
                # The lock is given up for a moment in between, so what is there is looked at again.
                fcntl.flock(held, fcntl.LOCK_EX)
                if _ready(folder, name) is None:
                    self._make(manifest, folder, name, objects, variables, held)
        except BaseException:
            os.close(held)
            raise

    def _make(
        self, manifest: Manifest, folder: str, name: str, objects: Objects, variables: Variables, held: int
    ) -> None:
        """Makes an environment, under its lock."""
        failed = os.path.join(folder, f"{name}.failed")
        _raise_recent(manifest, failed)
        place, start_s = os.path.join(folder, name), time.perf_counter()
        shutil.rmtree(place, ignore_errors=True)
        try:
            os.makedirs(place, mode=0o700)
            made = _made(manifest, place, runtime_folder(folder), objects, variables, held)
            with open(os.path.join(place, ".ready"), "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(made) | {"bytes": _size(place), "manifest": manifest.to_dict()}, file)
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

    def _remove_least_used(self, folder: str, kept: str) -> None:
        """Removes environments until there is room, and what attempts that were killed left."""
        there = set(os.listdir(folder))
        names = {name for name in there if _FORM.fullmatch(name) and f"{name}.lock" in there}
        sizes = {name: _written_size(folder, name) for name in names}
        total = sum(sizes.values())
        for name in sorted(names - {kept}, key=lambda one: _used_at(folder, one)):
            if total <= self.most_bytes and _used_at(folder, name) > 0:
                continue
            with _locked_if_unused(os.path.join(folder, f"{name}.lock")) as unused:
                if unused:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name, _READY))
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                    total -= sizes[name]

    def _folder(self, manifest: Manifest) -> str:
        """Returns the folder; it is made for this user alone unless it is there.

        Raises:
            EnvironmentBuildError: It cannot be made, or another user may write to it.
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
            raise _failure(manifest, error) from error
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """What is written down of an environment.

    Attributes:
        python: Path of its interpreter; None is the one that is running, with all that it sees.
        path: Folders on its module path.
    """

    python: str | None
    path: tuple[str, ...]

    def interpreter(self, folder: str, name: str, variables: Variables) -> Interpreter:
        """Returns what runs UDFs in it."""
        # First of all this package, in the release that talks to the process.
        path = (runtime_folder(folder), *self.path, *(_own_path() if self.python is None else ()))
        return Interpreter(
            python=self.python or sys.executable, path=path, folder=os.path.join(folder, name), variables=variables
        )


_held: dict[str, int] = {}  # descriptors of the locks of environments that this process uses, to its end
_opening = threading.Lock()


def _renew_lock() -> None:
    """Renews the lock in a forked process: a thread of the parent may have held the lock."""
    global _opening  # noqa: PLW0603 - one lock per process
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _made(
    manifest: Manifest, place: str, runtime: str, objects: Objects, variables: Variables, held: int
) -> _Environment:
    """Puts together what is in an environment's folder.

    Raises:
        ArchiveError: As in `unpack`.
        InstallError: As in `install`, or something of the manifest is for other machines.
        OSError: The disk is full, or the store refused.
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
        made = _Environment(python=None, path=tuple(path))
    else:
        python = install(manifest, os.path.join(place, "venv"), runtime=runtime, variables=variables, held=held)
        _add_packages(python, packages)
        made = _Environment(python=python, path=tuple(path))
    started = made.interpreter(os.path.dirname(place), os.path.basename(place), variables)
    check_interpreter(started, manifest.python_version)
    return made


def _add_packages(python: str, folders: list[str]) -> None:
    """Makes a virtual environment see folders of packages, with their `.pth` files."""
    if not folders:
        return
    with open(os.path.join(site_packages(python), "archives.pth"), "w", encoding="utf-8") as file:
        file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in folders)


def _own_path() -> tuple[str, ...]:
    return tuple(os.path.abspath(entry) for entry in sys.path if entry)


def _ready(folder: str, name: str) -> _Environment | None:
    """Returns an environment that can be used; None where it has to be made."""
    try:
        _refuse_others(os.path.join(folder, name))
        with open(os.path.join(folder, name, _READY), encoding="utf-8") as file:
            written = json.load(file)
        found = _Environment(python=written["python"], path=tuple(written["path"]))
        is_gone = found.python is not None and not os.path.exists(found.python)  # a link, maybe to nowhere
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return None if is_gone else found


def _refuse_others(folder: str) -> None:
    """Refuses a folder that another user owns or may write to.

    Raises:
        PermissionError: Whoever else may write there chooses the code that UDFs run.
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
    """Raises what an attempt on this machine has found less than a minute ago."""
    try:
        age_s = time.time() - os.stat(failed).st_mtime
        with open(failed, encoding="utf-8") as file:
            reason, hint = json.load(file)
    except (FileNotFoundError, ValueError, TypeError):
        return
    if age_s < FAILED_FOR_S:
        raise EnvironmentBuildError(manifest=manifest.name, reason=reason, hint=hint)


def _failure(manifest: Manifest, error: Exception) -> EnvironmentBuildError:
    reason, hint = _reason_and_hint(error)
    return EnvironmentBuildError(manifest=manifest.name, reason=reason, hint=hint)


def _reason_and_hint(error: Exception) -> tuple[str, str]:
    if isinstance(error, InstallError):
        return error.reason, error.hint
    if isinstance(error, ArchiveError):
        return str(error), "build the manifest again, and register the UDF again"
    return str(error), hint_for(str(error))


def _size(place: str) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _written_size(folder: str, name: str) -> int:
    """Returns the bytes of an environment; 0 of one that was not finished."""
    try:
        with open(os.path.join(folder, name, _READY), encoding="utf-8") as file:
            return int(json.load(file)["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _used_at(folder: str, name: str) -> float:
    """Returns when an environment was opened last; 0 for one that was not finished."""
    try:
        return os.stat(os.path.join(folder, name, _READY)).st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked_if_unused(path: str) -> Iterator[bool]:
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(held)
