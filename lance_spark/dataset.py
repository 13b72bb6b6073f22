"""A table at a version: :class:`DatasetRef`. No other class opens a Lance dataset.

A reference is a plain picklable value, so the driver pins a version once and every executor opens
exactly this version. Each process caches open datasets, with a single Lance session (caches of
metadata and indexes), because a Python worker of Spark serves many tasks. Each caller gets a clone:
pylance refuses an object in two threads at once ("Already borrowed").
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lance_spark.dataset_retries import has_answered, note_answer, note_failure, retry_options
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    SnapshotError,
    TableNotFoundError,
    TableUnreadableError,
    VersionNotFoundError,
    panics_as_errors,
)
from lance_spark.lance_compat import (
    is_denied,
    is_missing,
    is_missing_bucket,
    is_unknown_scheme,
    load_lance,
    moment_of,
    plain,
    version_of,
)
from lance_spark.lance_sessions import forget_sessions, note_size, open_version
from lance_spark.locations import is_local, normalize_uri
from lance_spark.metrics import observe_store
from lance_spark.namespaces.errors import NamespaceError
from lance_spark.options.io_options import STORAGE_PREFIX, ReadOptions
from lance_spark.version_times import version_at

if TYPE_CHECKING:
    import lance

# Functions import Lance at the first use. An import at the top would start threads of Lance before
# the fork of Spark's Python daemon, and threads do not survive a fork.

FOLDER = "_lance_spark"
"""Folder of this package in a table."""

MAIN_BRANCH = "main"
"""Name in Lance of the branch in the table's own folder."""

_TREE = "/tree/"

_OPEN_DATASETS = 16
"""Maximum number of pinned versions that a process keeps open."""

_OPEN_FILES = 400_000
"""Maximum number of data files of these versions. A manifest takes about 700 bytes a file."""

_JUST_S = 60.0
"""Maximum age of a version that a statement has just opened."""

