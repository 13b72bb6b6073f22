"""Reads of several versions of a table at once, in bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from lance_spark.storage.parallel_calls import in_parallel

if TYPE_CHECKING:
    import lance

_T = TypeVar("_T")

MOST_AHEAD = 128
"""Maximum number of versions read ahead of the consumer."""

_PARALLEL_READS = 32
_PARALLEL_FRAGMENTS = 400_000
"""Maximum number of threads, and of fragments in all of their manifests, at 200 bytes each."""


def read_all(
    dataset: lance.LanceDataset, read: Callable[[lance.LanceDataset, int], _T], versions: Sequence[int]
) -> list[_T]:
    """Calls a function with each version; on an object store, with several versions at once."""
    threads = max(2, min(_PARALLEL_READS, _PARALLEL_FRAGMENTS // max(1, len(dataset.fragment_ids()))))
    # pylance refuses an object in two threads at once.
    return in_parallel(dataset.uri, lambda version: read(copy.copy(dataset), version), versions, threads=threads)


def read_ahead(
    dataset: lance.LanceDataset, read: Callable[[lance.LanceDataset, int], _T], versions: Sequence[int]
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
