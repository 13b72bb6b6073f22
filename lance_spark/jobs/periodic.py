"""Periodic calls of a function during a block: :func:`every`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Calls a function every few seconds, in a thread, while the block runs."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, name="lance-spark-every", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
