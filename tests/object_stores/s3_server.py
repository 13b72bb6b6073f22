"""An S3 server for tests: moto's application, one request at a time, with or without conditions. Started as a script.

moto first looks for an object and then writes it, so two concurrent conditional puts may both win. A lock around each
request makes them atomic, as in a real store. `--ignore-conditions` simulates a store that silently lacks conditional
puts, by removing the header.

A PUT of JSON to `FAULTS` makes the server fail from then on; see :class:`Faults`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from moto.core import serialize
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

REQUESTS = "/-/requests"
"""Returns the requests so far, as a JSON list of [method, path, answer], and forgets them."""

FAULTS = "/-/faults"
"""Takes the faults from now on, as JSON."""

Start = Callable[..., Any]


@dataclass(kw_only=True)
class Faults:
    """The failures of the server.

    Attributes:
        down_s: Seconds for which the server refuses connections.
        away_s: Seconds for which the server refuses connections after a lost reply.
        down_while: A file; the server refuses connections while the file exists.
        error_rate: Share of the requests that get a 503.
        reset: Pattern of `METHOD path`. The connection breaks before the server has done such a request.
        lose: Pattern of `METHOD path`. The connection breaks after the server has done such a request.
        skip: Number of requests of these patterns that are served first.
        times: Number of requests of these patterns that fail.
        deny: Whether all requests are refused, as with expired credentials.
    """

    down_s: float = 0.0
    away_s: float = 0.0
    down_while: str = ""
    error_rate: float = 0.0
    reset: str | None = None
    lose: str | None = None
    skip: int = 0
    times: int = 1
    deny: bool = False

    def strikes(self, pattern: str | None, request: str) -> bool:
        """Tells whether a fault of a pattern is due, and counts the request."""
        if pattern is None or not re.search(pattern, request) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class OneAtATime:
    """Serves one request at a time, records each, and fails as ordered."""

    def __init__(self, app: Any, *, ignore_conditions: bool) -> None:
        self.app = app
        self.ignore_conditions = ignore_conditions
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, str]] = []
        self.faults = Faults()
        self.is_down = False
        self.go_down: Callable[[Faults], None] = lambda _: None

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        with self.lock:
            if environ["PATH_INFO"] == FAULTS:
                self.faults = Faults(**json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
                if self.faults.down_s or self.faults.down_while:
                    self.start_outage(self.faults)
                return answered(start_response, "200 OK", b"{}")
            if environ["PATH_INFO"] == REQUESTS:
                body, self.requests = json.dumps(self.requests).encode(), []
                return answered(start_response, "200 OK", body)
            return self.serve(environ, start_response)

    def start_outage(self, faults: Faults) -> None:
        self.is_down = True
        threading.Thread(target=self.go_down, args=(faults,), daemon=True).start()

    def serve(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING")
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        request = f"{environ['REQUEST_METHOD']} {path}"
        if self.is_down or self.faults.strikes(self.faults.reset, request):
            self.requests.append((environ["REQUEST_METHOD"], path, "reset"))
            break_connection(environ)
        if self.faults.deny:
            return answered(start_response, "403 Forbidden", b"<Error><Code>ExpiredToken</Code></Error>")
        if random.random() < self.faults.error_rate:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return answered(start_response, "503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")
        if self.ignore_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)

        def start(status: str, headers: Any, *rest: Any) -> Any:
            self.requests.append((environ["REQUEST_METHOD"], path, status))
            return start_response(status, headers, *rest)

        body = list(self.app(environ, start))
        if self.faults.strikes(self.faults.lose, request):
            if self.faults.away_s:
                self.start_outage(Faults(down_s=self.faults.away_s))
            break_connection(environ)
        return body


def answered(start_response: Start, status: str, body: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def break_connection(environ: dict[str, Any]) -> None:
    """Ends the connection of a request without an answer."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        pass

    def log_error(self, *_: Any) -> None:
        pass


class Server:
    """Listens on a port, with outages on demand."""

    def __init__(self, app: OneAtATime, port: int) -> None:
        self._app, self._port = app, port
        self._listening: BaseWSGIServer
        app.go_down = self.go_down

    def listen(self) -> None:
        self._listening = make_server("127.0.0.1", self._port, self._app, threaded=True, request_handler=Quiet)
        self._app.is_down = False
        threading.Thread(target=self._listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def go_down(self, faults: Faults) -> None:
        self._listening.shutdown()
        self._listening.server_close()
        time.sleep(faults.down_s)
        while os.path.exists(faults.down_while):
            time.sleep(0.05)
        self.listen()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ignore-conditions", action="store_true")
    arguments = parser.parse_args()
    # Half of the processor time of a list: moto parses the time of each listed object.
    serialize.parse_to_aware_datetime = functools.lru_cache(10_000)(serialize.parse_to_aware_datetime)  # type: ignore[attr-defined]
    # The application of S3 alone: the application for all services takes twice as long.
    app = OneAtATime(create_backend_app("s3"), ignore_conditions=arguments.ignore_conditions)
    Server(app, arguments.port).listen()
    threading.Event().wait()


if __name__ == "__main__":
    main()
