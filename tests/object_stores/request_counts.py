"""Counts the requests of a call to the S3 server, in all processes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs

from tests.object_stores.servers import StoreRequest, requests_of

METHODS = ("GET", "HEAD", "LIST", "PUT", "POST", "DELETE")
"""The methods of budgets. A list is a GET of the bucket."""

SETTLE_S = 0.05
"""Pause after a call. Requests of the same call that follow the call within this pause count."""


@dataclass(frozen=True)
class CountedCall:
    """The requests of a call, and the result of the call."""

    requests: list[StoreRequest]
    result: Any = None

    @cached_property
    def by_method(self) -> dict[str, int]:
        counts = Counter(method_of(request) for request in self.requests)
        return {method: counts[method] for method in METHODS if counts[method]}

    @property
    def total(self) -> int:
        return len(self.requests)

    @property
    def read_bytes(self) -> int:
        return sum(request.sent for request in self.requests)

    @property
    def written_bytes(self) -> int:
        return sum(request.received for request in self.requests)

    def busy_s(self, until: float = float("inf")) -> float:
        """Returns the seconds with at least one request in flight. Divided by the latency, the number of serial round
        trips.
        """
        seconds = busy_until = 0.0
        for began, ended in sorted((request.began_s, request.ended_s) for request in self.requests):
            seconds += max(0.0, min(ended, until) - max(began, busy_until))
            busy_until = max(busy_until, ended)
        return seconds

    def paths(self, methods: Iterable[str]) -> list[str]:
        """Returns the paths of methods with their numbers, without ids."""
        counts = Counter(f"{method_of(request)} {short_path(request)}" for request in self.requests)
        return [
            f"{count} {line}"
            for line, count in counts.most_common()
            if line.split()[0] in set(methods)
        ]


def count_requests(
    storage: dict[str, str], act: Callable[[], Any], *, latency_s: float = 0.0
) -> CountedCall:
    """Runs a call, and returns its requests."""
    requests_of(storage)
    result = act()
    requests: list[StoreRequest] = []
    while True:
        time.sleep(SETTLE_S + latency_s)
        late_requests = requests_of(storage)
        if not late_requests:
            return CountedCall(requests, result)
        requests += late_requests


def method_of(request: StoreRequest) -> str:
    return "LIST" if request.method == "GET" and "list-type=" in request.path else request.method


def short_path(request: StoreRequest) -> str:
    """Returns the path below the tables' folder, or the prefix of a list, with `*` in place of ids and versions."""
    path, _, query = request.path.partition("?")
    if method_of(request) == "LIST":
        path = f"/bucket/{parse_qs(query).get('prefix', [''])[0]}"
    name = "/".join(path.split("/")[3:])
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|\d{15,}", "*", name)
