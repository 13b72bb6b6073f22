"""Data files of a commit: entries of the manifest, checks after the commit, and the way back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.changes import CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.commit_loop import CommitPolicy, commit_job
from lance_spark.commit.conflicts.history import (
    UNDONE_KEY,
    Change,
    data_paths,
    events_between,
    fresh_events,
)
from lance_spark.commit.conflicts.identity import TOKEN_KEY, FieldIdentity, files_of
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.dropped import OpenedVersion, note_landed, refuse_dropped
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    TableNotFoundError,
    counted,
)
from lance_spark.lance_compat import path_of, plain

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation
    from lance.fragment import DataFile, FragmentMetadata


class Stage(Protocol):
    """Stages column files without new values for any row."""

    def restore(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]
    ) -> StagedColumns:
        """Stages the values of columns in a version's fragment, to undo a commit."""

    def blank(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]
    ) -> StagedColumns:
        """Stages NULLs for the target columns without a file in a version's fragment."""

    def missing(self, names: Sequence[str]) -> Collection[str]:
        """Returns the names of the data files that do not exist."""

    def entry(self, dataset: lance.LanceDataset, columns: Sequence[str]) -> DataFile:
        """Returns the entry of a file with columns of a version, in the order of the file."""


def replace_data(
    like: DataFile, staged: Mapping[int, StagedColumns]
) -> LanceOperation.DataReplacement:
    """Returns the operation to put a column file with the columns of `like` into each fragment."""
    from lance import LanceOperation

    return LanceOperation.DataReplacement(
        [
            LanceOperation.DataReplacementGroup(number, same_columns(like, file))
            for number, file in staged.items()
        ]
    )


def same_columns(like: DataFile, staged: StagedColumns) -> DataFile:
    """Returns the entry of a file with the same columns as the file of `like`."""
    from lance.fragment import DataFile

    version = like.file_major_version, like.file_minor_version
    return DataFile(
        staged.name, list(like.fields), list(like.column_indices), *version, staged.size_bytes
    )


def file_named(fragment: FragmentMetadata, name: str) -> DataFile | None:
    """Returns the entry of a fragment's data file by name, or None."""
    return next((file for file in fragment.files if file.path == name), None)


def add_null_columns(
    head: lance.LanceDataset, columns: Sequence[pa.Field[Any]], token: str
) -> Lost | Unknown | None:
    """Adds columns as all NULL, with a token in their metadata. Returns None on success.

    The caller checks the commits before the addition by :func:`refuse_undone`.

    Raises:
        CommitError: Lance cannot add the columns.
    """
    import pyarrow as pa
    from lance.commit import CommitConflictError as LanceConflict

    stamped = []
    for arrow in columns:
        metadata: dict[bytes | str, bytes | str] = dict((arrow.metadata or {}).items())
        metadata[TOKEN_KEY] = token
        stamped.append(arrow.with_nullable(True).with_metadata(metadata))
    try:
        # pylance builds the Merge from this handle's version. Measured: pylance refuses the Merge
        # after any concurrent commit except an index or the configuration. Columns and deletions
        # of other writers therefore stay, unless a cleanup deleted their transactions.
        head.add_columns(pa.schema(stamped))
    except LanceConflict as error:
        return Lost(race=True, error=error)
    except OSError as error:
        return Unknown(error=error)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise CommitError(
            f"Lance cannot add columns {', '.join(repr(f.name) for f in columns)}: {plain(error)}. Table: {head.uri}. "
            "Nothing was committed.",
            uri=head.uri,
        ) from error
    note_landed(head)
    return None


def refuse_undone(dataset: lance.LanceDataset, before: int, token: str) -> None:
    """Raises if the addition of columns to a version may have undone earlier commits.

    `dataset` is the version of the addition or a later version.

    Raises:
        CommitOutcomeUnknownError: Lance added the columns on top of commits that were cleaned up in
            the same moment.
        OSError: The store failed.
    """
    if dataset.version == before + 1:
        return
    for event in fresh_events(dataset, before, dataset.version):
        if event.operation is None:
            raise undone_commits(dataset, before, event.version)
        if any(column.token == token for column in Change.of(event).schema or ()):
            return  # the addition


