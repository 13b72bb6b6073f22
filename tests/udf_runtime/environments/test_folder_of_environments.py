"""The folder of environments: its owner, and the folders that count as environments."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.planted import picture
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache, _name
from udf_runtime.environments.manifest import Manifest
from udf_runtime.environments.variables import Variables
from udf_runtime.errors import EnvironmentBuildError

MANIFEST = Manifest(
    name="own",
    skip_site_packages=True,
    python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
)


def test_an_environment_is_made_beside_folders_of_others_that_have_locks(tmp_path: Path):
    for name in ("dataset", "0" * 32, "abc-cp311-linux-x86_64"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of others")
        (tmp_path / f"{name}.lock").write_text("")
    before = picture(tmp_path)
    EnvironmentCache(folder=str(tmp_path), most_bytes=0).open(
        MANIFEST, LocalObjects("/nowhere"), Variables({})
    )
    assert before.items() <= picture(tmp_path).items()


@pytest.mark.parametrize("inner", [False, True])
def test_a_folder_that_others_may_write_to_is_refused(inner: bool, tmp_path: Path):
    place = tmp_path / _name(MANIFEST) if inner else tmp_path
    place.mkdir(exist_ok=True)
    (place / "environment.json").write_text('{"python": "/bin/false", "path": []}')
    os.chmod(place, 0o777)
    with pytest.raises(EnvironmentBuildError, match="belongs to another user, or others may write"):
        EnvironmentCache(folder=str(tmp_path)).open(
            MANIFEST, LocalObjects("/nowhere"), Variables({})
        )
