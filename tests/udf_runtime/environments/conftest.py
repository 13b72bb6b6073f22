"""A folder of environments for all tests of a process, and wheels of packages outside any index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.udf_runtime.environments.wheels import wheel
from udf_runtime import Manifest
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime.environments.variables import Variables
from udf_runtime.execute.isolation.process import Interpreter


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentCache:
    return EnvironmentCache(folder=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of a package, and a package that needs the older version."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        wheel(folder, "lance_spark_probe", version)
    wheel(folder, "lance_spark_needs", "1.0", requires=("lance_spark_probe==1.0",))
    wheel(folder, "lance_spark_foreign", "1.0", tag="cp39-cp39-win_amd64")
    return folder


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(str(tmp_path / "store"))


def probing(wheels: Path, *requirements: str, name: str = "probe") -> Manifest:
    return Manifest.create_pip(name).pip(list(requirements)).find_links([str(wheels)]).build()


def opened(cache: EnvironmentCache, manifest: Manifest, objects: LocalObjects) -> Interpreter:
    return cache.open(manifest, objects, Variables())
