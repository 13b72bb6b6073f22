"""Calls whose requests to an object store overlap with other requests: :func:`begin_call`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from lance_spark.dataset import is_local

_T = TypeVar("_T")


def begin_call(uri: str, act: Callable[[], _T]) -> Callable[[], _T]:
    """Begins a call, and returns a function that waits for the call's result.

    On an object store, the call runs in a thread, with its own datasets. A file system answers
    sooner than a thread starts, so the call ends before this function returns. The returned
    function raises the error of the call.
    """
    if not is_local(uri):
        return in_thread(act).result
    future: Future[_T] = Future()
    _run(act, future)
    return future.result


def in_thread(act: Callable[[], _T]) -> Future[_T]:
    """Begins a call in a daemon thread, and returns the future of its result.

    An unfinished call does not delay the end of the process.
    """
    future: Future[_T] = Future()
    threading.Thread(target=_run, args=(act, future), name="lance-spark-side-call", daemon=True).start()
    return future


def _run(act: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(act())
    except BaseException as error:  # noqa: BLE001 - the caller raises the error
        future.set_exception(error)
