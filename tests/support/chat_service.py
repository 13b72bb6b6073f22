"""A small service with the protocol of OpenAI's chat completions: rate limits, errors and slow answers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "secret-of-the-tests"


@dataclass(kw_only=True)
class ChatService:
    """The service and the record of its requests.

    Attributes:
        answer: Returns the answer to the message of a user.
        fail: Returns the HTTP status of a request by the message and its number of earlier
            requests; 200 for an answer.
        latency_s: Seconds before each answer.
        url: Location, with the path `/v1`.
        requests: Number of requests by message.
        statuses: Number of requests by HTTP status.
        most_in_flight: Highest number of concurrent requests.
    """

    answer: Callable[[str], str]
    fail: Callable[[str, int], int] = lambda message, number: 200
    latency_s: float = 0.0
    url: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    most_in_flight: int = 0
    _in_flight: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def serve(self) -> Iterator[ChatService]:
        """Serves requests on a free port of this machine."""
        service = self

        class Handler(_ChatHandler):
            chat = service

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    @contextlib.contextmanager
    def request(self, message: str) -> Iterator[int]:
        """Counts a request, and yields its HTTP status."""
        with self._lock:
            status = self.fail(message, self.requests[message])
            self.requests[message] += 1
            self.statuses[status] += 1
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            yield status
        finally:
            with self._lock:
                self._in_flight -= 1


class _ChatHandler(BaseHTTPRequestHandler):
    chat: ChatService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (self.path, self.headers["Authorization"]) != ("/v1/chat/completions", f"Bearer {KEY}"):
            self.reply(
                401,
                {
                    "error": {
                        "message": "Incorrect API key provided",
                        "type": "invalid_request_error",
                    }
                },
            )
            return
        message = next(turn["content"] for turn in body["messages"] if turn["role"] == "user")
        with self.chat.request(message) as status:
            time.sleep(self.chat.latency_s)
            if status != 200:
                self.reply(status, {"error": {"message": "Rate limit reached", "type": "requests"}})
                return
            words = sum(len(turn["content"].split()) for turn in body["messages"])
            self.reply(200, self.completion(body["model"], self.chat.answer(message), words))

    def completion(self, model: str, content: str, prompt_tokens: int) -> dict[str, object]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content},
            "finish_reason": "stop",
        }
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 1,
            "total_tokens": prompt_tokens + 1,
        }
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": model,
            "choices": [choice],
            "usage": usage,
        }

    def reply(self, status: int, content: dict[str, object]) -> None:
        payload = json.dumps(content).encode()
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        pass
