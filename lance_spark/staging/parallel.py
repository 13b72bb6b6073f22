"""Requests to an object store at once: :func:`in_parallel`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lance_spark.dataset import is_local
from lance_spark.objects import LanceObjects

_S = TypeVar("_S")
_T = TypeVar("_T")

_PARALLEL_REQUESTS = 16


def in_parallel(objects: LanceObjects, act: Callable[[_S], _T], items: Collection[_S]) -> list[_T]:
    """Calls a function with each item; on an object store, with several items at once."""
    # A local file system answers in less time than a thread needs to start.
    if is_local(objects.uri) or len(items) == 1:
        return [act(item) for item in items]
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        return list(pool.map(act, items))
