"""Starts object stores in separate processes, on free ports of loopback, and stops the processes."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.processes import free_port

READY_S = 60
"""Node takes a second to start on an idle machine, and much longer on a busy machine."""

PACKAGES = ("azurite@3.35.0", "s3rver@3.7.1")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account, from its documentation."""

TABLES = "tables"
"""The container, or bucket, of each store."""


def node_packages() -> Path:
    """Returns the folder with the programs of the npm packages; the first call takes half a
    minute for the installation.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on this machine: Azurite and s3rver run on them")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lance-spark"
    home = cache / f"npm-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=cache)
        command = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--prefix",
            folder,
            *PACKAGES,
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode == 0:
            # The final name appears only with a complete installation, so that a killed installation is never used.
            with contextlib.suppress(OSError):  # another session was first
                os.replace(folder, home)
        shutil.rmtree(folder, ignore_errors=True)
        assert process.returncode == 0, f"npm cannot install {PACKAGES}: {process.stderr[-2000:]}"
    return home / "node_modules" / ".bin"


@contextlib.contextmanager
def serving(name: str, command: list[str], port: int, home: Path) -> Iterator[None]:
    """Runs a server until the block ends. The server leads a process group, so that its children end too."""
    log = home / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=home, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            assert process.poll() is None, (
                f"{name} ended: {log.read_text(errors='replace')[-2000:]}"
            )
            assert time.monotonic() < deadline, (
                f"{name} is not ready: {log.read_text(errors='replace')[-2000:]}"
            )
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def azurite(home: Path) -> Iterator[dict[str, str]]:
    """Runs Azurite, and yields its storage options."""
    port = free_port()
    command = [
        str(node_packages() / "azurite-blob"),
        "--disableTelemetry",
        "--silent",
        "--skipApiVersionCheck",
    ]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    with serving("azurite", command, port, home):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        make_container(endpoint)
        yield {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": endpoint,
            "allow_http": "true",
        }


@contextlib.contextmanager
def s3_server(home: Path, *, ignore_conditions: bool = False) -> Iterator[dict[str, str]]:
    """Runs the S3 server of `s3_server.py`, and yields its storage options."""
    port = free_port()
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py")), "--port", str(port)]
    name = "s3_server"
    if ignore_conditions:
        command, name = [*command, "--ignore-conditions"], "careless"
    with serving(name, command, port, home):
        storage = s3_options(port)
        request("PUT", f"{storage['aws_endpoint']}/{TABLES}")
        yield storage


@contextlib.contextmanager
def s3rver(home: Path) -> Iterator[dict[str, str]]:
    """Runs s3rver, and yields its storage options."""
    port = free_port()
    command = [
        str(node_packages() / "s3rver"),
        "-a",
        "127.0.0.1",
        "-p",
        str(port),
        "-d",
        str(home / "s3rver"),
    ]
    with serving("s3rver", [*command, "--configure-bucket", TABLES], port, home):
        yield s3_options(port, "S3RVER")


def s3_options(port: int, account: str = "test") -> dict[str, str]:
    return {
        "aws_access_key_id": account,
        "aws_secret_access_key": account,
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://127.0.0.1:{port}",
        "aws_virtual_hosted_style_request": "false",
        "allow_http": "true",
    }


def make_container(endpoint: str) -> None:
    """Makes the container, with a request signed for Azure, because Lance has no call for this."""
    date = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{TABLES}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    authorization = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": authorization}
    request("PUT", f"{endpoint}/{TABLES}?restype=container", headers)


def request(
    method: str, url: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    sent = {"Content-Length": str(len(body))} if method == "PUT" else {}
    with urllib.request.urlopen(
        urllib.request.Request(
            url, body or None, headers={**sent, **(headers or {})}, method=method
        )
    ) as answer:
        content: bytes = answer.read()
    return content


def fail(storage: dict[str, str], **faults: Any) -> None:
    """Sets delays and failures of an S3 server, as described by `s3_server.Faults`; no arguments end all faults."""
    request("PUT", f"{storage['aws_endpoint']}/-/faults", body=json.dumps(faults).encode())


class StoreRequest(NamedTuple):
    """A request to an S3 server.

    Attributes:
        method: HTTP method.
        path: Bucket and key, with the query.
        status: Status of the reply; 0 if the connection broke.
        began_s: Time of the receipt.
        ended_s: Time of the reply.
        received: Size of the request's body.
        sent: Size of the reply's body.
    """

    method: str
    path: str
    status: int
    began_s: float
    ended_s: float
    received: int
    sent: int


def requests_of(storage: dict[str, str]) -> list[StoreRequest]:
    """Returns the requests to an S3 server since the last call."""
    log = json.loads(request("GET", f"{storage['aws_endpoint']}/-/requests"))
    return [StoreRequest(*entry) for entry in log]
