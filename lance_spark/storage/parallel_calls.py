"""Calls whose requests to an object store overlap.

A local file system answers in less time than a thread needs to start, so calls about local tables
run in the thread of the caller.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from lance_spark.locations import is_local

if TYPE_CHECKING:
    import lance

_S = TypeVar("_S")
_T = TypeVar("_T")

_PARALLEL_REQUESTS = 16

MOST_AHEAD = 128
"""Maximum number of versions read ahead of the consumer."""

_PARALLEL_READS = 32
_PARALLEL_FRAGMENTS = 400_000
"""Maximum number of threads, and of fragments in all of their manifests, at 200 bytes each."""


def in_parallel(
    uri: str, act: Callable[[_S], _T], items: Collection[_S], *, threads: int = _PARALLEL_REQUESTS
) -> list[_T]:
    """Calls a function with each item; on an object store, with several items at once.

    `uri` is a location in the store. Results have the order of the items.
    """
    if is_local(uri) or len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(act, items))


def begin_call(uri: str, act: Callable[[], _T]) -> Callable[[], _T]:
    """Begins a call, and returns a function that waits for the call's result.

    On an object store, the call runs in a thread, with its own datasets. On a file system, the call
    ends before this function returns. The returned function raises the error of the call.
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
    threading.Thread(
        target=_run, args=(act, future), name="lance-spark-side-call", daemon=True
    ).start()
    return future


def _run(act: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(act())
    except BaseException as error:  # noqa: BLE001 - the caller raises the error
        future.set_exception(error)


def read_all(
    dataset: lance.LanceDataset,
    read: Callable[[lance.LanceDataset, int], _T],
    versions: Sequence[int],
) -> list[_T]:
    """Calls a function with each version; on an object store, with several versions at once."""
    threads = max(
        2, min(_PARALLEL_READS, _PARALLEL_FRAGMENTS // max(1, len(dataset.fragment_ids())))
    )
    # pylance refuses an object in two threads at once.
    return in_parallel(
        dataset.uri, lambda version: read(copy.copy(dataset), version), versions, threads=threads
    )


def read_ahead(
    dataset: lance.LanceDataset,
    read: Callable[[lance.LanceDataset, int], _T],
    versions: Sequence[int],
) -> Iterator[_T]:
    """Yields the results of :func:`read_all` in order, reading more and more versions ahead."""
    for block in blocks(versions, 1):
        yield from read_all(dataset, read, block)


def blocks(versions: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yields consecutive parts of `versions`, the first with `size` versions.

    The size then doubles up to `MOST_AHEAD`, so a consumer that stops early causes few reads.
    """
    position = 0
    while position < len(versions):
        yield versions[position : position + size]
        position, size = position + size, min(2 * size, MOST_AHEAD)
