"""A small HTTP service with chosen answers, and clients of it for UDFs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, Mapping[str, str]]
"""The status and the headers of an answer."""

OK: Answer = (200, {})


@dataclass(kw_only=True)
class HttpService:
    """Answers `GET /ROW` with twice the row, and counts the requests.

    Attributes:
        answer: Returns the answer for a row and the number of its earlier requests.
        latency_s: Seconds before each answer.
        requests: Number of requests by row.
        times: Times of all requests.
    """

    answer: Callable[[int, int], Answer] = lambda row, number: OK
    latency_s: float = 0.0
    url: str = ""
    requests: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def serve(self) -> Iterator[HttpService]:
        """Serves requests on a free port of this machine."""
        handler = type("Handler", (_RecordingHandler,), {"service": self})
        server = _HttpServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def take(self, row: int) -> Answer:
        """Counts a request, and returns its answer."""
        with self._lock:
            self.times.append(time.monotonic())
            number = self.requests[row]
            self.requests[row] += 1
        time.sleep(self.latency_s)
        return self.answer(row, number)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _RecordingHandler(BaseHTTPRequestHandler):
    service: HttpService
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        row = int(self.path.strip("/"))
        status, headers = self.service.take(row)
        body = str(2 * row).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def fetch(url: str, row: int) -> int:
    """Requests a row with urllib."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/{row}", timeout=30) as response:
            return int(response.read())
    except urllib.error.HTTPError as error:
        error.close()  # its attributes stay
        raise


async def fetch_async(url: str, row: int) -> int:
    """Requests a row on the event loop; raises the errors of urllib."""
    import asyncio
    import email.parser
    import io
    import urllib.error
    import urllib.parse

    place = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(f"GET /{row} HTTP/1.0\r\nHost: {place.netloc}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status_line, _, lines = head.partition(b"\r\n")
    status = int(status_line.split()[1])
    if status != 200:
        headers = email.parser.Parser().parsestr(lines.decode())
        raise urllib.error.HTTPError(f"{url}/{row}", status, "refused", headers, io.BytesIO(body))
    return int(body)
