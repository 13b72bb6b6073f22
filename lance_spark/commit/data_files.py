"""Entries of manifests for column files that no version names yet, and the room that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.conflicts.history import events_between
from lance_spark.commit.conflicts.identity import TOKEN_KEY, FieldIdentity, files_of
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.errors import CommitConflictError, CommitError, CommitOutcomeUnknownError

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import DataFile, FragmentMetadata


def data_files(dataset: lance.LanceDataset, staged: Sequence[StagedColumns]) -> list[DataFile]:
    """Returns the entries for files that all hold the same columns, with this version's field ids.

    pylance reads the footer of one of them for that; the others differ only in name and size.

    Raises:
        CommitConflictError: It cannot be read: a cleanup may come between two rounds.
    """
    from lance.fragment import DataFile

    if not staged:
        return []
    try:
        first = DataFile.create(dataset, staged[0].name)
    except (ValueError, OSError) as error:
        raise CommitConflictError(
            f"a written column file is not there any more, as after a cleanup of files that no version names: {error} "
            f"- {staged[0].name} in {dataset.uri} - nothing of it was committed; write or run the backfill again",
            uri=dataset.uri,
        ) from error
    return [same_columns(first, file) for file in staged]


def same_columns(like: DataFile, staged: StagedColumns) -> DataFile:
    """Returns the entry of a file that holds the same columns as another one."""
    from lance.fragment import DataFile

    version = like.file_major_version, like.file_minor_version
    return DataFile(staged.name, list(like.fields), list(like.column_indices), *version, staged.size_bytes)


def file_named(fragment: FragmentMetadata, name: str) -> DataFile | None:
    """Returns the entry of a data file of a fragment by its name, or None."""
    return next((file for file in fragment.files if file.path == name), None)


def add_null_columns(head: lance.LanceDataset, columns: Sequence[pa.Field[Any]], token: str) -> Lost | Unknown | None:
    """Adds columns as all NULL, with a token in their metadata. Returns None when they are there.

    Raises:
        CommitError: Lance cannot add them.
        CommitOutcomeUnknownError: It has, over commits that were cleaned up in the same moment.
    """
    import pyarrow as pa
    from lance.commit import CommitConflictError as LanceConflict

    stamped, before = [], head.version
    for arrow in columns:
        metadata: dict[bytes | str, bytes | str] = dict((arrow.metadata or {}).items())
        metadata[TOKEN_KEY] = token
        stamped.append(arrow.with_nullable(True).with_metadata(metadata))
    try:
        # pylance builds the Merge from this handle's version and refuses it if anything but an
        # index or the configuration came first (measured), so no column or deletion of another
        # writer is overwritten; but not where what came first was cleaned up meanwhile.
        head.add_columns(pa.schema(stamped))
    except LanceConflict as error:
        return Lost(race=True, error=error)
    except OSError as error:
        return Unknown(error=error)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise CommitError(
            f"Lance cannot add columns {', '.join(repr(f.name) for f in columns)}: {error} - at {head.uri} - nothing "
            "was committed",
            uri=head.uri,
        ) from error
    lost = [event.version for event in events_between(head, before, head.version - 1) if event.operation is None]
    if lost:
        raise CommitOutcomeUnknownError(
            f"columns were added to version {before}, and commits that came first (version {lost[0]} and later) were "
            "cleaned up in that moment: what they changed may be undone - "
            f"at {head.uri}, version {head.version} - look at the rows that they changed, and write again",
            uri=head.uri,
        )
    return None


def fill_gaps(
    head: Head,
    fragments: Sequence[int],
    targets: Sequence[FieldIdentity],
    blank: Callable[[lance.LanceDataset, int, Sequence[str]], StagedColumns],
    storage: Mapping[str, str],
) -> lance.LanceDataset | Lost | Unknown | None:
    """Gives fragments that have files of some target columns files of NULLs of the others too.

    Returns the dataset with them; None where there was nothing to do. Measured: a DataReplacement
    replaces a file of a fragment, or adds one, but does not do both.
    """
    from lance import LanceOperation

    gaps: dict[tuple[str, ...], list[int]] = {}
    for fragment in fragments:
        without = tuple(c.name for c in targets if not files_of(head.fragments[fragment], c.ids))
        if without and len(without) < len(targets):
            gaps.setdefault(without, []).append(fragment)
    dataset = None
    for names, numbers in gaps.items():
        base = dataset or head.dataset
        staged = [blank(base, number, names) for number in numbers]
        groups = [
            LanceOperation.DataReplacementGroup(*pair) for pair in zip(numbers, data_files(base, staged), strict=True)
        ]
        outcome = attempt_commit(
            base,
            LanceOperation.DataReplacement(groups),
            read_version=base.version,
            properties={},
            storage_options=storage,
        )
        if not isinstance(outcome, Landed):
            return outcome
        dataset = outcome.dataset
    return dataset
