"""Manifest entries for unreferenced column files, and preparations of their commit.

The preparations add new columns as all NULL, and files of NULLs for incomplete fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.conflicts.history import first_unknown
from lance_spark.commit.conflicts.identity import TOKEN_KEY, FieldIdentity, files_of
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.errors import CommitConflictError, CommitError, CommitOutcomeUnknownError
from lance_spark.lance_compat import plain

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation
    from lance.fragment import DataFile, FragmentMetadata


class Stage(Protocol):
    """Stages column files without new values for any row."""

    def restore(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages the values of columns in a version's fragment, to undo a commit."""

    def blank(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Stages NULLs for the target columns without a file in a version's fragment."""

    def missing(self, names: Sequence[str]) -> Collection[str]:
        """Returns the names of the data files that do not exist."""


def replace_data(dataset: lance.LanceDataset, staged: Mapping[int, StagedColumns]) -> LanceOperation.DataReplacement:
    """Returns the operation to put a column file with the same columns into each fragment.

    Raises:
        CommitConflictError: See :func:`data_files`.
    """
    from lance import LanceOperation

    files = zip(staged, data_files(dataset, list(staged.values())), strict=True)
    return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(*pair) for pair in files])


def data_files(dataset: lance.LanceDataset, staged: Sequence[StagedColumns]) -> list[DataFile]:
    """Returns the entries for files with the same columns, with this version's field ids.

    pylance reads the footer of the first file. The other files differ only in name and size.

    Raises:
        CommitConflictError: The first file is unreadable, for example after a cleanup between
            two rounds.
    """
    from lance.fragment import DataFile

    if not staged:
        return []
    try:
        first = DataFile.create(dataset, staged[0].name)
    except (ValueError, OSError) as error:
        raise CommitConflictError(
            f"A cleanup of unreferenced files deleted the column file {staged[0].name}: {plain(error)}. Table: "
            f"{dataset.uri}. The file was not committed. Write again, or run the backfill again.",
            uri=dataset.uri,
        ) from error
    return [same_columns(first, file) for file in staged]


def same_columns(like: DataFile, staged: StagedColumns) -> DataFile:
    """Returns the entry of a file with the same columns as the file of `like`."""
    from lance.fragment import DataFile

    version = like.file_major_version, like.file_minor_version
    return DataFile(staged.name, list(like.fields), list(like.column_indices), *version, staged.size_bytes)


def file_named(fragment: FragmentMetadata, name: str) -> DataFile | None:
    """Returns the entry of a fragment's data file by name, or None."""
    return next((file for file in fragment.files if file.path == name), None)


def add_null_columns(head: lance.LanceDataset, columns: Sequence[pa.Field[Any]], token: str) -> Lost | Unknown | None:
    """Adds columns as all NULL, with a token in their metadata. Returns None on success.

    Raises:
        CommitError: Lance cannot add the columns.
        CommitOutcomeUnknownError: Lance added the columns on top of commits that were cleaned up in
            the same moment.
    """
    import pyarrow as pa
    from lance.commit import CommitConflictError as LanceConflict

    stamped, before = [], head.version
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
    unknown = first_unknown(head, before)
    if unknown is not None:
        raise CommitOutcomeUnknownError(
            f"The commit of new columns may have undone earlier commits (version {unknown} and later), which were "
            f"cleaned up at the same moment. The columns were added to version {before}. Table: {head.uri}, version "
            f"{head.version}. Check the rows that these commits changed, and write again.",
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
            replace_data(base, {number: blank(base, number, names) for number in numbers}),
            read_version=base.version,
            properties={},
            storage_options=storage,
        )
        if not isinstance(outcome, Landed):
            return outcome
        dataset = outcome.dataset
    return dataset


def _gaps(head: Head, fragments: Sequence[int], targets: Sequence[FieldIdentity]) -> dict[tuple[str, ...], list[int]]:
    """Returns the incomplete fragments by their columns without files."""
    gaps: dict[tuple[str, ...], list[int]] = {}
    for fragment in fragments:
        null_names = tuple(c.name for c in targets if not files_of(head.fragments[fragment], c.ids))
        if null_names and len(null_names) < len(targets):
            gaps.setdefault(null_names, []).append(fragment)
    return gaps
