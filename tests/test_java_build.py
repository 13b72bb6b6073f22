"""The build of the jar: in a checkout, in a wheel, and in a source distribution."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
JAR = "lance_spark/lance-spark.jar"
_SOURCE = "java/src/main/java/lancespark/Json.java"
_TREE = (
    "java",
    "lance_spark",
    "udf_runtime",
    "pyproject.toml",
    "hatch_build.py",
    "pyspark_lance.py",
    "README.md",
)
_TREE += ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", ".ci")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages and of the Java, with a current jar."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in _TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, root / name)
    return root


@pytest.fixture
def no_jdk(tmp_path: Path) -> dict[str, str]:
    """An environment without a JDK on the PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("env", "sh", "git"):
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    return {
        **{key: value for key, value in os.environ.items() if key != "JAVA_HOME"},
        "PATH": str(tools),
    }


def load_build(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("copied_build", root / "java" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change_source(root: Path) -> None:
    path = root / _SOURCE
    path.write_text(path.read_text() + "\n// changed\n")


def run(
    root: Path, *command: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_a_jar_is_current_until_a_source_or_the_version_changes(checkout: Path) -> None:
    build = load_build(checkout)
    assert build.is_current(build.installed_release())
    change_source(checkout)
    assert not build.is_current(build.installed_release())
    shutil.copy2(ROOT / _SOURCE, checkout / _SOURCE)
    assert build.is_current(build.installed_release())
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.', 'version = "9.', 1))
    assert not build.is_current(build.installed_release())


def test_a_file_of_a_later_release_replaces_an_earlier_one() -> None:
    build = load_build(ROOT)
    by_release = {
        release: build.sources(build.source_folders(release))["lancespark/LanceCatalog.java"].parts[
            -4
        ]
        for release in ("4.1.2", "4.2.0", "4.3.0")
    }
    assert by_release == {"4.1.2": "spark_4_1", "4.2.0": "spark_4_2", "4.3.0": "spark_4_3"}


def test_a_build_without_a_jdk_names_the_remedy(checkout: Path, no_jdk: dict[str, str]) -> None:
    change_source(checkout)
    completed = run(checkout, sys.executable, "java/build.py", environment=no_jdk)
    assert completed.returncode == 1
    assert completed.stderr == (
        "javac was not found in JAVA_HOME and on the PATH. Install a JDK 17 or newer, as by: make java\n"
    )


def test_make_compiles_the_jar_again_after_a_change(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".ready").touch()
    (checkout / JAR).touch()
    assert "java/build.py" not in run(checkout, "make", "--dry-run", "jar").stdout
    os.utime(checkout / _SOURCE, (os.stat(checkout / JAR).st_mtime + 10,) * 2)
    assert "java/build.py" in run(checkout, "make", "--dry-run", "jar").stdout


def test_a_download_with_another_digest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from java import maven

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = maven.cache_folder() / "x-1.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"changed")
    with pytest.raises(
        maven.DownloadError, match=r"The digest of .*x-1\.jar is .* Delete the file and try again"
    ):
        maven.MavenJar("x/x/1/x-1.jar", "0" * 64).fetch()


@pytest.fixture(scope="session")
def hatchling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hatchling, which pip would install for a build."""
    folder = tmp_path_factory.mktemp("hatchling")
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(folder),
        "hatchling>=1.27",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def build_distribution(
    root: Path, hatchling: Path, kind: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    environment = {**environment, "PYTHONPATH": str(hatchling)}
    return run(
        root, sys.executable, "-m", "hatchling", "build", "--target", kind, environment=environment
    )


@pytest.mark.long
def test_a_source_distribution_installs_without_a_jdk(
    checkout: Path, hatchling: Path, no_jdk: dict[str, str], tmp_path: Path
) -> None:
    # A checkout compiles for the installed release, and a distribution carries a jar for the newest.
    completed = build_distribution(checkout, hatchling, "sdist", dict(os.environ))
    assert completed.returncode == 0, completed.stderr
    archive = next((checkout / "dist").glob("*.tar.gz"))
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "unpacked", filter="data")
    unpacked = next((tmp_path / "unpacked").iterdir())
    assert load_build(unpacked).is_current()
    completed = build_distribution(unpacked, hatchling, "wheel", no_jdk)
    assert completed.returncode == 0, completed.stderr
    with zipfile.ZipFile(next((unpacked / "dist").glob("*.whl"))) as wheel:
        assert wheel.read(JAR) == (unpacked / JAR).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("damage", ["missing", "outdated"])
def test_a_wheel_compiles_a_jar_that_is_missing_or_outdated(
    checkout: Path, hatchling: Path, damage: str
) -> None:
    if damage == "missing":
        (checkout / JAR).unlink()
    else:
        change_source(checkout)
    completed = build_distribution(checkout, hatchling, "wheel", dict(os.environ))
    assert completed.returncode == 0, completed.stderr
    wheel = next((checkout / "dist").glob("*.whl"))
    with zipfile.ZipFile(wheel) as content:
        content.extract(JAR, checkout / "installed")
    build = load_build(checkout)
    assert build.properties_of(checkout / "installed" / JAR)["sources"] == build.digest(
        build.source_folders()
    )


@pytest.mark.long
def test_a_wheel_without_a_jar_and_a_jdk_fails_with_the_remedy(
    checkout: Path, hatchling: Path, no_jdk: dict[str, str]
) -> None:
    (checkout / JAR).unlink()
    completed = build_distribution(checkout, hatchling, "wheel", no_jdk)
    assert completed.returncode != 0
    assert (
        "javac was not found in JAVA_HOME and on the PATH. Install a JDK 17 or newer"
        in completed.stderr
    )
    assert not list((checkout / "dist").glob("*.whl"))


@pytest.mark.long
def test_make_compiles_a_changed_source_into_the_jar(checkout: Path) -> None:
    (checkout / ".venv").symlink_to(Path(sys.prefix))
    before = load_build(checkout).properties_of(checkout / JAR)
    change_source(checkout)
    completed = run(checkout, "make", "jar")
    assert completed.returncode == 0, completed.stderr
    after = load_build(checkout).properties_of(checkout / JAR)
    assert after["sources"] != before["sources"] and after["spark"] == before["spark"]
