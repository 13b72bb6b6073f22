"""Which table, at which version: :class:`DatasetRef`, the only place that opens a Lance dataset.

A reference is a plain picklable value, so that the driver pins a version once and every executor
opens exactly that one. Open datasets are kept per process, with one Lance session (caches of
metadata and indexes) for all of them, because a Python worker of Spark serves many tasks one after
the other. Each caller gets a clone: pylance refuses an object that two threads use at once
("Already borrowed").
"""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    SnapshotError,
    TableNotFoundError,
    TableUnreadableError,
    VersionNotFoundError,
    panics_as_errors,
)
from lance_spark.lance_compat import is_missing, is_unknown_scheme, load_lance, plain, version_of, versions_of
from lance_spark.options import ReadOptions

if TYPE_CHECKING:
    import lance

# Importing Lance starts its threads, which do not survive the fork of Spark's Python daemon: it is
# imported where it is first used.

FOLDER = "_lance_spark"
"""Folder of a table that is ours."""

_OPEN_DATASETS = 16
"""Datasets kept open per process; each holds its manifest (about 200 bytes a fragment)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRef:
    """A table, and the version of it that is meant.

    Attributes:
        uri: Location, as Lance takes it: a plain absolute path for local files, else a URI.
        version: Number of the pinned version; None means whatever is the latest when it is opened.
        branch: Branch that the version belongs to; None for the main one.
        incarnation: Identifies the pinned version's history: a table that was deleted and made anew
            has other incarnations under the same version numbers. None where no version is pinned.
        storage_options: Options of the object store, as pairs sorted by key. Not part of the
            textual form: they may be secrets.
    """

    uri: str
    version: int | None = None
    branch: str | None = None
    incarnation: str | None = None
    storage_options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        branch = "" if self.branch is None else f"{self.branch}:"
        return f"DatasetRef({self.uri}@{branch}{self.version if self.version is not None else 'latest'})"

    @property
    def storage(self) -> dict[str, str]:
        """The storage options as Lance takes them."""
        return dict(self.storage_options)

    @staticmethod
    def at(uri: str, storage_options: Mapping[str, str] | tuple[tuple[str, str], ...] = ()) -> DatasetRef:
        """Returns a reference to the latest version, without touching storage."""
        return DatasetRef(uri=normalize_uri(uri), storage_options=tuple(sorted(dict(storage_options).items())))

    @staticmethod
    def resolve(options: ReadOptions) -> DatasetRef:
        """Pins the version that the options ask for. Reads the manifest; runs on the driver.

        Raises:
            OptionError: There is no path.
            TableNotFoundError: There is no table.
            VersionNotFoundError: There is no such version, tag or branch.
            TableUnreadableError: The table cannot be opened.
        """
        if not options.path:
            raise OptionError("path", None, "the URI of a Lance table, as in load(path)")
        ref = DatasetRef.at(options.path, options.storage)
        if options.timestamp is not None:
            return ref.pin(_version_at(ref, options.timestamp))
        if options.version is None:
            return ref.pin(None)
        branch, colon, number = options.version.rpartition(":")
        if colon:
            return replace(ref, branch=branch).pin(int(number))
        return ref.pin(int(number) if number.isdecimal() else number)

    def pin(self, version: int | str | None) -> DatasetRef:
        """Returns this reference at a version: a number, a tag, or None for the branch's latest."""
        dataset = _open(self.uri, self.branch, version, self.storage_options)
        return replace(self, version=dataset.version, incarnation=incarnation_of(dataset))

    def open(self) -> lance.LanceDataset:
        """Opens the version, for one thread; one that was pinned comes from this process's cache.

        Runs anywhere. A number alone may mean another version by now: then it is opened anew, since
        the table may have been made anew.

        Raises:
            SnapshotError: The table was made anew since the version was pinned.
            TableNotFoundError, VersionNotFoundError, TableUnreadableError: As in :meth:`resolve`.
        """
        if self.version is None:
            return self.open_latest()
        if self.incarnation is None:
            return _open(self.uri, self.branch, self.version, self.storage_options)
        return copy.copy(_open_pinned(self))  # 1.4 us for any number of fragments: the clone shares the manifest

    def open_latest(self) -> lance.LanceDataset:
        """Opens the latest version of the branch, looking at storage."""
        return _open(self.uri, self.branch, None, self.storage_options)

    def snapshot_json(self) -> str:
        """Returns table, version, incarnation and branch, never storage options, as JSON."""
        return json.dumps(
            {"uri": self.uri, "version": self.version, "incarnation": self.incarnation, "branch": self.branch},
            sort_keys=True,
        )

    @staticmethod
    def of_snapshot_json(text: str, storage_options: tuple[tuple[str, str], ...]) -> DatasetRef:
        """Returns the reference of :meth:`snapshot_json`'s text, with the caller's storage options.

        Raises:
            ValueError: The text is something else.
        """
        values = json.loads(text)
        kinds = {"uri": str, "version": int, "incarnation": (str, type(None)), "branch": (str, type(None))}
        if not isinstance(values, dict) or values.keys() != kinds.keys():
            raise ValueError(f"not a pinned version of a table: {text[:200]!r}")
        if not all(isinstance(values[key], kind) for key, kind in kinds.items()):  # type: ignore[arg-type]
            raise ValueError(f"not a pinned version of a table: {text[:200]!r}")
        return DatasetRef(**values, storage_options=storage_options)


