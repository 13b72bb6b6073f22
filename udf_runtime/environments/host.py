"""Environments of a machine: the entries of a :class:`MachineCache` with an interpreter.

    <folder>/<environment>/environment.json   the marker of a complete environment
    <folder>/<environment>/venv/              its interpreter and installed packages
    <folder>/<environment>/archives/          files of archives
    <folder>/runtime-<digest>/                this package, for their processes

The name of an environment consists of its manifest's checksum and the machine's platform.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from udf_runtime.environments.installer import (
    InstallError,
    check_interpreter,
    hint_for,
    install,
    site_packages,
)
from udf_runtime.environments.machine_cache import ENVIRONMENT, EntryError, EntryKind, MachineCache
from udf_runtime.environments.manifest import current_python
from udf_runtime.environments.runtime_files import runtime_folder
from udf_runtime.environments.unpacked import ArchiveError, unpack
from udf_runtime.errors import EnvironmentBuildError
from udf_runtime.execute.isolation.process import Interpreter

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects
    from udf_runtime.environments.manifest import Manifest
    from udf_runtime.environments.variables import Variables


def platform_tag(python_version: str) -> str:
    """Returns the dependencies of compiled packages, for example `cp311-linux-x86_64`."""
    return f"cp{python_version.replace('.', '')}-{sys.platform}-{platform.machine()}"


class EnvironmentCache(MachineCache):
    """The environments of a machine."""

    __slots__ = ()

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
        try:
            environment, place = self.open_entry(
                _Installed(manifest=manifest, objects=objects, variables=variables)
            )
            return environment.interpreter(place, variables)
        except EntryError as error:
            raise EnvironmentBuildError(
                manifest=manifest.name, reason=error.reason, hint=error.hint
            ) from error
        except OSError as error:
            reason = str(error)
            raise EnvironmentBuildError(
                manifest=manifest.name, reason=reason, hint=hint_for(reason)
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """The stored facts of an environment.

    Attributes:
        python: Path of its interpreter; None is the running interpreter, with all its modules.
        path: Folders on its module path.
    """

    python: str | None
    path: tuple[str, ...]

    def interpreter(self, place: str, variables: Variables) -> Interpreter:
        """Returns the Python for UDFs in this environment.

        Raises:
            OSError: The folder of environments cannot be written.
        """
        # This package comes first, in the release of the parent process.
        runtime = runtime_folder(os.path.dirname(place))
        path = (runtime, *self.path, *(_list_own_path() if self.python is None else ()))
        return Interpreter(
            python=self.python or sys.executable, path=path, folder=place, variables=variables
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    """An environment as the content of an entry."""

    manifest: Manifest
    objects: Objects
    variables: Variables

    @property
    def name(self) -> str:
        return _name(self.manifest)

    @property
    def kind(self) -> EntryKind:
        return ENVIRONMENT

    @property
    def title(self) -> str:
        return f"environment of manifest {self.manifest.name!r}"

    def make(self, place: str, lock: int) -> dict[str, Any]:
        try:
            environment = _build(self, place, lock)
        except InstallError as error:
            raise EntryError(error.reason, error.hint) from error
        except ArchiveError as error:
            raise EntryError(
                str(error), "build the manifest again, and register the UDF again"
            ) from error
        return dataclasses.asdict(environment) | {"manifest": self.manifest.to_dict()}

    def restore(self, place: str, facts: Mapping[str, Any]) -> tuple[_Environment, str] | None:
        environment = _Environment(python=facts["python"], path=tuple(facts["path"]))
        is_gone = environment.python is not None and not os.path.exists(
            environment.python
        )  # a link, maybe a dead link
        return None if is_gone else (environment, place)

    def explain(self, error: OSError) -> EntryError:
        return EntryError(str(error), hint_for(str(error)))


def _build(content: _Installed, place: str, lock: int) -> _Environment:
    """Builds the content of an environment's folder.

    Raises:
        ArchiveError: As in `unpack`.
        InstallError: As in `install`, or the manifest has packages for another platform.
        OSError: The disk is full, or the store failed.
    """
    manifest, variables = content.manifest, content.variables
    path, packages = list[str](), list[str]()
    for number, archive in enumerate(manifest.archives):
        if archive.platform not in (None, platform_tag(current_python())):
            raise InstallError(
                f"its packages are for {archive.platform}, and this machine is {platform_tag(current_python())}",
                "capture the environment on a machine like the executors, or name the packages with create_pip",
            )
        folder = os.path.join(place, "archives", f"{number}-{archive.role}")
        unpack(archive, content.objects, folder)
        (packages if archive.role == "site-packages" else path).append(folder)
    if manifest.skip_site_packages:
        environment = _Environment(python=None, path=tuple(path))
    else:
        runtime = runtime_folder(os.path.dirname(place))
        python = install(
            manifest, os.path.join(place, "venv"), runtime=runtime, variables=variables, lock=lock
        )
        _add_packages(python, packages)
        environment = _Environment(python=python, path=tuple(path))
    check_interpreter(environment.interpreter(place, variables), manifest.python_version)
    return environment


def _add_packages(python: str, folders: list[str]) -> None:
    """Adds folders of packages to a virtual environment, with their `.pth` files."""
    if not folders:
        return
    with open(os.path.join(site_packages(python), "archives.pth"), "w", encoding="utf-8") as file:
        file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in folders)


def _list_own_path() -> tuple[str, ...]:
    return tuple(os.path.abspath(entry) for entry in sys.path if entry)


def _name(manifest: Manifest) -> str:
    return f"{manifest.checksum[:32]}-{platform_tag(manifest.python_version)}"
