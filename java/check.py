"""Formats and checks the Java of this project with tools from Maven Central (`maven.py`).

    python -m java.check format      formats the sources with google-java-format
    python -m java.check lint        checks the format, and compiles with Error Prone
    python -m java.check test        runs the unit tests with JUnit
    python -m java.check releases    compiles for each release of Spark

`make lint`, `make java-test` and `make test` call this module.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from java import build, maven

TESTS = build.HOME / "src/test/java"
CLASSES = build.HOME.parent / "build/java"
"""Classes of the sources and of the tests, compiled with Error Prone, and the digest of both."""

_COMPILER_PACKAGES = (
    "api",
    "code",
    "file",
    "main",
    "model",
    "parser",
    "processing",
    "tree",
    "util",
)
_OPEN_PACKAGES = ("code", "comp")
_FLAGS = (
    *(
        f"--add-exports=jdk.compiler/com.sun.tools.javac.{name}=ALL-UNNAMED"
        for name in _COMPILER_PACKAGES
    ),
    *(
        f"--add-opens=jdk.compiler/com.sun.tools.javac.{name}=ALL-UNNAMED"
        for name in _OPEN_PACKAGES
    ),
)
"""google-java-format and Error Prone use packages of the compiler that the JDK does not export."""

_SPARK_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""Packages of the JDK that classes of Spark use."""


def format_sources() -> None:
    """Formats all Java files."""
    _run_formatter("--replace")


def check_sources() -> None:
    """Checks the format, and compiles with Error Prone. An outdated jar is replaced.

    Raises:
        build.BuildError: The format differs, or the compiler or Error Prone warns.
        maven.DownloadError: Maven Central does not answer.
    """
    with ThreadPoolExecutor(1) as pool:
        formatted = pool.submit(_run_formatter, "--dry-run", "--set-exit-if-changed")
        classes = compile_checked()
        formatted.result()
    release = build.installed_release()
    if not build.serves(release):
        with tempfile.TemporaryDirectory() as folder:
            ignored = shutil.ignore_patterns("*Test.class", "*Test$*.class")
            build.pack_jar(
                shutil.copytree(classes, Path(folder, "classes"), ignore=ignored), release
            )


def run_tests() -> None:
    """Runs the unit tests.

    Raises:
        build.BuildError: A test fails.
        maven.DownloadError: Maven Central does not answer.
    """
    classes = compile_checked()
    path = os.pathsep.join(map(str, [classes, maven.JUNIT.fetch(), *build.installed_jars()]))
    options = [*build.SHORT_JVM, *_SPARK_FLAGS, "-cp", path]
    launcher = "org.junit.platform.console.ConsoleLauncher"
    arguments = [
        "execute",
        f"--scan-classpath={classes}",
        "--disable-banner",
        "--details=summary",
        "--fail-if-no-tests",
    ]
    _run("A unit test of the Java fails.", build.find_tool("java"), *options, launcher, *arguments)


def compile_checked() -> Path:
    """Returns the classes of the sources and of the tests, compiled with Error Prone.

    Raises:
        build.BuildError: The compiler or Error Prone warns.
        maven.DownloadError: Maven Central does not answer.
    """
    release = build.installed_release()
    folders = [*build.source_folders(release), TESTS]
    text = f"{build.digest(folders)} {release} {maven.ERROR_PRONE} {_java_version()}"
    classes = CLASSES / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not classes.exists():
        plugin = os.pathsep.join(map(str, maven.fetch_all(maven.ERROR_PRONE)))
        options = [
            *(f"-J{flag}" for flag in _FLAGS),
            "-XDcompilePolicy=simple",
            "--should-stop=ifError=FLOW",
            "-processorpath",
            plugin,
            "-Xplugin:ErrorProne",
        ]
        files = list(build.sources(folders).values())
        jars = [maven.JUNIT.fetch(), *build.installed_jars()]
        shutil.rmtree(CLASSES, ignore_errors=True)
        partial = CLASSES / f"{os.getpid()}.tmp"
        build.compile_sources(files, jars, partial, *options)
        partial.rename(classes)
    return classes


def compile_releases() -> None:
    """Compiles for each release of Spark, and compares the classes with the installed release.

    Raises:
        build.BuildError: A release does not compile, or its classes of `src/main` differ.
        maven.DownloadError: Maven Central does not answer.
    """
    installed = _shared_classes(compile_checked())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for release, classes in zip(
            maven.RELEASES, pool.map(_compile_release, maven.RELEASES), strict=True
        ):
            different = sorted(set(classes.items()) ^ set(installed.items()))
            if different:
                raise build.BuildError(
                    f"The class {different[0][0]} differs between Spark {release} and {build.installed_release()}. "
                    "Call the different method through SparkRelease, or move the class to src/spark_X_Y."
                )


def _compile_release(release: str) -> dict[str, str]:
    files = build.sources(build.source_folders(release)).values()
    with tempfile.TemporaryDirectory() as folder:
        build.compile_sources(list(files), maven.jars_of(release), Path(folder))
        return _shared_classes(Path(folder))


def _shared_classes(classes: Path) -> dict[str, str]:
    """Returns digests of the classes of `src/main`."""
    shared = {name.removesuffix(".java") for name in build.sources([build.HOME / "src/main/java"])}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in classes.rglob("*.class")
        if (name := str(file.relative_to(classes)).removesuffix(".class")).partition("$")[0]
        in shared
    }


def _run_formatter(*options: str) -> None:
    files = sorted(str(file) for file in build.HOME.rglob("*.java"))
    jar = str(maven.GOOGLE_JAVA_FORMAT.fetch())
    command = [build.find_tool("java"), *build.SHORT_JVM, *_FLAGS, "-jar", jar, *options, *files]
    _run("The Java is not formatted. Run: make format", *command)


def _run(message: str, *command: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise build.BuildError(f"{message}\n{completed.stdout}{completed.stderr}")


def _java_version() -> str:
    command = [build.find_tool("javac"), "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_COMMANDS: dict[str, Callable[[], None]] = {
    "format": format_sources,
    "lint": check_sources,
    "test": run_tests,
    "releases": compile_releases,
}


def main(arguments: Sequence[str]) -> None:
    """Runs a command. A failure ends the program with a message."""
    parser = argparse.ArgumentParser(description="Formats and checks the Java of this project.")
    parser.add_argument("command", choices=_COMMANDS)
    command = parser.parse_args(arguments).command
    try:
        _COMMANDS[command]()
    except (build.BuildError, maven.DigestError) as error:
        sys.exit(str(error))
    except maven.DownloadError as error:
        sys.stderr.write(f"{error} The Java is not checked (java.check {command}).\n")


if __name__ == "__main__":
    main(sys.argv[1:])
