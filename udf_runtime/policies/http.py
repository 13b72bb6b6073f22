"""Retries of calls to HTTP services: statuses, `Retry-After`, and a circuit breaker.

Errors are recognized by their attributes and the names of their classes, so no client is imported.
requests, httpx, aiohttp, urllib and openai raise errors of these forms.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from udf_runtime.arguments import ARGUMENTS
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.policies.backoff import Backoff, BackoffKind
from udf_runtime.policies.error_policy import ErrorPolicy
from udf_runtime.policies.matchers import Retry

DEFAULT_GIVE_UP_AFTER_S = 300.0

_STATUS_NAMES = ("status_code", "status", "code")
_REFUSAL_STATUSES = frozenset({429, 502, 503, 529})
_TRANSIENT_STATUSES = frozenset({408, 425, *_REFUSAL_STATUSES})
_REFUSAL_CLASSES = frozenset(
    {"ClientConnectorError", "ConnectError", "ConnectTimeout", "NewConnectionError"}
)
"""Names of classes for connections that were not made, in httpx, aiohttp, requests and urllib3."""

_TRANSIENT_CLASSES = frozenset(
    {
        "APIConnectionError",
        "ChunkedEncodingError",
        "ClientConnectionError",
        "ClientPayloadError",
        "IncompleteRead",
        "Timeout",
        "TransportError",
        *_REFUSAL_CLASSES,
    }
)
"""Names of classes for lost or late connections in the clients of HTTP."""

_MOST_CAUSES = 8
_JITTER = 0.1
"""Share of `Retry-After` that a wait adds at random, so not all processes call again at once."""


@ARGUMENTS.methods
@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, init=False)
class RetryHttp(Retry):
    """Calls the UDF again after a failure of its HTTP service, as :func:`retry_http` describes.

    Matches errors with status 408, 425, 429 or 5xx, timeouts, and lost or refused connections.

    Attributes:
        give_up_after: Seconds until the job ends, if the service takes no calls; None: never.

    Example:
        >>> from udf_runtime import RetryHttp
        >>> retry = RetryHttp(give_up_after=60)
        >>> retry.matches(ConnectionRefusedError()), retry.matches(ValueError())
        (True, False)
    """

    give_up_after: float | None

    def __init__(
        self,
        *,
        max_attempts: int = 5,
        backoff: BackoffKind | Backoff = "exponential",
        give_up_after: float | None = DEFAULT_GIVE_UP_AFTER_S,
    ) -> None:
        Retry.__init__(self, max_attempts=max_attempts, backoff=backoff)
        if give_up_after is not None and not give_up_after > 0:
            raise UdfDefinitionError(
                f"The argument give_up_after={give_up_after!r} of retry_http is not possible. Give seconds above 0, or "
                "None."
            )
        object.__setattr__(self, "give_up_after", give_up_after)

    def matches(self, error: BaseException) -> bool:
        """Tells whether an error is a failure of the service that may pass."""
        if not isinstance(error, Exception):
            return False
        status = find_status(error)
        if status is not None:
            return status in _TRANSIENT_STATUSES or status >= 500
        return (
            isinstance(error, (ConnectionError, TimeoutError))
            or self.is_refusal(error)
            or _is_transient(error)
        )

    def is_refusal(self, error: BaseException) -> bool:
        """Tells whether the service takes no calls at all: the row is not to blame.

        True for status 429, 502, 503 and 529, and for connections that were not made.
        """
        status = find_status(error)
        if status is not None:
            return status in _REFUSAL_STATUSES
        return any(
            isinstance(cause, (ConnectionRefusedError, socket.gaierror))
            or _REFUSAL_CLASSES & _class_names(cause)
            for cause in _find_causes(error)
        )

    def delay_s(self, error: BaseException, attempt: int, rng: random.Random) -> float:
        """Returns the seconds before the next call: at least those that the service asks for."""
        delay_s = self.backoff.delay_s(attempt, rng)
        asked_s = find_retry_after(error)
        # A time of 0, or a date in the past, must not call the service in a loop without waits.
        return asked_s * (1 + _JITTER * rng.random()) if asked_s else delay_s


def retry_http(
    *,
    max_attempts: int = 5,
    backoff: BackoffKind | Backoff = "exponential",
    give_up_after: float | None = DEFAULT_GIVE_UP_AFTER_S,
) -> ErrorPolicy:
    """Retries calls to an HTTP service: status 408, 425, 429 and 5xx, timeouts, lost connections.

    A wait follows the service's `Retry-After`, in seconds or as a date, plus up to a tenth at
    random. Without `Retry-After`, or with a time that is over, the backoff gives the wait.

    Failures with status 429, 502, 503 or 529, and refused connections, mean that the service takes
    no calls. These failures do not count as attempts of the row, and no call of the process begins
    before their `Retry-After`. If the service takes no call of a process for `give_up_after`
    seconds, the job ends as PARTIAL, and keeps everything computed. The rows without a result are
    neither failed nor skipped.

    The error is recognized by its attributes (`status_code`, `status` or `code`, and `headers`, of
    the error or its `response`) and its class. requests, httpx, aiohttp, urllib and openai have
    such errors. With requests and httpx, call `raise_for_status()`.

    Args:
        max_attempts: Number of calls for a row, or for a batch of a UDF over batches.
        backoff: Waiting times without `Retry-After`.
        give_up_after: Seconds without a taken call until the job ends early. None: the job does not
            end early, and every failure counts as an attempt of its row.

    Example:
        >>> import urllib.request
        >>> from udf_runtime import retry_http, udf
        >>> @udf(on_error=retry_http(give_up_after=60))
        ... def page(url: str) -> bytes:
        ...     with urllib.request.urlopen(url, timeout=10) as response:
        ...         return response.read()
    """
    return ErrorPolicy(
        (RetryHttp(max_attempts=max_attempts, backoff=backoff, give_up_after=give_up_after),)
    )


def find_http_retry(policy: ErrorPolicy, error: BaseException) -> RetryHttp | None:
    """Returns the matcher of a policy that retries an error as a failure of a service, or None."""
    for matcher in policy:
        if not matcher.matches(error):
            continue
        if isinstance(matcher, RetryHttp):
            return matcher
        if not isinstance(matcher, Retry):
            return None
    return None


def find_status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error or of its response; None without a status.

    Example:
        >>> from urllib.error import HTTPError
        >>> from udf_runtime.policies.http import find_status
        >>> find_status(HTTPError("http://host", 503, "busy", {}, None))
        503
    """
    for holder in (error, _get(error, "response")):
        for name in _STATUS_NAMES:
            status = _get(holder, name)
            if isinstance(status, int) and 100 <= status <= 599:
                return int(status)
    return None


