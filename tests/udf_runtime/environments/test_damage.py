"""What goes wrong on a machine beside installers: the job gets one error that says it, or does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.udf_runtime.environments.conftest import opened
from udf_runtime import EnvironmentBuildError, Manifest
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments import installer
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime.environments.manifest import current_python


def own(version: str) -> Manifest:
    """Returns a manifest without packages: its environment is made in a moment."""
    return Manifest(name="own", version=version, python_version=current_python(), skip_site_packages=True)


def test_a_python_that_does_not_start_in_time_is_the_reason(
    tmp_path: Path, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(installer, "INSTALL_LIMIT_S", 0.001)
    with pytest.raises(EnvironmentBuildError, match=r"did not start within 0\.001 s") as caught:
        opened(EnvironmentCache(folder=str(tmp_path)), own("slow"), objects)
    assert "look at the machine" in caught.value.hint
    assert not list(tmp_path.glob("*/environment.json"))
