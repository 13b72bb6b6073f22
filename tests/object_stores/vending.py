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

    Only requests with `vend_credentials` get keys.

    Attributes:
        seconds: Lifetime of the vended keys.
        is_down: While set, the server breaks each connection.
        descriptions: Number of answers with vended keys.
        lost_reply: End of the path of a request whose reply is lost, once.
        loses_request: Whether the request itself is lost, and has no effect.
        breaks_down: Whether the server is down after the lost reply.
    """

    def __init__(self, server: RestAdapter, storage: dict[str, str], seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _VendingHandler)
        self.server, self.storage, self.seconds = server, storage, seconds
        self.is_down = threading.Event()
        self.descriptions = 0
        self.lost_reply, self.loses_request, self.breaks_down = "", False, False

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": f"http://127.0.0.1:{self.server_address[1]}"}

    def vended(self) -> dict[str, str]:
        self.descriptions += 1
        expiry = str(int(1000 * (time.time() + self.seconds)))
        keys = {"aws_access_key_id": f"until-{expiry}", "aws_secret_access_key": SECRET_KEY}
        return {**self.storage, **keys, "expires_at_millis": expiry}


class _VendingHandler(BaseHTTPRequestHandler):
    server: VendingNamespace
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.server.is_down.is_set():
            self._break()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        is_lost = bool(self.server.lost_reply) and path.endswith(self.server.lost_reply)
        if is_lost and self.server.loses_request:
            self._lose()
            return
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.server.server.port)
        ) as inner:
            inner.request(self.command, self.path, body, headers)
            answer = inner.getresponse()
            text = answer.read()
        if is_lost:
            self._lose()
            return
        operation = path.rpartition("/")[2]
        if operation in ("describe", "declare") and answer.status == 200 and "/table/" in self.path:
            vends = "vend_credentials=true" in self.path or json.loads(body).get("vend_credentials")
            options = self.server.vended() if vends else None
            text = json.dumps({**json.loads(text), "storage_options": options}).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _lose(self) -> None:
        self.server.lost_reply = ""
        if self.server.breaks_down:
            self.server.is_down.set()
        self._break()

    def _break(self) -> None:
        self.close_connection = True
        self.connection.close()

    do_GET = do_POST  # noqa: N815 - the name of http.server

    def log_message(self, *_: object) -> None:
        """Writes no log."""


@contextlib.contextmanager
def vending_namespace(
    storage: dict[str, str], seconds: float, **properties: str
) -> Iterator[VendingNamespace]:
    """Runs a namespace over an S3 server of `s3_server.py`."""
    own = {f"storage.{name}": value for name, value in storage.items()}
    root = {"root": f"s3://{TABLES}/vended-{time.monotonic_ns()}"}
    with serve_keys({**root, **own, **properties}, storage, seconds) as namespace:
        yield namespace


@contextlib.contextmanager
def serve_keys(
    properties: dict[str, str], storage: dict[str, str], seconds: float
) -> Iterator[VendingNamespace]:
    """Runs a namespace over a folder or a bucket."""
    with RestAdapter("dir", properties, port=0) as server:
        namespace = VendingNamespace(server, storage, seconds)
        thread = threading.Thread(target=namespace.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield namespace
        finally:
            namespace.shutdown()
            namespace.server_close()
