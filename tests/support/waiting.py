"""Waits for what happens by itself."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until a condition holds, and fails if it never does.

    Spark ends a job while other tasks of it still run: each of them takes its own files away when it notices.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
