"""Waits for effects of other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until a condition holds, and fails at the deadline.

    Spark ends a job while some of its tasks still run: each task removes its own files when it notices the end.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
