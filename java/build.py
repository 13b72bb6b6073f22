"""Compiles the Java of this project into `lance_spark/lance-spark.jar`. Needs only a JDK.

    python java/build.py    compiles for the installed PySpark, if a source has changed

`make`, the start of the tests and the build of a wheel (`hatch_build.py`) call this module.

The sources of `src/main` serve all releases of Spark. `src/spark_X_Y` holds classes from that
release on, and replaces files of earlier releases. A jar for the newest release also serves
earlier releases, because they never load the classes of later releases.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

HOME = Path(__file__).resolve().parent
JAR = HOME.parent / "lance_spark" / "lance-spark.jar"

OLDEST_JAVA = 17
"""Release of Java of the class files. Spark 4 runs on Java 17 and newer."""

PROPERTIES = "lancespark/release.properties"
"""Entry of the jar: version, release of Spark, digest of the sources. Python reads it."""

_SERVICES = {
    "org.apache.spark.sql.sources.DataSourceRegister": "org.apache.spark.sql.lancespark.RegisteredSource",
    "org.apache.spark.status.AppHistoryServerPlugin": "lancespark.LanceWebUi",
}
"""Classes of the jar that Spark finds by the interfaces of their services."""

_LINT = "-Xlint:all,-path"
"""Without `path`, because manifests of Spark's jars name jars outside of PySpark."""

SHORT_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options that halve the processor time of a short JVM (measured: 4.5 instead of 10 seconds)."""

_DATE = (2020, 1, 1, 0, 0, 0)
"""Date of all entries: equal sources make equal jars."""


class BuildError(Exception):
    """The jar could not be made. The message gives the reason and the remedy."""


def ensure_jar() -> Path:
    """Returns the path of the jar. Compiles a missing or outdated jar.

    A jar for the newest release stays: it serves the installed release, and is what wheels hold.

    Raises:
        BuildError: PySpark or a JDK is missing, or a source does not compile.
    """
    release = installed_release()
    if not serves(release):
        with _lock():
            if not serves(release):
                make_jar(release, installed_jars())
    return JAR


def serves(release: str) -> bool:
    """Tells whether the jar has the present sources, of a release of Spark or of the newest."""
    return is_current() or is_current(release)


def is_current(release: str | None = None) -> bool:
    """Tells whether the jar has these sources, for a release of Spark or for the newest."""
    folders = source_folders(release)
    return properties_of(JAR).get("sources") == digest(folders)


def make_jar(release: str, jars: Sequence[Path]) -> None:
    """Compiles the jar.

    Args:
        release: Release of Spark to which the jars belong.
        jars: The jars of Spark.
    """
    with tempfile.TemporaryDirectory() as folder:
        compile_sources(list(sources(source_folders(release)).values()), jars, Path(folder))
        pack_jar(Path(folder), release)


def pack_jar(classes: Path, release: str) -> None:
    """Packs a folder of classes, and the digest of their sources, into the jar."""
    sources_digest = digest(source_folders(release))
    properties = f"version={_version()}\nspark={release}\nsources={sources_digest}\n"
    temporary = JAR.with_suffix(f".{os.getpid()}.tmp")
    _pack(classes, properties, temporary)
    temporary.replace(JAR)


def compile_sources(
    files: Sequence[Path], jars: Sequence[Path], target: Path, *options: str
) -> None:
    """Compiles Java files into a folder. A warning is an error.

    Args:
        files: The Java files.
        jars: The class path.
        target: The folder of the classes.
        options: More options of javac.

    Raises:
        BuildError: A file does not compile, or a JDK is missing.
    """
    target.mkdir(parents=True, exist_ok=True)
    arguments = [
        *(f"-J{option}" for option in SHORT_JVM),
        "--release", str(OLDEST_JAVA), "-encoding", "UTF-8", "-g", _LINT, "-Werror", "-proc:none", "-implicit:none",
        "-cp", os.pathsep.join(map(str, jars)), "-d", str(target), *options, *map(str, files),
    ]  # fmt: skip
    completed = subprocess.run(
        [find_tool("javac"), *arguments], capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        raise BuildError(f"The Java does not compile.\n{completed.stdout}{completed.stderr}")


def source_folders(release: str | None = None) -> list[Path]:
    """Returns the folders of sources for a release of Spark, by default for the newest."""
    newest = (
        (1 << 30,)
        if release is None
        else tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    )
    variants = sorted(HOME.glob("src/spark_*"), key=_release_of)
    return [
        HOME / "src/main/java",
        *(folder / "java" for folder in variants if _release_of(folder) <= newest),
    ]


def sources(folders: Sequence[Path]) -> dict[str, Path]:
    """Returns sources by their names below the folders. Later folders replace files."""
    return {
        str(file.relative_to(folder)): file
        for folder in folders
        for file in sorted(folder.rglob("*.java"))
    }


def digest(folders: Sequence[Path]) -> str:
    """Returns a digest of the sources and of the version of the package."""
    texts = [
        (name, file.read_text(encoding="utf-8")) for name, file in sorted(sources(folders).items())
    ]
    return hashlib.sha256(repr((_version(), texts)).encode()).hexdigest()


def properties_of(jar: Path) -> dict[str, str]:
    """Returns the properties of a jar; empty for a missing jar."""
    try:
        with zipfile.ZipFile(jar) as archive:
            lines = archive.read(PROPERTIES).decode().splitlines()
    except (OSError, KeyError, zipfile.BadZipFile):
        return {}
    return dict(line.split("=", 1) for line in lines)


def installed_release() -> str:
    """Returns the release of the PySpark that is installed."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise BuildError(
            "PySpark is not installed for this Python. Install the project first: pip install -e ."
        ) from None


def installed_jars() -> list[Path]:
    """Returns the jars of the PySpark that is installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BuildError(
            "PySpark is not installed for this Python. Install the project first: pip install -e ."
        )
    return sorted(Path(spec.origin).parent.glob("jars/*.jar"))


def find_tool(name: str) -> str:
    """Returns the path of a tool of the JDK, from JAVA_HOME or the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(name, path=f"{home}/bin") if home else None
    path = path or shutil.which(name)
    if path is None:
        raise BuildError(
            f"{name} was not found in JAVA_HOME and on the PATH. Install a JDK {OLDEST_JAVA} or newer, as by: make java"
        )
    return path


def _release_of(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("_")[1:])


def _version() -> str:
    text = (HOME.parent / "pyproject.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "(.+)"', text, re.MULTILINE)[1]  # type: ignore[index]


def _pack(classes: Path, properties: str, target: Path) -> None:
    entries = {
        str(file.relative_to(classes)): file.read_bytes() for file in classes.rglob("*.class")
    }
    for service, name in _SERVICES.items():
        entries[f"META-INF/services/{service}"] = f"{name}\n".encode()
    entries[PROPERTIES] = properties.encode()
    manifest = (
        "Manifest-Version: 1.0\r\nImplementation-Title: lance-spark\r\n"
        f"Implementation-Version: {_version()}\r\n\r\n"
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [
            ("META-INF/MANIFEST.MF", manifest.encode()),
            *sorted(entries.items()),
        ]:
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Keeps concurrent compilations of the same jar apart."""
    with open(JAR.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> None:
    """Compiles the jar. A failure ends the program with a message."""
    parser = argparse.ArgumentParser(
        description="Compiles the Java of this project into lance_spark/lance-spark.jar."
    )
    parser.parse_args(arguments)
    try:
        ensure_jar()
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
