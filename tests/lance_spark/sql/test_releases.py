"""The catalog with each release of PySpark that has one: its tests, in an environment that uv makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

pytestmark = [pytest.mark.long, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("release", ["4.1", "4.2"])
def test_the_catalog_with_another_release(release: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    environment["VIRTUAL_ENV"] = str(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    # PySpark 4.1 leaves the sockets open by which results come; warnings are errors here.
    quiet = ["-W", "ignore::ResourceWarning"]
    for command in (
        [find_uv_bin(), "venv", "--python", sys.executable, tmp_path / "env"],
        [find_uv_bin(), "pip", "install", "-q", f"pyspark[connect,sql]=={release}.*", f"{ROOT}[dev]"],
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *quiet, "tests/lance_spark/sql"],
    ):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
