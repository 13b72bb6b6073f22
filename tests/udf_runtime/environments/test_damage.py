"""Failures of a machine during installations: the job gets a single clear error, or continues unharmed."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
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
    return Manifest(
        name="own", version=version, python_version=current_python(), skip_site_packages=True
    )


def test_a_python_that_does_not_start_in_time_is_the_reason(
    tmp_path: Path, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(installer, "INSTALL_LIMIT_S", 0.001)
    with pytest.raises(EnvironmentBuildError, match=r"did not start within 0\.001 s") as caught:
        opened(EnvironmentCache(folder=str(tmp_path)), own("slow"), objects)
    assert "look at the machine" in caught.value.hint
    assert not list(tmp_path.glob("*/environment.json"))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"python": [], "path": []}', '{"python": null, "path": 7}', "{"]
)
def test_what_cannot_be_read_of_an_environment_is_made_anew(
    tmp_path: Path, objects: LocalObjects, content: str
):
    cache, manifest = EnvironmentCache(folder=str(tmp_path)), own("odd")
    ready = Path(opened(cache, manifest, objects).folder or "", "environment.json")
    right = json.loads(ready.read_text())
    ready.write_text(content)
    Path(f"{ready.parent}.failed").write_text("7")
    opened(cache, manifest, objects)
    assert json.loads(ready.read_text()) == right


def test_a_full_disk_is_the_reason_where_only_this_package_is_missing(tmp_path: Path):
    code = f"""
import resource, shutil, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.udf_runtime.environments.conftest import opened
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime import EnvironmentBuildError, Manifest
cache, manifest = EnvironmentCache(folder={str(tmp_path)!r}), Manifest.from_json(sys.argv[1])
opened(cache, manifest, LocalObjects("/nowhere"))
(runtime,) = Path({str(tmp_path)!r}).glob("runtime-*")
shutil.rmtree(runtime)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    opened(cache, manifest, LocalObjects("/nowhere"))
except EnvironmentBuildError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-c", code, own("full").to_json()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in process.stdout and "Manifest: 'own'" in process.stdout


def test_an_environment_is_used_where_others_cannot_be_removed(
    tmp_path: Path, objects: LocalObjects, caplog: pytest.LogCaptureFixture
):
    cache = EnvironmentCache(folder=str(tmp_path), most_bytes=1)
    odd = f"{'0' * 32}-cp311-linux-x86_64"
    (tmp_path / odd).mkdir()
    (tmp_path / f"{odd}.lock").mkdir()
    with caplog.at_level(logging.WARNING, "udf_runtime"):
        assert opened(cache, own("kept"), objects).folder
    assert f"{odd}.lock" in caplog.text and list(tmp_path.glob("*/environment.json"))