_MOST_DIGITS = 19
"""Digits of the largest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRef:
    """A table and a version.

    Lance stores a branch as a separate table below the table. So the location in `uri` is enough
    for reads, writes and the folder of this package.

    Attributes:
        uri: Location for Lance: a plain absolute path for local files, else a URI. The location of
            a branch is `<table>/tree/<branch>`.
        version: Number of the pinned version; None means the latest version when the reference is
            opened.
        branch: Name of the branch of `uri`; None for the main branch.
        incarnation: Identity of the pinned version. In a table deleted and created again, the same
            version numbers have other incarnations. None without a pinned version.
        storage_options: Options of the object store, as pairs sorted by key. The textual form has
            no options, because options may be secrets.
    """

    uri: str
    version: int | None = None
    branch: str | None = None
    incarnation: str | None = None
    storage_options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        branch = "" if self.branch is None else f"{self.branch}:"
        return f"DatasetRef({self.table_uri}@{branch}{self.version if self.version is not None else 'latest'})"

    def __reduce__(self) -> tuple[object, ...]:
        """Also tells the receiving process whether the store has answered."""
        fields = (self.uri, self.version, self.branch, self.incarnation, self.storage_options)
        return _received, (*fields, has_answered(self.uri, self.storage))

    @property
    def table_uri(self) -> str:
        """Location of the table, also for a branch."""
        return self.uri if self.branch is None else self.uri.removesuffix(f"{_TREE}{self.branch}")

    @property
    def storage(self) -> dict[str, str]:
        """The storage options as a dict."""
        return dict(self.storage_options)

    @property
    def lance_options(self) -> dict[str, str] | None:
        """The storage options for Lance, with retries of requests.

        Raises:
            TableUnreadableError: The store does not answer.
        """
        return retry_options(self.uri, self.storage)

    @staticmethod
    def at(
        uri: str, storage_options: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    ) -> DatasetRef:
        """Returns a reference to the latest version at a location, without touching storage."""
        return DatasetRef(uri=normalize_uri(uri), storage_options=_sorted_pairs(storage_options))

    @staticmethod
    def find(
        uri: str,
        storage_options: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
        branch: str | None = None,
    ) -> DatasetRef:
        """Returns a reference to the latest version of a table or of a branch.

        Reads the storage only for a branch, or for a possible location of a branch.

        Raises:
            OptionError: The location belongs to another branch.
            VersionNotFoundError: The table lacks the branch.
            TableNotFoundError, TableUnreadableError: The table of the branch cannot be found.
        """
        ref = _with_branch(DatasetRef.at(uri, storage_options))
        if branch is None:
            return ref
        if ref.branch is not None and ref.branch != branch:
            accepted = f"none, or {ref.branch!r}: the location is that of this branch"
            raise OptionError("branch", branch, accepted, problem="contradicts the location")
        return ref.on_branch(branch)

    @staticmethod
    def resolve(options: ReadOptions) -> DatasetRef:
        """Pins the version of the options. Reads the manifest; runs on the driver.

        Raises:
            OptionError: The options have no path.
            TableNotFoundError: The location has no table.
            VersionNotFoundError: The table lacks the version, tag or branch.
            TableUnreadableError: The table cannot be opened.
        """
        if not options.path:
            raise OptionError("path", None, "the URI of a Lance table, as in load(path)")
        ref = DatasetRef.find(options.path, options.storage, options.branch)
        if options.timestamp is not None:
            return ref.pin(_version_at(ref, options.timestamp))
        version = options.version
        pinned = ref.pin(int(version) if version is not None and version.isdecimal() else version)
        if options.branch is not None and pinned.uri != ref.uri:
            accepted = f"a version of branch {options.branch!r}: a number, or a tag of one"
            raise OptionError("version", version, accepted, problem="is of another branch")
        return pinned

    def pin(self, version: int | str | None, *, option: str = "version") -> DatasetRef:
        """Returns this reference at a version.

        Args:
            version: A number of this branch; a tag, or `branch:number`, also of another branch; or
                a branch, for its latest version. A tag wins over a branch of the same name. None is
                the latest version.
            option: Name of the argument, for errors.

        Raises:
            VersionNotFoundError: The table lacks the version, tag or branch.
            OptionError: The number is negative, 0, or does not fit 64 bits.
        """
        if isinstance(version, str):
            return self._named(version)
        if version is not None and not 1 <= version < 1 << 63:
            raise OptionError(
                option, version, "the number of a version, 1 or more and less than 2^63"
            )
        return self.pin_open(_open(self.uri, self.branch, version, self.storage_options))

    def pin_open(self, dataset: lance.LanceDataset) -> DatasetRef:
        """Returns this reference at the version of an open dataset, which no other thread uses."""
        pinned = replace(self, version=dataset.version, incarnation=incarnation_of(dataset))
        _open_pinned(pinned).keep(dataset)
        return pinned

    @property
    def storage_settings(self) -> dict[str, str]:
        """Options of the object store for a read or write of Spark: `storage.<option>`."""
        return {f"{STORAGE_PREFIX}{key}": value for key, value in self.storage_options}

    def exists(self) -> bool:
        """Tells whether the table has a version, as :func:`table_exists`."""
        return table_exists(self.uri, self.storage)

    def on_branch(self, name: str) -> DatasetRef:
        """Returns a reference to the latest version of a branch.

        `main` is the branch of the table itself.

        Raises:
            VersionNotFoundError: The table lacks the branch.
        """
        table = replace(self, uri=self.table_uri, branch=None, version=None, incarnation=None)
        if name == MAIN_BRANCH:
            return table
        # Lance itself opens, and commits to, the remains of a deleted branch.
        names = branches_of(table.open_latest())
        if name not in names:
            raise VersionNotFoundError(
                table.uri, name, available=_listed("branches", names), what="branch"
            )
        return replace(table, uri=location_of(table.uri, name), branch=name)

    def _named(self, version: str) -> DatasetRef:
        branch, colon, number = version.rpartition(":")
        head = self.open_latest()
        available = f"the latest version is {head.version}"
        if colon and number.isdecimal() and len(number) < _MOST_DIGITS:
            try:
                return self.on_branch(branch).pin(int(number))
            except VersionNotFoundError as error:
                more = f"; {available}" if error.version == branch else ""  # no such branch
                raise VersionNotFoundError(
                    self.uri, version, available=error.available + more
                ) from error
        # At the location of a branch, pylance opens a tag of the main branch by its number alone.
        # The number would then mean a version of this branch.
        tags = tags_of(head)
        if version in tags:
            return self.on_branch(tags[version]["branch"] or MAIN_BRANCH).pin(
                int(tags[version]["version"])
            )
        names = branches_of(head)
        if version in names:
            return self.on_branch(version).pin(None)
        names_there = f"{_listed('tags', tags)}; {_listed('branches', names)}"
        raise VersionNotFoundError(self.uri, version, available=f"{names_there}; {available}")

    def open(self) -> lance.LanceDataset:
        """Opens the version, for one thread. A pinned version comes from the cache of this process.

        Runs anywhere. A number without an incarnation is opened again, because the table may have
        been created again.

        Raises:
            SnapshotError: The table was created again since the version was pinned.
            TableNotFoundError, VersionNotFoundError, TableUnreadableError: As in :meth:`resolve`.
        """
        if self.version is None:
            return self.open_latest()
        if self.incarnation is None:
            return _open(self.uri, self.branch, self.version, self.storage_options)
        # 1.4 us for any number of fragments: the clone shares the manifest.
        return copy.copy(_open_pinned(self).open())

    def is_just_opened(self) -> bool:
        """Tells whether this process has pinned the version from storage a moment ago."""
        return any(pinned.is_just_opened(self) for pinned in list(_opened))

    def open_latest(self) -> lance.LanceDataset:
        """Opens the latest version of the branch from the storage."""
        return _open(self.uri, self.branch, None, self.storage_options)

    def is_kept(self) -> bool:
        """Tells whether the table still has the pinned version after cleanups."""
        return any(
            version_ref["version"] == self.version
            for version_ref in self.open_latest().version_refs()
        )

    def snapshot_json(self) -> str:
        """Returns location, version, incarnation and branch, never storage options, as JSON."""
        return json.dumps(
            {
                "uri": self.uri,
                "version": self.version,
                "incarnation": self.incarnation,
                "branch": self.branch,
            },
            sort_keys=True,
        )

    @staticmethod
    def of_snapshot_json(text: str, storage_options: tuple[tuple[str, str], ...]) -> DatasetRef:
        """Returns the reference of a text of :meth:`snapshot_json`, with storage options.

        Raises:
            ValueError: The text is another.
        """
        from lance_spark.stored_json import parse_json  # workers do not need the module

        values = parse_json(text)
        kinds = {
            "uri": str,
            "version": int,
            "incarnation": (str, type(None)),
            "branch": (str, type(None)),
        }
        if not isinstance(values, dict) or values.keys() != kinds.keys():
            raise ValueError(f"not a pinned version of a table: {text[:200]!r}")
        if not all(isinstance(values[key], kind) for key, kind in kinds.items()):  # type: ignore[arg-type]
            raise ValueError(f"not a pinned version of a table: {text[:200]!r}")
        if values["branch"] is not None and not values["uri"].endswith(
            f"{_TREE}{values['branch']}"
        ):
            raise ValueError(f"a branch that is not at its location: {text[:200]!r}")
        return DatasetRef(**values, storage_options=storage_options)


def location_of(table_uri: str, branch: str) -> str:
    """Returns the location of a branch in Lance."""
    return f"{table_uri}{_TREE}{branch}"


def branches_of(dataset: lance.LanceDataset) -> list[str]:
    """Returns the sorted names of all branches of a table."""
    return sorted(dataset.branches.list())


def tags_of(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Returns pylance's descriptions of the tags of a table, by name.

    Raises:
        TableUnreadableError: Another writer made a tag, and Lance cannot list its name.
    """
    try:
        return dict(dataset.tags.list())
    except ValueError as error:
        refuse_unlistable_tag(dataset.uri, str(error))
        raise


