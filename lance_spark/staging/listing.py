"""Whether a listing of a table's `data/` takes fewer requests to an object store than probes."""

from __future__ import annotations

from lance_spark.locations import is_local

_LISTED_NAMES = 1000
"""Names per request of a listing."""

_MOST_TABLES = 1000

_sizes: dict[str, int] = {}
"""Number of names in the last listing of the `data/` of tables."""


def note_listing(uri: str, names: int) -> None:
    """Notes the number of names in the `data/` of a table."""
    while len(_sizes) >= _MOST_TABLES:
        _sizes.pop(next(iter(_sizes)), None)
    _sizes[uri] = names


def prefers_listing(uri: str, table_files: int | None, requests: int) -> bool:
    """Tells whether a listing of `data/` takes fewer requests than so many probes.

    `table_files` is the number of files of one version, or None. Other versions have files, too:
    the last listing of this process shows their number.
    """
    if is_local(uri) or table_files is None:
        return False
    return requests > 1 + _sizes.get(uri, 2 * table_files) // _LISTED_NAMES
