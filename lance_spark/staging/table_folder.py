"""A table's folder: whether a new table may use the folder, and how a table is deleted.

A folder may hold foreign files. Only names of Lance's form, or of ours, are therefore deleted, and
a new table requires a folder without any other name. Links are not followed, and files outside of
the folder are never touched. On an object store a folder is a prefix, and the same rules apply.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import UnsupportedOperationError, refusals_as_errors
from lance_spark.locations import is_local
from lance_spark.storage.objects import LanceObjects, open_session
from lance_spark.storage.parallel_calls import in_parallel
from udf_runtime.checkpoint import LocalObjects

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ID = "[0-9a-f]{40}"
_HASH = "[0-9a-f]{32,128}"
_QUOTED = "[A-Za-z0-9=_-]+"
"""Result of `udf_runtime.checkpoint.names` for a text."""

_UNFINISHED = r"(?:#\d+)?"
"""Suffix of an unfinished file in object stores on a file system."""

_HINT = "_versions/latest_version_hint.json"
_MANIFEST = r"_versions/(?P<number>d?\d{1,20})\.manifest"
_TRANSACTION = rf"_transactions/\d+-{_UUID}\.txn"

_OF_LANCE = "|".join(
    [
        _HINT,
        rf"_versions/d?\d{{1,20}}\.manifest(?:-{_UUID})?",
        "_latest.manifest",
        _TRANSACTION,
        r"data/[\w.+-]+\.lance",
        r"data/[\w.+-]+/[\w.+-]+\.blob",
        r"_deletions/\d+-\d+-\d+\.(?:arrow|bin)",
        rf"_indices/{_UUID}/(?:[\w-]+/)*[\w.-]+\.(?:idx|lance)",
        r"_refs/(?:tags|branches)/[^/]+\.json",
        rf"_mem_wal/{_UUID}/(?:[\w.-]+/)*[\w.-]+\.(?:arrow|binpb|bin|idx|json|lance|manifest|txn)",
        r"\.lance-(?:reserved|deregistered)",
    ]
)
_OURS = "|".join(
    [
        rf"staging/{_ID}/.+",
        rf"jobs/{_ID}/(?:heartbeat|stop|(?:reports|limits)/[\w./-]+)",
        rf"(?:jobs|errors|records)\.lance/(?:{_OF_LANCE})",
        rf"probe/[0-9a-f]{{32}}/(?:{_OF_LANCE})",
        rf"checkpoints/{_QUOTED}/(?:{_QUOTED}/)*[\w.=-]+\.(?:rows|ref|chunks)",
        rf"udfs/{_HASH}",
        rf"apps/{_HASH}/\d{{20}}\.(?:begun|done)",
        r"streams/[0-9a-f]{32}\.json",
        r"views/skipped/[\w.-]+",
        rf"environments/{_HASH}/[\w.+-]+",
        rf"manifests/{_QUOTED}\.json",
        r"(?:[\w.=-]+/)*\.[0-9a-f]{16}\.tmp",
    ]
)
_IN_FOLDER = rf"(?:{_OF_LANCE}|{FOLDER}/(?:{_OURS})){_UNFINISHED}"
_NAME = re.compile(rf"(?:tree/(?:[^/]+/)+)?{_IN_FOLDER}")
_FOLDERS = (
    "_deletions",
    "_indices",
    "_mem_wal",
    "_refs",
    "_transactions",
    "_versions",
    "data",
    "tree",
    FOLDER,
)

_ANY_HINT = re.compile(rf"(?:tree/(?:[^/]+/)+)?{_HINT}")
_ANY_MANIFEST = re.compile(rf"(?P<table>(?:tree/(?:[^/]+/)+)?){_MANIFEST}")
_OPEN_JOB = re.compile(rf"(?:tree/(?:[^/]+/)+)?{FOLDER}/staging/{_ID}/open")
_ROUNDS = 3
"""Number of listings of the folder: writers that had begun may add files until they notice."""


def check_new_table(ref: DatasetRef) -> None:
    """Raises if a folder for a new table holds files of other origin.

    Call this function for a location without a table. Leftovers of a killed write or drop are
    reused.

    Raises:
        UnsupportedOperationError: The folder holds other files.
        TableUnwritableError: The store refused.
    """
    with refusals_as_errors(ref.uri):
        foreign = next(_find_foreign_names(ref), None)
    if foreign is not None:
        raise UnsupportedOperationError(
            f"The location holds files that belong to no Lance table, for example {foreign!r}. Location: {ref.uri}. "
            "Nothing was written. Choose a location that is absent or empty."
        )


def find_foreign_file(ref: DatasetRef) -> str | None:
    """Returns the path of a foreign file in a table's folder, or None."""
    return next(_find_foreign_names(ref), None)