def refuse_unlistable_tag(uri: str, message: str) -> None:
    """Explains a message of Lance about the file of a tag with letters outside ASCII.

    Raises:
        TableUnreadableError: The message names the file of a tag with letters outside ASCII.
    """
    if stored := re.search(r"_refs/tags/(\S+?)\.json", message):
        name = unquote(unquote(stored[1]))
        raise TableUnreadableError(
            uri,
            f"Lance cannot list the tags, because the tag {name!r} has a letter outside ASCII",
            hint=f"delete the tag with table.tags.delete({name!r})",
        )


def _with_branch(ref: DatasetRef) -> DatasetRef:
    """Returns a reference with the branch of its location, if any."""
    parts = ref.uri.split(_TREE)
    for count in range(1, len(parts)):
        table, name = _TREE.join(parts[:count]), _TREE.join(parts[count:])
        try:
            names = branches_of(_open(table, None, None, ref.storage_options))
        except LanceSparkError:  # a folder of this name, and no table
            continue
        if name in names:
            return replace(ref, branch=name)
    return ref


def incarnation_of(dataset: lance.LanceDataset) -> str:
    """Returns the identity of a version. A table created again has other identities.

    The identity is the time of the commit, to the microsecond, and the row and file counts. All
    values are in the manifest, so the identity needs no I/O, and works for tables of other writers.
    """
    version = version_of(dataset)
    counts = version["metadata"]
    return f"{int(moment_of(version).timestamp() * 1_000_000)}-{counts['total_rows']}-{counts['total_data_files']}"


