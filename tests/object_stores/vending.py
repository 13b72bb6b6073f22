"""A Lance REST namespace that vends keys of an S3 server for some seconds."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lance.namespace import RestAdapter

from tests.object_stores.servers import TABLES

SECRET_KEY = "vended-secret-4711"
"""The secret of each vended key."""

LASTING_KEY = "namespace"
"""The access key of the namespace itself."""


class VendingNamespace(ThreadingHTTPServer):
    """Passes requests on to a server of pylance, and replaces the options of the store in its answers.

    Attributes:
        seconds: Lifetime of the vended keys.
        is_down: While set, the server breaks each connection.
        descriptions: Number of answers with vended keys.
    """

    def __init__(self, server: RestAdapter, storage: dict[str, str], seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server, self.storage, self.seconds = server, storage, seconds
        self.is_down = threading.Event()
        self.descriptions = 0

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": f"http://127.0.0.1:{self.server_address[1]}"}

    def vended(self) -> dict[str, str]:
        self.descriptions += 1
        expiry = str(int(1000 * (time.time() + self.seconds)))
        keys = {"aws_access_key_id": f"until-{expiry}", "aws_secret_access_key": SECRET_KEY}
        return {**self.storage, **keys, "expires_at_millis": expiry}


class _Handler(BaseHTTPRequestHandler):
    server: VendingNamespace
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.server.is_down.is_set():
            self.close_connection = True
            self.connection.close()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.server.port)) as inner:
            inner.request(self.command, self.path, body, headers)
            answer = inner.getresponse()
            text = answer.read()
        operation = self.path.partition("?")[0].rpartition("/")[2]
        if operation in ("describe", "declare") and answer.status == 200 and "/table/" in self.path:
            text = json.dumps({**json.loads(text), "storage_options": self.server.vended()}).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST  # noqa: N815 - the name of http.server

    def log_message(self, *_: object) -> None:
        """Writes no log."""


@contextlib.contextmanager
def vending_namespace(storage: dict[str, str], seconds: float, **properties: str) -> Iterator[VendingNamespace]:
    """Runs a namespace over an S3 server of `s3_server.py`."""
    own = {f"storage.{name}": value for name, value in storage.items()}
    root = {"root": f"s3://{TABLES}/vended-{time.monotonic_ns()}"}
    with RestAdapter("dir", {**root, **own, **properties}, port=0) as server:
        namespace = VendingNamespace(server, storage, seconds)
        thread = threading.Thread(target=namespace.serve_forever, daemon=True)
        thread.start()
        try:
            yield namespace
        finally:
            namespace.shutdown()
            namespace.server_close()