def refuse_links(ref: DatasetRef) -> None:
    """Raises before Lance deletes files of a table or branch whose folder holds a symbolic link.

    Lance follows links when deleting files, and any writer to a table's folder may plant a link.
    Our own folder is not checked, because Lance ignores the folder.

    Raises:
        UnsupportedOperationError: A link is in the folder. Nothing was deleted.
    """
    if not is_local(ref.uri):
        return
    link = LocalObjects(ref.uri, boundary=ref.table_uri).find_link(ignored=FOLDER)
    if link is not None:
        raise UnsupportedOperationError(
            f"The folder of the table holds the link {link}, and Lance would delete what is behind the link. Location: "
            f"{ref.uri}. Nothing was deleted. Remove the link, or move its target into the place of the link."
        )


def refuse_foreign_files(ref: DatasetRef) -> None:
    """Raises before Lance deletes a branch's folder that holds foreign files.

    Raises:
        UnsupportedOperationError: The folder holds another file, or a link. Nothing was deleted.
        OSError: The store refused.
    """
    refuse_links(ref)
    foreign = find_foreign_file(ref)
    if foreign is not None:
        raise UnsupportedOperationError(
            f"The folder of the branch holds files that belong to no Lance table, for example {foreign!r}. Location: "
            f"{ref.uri}. Nothing was deleted. Move the files away, and delete the branch again."
        )


def delete_table_folder(ref: DatasetRef) -> None:
    """Deletes a table with all its versions, branches, checkpoints and history.

    The table disappears first: older manifests are deleted before the latest, so that an older
    version never becomes the latest. A deletion that is killed leaves the whole table, or no table,
    and the next call deletes the rest. Foreign files stay, and the folder with them.

    Raises:
        UnsupportedOperationError: The location is a link. Nothing was deleted.
        OSError: The store refused.
    """
    if is_local(ref.uri) and os.path.islink(ref.uri):
        raise UnsupportedOperationError(
            f"The location is a link, and a link is not followed to delete a table. Location: {ref.uri}. Nothing was "
            f"deleted. Drop the table at {os.path.realpath(ref.uri)}, or remove the link."
        )
    objects = LanceObjects(ref.uri, ref.storage_options)
    for _ in range(_ROUNDS):
        paths = [path for path in objects.list_files() if _NAME.fullmatch(path)]
        if not paths:
            break
        for group in _group_by_deletion_order(paths):
            in_parallel(objects.uri, objects.delete, group)
    _remove_empty_folders(ref.uri)


def delete_leftovers(ref: DatasetRef) -> bool:
    """Completes a killed drop, or removes the files of a killed first write.

    Call this function for a location without a table. Tells whether any file existed. Any other
    folder stays unchanged.
    """
    is_left = has_leftovers(ref)
    if is_left:
        delete_table_folder(ref)
    return is_left


def has_leftovers(ref: DatasetRef) -> bool:
    """Tells whether :func:`delete_leftovers` would delete a file. Needs a location without a table.

    Checks the folders of a table only: the location may be the root of a file system.
    """
    objects = LanceObjects(ref.uri, ref.storage_options)
    files, folders = _list_folder(ref)
    paths = [
        *files,
        *(path for name in folders if name in _FOLDERS for path in objects.list_files(name)),
    ]
    names = [path for path in paths if _NAME.fullmatch(path)]
    is_pure = len(names) == len(paths) and set(folders) <= set(_FOLDERS)
    return bool(names) and (is_pure or any(re.fullmatch(_TRANSACTION, path) for path in names))