def count_data_files(dataset: lance.LanceDataset) -> int:
    """Returns the number of data files of a version, from its manifest."""
    return int(version_of(dataset)["metadata"]["total_data_files"])


def _received(
    uri: str,
    version: int | None,
    branch: str | None,
    incarnation: str | None,
    storage_options: tuple[tuple[str, str], ...],
    is_answered: bool,
) -> DatasetRef:
    """Returns a reference from another process."""
    ref = DatasetRef(
        uri=uri,
        version=version,
        branch=branch,
        incarnation=incarnation,
        storage_options=storage_options,
    )
    if is_answered:
        note_answer(uri, ref.storage)
    return ref


def table_exists(uri: str, storage_options: Mapping[str, str]) -> bool:
    """Tells whether a table exists: whether it has a version.

    A directory is not enough: write tasks create it before the first commit.

    Raises:
        TableUnreadableError: The store refused or could not be reached.
    """
    try:
        DatasetRef.at(uri, storage_options).open_latest()
    except TableNotFoundError:
        return False
    return True


def forget_open_datasets() -> None:
    """Closes the cached datasets of this process, and empties Lance's caches."""
    _open_pinned.cache_clear()
    _opened.clear()
    forget_sessions()


def recreated_error(ref: DatasetRef) -> SnapshotError:
    """Returns the error for a pinned version of a table that was deleted and recreated since."""
    return SnapshotError(
        f"The table {ref.uri} was deleted and recreated since version {ref.version} was read. Read the table again."
    )


class _PinnedDataset:
    """A pinned version in this process. The first use opens the version, for all threads."""

    def __init__(self, ref: DatasetRef) -> None:
        self._ref = ref
        self._dataset: lance.LanceDataset | None = None
        self._opened_s = 0.0

    def is_just_opened(self, ref: DatasetRef) -> bool:
        """Tells whether this is a version, opened a moment ago."""
        return self._ref == ref and self._opened_s + _JUST_S > time.monotonic()

    def keep(self, dataset: lance.LanceDataset) -> None:
        """Takes the version from :meth:`DatasetRef.pin`, which has just opened the version."""
        self._opened_s = time.monotonic()
        if self._dataset is None:
            self._dataset = dataset
        _note_use(self)

    def close(self) -> None:
        """Forgets the version. The next use opens the version again."""
        self._dataset = None

    @property
    def files(self) -> int:
        """Number of data files of the version, by its identity."""
        count = (self._ref.incarnation or "").rpartition("-")[2]
        return int(count) if count.isdecimal() else 0

    def open(self) -> lance.LanceDataset:
        """Returns the open version.

        Raises:
            SnapshotError: The table was created again since the version was pinned.
        """
        dataset = self._dataset
        if dataset is None:
            ref = self._ref
            dataset = _open(ref.uri, ref.branch, ref.version, ref.storage_options)
            if incarnation_of(dataset) != ref.incarnation:
                raise recreated_error(ref)
            self._dataset = dataset
        _note_use(self)
        return dataset


_opened: OrderedDict[_PinnedDataset, int] = OrderedDict()
"""The open pinned versions and their numbers of files, the latest used last."""


