"""The state of the service that a UDF calls, as its calls in this process see it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from udf_runtime.errors import ServiceUnavailableError
from udf_runtime.execute.result import shortened, type_name
from udf_runtime.policies.http import RetryHttp, find_retry_after, find_status
from udf_runtime.policies.matchers import message_of

_MOST_PAUSE_S = 86_400.0
"""A caller looks again after a day: `time.sleep` refuses the seconds of some centuries."""


class ServiceHealth:
    """A circuit breaker: counts the time since the service took its last call. Thread-safe.

    The breaker opens if the service refuses every call for `give_up_after` seconds, and stays open.
    """

    def __init__(self, udf: str, clock: Callable[[], float]) -> None:
        """Takes the name of the UDF, for messages."""
        self._udf = udf
        self._clock = clock
        self._lock = threading.Lock()
        self._refused_since: float | None = None
        self._resume_at = 0.0
        self._give_up_after: float | None = None
        self._last_error = ""
        self._held_s = 0.0
        self._error: ServiceUnavailableError | None = None

    @property
    def error(self) -> ServiceUnavailableError | None:
        """The error of all further calls; None while the service may answer."""
        with self._lock:
            return self._error

    def note_success(self) -> None:
        """Notes an answer of the service.

        The answer may belong to a call from before a refusal with `Retry-After`.
        """
        with self._lock:
            self._refused_since = self._clock() if self._resume_at > self._clock() else None

    def note_failure(self, error: BaseException, matcher: RetryHttp | None) -> bool:
        """Notes a failure, and tells whether it does not count as an attempt of its row.

        `Retry-After` holds back all calls. Opens the breaker at the end of `give_up_after`. Any
        other status is an answer of the service, for example 404 for a row.
        """
        if matcher is None or not matcher.is_refusal(error):
            if find_status(error) is not None:
                self.note_success()
            return False
        with self._lock:
            self._give_up_after = matcher.give_up_after
            if self._refused_since is None:
                self._refused_since = self._clock()
            asked_s = find_retry_after(error)
            if asked_s is not None:
                self._hold_until(self._clock() + asked_s)
            self._last_error = f"{type_name(error)}: {shortened(message_of(error))}"
            self._open_if_late()
        return matcher.give_up_after is not None

    def pause_s(self, until: float = 0.0) -> float:
        """Returns the seconds until a call may begin, at most until the breaker may open, or a day.

        Args:
            until: Earliest time of the call by the clock.

        Raises:
            ServiceUnavailableError: The breaker is open.
        """
        with self._lock:
            wait_s = max(self._resume_at, until) - self._clock()
            if wait_s > 0 and self._refused_since is not None and self._give_up_after is not None:
                left_s = self._refused_since + self._give_up_after - self._clock()
                if left_s <= 0:
                    self._open_if_late()
                wait_s = min(wait_s, left_s)
            if self._error is not None:
                raise self._error
        return min(max(0.0, wait_s), _MOST_PAUSE_S)

    def take_held_s(self) -> float:
        """Returns the seconds of `Retry-After` since the last look."""
        with self._lock:
            held_s, self._held_s = self._held_s, 0.0
        return held_s

    def _hold_until(self, resume_at: float) -> None:
        if resume_at > self._resume_at:
            self._held_s += resume_at - max(self._resume_at, self._clock())
            self._resume_at = resume_at

    def _open_if_late(self) -> None:
        limit_s, since = self._give_up_after, self._refused_since
        if (
            self._error is None
            and limit_s is not None
            and since is not None
            and self._clock() - since >= limit_s
        ):
            reason = f"It took no calls for {limit_s:g} s. The last error is {self._last_error}"
            self._error = ServiceUnavailableError(udf=self._udf, reason=reason)
