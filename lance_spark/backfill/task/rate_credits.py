"""Credits for the calls of a rate-limited UDF, in the processes of the executors.

A process reports its calls as an object in the job's folder, at most once a second::

    jobs/<job>/limits/<process>   {"calls": 40, "tokens": 900, "more_calls": 16, "more_tokens": 360}
    jobs/<job>/limits/grants      {"<process>": [48, 1080], ...}

The driver answers with the calls and tokens that each process may use in all. Only the driver's
clock counts. A process without credit waits, also if the driver is dead.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.staging.area import new_id
from lance_spark.storage.objects import objects_beside
from lance_spark.stored_json import load_object
from udf_runtime.policies import RateLimit

if TYPE_CHECKING:
    from lance_spark.backfill.task.messages import BackfillSpec
    from lance_spark.storage.objects import LanceObjects

_LOG = logging.getLogger(__name__)

GRANTS = "grants"
REPORT_S = 1.0
"""Minimum seconds between two reports of a process."""

LOOK_S = 0.25
"""Seconds between two looks for a grant, while calls wait."""

IDLE_S = 5.0
"""A process without a call for this time wants no credit, and its thread ends."""

_SPARE_CALLS = 8
_SPARE_MINUTES = 2 / 60
"""Calls that an active process asks for ahead of their need: two seconds of the limit, at least one
call and at most eight. A process never has more unused credit than these calls, twice its calls of
the last second, or its waiting calls."""


def limits_folder(staging_id: str) -> str:
    """Returns the folder of a job's reports and grants, among the objects next to the table."""
    return f"jobs/{staging_id}/limits"


@dataclass(slots=True)
class Usage:
    """Numbers of calls and tokens."""

    calls: float = 0
    tokens: float = 0


class RateCredits:
    """The credit of this process for a job: a `Limiter`. A thread exchanges reports and grants."""

    def __init__(
        self, objects: LanceObjects, folder: str, limit: RateLimit, is_open: Callable[[], bool]
    ) -> None:
        """Prepares the credit; starts no thread.

        Args:
            objects: The objects next to the table.
            folder: Folder of the job's reports and grants.
            limit: The limit of the job.
            is_open: Tells whether the job is running. An ended job has no folder.
        """
        self._objects = objects
        self._folder = folder
        self._limit = limit
        self._is_open = is_open
        self._process = new_id()
        self._lock = threading.Lock()
        self._short = threading.Event()
        self._used = Usage()
        self._granted = Usage()
        self._waiting = Usage()
        self._reported_calls: float = 0
        self._report: dict[str, float] = {}
        self._last_call_s = 0.0
        self._thread: threading.Thread | None = None

    def acquire(self, tokens: int, waiting: int) -> float:
        """Takes a call and its tokens, or returns the seconds until the next try; 0.0: taken."""
        with self._lock:
            self._last_call_s = time.monotonic()
            if self._covers(tokens):
                self._used.calls += 1
                self._used.tokens += tokens
                return 0.0
            self._waiting = Usage(calls=waiting, tokens=tokens)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._exchange, name="rate-credits", daemon=True
                )
                self._thread.start()
        self._short.set()
        return LOOK_S / 4

    def _covers(self, tokens: int) -> bool:
        has_calls = (
            self._limit.calls_per_minute is None or self._used.calls + 1 <= self._granted.calls
        )
        has_tokens = (
            self._limit.tokens_per_minute is None
            or self._used.tokens + tokens <= self._granted.tokens
        )
        return has_calls and has_tokens

    def _exchange(self) -> None:
        """Reports and looks for grants, until the process makes no calls or the job has ended."""
        next_report_s = 0.0
        while True:
            try:
                if time.monotonic() >= next_report_s:
                    next_report_s = time.monotonic() + REPORT_S
                    if self._write_report() and not self._is_open():
                        self._objects.delete(f"{self._folder}/{self._process}")
                        return
                self._read_grants()
            except Exception as error:  # noqa: BLE001 - without this thread, the calls would wait for ever
                _LOG.warning(
                    "the driver cannot be asked for calls within the rate limit, and calls wait: %s",
                    error,
                )
            if self._short.wait(max(0.0, next_report_s - time.monotonic())):
                self._short.clear()
                time.sleep(LOOK_S)
            with self._lock:
                if time.monotonic() - self._last_call_s > IDLE_S:
                    self._thread = None
                    return

    def _write_report(self) -> bool:
        """Writes the used and wanted calls, and tells whether they changed."""
        with self._lock:
            recent, self._reported_calls = self._used.calls - self._reported_calls, self._used.calls
            waiting, self._waiting = self._waiting, Usage()
            is_active = recent > 0 or waiting.calls > 0
            per_call = self._used.tokens / self._used.calls if self._used.calls else waiting.tokens
            calls = (
                max(waiting.calls, 2 * recent, self._count_spare_calls(per_call))
                if is_active
                else 0
            )
            report = {
                "calls": self._used.calls,
                "tokens": self._used.tokens,
                "more_calls": calls,
                "more_tokens": max(waiting.tokens, calls * per_call),
            }
        if report == self._report:
            return False
        self._objects.put(f"{self._folder}/{self._process}", json.dumps(report).encode())
        self._report = report
        return True

    def _count_spare_calls(self, tokens_per_call: float) -> int:
        limits = (
            (self._limit.calls_per_minute, 1.0),
            (self._limit.tokens_per_minute, tokens_per_call),
        )
        spare = [
            limit * _SPARE_MINUTES / amount
            for limit, amount in limits
            if limit is not None and amount
        ]
        return max(1, int(min(_SPARE_CALLS, *spare)))

    def _read_grants(self) -> None:
        payload = self._objects.get(f"{self._folder}/{GRANTS}")
        grant = None if payload is None else load_object(payload).get(self._process)
        if (
            not isinstance(grant, list)
            or len(grant) != 2
            or not all(isinstance(each, (int, float)) for each in grant)
        ):
            return
        with self._lock:
            # An older object may be read after a newer object.
            self._granted = Usage(
                max(grant[0], self._granted.calls), max(grant[1], self._granted.tokens)
            )


_credits: dict[str, RateCredits] = {}
"""The credits of this process by job; a job's tasks share their credit."""

_credits_lock = threading.Lock()
_MOST_JOBS = 16


def credits_of(spec: BackfillSpec, limit: RateLimit | None) -> RateCredits | None:
    """Returns the credits of this process for a job; None without a rate limit."""
    if limit is None:
        return None
    job = spec.staging.job_id
    with _credits_lock:
        if job not in _credits:
            while len(_credits) >= _MOST_JOBS:
                del _credits[next(iter(_credits))]
            _credits[job] = RateCredits(
                objects_beside(spec.home), limits_folder(job), limit, spec.staging.is_open
            )
        return _credits[job]


def _forget_credits() -> None:
    """Forgets the parent's credits in a forked process, which needs credits of its own."""
    global _credits_lock  # noqa: PLW0603 - one lock per process
    _credits_lock = threading.Lock()
    _credits.clear()


os.register_at_fork(after_in_child=_forget_credits)