def _note_use(pinned: _PinnedDataset) -> None:
    """Closes the versions with the oldest use while the open versions have too many files."""
    # Threads may use versions at once: a version that another thread has closed is missing here.
    _opened.pop(pinned, None)
    _opened[pinned] = pinned.files
    while len(_opened) > 1 and (
        len(_opened) > _OPEN_DATASETS or sum(list(_opened.values())) > _OPEN_FILES
    ):
        with contextlib.suppress(KeyError):
            _opened.popitem(last=False)[0].close()


@functools.lru_cache(maxsize=_OPEN_DATASETS)
def _open_pinned(ref: DatasetRef) -> _PinnedDataset:
    return _PinnedDataset(ref)


def _open(
    uri: str, branch: str | None, version: int | None, storage_options: tuple[tuple[str, str], ...]
) -> lance.LanceDataset:
    load_lance()
    observe_store()

    if is_local(uri) and os.path.isfile(uri):
        # Measured: Lance retries a file for 2.6 s before the error.
        raise TableUnreadableError(
            uri, "it is a file", hint="A table is a folder. Give the path of the folder."
        )
    options = retry_options(uri, dict(storage_options))
    try:
        with panics_as_errors():
            dataset = open_version(uri, version, dict(storage_options), options)
    except NamespaceError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        note_failure(uri, dict(storage_options), error)
        raise _explain(error, uri, branch, version, storage_options) from error
    if dataset.version == 0:
        # Measured: a manifest of zero bytes reads as a table without columns at version 0. No
        # commit makes version 0.
        raise TableUnreadableError(
            uri, "its manifest is empty", hint="restore the file, or the table from a copy"
        )
    note_size(uri, dataset)
    return dataset


def _explain(
    error: Exception,
    uri: str,
    branch: str | None,
    version: int | None,
    storage_options: tuple[tuple[str, str], ...],
) -> Exception:
    """Returns an error of this package for pylance's."""
    if is_missing(error) and not is_missing_bucket(error):
        return _explain_absence(uri, branch, version, storage_options)
    if is_unknown_scheme(error):
        return OptionError(
            "path",
            uri,
            "a local path, or a URI with a scheme that Lance knows, such as s3://, gs:// or az://",
        )
    hint = "check that the path is a Lance table, and the storage.* options and permissions"
    if is_denied(error):
        hint = "check the credentials: in the storage.* options, or in the environment"
    if is_missing_bucket(error):
        hint = "Check the name of the bucket, and the option storage.region."
    return TableUnreadableError(uri, plain(error), hint=hint)


def _explain_absence(
    uri: str, branch: str | None, version: int | None, storage_options: tuple[tuple[str, str], ...]
) -> LanceSparkError:
    if version is not None:
        try:
            latest = _open(uri, branch, None, storage_options).version
        except LanceSparkError as error:
            return error
        requested = str(version) if branch is None else f"{branch}:{version}"
        return VersionNotFoundError(uri, requested, available=f"the latest version is {latest}")
    if any(sign in uri for sign in "*?[{"):
        hint = "a location is that of one table, and no pattern: read each table by itself, and call union"
        return TableNotFoundError(uri, hint=hint)
    if branch is not None:
        return TableNotFoundError(
            uri, hint=f"the branch {branch!r} was deleted; open another one, or the table itself"
        )
    # Workers of Spark need the module only for this error.
    from lance_spark.dataset_folder import ABSENT, describe_folder

    return TableNotFoundError(uri, hint=describe_folder(uri) if is_local(uri) else ABSENT)


def _version_at(ref: DatasetRef, moment: datetime) -> int:
    version = version_at(ref.open_latest(), moment)
    if isinstance(version, datetime):
        available = f"the oldest version is of {version.isoformat()}"
        raise VersionNotFoundError(ref.uri, f"at {moment.isoformat()}", available=available)
    return version


def _listed(what: str, names: Collection[str]) -> str:
    return f"its {what} are {', '.join(sorted(names))}" if names else f"it has no {what}"


def parse_version(text: str) -> int | str:
    """Returns a text as the number of a version, else the text: a tag or a branch."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else text


def _sorted_pairs(
    options: Mapping[str, str] | tuple[tuple[str, str], ...],
) -> tuple[tuple[str, str], ...]:
    try:
        pairs = sorted(dict(options).items())
        valid = all(isinstance(text, str) for pair in pairs for text in pair)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise OptionError("storage_options", type(options).__name__, "a dict of texts")
    return tuple(pairs)
