"""Finds the data files of attempts, by names or by a listing, and deletes data files."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from lance_spark.commit.conflicts.history import named_files
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableNotFoundError
from lance_spark.locations import is_local
from lance_spark.storage.objects import LanceObjects
from lance_spark.storage.parallel_calls import in_parallel

_STEM = re.compile(r"(?P<attempt>[0-9a-f]+)-[0-9]+")

_PROBED_ATTEMPTS = 1000
"""From this many attempts on, one listing of `data/` replaces a request per attempt and file."""

_LISTED_NAMES = 1000
"""Names per request of a listing."""

_MOST_TABLES = 1000

_sizes: dict[str, int] = {}
"""Number of names in the last listing of the `data/` of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Files of a job without markers outside of its commit, at the end of the job.

    Attributes:
        names: Names of the files.
        committed: Names of the files of the commit.
        final_s: Time of :func:`time.monotonic` at which all attempts know the end of the job.
    """

    names: frozenset[str]
    committed: frozenset[str]
    final_s: float


def find_data_files(
    objects: LanceObjects, attempts: Collection[str], open_files: int, *, is_listed: bool
) -> dict[str, list[str]]:
    """Returns the names of the data files of each attempt, in the order of their opening."""
    if not is_listed and len(attempts) < _PROBED_ATTEMPTS:
        probe = functools.partial(_probe_attempt, objects, open_files)
        return dict(zip(attempts, in_parallel(objects.uri, probe, attempts), strict=True))
    files = list_data_files(objects, lambda attempt: attempt in attempts) if attempts else {}
    return {attempt: files.get(attempt, []) for attempt in attempts}


def list_data_files(objects: LanceObjects, selects: Callable[[str], bool]) -> dict[str, list[str]]:
    """Returns the names of the data files of selected attempts, by a listing of `data/`."""
    # Sidecars are one folder deeper.
    paths = objects.list("data")
    note_listing(objects.uri, len(paths))
    stems = {path.split("/")[1].removesuffix(".lance") for path in paths}
    staged = filter(None, map(_STEM.fullmatch, stems))
    return group_by_attempt(f"{stem[0]}.lance" for stem in staged if selects(stem["attempt"]))


def group_by_attempt(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns data files by the ids of their attempts, in the order of their opening."""
    stems = [(name, *name.removesuffix(".lance").split("-")) for name in names]
    files: dict[str, list[str]] = {}
    for name, attempt, _ in sorted(stems, key=lambda parts: int(parts[2])):
        files.setdefault(attempt, []).append(name)
    return files


def _probe_attempt(objects: LanceObjects, open_files: int, attempt: str) -> list[str]:
    names: list[str] = []
    number = absent = 0
    while absent < open_files:
        stem = f"{attempt}-{number}"
        number, absent = number + 1, absent + 1
        # Lance writes sidecars first, so sidecars may exist without their data file.
        if objects.contains(f"data/{stem}.lance") or objects.list(f"data/{stem}"):
            names.append(f"{stem}.lance")
            absent = 0
    return names


def missing_data_files(
    uri: str, storage_options: tuple[tuple[str, str], ...], names: Collection[str]
) -> list[str]:
    """Returns the names of files absent from the table's `data/`."""
    objects = LanceObjects(uri, storage_options)
    presence = in_parallel(objects.uri, lambda name: objects.contains(f"data/{name}"), names)
    return [name for name, is_present in zip(names, presence, strict=True) if not is_present]


def delete_data_files(
    uri: str, storage_options: tuple[tuple[str, str], ...], names: Collection[str]
) -> None:
    """Deletes data files of the table without a version, with their sidecars."""
    objects = LanceObjects(uri, storage_options)
    in_parallel(objects.uri, functools.partial(delete_data_file, objects), names)


def delete_unnamed_files(ref: DatasetRef, names: Collection[str]) -> None:
    """Deletes data files of a failed commit, except files of a version after the version of `ref`.

    A cleanup of old versions deletes the rest after a failure.
    """
    with contextlib.suppress(OSError, ValueError):  # a version may be cleaned up concurrently
        try:
            named_paths = (
                named_files(ref.open_latest(), names, after=ref.version or 0)
                if names
                else frozenset()
            )
        except TableNotFoundError:
            named_paths = frozenset()  # the table was dropped
        delete_data_files(
            ref.uri, ref.storage_options, [name for name in names if name not in named_paths]
        )


def delete_data_file(objects: LanceObjects, name: str) -> None:
    """Deletes a data file of the table without a version, with its sidecars."""
    objects.delete_folder(f"data/{name.removesuffix('.lance')}")
    objects.delete(f"data/{name}")


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