def find_retry_after(error: BaseException) -> float | None:
    """Returns the seconds that a service asks to wait; None without the header.

    Example:
        >>> from urllib.error import HTTPError
        >>> from udf_runtime.policies.http import find_retry_after
        >>> find_retry_after(HTTPError("http://host", 429, "slow", {"Retry-After": "2"}, None))
        2.0
    """
    for holder in (_get(error, "response"), error):
        headers = _get(holder, "headers")
        for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0), ("Retry-After", 1.0)):
            with contextlib.suppress(Exception):  # any object may be called headers
                value = headers.get(name)  # type: ignore[attr-defined]
                if value is not None:
                    return max(0.0, _read_seconds(str(value)) * unit)
    return None


def _read_seconds(text: str) -> float:
    """Returns the seconds of a `Retry-After`: a number, or a date."""
    try:
        return float(text)
    except ValueError:
        return parsedate_to_datetime(text).timestamp() - time.time()


def _get(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign error may raise anything
        return None


def _is_transient(error: BaseException) -> bool:
    # urllib wraps the error of a connection.
    reason = _get(error, "reason")
    return isinstance(reason, (ConnectionError, TimeoutError)) or bool(
        _TRANSIENT_CLASSES & _class_names(error)
    )


def _class_names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _find_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors behind it, as clients wrap them."""
    pending: list[object] = [error]
    visited: list[object] = []
    while pending and len(visited) < _MOST_CAUSES:
        cause = pending.pop(0)
        if not isinstance(cause, BaseException) or any(cause is each for each in visited):
            continue
        visited.append(cause)
        yield cause
        pending += [cause.__cause__, cause.__context__, _get(cause, "reason"), *cause.args]
