"""An S3 server for tests: moto's application, one request at a time, which keeps or ignores conditions. Started as a script.

moto looks whether an object is there and then writes it, so that of two conditional puts at once both may win: a lock around each request
makes them atomic, as a real store has them. `--ignore-conditions` is a store that has no conditional puts and does not say so: the header
is not there for it.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

REQUESTS = "/-/requests"
"""Answers with the requests so far, as a JSON list of [method, path, answer], and forgets them."""

Start = Callable[..., Any]


class OneAtATime:
    """Serves one request at a time, and notes it."""

    def __init__(self, app: Any, *, ignore_conditions: bool) -> None:
        self.app = app
        self.ignore_conditions = ignore_conditions
        self.lock = threading.Lock()
        self.seen: list[tuple[str, str, str]] = []

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        with self.lock:
            if environ["PATH_INFO"] == REQUESTS:
                body, self.seen = json.dumps(self.seen).encode(), []
                start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
                return [body]
            if self.ignore_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
                environ.pop("HTTP_IF_MATCH", None)

            def start(status: str, headers: Any, *rest: Any) -> Any:
                query = environ.get("QUERY_STRING")
                path = environ["PATH_INFO"] + (f"?{query}" if query else "")
                self.seen.append((environ["REQUEST_METHOD"], path, status))
                return start_response(status, headers, *rest)

            return list(self.app(environ, start))


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ignore-conditions", action="store_true")
    arguments = parser.parse_args()
    app = OneAtATime(DomainDispatcherApplication(create_backend_app), ignore_conditions=arguments.ignore_conditions)
    run_simple("127.0.0.1", arguments.port, app, threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    main()
