"""Times of versions: the version of a time, and times for messages."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lance_spark.lance_compat import moment_of, version_of

if TYPE_CHECKING:
    import lance

_SKEW = timedelta(days=1)
"""Maximum difference between the clocks of two writers. Later versions may then have earlier
times."""

_WINDOW = 4
"""Number of consecutive versions with a version of each writer: only a writer whose commits are
rarer is missed."""

_TIMES_IN_MESSAGE = 5
"""Maximum number of versions with their times in a message."""


def version_at(dataset: lance.LanceDataset, moment: datetime) -> int | datetime:
    """Returns the newest version whose time is not after a moment, else the oldest version's time.

    A binary search over the kept versions. The clocks of writers differ, so a version may have an
    earlier time than the version before. Around the moment, the search therefore compares the
    earliest time of a few consecutive versions.
    """
    while True:
        numbers = sorted(ref["version"] for ref in dataset.version_refs())
        read_time = functools.cache(functools.partial(_read_time, dataset))
        try:
            position = _search(numbers, read_time, moment)
            return numbers[position] if position >= 0 else read_time(numbers[0])
        except (OSError, ValueError):
            kept_versions = {ref["version"] for ref in dataset.version_refs()}
            if kept_versions.issuperset(numbers):
                raise
            # A cleanup removed a version during the search.


def _search(numbers: Sequence[int], read_time: Callable[[int], datetime], moment: datetime) -> int:
    """Returns the position of the newest version whose time is not after a moment, or -1."""
    low, high = -1, len(numbers)
    while high - low > 1:
        middle = (low + high) // 2
        time = read_time(numbers[middle])
        if time <= moment:
            low = middle
            continue
        window = numbers[middle + 1 : min(middle + _WINDOW, high)] if time - moment <= _SKEW else ()
        early = [number for number, time in _read_times(window, read_time) if time <= moment]
        if early:
            low = numbers.index(early[-1])
        else:
            high = middle
    return low


def _read_times(
    numbers: Collection[int], read_time: Callable[[int], datetime]
) -> Iterator[tuple[int, datetime]]:
    """Yields versions with their times, read in parallel threads."""
    if numbers:
        with ThreadPoolExecutor(len(numbers)) as pool:
            yield from zip(numbers, pool.map(read_time, numbers), strict=True)


def _read_time(dataset: lance.LanceDataset, version: int) -> datetime:
    """Returns the time of a version. Reads its manifest, in two requests."""
    # pylance refuses an object in two threads at once.
    opened = dataset if version == dataset.version else copy.copy(dataset).checkout_version(version)
    return moment_of(version_of(opened))


def moments_of(dataset: lance.LanceDataset, versions: Collection[int]) -> str:
    """Returns the times of versions as text for a message; empty if unknown."""
    texts = []
    for version in list(versions)[:_TIMES_IN_MESSAGE]:
        try:
            text = _read_time(dataset, version).isoformat(timespec="seconds")
        except (OSError, ValueError):
            continue  # The version was cleaned up.
        texts.append(f"version {version} is of {text}")
    return f"; {', '.join(texts)}" if texts else ""