def undone_commits(
    dataset: lance.LanceDataset, before: int, unknown: int
) -> CommitOutcomeUnknownError:
    """Returns the error of new columns in place of commits without a transaction.

    The columns were added to the version `before`, and `unknown` is the first version without a
    transaction.
    """
    return CommitOutcomeUnknownError(
        f"The commit of new columns may have undone earlier commits (version {unknown} and later), which were cleaned "
        f"up at the same moment. The columns were added to version {before}. Table: {dataset.uri}, version "
        f"{dataset.version}. Check the rows that these commits changed, and write again.",
        uri=dataset.uri,
    )


def fill_gaps(
    head: Head,
    fragments: Sequence[int],
    targets: Sequence[FieldIdentity],
    blank: Callable[[lance.LanceDataset, int, Sequence[str]], StagedColumns],
    entry: Callable[[lance.LanceDataset, Sequence[str]], DataFile],
    storage: Mapping[str, str],
) -> lance.LanceDataset | Lost | Unknown | None:
    """Adds files of NULLs to fragments with files of some but not all target columns.

    Returns the dataset with the new files, or None if every fragment has files of all or none.
    Measured: a DataReplacement either replaces files of a fragment or adds files, and does not
    combine the two.
    """
    dataset = None
    for names, numbers in _gaps(head, fragments, targets).items():
        base = dataset or head.dataset
        outcome = attempt_commit(
            base,
            replace_data(
                entry(base, names), {number: blank(base, number, names) for number in numbers}
            ),
            read_version=base.version,
            properties={},
            storage_options=storage,
        )
        if not isinstance(outcome, Landed):
            return outcome
        dataset = outcome.dataset
    return dataset


def _gaps(
    head: Head, fragments: Sequence[int], targets: Sequence[FieldIdentity]
) -> dict[tuple[str, ...], list[int]]:
    """Returns the incomplete fragments by their columns without files."""
    gaps: dict[tuple[str, ...], list[int]] = {}
    for fragment in fragments:
        null_names = tuple(c.name for c in targets if not files_of(head.fragments[fragment], c.ids))
        if null_names and len(null_names) < len(targets):
            gaps.setdefault(null_names, []).append(fragment)
    return gaps


_SOME = 16
"""Number of fragments in a message."""


def refuse_lost_files(
    snapshot: DatasetRef,
    version: int,
    parts: Mapping[int, FragmentColumns],
    stage: Stage,
    *,
    head: Head,
    opened: OpenedVersion,
) -> None:
    """Raises if the version refers to files of its commit, or of `head`, that do not exist.

    Lance commits files without an error even if a cleanup of unreferenced files, or a deletion of
    the whole table, has just deleted the files. Fragments that were compacted, deleted or filled
    again since the commit have lost nothing: a cleanup of old versions may delete their files.

    Raises:
        TableDroppedError: The whole table was deleted since the version `opened`.
        CommitImpossibleError: The whole table was deleted, with the new version.
        CommitOutcomeUnknownError: Files are missing.
    """
    staged_names = [part.staged.name for part in parts.values()]
    older_name = _name_older_file(head, parts)
    missing_names = set(stage.missing([*staged_names, *filter(None, [older_name])]))
    if older_name is None or older_name in missing_names:
        refuse_dropped(snapshot, opened)
    missing_names.discard(older_name or "")
    if not missing_names:
        return
    # Open the latest version after the file check: a cleanup never deletes files of this version.
    try:
        latest = Head.of(snapshot.open_latest())
    except TableNotFoundError as error:
        raise CommitImpossibleError(
            f"The table was deleted during the commit of the values. Table: {snapshot.uri}. Nothing was committed. "
            "Write the table again.",
            uri=snapshot.uri,
        ) from error
    lost = [
        number
        for number, part in parts.items()
        if _names_missing_file(latest, number, part, missing_names)
    ]
    if not lost:
        return
    numbers = f"{', '.join(map(str, lost[:_SOME]))}{', ...' if len(lost) > _SOME else ''}"
    raise CommitOutcomeUnknownError(
        "A cleanup of unreferenced files deleted column files during their commit, so the columns cannot be read in "
        f"{counted(len(lost), 'fragment')} ({numbers}). Table: {snapshot.uri}, version {version}. To recover, restore "
        f"version {version - 1} with lance.dataset(path, version={version - 1}).restore(). Then write again, or run "
        "the backfill again.",
        uri=snapshot.uri,
    )


