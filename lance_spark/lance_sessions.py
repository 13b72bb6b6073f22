"""Opens versions with Lance, in sessions with limited caches of metadata and indexes."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

from lance_spark.lance_compat import is_spark_worker, version_of
from lance_spark.namespaces.access import managed_branch_of, version_arguments

if TYPE_CHECKING:
    import lance

_METADATA_BYTES = 16 << 20
"""Maximum bytes of cached metadata in a driver. Lance's default is 1 GiB, and each job of a driver
adds the metadata of new versions and new files."""

_LARGE_METADATA_BYTES = 256 << 20
"""Maximum bytes of cached metadata for large tables, and in workers. The manifest of 100,000
fragments takes 71 MB."""

_LARGE_TABLE = 2048
"""Columns times fragments of a large table. The metadata of a column of a file takes 1.8 kB."""

_large_tables: set[str] = set()


def open_version(
    uri: str, version: int | None, storage: dict[str, str], options: dict[str, str] | None
) -> lance.LanceDataset:
    """Opens a version with Lance, which renews the credentials of a namespace."""
    import lance

    managed_branch = managed_branch_of(uri, storage)
    place = uri if managed_branch is None else managed_branch[0]
    dataset = lance.LanceDataset(
        place,
        version if managed_branch is None else None,
        storage_options=options,
        session=session_of(uri),
        **version_arguments(place, storage),
    )
    if managed_branch is None:
        return dataset
    # Measured: at the location of a branch, Lance would ask for the versions of the main branch.
    return dataset.checkout_version((managed_branch[1], version))


def session_of(uri: str) -> Any:  # noqa: ANN401 - pylance's stubs do not have the class
    """Returns the session for a table. All tables of a size share a session."""
    is_large = is_spark_worker() or uri in _large_tables
    return _session(_LARGE_METADATA_BYTES if is_large else _METADATA_BYTES)


def note_size(uri: str, dataset: lance.LanceDataset) -> None:
    """Gives a large table the larger cache from the next opening on."""
    if uri not in _large_tables:
        fragments = int(version_of(dataset)["metadata"]["total_fragments"])
        if fragments * (dataset.max_field_id + 1) >= _LARGE_TABLE:
            _large_tables.add(uri)


def forget_sessions() -> None:
    """Empties Lance's caches."""
    _session.cache_clear()


@functools.cache
def _session(metadata_bytes: int) -> Any:  # noqa: ANN401 - as above
    import lance

    if is_spark_worker():
        # Spark's worker processes collect garbage after every task and every planning step, before
        # the next task. Each collection visits all imported objects, and takes longer than planning
        # a scan. Imported objects live as long as the process anyway.
        gc.freeze()
    return lance.Session(metadata_cache_size_bytes=metadata_bytes)  # type: ignore[attr-defined]