def incarnation_of(dataset: lance.LanceDataset) -> str:
    """Returns the identity of a version, which differs from the same number in a table made anew.

    It is the time of the version's commit, to the microsecond, and its row and file counts: all in
    the manifest, so it costs no I/O, and it works for tables that others made.
    """
    version = version_of(dataset)
    counts = version["metadata"]
    return f"{int(moment_of(version).timestamp() * 1_000_000)}-{counts['total_rows']}-{counts['total_data_files']}"


def moment_of(version: Mapping[str, Any]) -> datetime:
    """Returns when a version was committed, by the arithmetic of pylance's `versions()`.

    So a moment that a user has from there is found.
    """
    nanoseconds: int = version["timestamp"]
    microseconds = (nanoseconds % 1e9) // 1e3
    return datetime.fromtimestamp(nanoseconds // 1e9, UTC) + timedelta(microseconds=microseconds)


def normalize_uri(uri: str) -> str:
    """Returns a location as it is compared and stored; a local one absolute, without `file:`."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return os.path.abspath(unquote(parts.path))
    if parts.scheme and "://" in uri:
        return uri.rstrip("/")
    return os.path.abspath(os.path.expanduser(uri))


def is_local(uri: str) -> bool:
    """Tells whether a normalised location is on a mounted file system."""
    return "://" not in uri


def table_exists(uri: str, storage_options: Mapping[str, str]) -> bool:
    """Tells whether a table is there: whether it has a version.

    A directory alone is no table: write tasks make it before the first commit.

    Raises:
        TableUnreadableError: The store refused or could not be reached, so nothing is known.
    """
    try:
        DatasetRef.at(uri, storage_options).open_latest()
    except TableNotFoundError:
        return False
    return True


@functools.cache
def _session() -> Any:  # noqa: ANN401 - pylance's stubs do not have the class
    import lance

    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    if started is not None and started.name in ("pyspark.daemon", "lance_spark.session.daemon"):
        # Spark's worker processes collect garbage after every task and every planning step, before
        # they look for the next one. All that was imported is looked at each time, which takes
        # longer than to plan a scan; it lives as long as the process anyway.
        gc.freeze()
    return lance.Session()  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=_OPEN_DATASETS)
def _open_pinned(ref: DatasetRef) -> lance.LanceDataset:
    dataset = _open(ref.uri, ref.branch, ref.version, ref.storage_options)
    if incarnation_of(dataset) != ref.incarnation:
        raise SnapshotError(
            f"the table was deleted and made anew since version {ref.version} of it was read - at {ref.uri} "
            "- read it again"
        )
    return dataset


def _open(
    uri: str, branch: str | None, version: int | str | None, storage_options: tuple[tuple[str, str], ...]
) -> lance.LanceDataset:
    load_lance()
    import lance

    at = None if branch is not None else version
    try:
        with panics_as_errors():
            dataset = lance.dataset(uri, version=at, storage_options=dict(storage_options) or None, session=_session())
            if branch is not None:
                dataset = dataset.checkout_version((branch, None if version is None else int(version)))
    except (ValueError, OSError, RuntimeError) as error:
        raise _explain(error, uri, branch, version, storage_options) from error
    if dataset.version == 0:
        # Measured: a manifest of zero bytes reads as a table without columns at version 0, which no
        # commit makes.
        raise TableUnreadableError(uri, "its manifest is empty", hint="restore the file, or the table from a copy")
    return dataset


def _explain(
    error: Exception,
    uri: str,
    branch: str | None,
    version: int | str | None,
    storage_options: tuple[tuple[str, str], ...],
) -> Exception:
    """Returns one of our errors for pylance's."""
    asked = (
        "latest" if version is None and branch is None else ":".join(str(p) for p in (branch, version) if p is not None)
    )
    missing = is_missing(error)
    if missing and (version is not None or branch is not None):
        try:
            latest = _open(uri, None, None, storage_options).version
        except LanceSparkError as again:
            return again
        return VersionNotFoundError(
            uri, asked, available=f"the latest version is {latest}; tags and branches are named as they were made"
        )
    if missing and any(sign in uri for sign in "*?[{"):
        hint = "a location is that of one table, and no pattern: read each table by itself, and call union"
        return TableNotFoundError(uri, hint=hint)
    if missing:
        return TableNotFoundError(uri)
    if is_unknown_scheme(error):
        return OptionError(
            "path", uri, "a local path, or a URI with a scheme that Lance knows, such as s3://, gs:// or az://"
        )
    return TableUnreadableError(
        uri, plain(error), hint="check that the path is a Lance table, and the storage.* options and permissions"
    )


def _version_at(ref: DatasetRef, moment: datetime) -> int:
    versions = versions_of(ref.open_latest())
    earlier = [v["version"] for v in versions if moment_of(v) <= moment]
    if not earlier:
        first = min(moment_of(v) for v in versions).isoformat()
        raise VersionNotFoundError(ref.uri, f"at {moment.isoformat()}", available=f"the oldest version is of {first}")
    return int(max(earlier))


def moments_of(dataset: lance.LanceDataset, versions: Collection[int]) -> str:
    """Returns when versions were made, as text for a message; empty where it is no longer known."""
    if not versions:
        return ""
    found = {v["version"]: moment_of(v) for v in versions_of(dataset)}
    known = [f"version {v} is of {found[v].isoformat(timespec='seconds')}" for v in versions if v in found]
    return f"; {', '.join(known)}" if known else ""