def _name_older_file(head: Head, parts: Mapping[int, FragmentColumns]) -> str | None:
    """Returns the name of a file that the table had before the commit, or None."""
    # Only files in the table's own folder, not in the folder of a clone's source.
    files = (
        file for number in parts for file in head.fragments[number].files if file.base_id is None
    )
    return next(map(path_of, files), None)


def _names_missing_file(
    latest: Head, number: int, part: FragmentColumns, missing_names: Collection[str]
) -> bool:
    """Tells whether a fragment of the latest version names a committed file that is missing."""
    if part.staged.name not in missing_names or number not in latest.fragments:
        return False
    return file_named(latest.fragments[number], part.staged.name) is not None


def take_back(
    ref: DatasetRef,
    undo: Callable[[lance.LanceDataset], LanceOperation.BaseOperation | None],
    *,
    job_id: str,
    since: int,
    policy: CommitPolicy,
) -> None:
    """Undoes a commit, on top of any concurrent commits.

    `undo` builds the operation for the latest version, or returns None if the version has nothing
    of the commit. Versions after `since` may belong to an earlier attempt.

    Raises:
        CommitOutcomeUnknownError: The commit could not be undone.
    """
    null_result = CommitResult(
        uri=ref.uri,
        operation="backfill",
        job_id=job_id,
        version=0,
        read_version=None,
        rows=0,
        fragments=0,
    )

    def one_round(head: lance.LanceDataset | None, _retries: int) -> CommitResult | Lost | Unknown:
        operation = None if head is None else undo(head)
        if head is None or operation is None:
            return null_result
        outcome = attempt_commit(
            head,
            operation,
            read_version=head.version,
            properties={UNDONE_KEY: job_id},
            storage_options=ref.storage,
        )
        return (
            dataclasses.replace(null_result, version=outcome.dataset.version)
            if isinstance(outcome, Landed)
            else outcome
        )

    try:
        commit_job(ref, f"{job_id}-undo", since, one_round, policy)
    except (LanceSparkError, OSError, ValueError) as error:
        raise CommitOutcomeUnknownError(
            f"The table changed at the moment of the commit, and the commit could not be taken back: {plain(error)}. "
            f"Table: {ref.uri}, job {job_id}. Restore the version before the commit, delete the rows, or backfill the "
            "columns again.",
            uri=ref.uri,
        ) from error


def take_back_rows(
    ref: DatasetRef,
    landed: lance.LanceDataset,
    fragments: Iterable[FragmentMetadata],
    *,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Deletes the new fragments of a commit, which are found by their data files.

    Raises:
        CommitOutcomeUnknownError: The deletion failed, or a concurrent writer moved the rows first.
    """
    from lance import LanceOperation

    paths = frozenset(data_paths(fragments))

    def numbers(dataset: lance.LanceDataset) -> list[int]:
        return [
            f.fragment_id
            for f in dataset.get_fragments()
            if not paths.isdisjoint(data_paths([f.metadata]))
        ]

    def undo(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        ids, predicate = numbers(head), "rows of a commit that is undone"
        return (
            LanceOperation.Delete(
                updated_fragments=[], deleted_fragment_ids=ids, predicate=predicate
            )
            if ids
            else None
        )

    take_back(ref, undo, job_id=job_id, since=landed.version, policy=policy)
    _refuse_moved(ref, numbers(landed), landed.version)


def _refuse_moved(ref: DatasetRef, fragments: Collection[int], since: int) -> None:
    try:
        head = ref.open_latest()
        changes = list(map(Change.of, events_between(head, since, head.version)))
    except TableNotFoundError:
        return
    except OSError as error:
        raise CommitOutcomeUnknownError(
            "The table changed at the moment of the commit, and the commit was taken back. The store failed before "
            f"the check that no other writer had moved the rows: {plain(error)}. Table: {ref.uri}. Look for the rows.",
            uri=ref.uri,
        ) from error
    for change in changes:
        if change.operation is None or any(map(change.took_from, fragments)):
            raise CommitOutcomeUnknownError(
                "The table changed at the moment of the commit, and another writer moved the rows before the commit "
                f"was taken back ({change.text}). Table: {ref.uri}. Delete these rows, or restore version {since - 1}.",
                uri=ref.uri,
            )
