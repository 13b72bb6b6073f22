"""Idle processes of a UDF between two tasks: :func:`take`, :func:`keep`.

A model may take minutes to load, and a Spark worker runs many tasks. The pool holds processes of a
single UDF, the last UDF, since a model may fill a GPU. The pool ends with the worker.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from udf_runtime.execute.isolation.process import UdfProcess

_lock = threading.Lock()
_idle: list[UdfProcess] = []
_key: object = None  # the UDF and environment of all processes
_owner = os.getpid()


def take(key: object) -> UdfProcess | None:
    """Returns an idle process of a UDF in its environment; ends processes of another UDF."""
    with _lock:
        ended = _remove_stale(key)
        process = _idle.pop() if _idle else None
    for stale in ended:
        stale.close()
    return process


def keep(key: object, process: UdfProcess) -> None:
    """Keeps an idle process, and ends processes of another UDF."""
    with _lock:
        ended = _remove_stale(key)
        _idle.append(process)
    for stale in ended:
        stale.close()


def end_all() -> None:
    """Ends all idle processes."""
    with _lock:
        ended = _remove_stale(None)
    for stale in ended:
        stale.kill()


def _remove_stale(key: object) -> list[UdfProcess]:
    """Removes the processes of another UDF from the pool, and returns them."""
    global _key, _owner  # noqa: PLW0603 - the key of the processes, and their owner process
    if _owner != os.getpid():  # after a fork they belong to the parent
        _idle.clear()
        _owner = os.getpid()
    if key is not None and key == _key:
        return []
    stale = list(_idle)
    _idle.clear()
    _key = key
    return stale


def _renew_lock() -> None:
    """Renews the lock in a forked process, because a thread of the parent may hold the lock."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
atexit.register(end_all)
