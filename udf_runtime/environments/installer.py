"""Makes a virtual environment of a manifest's packages: with uv if present, else with pip.

Requirements and indexes go to the installer on its standard input, because the system shows
arguments and environments of processes, and URLs may hold passwords.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from udf_runtime.environments.manifest import current_python
from udf_runtime.environments.requirements import requirement_name
from udf_runtime.environments.variables import HIDDEN

if TYPE_CHECKING:
    from udf_runtime.environments.manifest import Manifest
    from udf_runtime.environments.variables import Variables
    from udf_runtime.execute.isolation.process import Interpreter

INSTALLER_VARIABLE = "LANCE_SPARK_INSTALLER"
"""Environment variable of the executors: `uv` or `pip`; unset: uv if present."""

INSTALL_LIMIT_S = 3600.0
MOST_REASON_CHARS = 2000

_ARROW = "pyarrow>=15"  # required by a UDF's process; the manifest's own requirement comes first
_ARROW_FOR_NUMPY_1 = (
    "pyarrow>=15,<26"  # newer versions reject NumPy 1 without a word in their metadata
)
_OF_OTHER_PLACES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "PIP_TARGET",
    "PIP_USER",
    "PIP_PREFIX",
)
_URL_PASSWORD = re.compile(r"(://)[^/@\s]+@")
_HINTS = (
    (
        r"no space left|disk quota",
        "free space, or name another folder with spark.lance.environments.dir",
    ),
    (
        r"dns error|name resolution|failed to fetch|connection|timed out|network|max retries|tls|certificate",
        "let the executors reach the index, or name one that they reach with index_url or find_links",
    ),
    (
        r"not a supported wheel|no wheels with a matching|compatible with|building wheel|failed to build",
        "name a version that has a wheel for the executors' platform and Python, or one that can be built there",
    ),
    (
        r"no matching distribution|not found in|could not find a version|no version of|there (is|are) no version",
        "correct the name or the version, or name the index that has it with index_url",
    ),
    (
        r"resolutionimpossible|conflict|unsatisfiable|incompatible",
        "correct the versions, so that all packages can be had together",
    ),
)
"""Remedies by message of the installer or the system; the first match counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InstallContext:
    runtime: str
    variables: Variables
    lock: int


class InstallError(Exception):
    """Packages cannot be installed. Internal: becomes an EnvironmentBuildError.

    Attributes:
        reason: The end of the installer's output, without secrets.
        hint: The remedy.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint_for(reason) if hint is None else hint


def hint_for(reason: str) -> str:
    """Returns the remedy for a failure."""
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, reason, re.IGNORECASE))
    return next(
        hints, "see what the installer says, correct the manifest, and register the UDF again"
    )


def install(
    manifest: Manifest, folder: str, *, runtime: str, variables: Variables, lock: int
) -> str:
    """Makes a virtual environment with a manifest's packages and PyArrow, and returns its Python.

    Packages of a site-packages archive are not included.

    Args:
        manifest: The manifest.
        folder: Folder of the environment; must not exist.
        runtime: Folder with a copy of this package.
        variables: Values of `${NAME}` in requirements and indexes.
        lock: Descriptor of a lock, which stays locked until the end of the installer, too.

    Raises:
        InstallError: The installer failed, or took an hour.
        OSError: A process cannot be started.
    """
    context = _InstallContext(runtime=runtime, variables=variables, lock=lock)
    python = os.path.join(folder, "bin", "python")
    command = [
        *_make_environment(manifest, folder, python, context),
        "--quiet",
        "--requirement",
        "/dev/stdin",
    ]
    places, packages = _list_places(manifest), list(manifest.pip)
    has_arrow = any(archive.role == "site-packages" for archive in manifest.archives) or any(
        requirement_name(line) == "pyarrow" for line in packages
    )
    if not has_arrow:
        packages.append(_ARROW)
    if packages:
        _run(command, context, _substitute(places + packages, variables))
    if not has_arrow and any(
        name.startswith("numpy-1.") for name in os.listdir(site_packages(python))
    ):
        _run(command, context, _substitute([*places, *manifest.pip, _ARROW_FOR_NUMPY_1], variables))
    return python


def _make_environment(
    manifest: Manifest, folder: str, python: str, context: _InstallContext
) -> list[str]:
    """Makes an environment, and returns the command for the installation of packages."""
    uv = _find_uv()
    if uv is not None:
        version = (
            sys.executable
            if manifest.python_version == current_python()
            else manifest.python_version
        )
        _run(
            [*uv, "venv", "--quiet", "--no-project", "--no-config", "--python", version, folder],
            context,
        )
        return [*uv, "pip", "install", "--no-config", "--python", python]
    # An existing pip serves other environments, too, and a copy of pip takes seconds.
    has_pip = importlib.util.find_spec("pip") is not None
    _run(
        [_find_python(manifest), "-m", "venv", *(["--without-pip"] if has_pip else []), folder],
        context,
    )
    pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    return [*pip, "install", "--disable-pip-version-check", "--no-input"]


def site_packages(python: str) -> str:
    """Returns the folder of a virtual environment's packages."""
    lib = os.path.join(os.path.dirname(os.path.dirname(python)), "lib")
    (version,) = (name for name in os.listdir(lib) if name.startswith("python"))
    return os.path.join(lib, version, "site-packages")


