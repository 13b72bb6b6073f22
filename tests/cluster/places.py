"""Places of executors: workers without the driver's files, and a Python environment in an archive of the application."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT

OWN_PACKAGES = ("lance_spark", "udf_runtime")


def hiding(folder: Path) -> list[str]:
    """Returns a wrapper: its command sees an empty folder in place of `folder`."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("this machine allows no mount namespaces")
    return [*command, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]


def make_environment(home: Path) -> dict[str, str]:
    """Makes an environment with the requirements of lance-spark, without lance-spark itself and PySpark.

    Returns the variables of a driver in the folder `home`. The archive holds links to the packages, because copies of
    half a gigabyte for each executor take longer than a test.
    """
    environment = home / "environment"
    folder = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for new_folder in (environment / "bin", folder):
        new_folder.mkdir(parents=True)
    # The same as `python -m venv --without-pip`, in a second less.
    python = Path(getattr(sys, "_base_executable", sys.executable))
    (environment / "bin" / "python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(
        f"home = {python.parent}\ninclude-system-site-packages = false\n"
    )
    for name in installed_files({"lance-spark"}, without={"lance-spark", "pyspark"}):
        (folder / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    with tarfile.open(home / "environment.tar.gz", "w:gz") as archive:
        archive.add(environment, ".")
    with zipfile.ZipFile(home / "own.zip", "w") as own:
        for package in OWN_PACKAGES:
            for file in sorted((ROOT / package).rglob("*.py")):
                own.write(file, file.relative_to(ROOT))
    arguments = (
        f"--archives {home}/environment.tar.gz#environment --py-files {home}/own.zip pyspark-shell"
    )
    return {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_SUBMIT_ARGS": arguments}


def installed_files(names: set[str], *, without: set[str]) -> set[str]:
    """Returns the entries of site-packages of packages and their requirements, except of packages `without`."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = names.pop()
        if name not in distributions:
            distributions[name] = importlib.metadata.distribution(name)
            required = [
                text for text in distributions[name].requires or () if "extra ==" not in text
            ]
            names |= {re.split(r"[^\w.-]", text)[0] for text in required if is_installed(text)}
    shipped = [distribution for name, distribution in distributions.items() if name not in without]
    files = {file.parts[0] for distribution in shipped for file in distribution.files or ()}
    return {
        file
        for file in files
        if file not in ("..", "__pycache__") and os.path.exists(file_of(file))
    }


def is_installed(requirement: str) -> bool:
    """Tells whether a requirement is installed; a requirement of another platform is not."""
    try:
        importlib.metadata.distribution(re.split(r"[^\w.-]", requirement)[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def file_of(name: str) -> str:
    return os.path.join(sysconfig.get_path("purelib"), name)
