"""Builders of manifests: the needs of a UDF's process, set step by step."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Self

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.environments.archives import module_archives, site_archive
from udf_runtime.environments.manifest import Archive, Manifest, current_python, current_user
from udf_runtime.environments.requirements import Requirements, refuse_lines, refuse_password
from udf_runtime.environments.variables import Source, check_sources, remember
from udf_runtime.errors import UdfDefinitionError


class _Builder:
    """Common methods of all builders. Each method returns the builder."""

    def __init__(self) -> None:
        self._name = ""
        self._version: str | None = None
        self._python_version = current_python()
        self._modules: list[str | ModuleType] = []
        self._sources: dict[str, Source | None] = {}
        self._requirements = Requirements()
        self._allow_unpinned = False
        self._site_packages = False
        self._zip_folder: str | None = None

    @classmethod
    def create(cls, name: str) -> Self:
        """Returns a builder with a name."""
        return cls().name(name)

    def name(self, name: str) -> Self:
        """Sets the manifest's name, for people."""
        if not name.strip():
            raise UdfDefinitionError(f"The value {name!r} is no name of a manifest. Give a text.")
        self._name = name
        return self

    def version(self, version: str) -> Self:
        """Sets a version: two versions are separate environments, even with the same packages."""
        self._version = version
        return self

    def python_version(self, version: str) -> Self:
        """Sets Python's minor version, for example `3.12`; by default the version of this process.

        Functions pickled by value run only in their own version of Python. For another version, the
        UDF must come from a module (`py_modules`, or an installed package).
        """
        if not re.fullmatch(r"3\.\d{1,3}", version):
            raise UdfDefinitionError(
                f"The version={version!r} is no version of Python. Give a minor version, for example '3.12'."
            )
        self._python_version = version
        return self

    def py_modules(self, modules: Sequence[str | ModuleType]) -> Self:
        """Sets the modules of the manifest: paths, names, or modules. `build` reads the files."""
        self._modules = list(modules)
        return self

    def add_py_module(self, module: str | ModuleType) -> Self:
        """Adds a module."""
        self._modules.append(module)
        return self

    def env_vars(self, env_vars: Iterable[str] | Mapping[str, Source]) -> Self:
        """Sets the environment variables of the UDF's process.

        Args:
            env_vars: Names, with values from the environment of the process that starts a job; or
                names with values, or with functions that return a value there. Values stay in this
                process and are never stored. Jobs of another process take values from its
                environment.
        """
        self._sources = check_sources(env_vars)
        return self

    def add_env_var(self, key: str, value: Source | None = None) -> Self:
        """Adds an environment variable; without a value as with a name in :meth:`env_vars`."""
        self._sources |= check_sources([key] if value is None else {key: value})
        return self

    def allow_unpinned(self, allow: bool = True) -> Self:
        """Sets whether packages without an exact version are allowed; else `build` warns."""
        self._allow_unpinned = allow
        return self

    def upload_site_packages(self, upload: bool = True) -> Self:
        """Sets whether the packages installed for this process are included."""
        self._site_packages = upload
        return self

    def local_zip_output_dir(self, output_dir: str) -> Self:
        """Sets the folder of zip files; by default a temporary folder of this process."""
        self._zip_folder = os.path.abspath(output_dir)
        return self

    def build(self) -> Manifest:
        """Returns the manifest, with the current content of its files.

        Raises:
            UdfDefinitionError: The manifest cannot work; the message names the problem and the
                remedy.
        """
        if not self._name:
            raise UdfDefinitionError("The manifest has no name. Call name() before build().")
        unpinned = self._requirements.unpinned()
        if unpinned and not self._allow_unpinned:
            warnings.warn(
                f"Packages without a version may differ from machine to machine: {', '.join(unpinned)}. Manifest: "
                f"{self._name!r}. Pin them with ==, or call allow_unpinned().",
                UserWarning,
                stacklevel=2,
            )
        archives: tuple[Archive, ...] = module_archives(self._modules, self._zip_folder)
        if self._site_packages:
            if self._python_version != current_python():
                raise UdfDefinitionError(
                    f"The packages of this process are for Python {current_python()}. Manifest: {self._name!r}. Drop "
                    f"python_version({self._python_version!r}), or name the packages with pip."
                )
            archives += (site_archive(self._zip_folder),)
        requirements = self._requirements
        manifest = Manifest(
            name=self._name,
            version=self._version,
            pip=tuple(requirements.pip),
            index_url=requirements.index_url,
            extra_index_urls=tuple(requirements.extra_index_urls),
            find_links=tuple(requirements.find_links),
            no_index=requirements.no_index,
            python_version=self._python_version,
            env_vars=tuple(sorted(self._sources)),
            archives=archives,
            created_by=current_user(),
        )
        remember(manifest, self._sources)
        return manifest


@ARGUMENTS.methods
class SiteManifestBuilder(_Builder):
    """Builds a manifest of the packages installed for this process."""

    def __init__(self) -> None:
        super().__init__()
        self._site_packages = True


@ARGUMENTS.methods
class PipManifestBuilder(_Builder):
    """Builds a manifest of packages from an index.

    The environment has these packages, their dependencies, and PyArrow, but none of the executors'
    own packages.
    """

    def __init__(self) -> None:
        super().__init__()
        self._packages: list[str] = []
        self._file: str | None = None

    def pip(self, packages: Sequence[str]) -> Self:
        """Sets the requirements, as lines of a requirements file."""
        self._packages = list(packages)
        return self

    def add_pip(self, package: str) -> Self:
        """Adds a requirement."""
        self._packages.append(package)
        return self

    def requirements_path(self, path: str) -> Self:
        """Sets a requirements file instead of :meth:`pip`; `build` reads the file."""
        self._file = path
        return self

    def index_url(self, url: str) -> Self:
        """Sets the index of packages; `${NAME}` stands for a variable of `env_vars`."""
        _check_url(url, "index_url")
        self._requirements.index_url = url
        return self

    def add_extra_index_url(self, url: str) -> Self:
        """Adds an index."""
        _check_url(url, "add_extra_index_url")
        self._requirements.extra_index_urls.append(url)
        return self

    def find_links(self, places: Sequence[str]) -> Self:
        """Sets folders of wheels, as seen by the executors, or URLs of pages that link wheels."""
        for place in places:
            _check_url(place, "find_links")
        self._requirements.find_links = list(places)
        return self

    def no_index(self, no_index: bool = True) -> Self:
        """Sets whether packages come from `find_links` only; PyArrow must then be present, too."""
        self._requirements.no_index = no_index
        return self

    def build(self) -> Manifest:
        """Returns the manifest, with the current content of its files.

        Raises:
            UdfDefinitionError: The manifest cannot work; the message names the problem and the
                remedy.
        """
        if self._packages and self._file is not None:
            raise UdfDefinitionError(
                f"The methods pip and requirements_path set the same. Manifest: {self._name!r}. Call one of the two."
            )
        self._requirements.pip = []
        if self._file is not None:
            self._requirements.read(self._file)
        self._requirements.add(self._packages, where="pip")
        return super().build()


def _check_url(url: str, where: str) -> None:
    refuse_lines(url, where)
    refuse_password(url, where)