def delete_folder_of_tables(ref: DatasetRef) -> bool:
    """Deletes our files in a folder whose tables are gone, and tells whether the folder is gone."""
    objects = LanceObjects(ref.uri, ref.storage_options)
    ours = [path for path in objects.list_files(FOLDER) if _NAME.fullmatch(path)]
    in_parallel(objects.uri, objects.delete, ours)
    _remove_empty_folders(ref.uri)
    return not (is_local(ref.uri) and os.path.lexists(ref.uri))


def _find_foreign_names(ref: DatasetRef) -> Iterator[str]:
    """Yields foreign names in a folder, and lists no deeper than needed."""
    objects = LanceObjects(ref.uri, ref.storage_options)
    files, folders = _list_folder(ref)
    yield from (name for name in files if not _NAME.fullmatch(name))
    yield from (f"{name}/" for name in folders if name not in _FOLDERS)
    for folder in folders:
        yield from (path for path in objects.list_files(folder) if not _NAME.fullmatch(path))


def _list_folder(ref: DatasetRef) -> tuple[list[str], list[str]]:
    """Returns the names of files and of folders in a folder; an absent folder has none."""
    if not is_local(ref.uri):
        listed = open_session(ref.uri, ref.storage_options).list_with_delimiter("")
        objects = [path.rpartition("/")[2] for path in listed.objects]
        return objects, [path.rstrip("/").rpartition("/")[2] for path in listed.common_prefixes]
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(ref.uri) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    except FileNotFoundError:
        return [], []
    except NotADirectoryError:
        return [os.path.basename(ref.uri)], []
    return files, folders


class _DeletionStep(IntEnum):
    """Steps of the deletion of a table. Transactions are last: they show that a table existed."""

    END_JOBS = 0
    HINTS = 1
    OLDER_VERSIONS = 2
    LATEST_OF_BRANCHES = 3
    LATEST_OF_TABLE = 4
    OTHER_FILES = 5
    TRANSACTIONS = 6


def _group_by_deletion_order(paths: Sequence[str]) -> Iterable[list[str]]:
    """Returns names in groups; each group is deleted before the next."""
    latest_versions: dict[str, tuple[int, str]] = {}
    for manifest in filter(None, map(_ANY_MANIFEST.fullmatch, paths)):
        version = (_parse_version(manifest["number"]), manifest[0])
        latest_versions[manifest["table"]] = max(
            version, latest_versions.get(manifest["table"], version)
        )
    latest = {path for _, path in latest_versions.values()}
    groups: dict[_DeletionStep, list[str]] = {step: [] for step in _DeletionStep}
    for path in paths:
        groups[_find_step(path, latest)].append(path)
    return groups.values()


def _find_step(path: str, latest: Collection[str]) -> _DeletionStep:
    """Returns the step of a file. `latest` holds the latest manifest of each branch."""
    if _OPEN_JOB.fullmatch(path):
        return _DeletionStep.END_JOBS
    if _ANY_HINT.fullmatch(path):
        return _DeletionStep.HINTS
    manifest = _ANY_MANIFEST.fullmatch(path)
    if manifest is None:
        return (
            _DeletionStep.TRANSACTIONS
            if re.fullmatch(_TRANSACTION, path)
            else _DeletionStep.OTHER_FILES
        )
    if path not in latest:
        return _DeletionStep.OLDER_VERSIONS
    return _DeletionStep.LATEST_OF_BRANCHES if manifest["table"] else _DeletionStep.LATEST_OF_TABLE


def _parse_version(number: str) -> int:
    """Returns the version of a manifest's name: Lance counts down from the largest number."""
    if number.startswith("d"):
        return 0
    return (1 << 64) - 1 - int(number) if len(number) == len(str(1 << 64)) else int(number)


def _remove_empty_folders(uri: str) -> None:
    if not is_local(uri) or os.path.islink(uri):
        return
    for name in _FOLDERS:
        with contextlib.suppress(FileNotFoundError):
            for _, folders, _, opened in os.fwalk(os.path.join(uri, name), topdown=False):
                for folder in folders:
                    _remove_if_empty(folder, opened)
        _remove_if_empty(os.path.join(uri, name))
    _remove_if_empty(uri)


def _remove_if_empty(folder: str, inside: int | None = None) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder, dir_fd=inside)