def check_interpreter(started: Interpreter, version: str) -> None:
    """Starts an environment's Python, and imports the modules of every UDF process.

    Raises:
        InstallError: Python does not start, has another version, or lacks a usable PyArrow.
        OSError: A process cannot be started.
    """
    code = "import sys, udf_runtime.execute.isolation.child; sys.stderr.write('\\n%d.%d' % sys.version_info[:2])"
    try:
        process = subprocess.run(  # noqa: S603 - the interpreter of this build
            [*started.command, "-c", code],
            env=started.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise InstallError(
            f"its Python did not start within {INSTALL_LIMIT_S:g} s",
            "look at the machine's load, and at the disk that the folder of environments is on",
        ) from late
    output = process.stderr.decode(errors="replace").strip()
    if process.returncode != 0:
        raise InstallError(
            f"its Python cannot run UDFs: {output[-MOST_REASON_CHARS:]}",
            "it needs PyArrow and Python 3.11 or newer: see that the manifest's packages go with them",
        )
    actual = output.rpartition("\n")[2]
    if actual != version:
        raise InstallError(
            f"its Python is {actual}, and the manifest asks for {version}",
            f"install Python {version} on the executors, or build the manifest with Python {actual}",
        )


def _find_uv() -> list[str] | None:
    """Returns the command of uv; None for pip."""
    installer = os.environ.get(INSTALLER_VARIABLE, "")
    if installer not in ("", "uv", "pip"):
        raise InstallError(
            f"{INSTALLER_VARIABLE}={installer!r} is no installer",
            "set it to uv or pip on the executors",
        )
    if installer == "pip":
        return None
    neighbour = os.path.join(os.path.dirname(sys.executable), "uv")
    program = shutil.which("uv") or (neighbour if os.access(neighbour, os.X_OK) else None)
    if program is None and importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    if program is None and installer == "uv":
        raise InstallError(
            f"{INSTALLER_VARIABLE}=uv, and uv is not there",
            "install uv on the executors, or use pip",
        )
    return None if program is None else [program]


def _find_python(manifest: Manifest) -> str:
    version = manifest.python_version
    if version == current_python():
        return sys.executable
    program = shutil.which(f"python{version}")
    if program is None:
        raise InstallError(
            f"there is no Python {version} here",
            f"install python{version}, or uv, on the executors, or build the manifest with Python {current_python()}",
        )
    return program


def _list_places(manifest: Manifest) -> list[str]:
    """Returns the lines of a requirements file for indexes and folders of packages."""
    places = [f"--find-links {place}" for place in manifest.find_links]
    if manifest.no_index:
        places.append("--no-index")
    if manifest.index_url is not None:
        places.append(f"--index-url {manifest.index_url}")
    return [*places, *(f"--extra-index-url {url}" for url in manifest.extra_index_urls)]


def _substitute(lines: list[str], variables: Variables) -> bytes:
    """Returns the lines with the variables' values; installers only know variables of their own.

    Raises:
        InstallError: A value has white space, which could add an option or a line.
    """
    text = "\n".join(lines) + "\n"
    for name, value in variables.in_clear().items():
        if f"${{{name}}}" not in text:
            continue
        if value.split() != [value]:
            raise InstallError(
                f"the value of the environment variable {name} is empty or has white space, and a requirement or URL "
                "of the manifest names the variable",
                "correct the value where the job is started",
            )
        text = text.replace(f"${{{name}}}", value)
    return text.encode()


def _run(command: list[str], context: _InstallContext, lines: bytes = b"") -> None:
    """Runs an installer, which ends with this process.

    Raises:
        InstallError: The installer failed; its last output is the reason.
    """
    # Without variables that change the visible packages of a process.
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_PLACES}
    if not os.access(os.path.expanduser("~"), os.W_OK):
        inherited |= {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1"}
    supervised = os.path.join(context.runtime, "udf_runtime", "environments", "supervised.py")
    process = subprocess.Popen(  # noqa: S603 - uv, pip or venv
        [sys.executable, "-I", supervised, *command],
        env=inherited,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(context.lock,),
        start_new_session=True,
    )
    over = threading.Timer(INSTALL_LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    over.daemon = True
    over.start()
    try:
        output = _feed(process, f"{len(lines)}\n".encode() + lines)
    finally:
        over.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        late = (
            "it took longer than an hour; "
            if over.finished.is_set() and process.returncode < 0
            else ""
        )
        raise InstallError(late + _shorten_output(output, context.variables))


def _feed(process: subprocess.Popen[bytes], lines: bytes) -> str:
    """Feeds a supervised program, whose input stays open to its end, and returns its output."""
    if process.stdin is None or process.stderr is None:
        raise AssertionError
    with process.stdin as to, process.stderr as errors:
        with contextlib.suppress(BrokenPipeError):  # its exit status reports the failure
            to.write(lines)
            to.flush()
        text = errors.read().decode(errors="replace")
        process.wait()
    return text


def _shorten_output(output: str, variables: Variables) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", output).strip()
    text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", variables.redact(text))
    return text[-MOST_REASON_CHARS:] or "the installer said nothing"
