"""Processes of a UDF that are kept from one task to the next: :func:`take`, :func:`keep`.

Loading a model may take minutes, and a worker of Spark runs many tasks. What is kept is of one UDF,
the one used last, since a model may fill a GPU; it ends with the worker.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from udf_runtime.execute.isolation.process import UdfProcess

_lock = threading.Lock()
_kept: list[UdfProcess] = []
_key: object = None  # what all of them serve
_owner = os.getpid()


def take(key: object) -> UdfProcess | None:
    """Returns an idle process of a UDF in its environment; those of another one are ended."""
    with _lock:
        ended = _others(key)
        found = _kept.pop() if _kept else None
    for one in ended:
        one.close()
    return found


def keep(key: object, process: UdfProcess) -> None:
    """Keeps an idle process, and ends those of another UDF."""
    with _lock:
        ended = _others(key)
        _kept.append(process)
    for one in ended:
        one.close()


def end_all() -> None:
    """Ends all processes that are kept."""
    with _lock:
        ended = _others(None)
    for one in ended:
        one.kill()


def _others(key: object) -> list[UdfProcess]:
    """Forgets the processes that serve something else, and returns them."""
    global _key, _owner  # noqa: PLW0603 - what the processes are for, and which process they belong to
    if _owner != os.getpid():  # after a fork they belong to the parent
        _kept.clear()
        _owner = os.getpid()
    if key is not None and key == _key:
        return []
    others = list(_kept)
    _kept.clear()
    _key = key
    return others


def _renew_lock() -> None:
    """Renews the lock in a forked process: a thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
atexit.register(end_all)
