"""What a job wrote and what became of it: picklable values that the commit takes and returns.

Nothing here touches storage. Lance objects in them (fragments, data files) pylance pickles itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.errors import OptionError, counted
from lance_spark.options import check_property
from lance_spark.rows.row_set import RowSet
from lance_spark.stored_json import Kinds, check_fields, load_object
from lance_spark.words import InWords, listed

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

InputsFrom = Literal["option", "plan", "all"]
"""How the input columns of a backfill were determined: named by the option, read in the write's
plan, or taken to be all others."""

_LISTED_FRAGMENTS = 1000
"""Fragment ids that the summary in a transaction lists at most; manifests keep it for as long as
the version lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """What the user says of a commit: a message, and properties by name."""

    message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(message: str | None, properties: Mapping[str, str] | None) -> CommitNote:
        """Checks what was given.

        Raises:
            OptionError: It is no text, or a name belongs to Lance or to this package.
        """
        if message is not None and not isinstance(message, str):
            raise OptionError("commit_message", message, "a text")
        for name, value in (properties or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise OptionError(f"properties[{name!r}]", value, "texts by names")
            check_property(name, value)
        return CommitNote(message=message, properties=tuple(sorted((properties or {}).items())))


NO_NOTE = CommitNote()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToCommit:
    """New rows, written as fragments that no version names yet.

    Attributes:
        mode: `create` makes a new table; `append` adds to the table and creates it where there is
            none; `overwrite` makes a version of only these rows.
        fields: The fields whose ids the fragments' data files name: of the table at `read_version`,
            or as a new table numbers them.
        fragments: The fragments, in the order that they get ids in.
        read_version: The version that the write was planned on; None where there was no table.
        data_storage_version: File format of a new table. A new table with fragments has theirs.
    """

    mode: Literal["create", "append", "overwrite"]
    schema: pa.Schema
    fields: tuple[FieldIdentity, ...]
    fragments: tuple[FragmentMetadata, ...]
    rows: int
    read_version: int | None
    data_storage_version: str = "stable"
    enable_stable_row_ids: bool = True
    commit_message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedColumns:
    """A column file in the table's `data` folder that no version names yet."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentColumns:
    """New values of columns for every physical row of one fragment, staged in one file.

    Attributes:
        fragment: The fragment as it was when the values were written for it.
        staged: The file; it holds all target columns, and exactly as many rows as the fragment has
            physical rows.
        given: Rows that the job gave values for; the others have in the file what they had in the
            table.
    """

    fragment: FragmentMetadata
    staged: StagedColumns
    given: RowSet

    @property
    def fragment_id(self) -> int:
        """Id of the fragment."""
        return int(self.fragment.id)

    @property
    def rows(self) -> int:
        """Number of rows that the job gave values for."""
        return len(self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebasedColumns:
    """Values of one fragment of the latest version: of rows that moved there or were changed.

    Attributes:
        columns: Their values, staged for that fragment; None where nothing has to be written.
        carried: Rows that get the job's value.
        nulled: Rows that are NULL, because their inputs are not those that the value was computed
            from.
        covered: Live rows of the fragment that the snapshot had.
    """

    fragment_id: int
    columns: FragmentColumns | None
    carried: int
    nulled: int
    covered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsToCommit:
    """Column files for fragments of a snapshot.

    Attributes:
        targets: The columns that are written, with their identity in the snapshot; id -1 where the
            column is to be added.
        new_columns: Arrow fields of the columns that are to be added, in the order of `targets`.
        inputs: The columns that the values depend on, as the snapshot had them.
        advice: The end of an error's message: what was committed, and what to do.
        by_name: Whether the values fit any target of the same id, name and type. A load matches by
            key, so an unknown history of its column does no harm.
    """

    read_version: int
    targets: tuple[FieldIdentity, ...]
    new_columns: pa.Schema
    inputs: tuple[FieldIdentity, ...]
    inputs_from: InputsFrom
    fragments: tuple[FragmentColumns, ...]
    commit_message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    advice: str = "nothing was committed; read the table again and write again"
    by_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToReplace:
    """Rows that go and rows that come, in one version.

    Attributes:
        read_version: The version that the deletions are of; they fit no other one.
        updated: Fragments of it with more rows deleted.
        removed: Ids of fragments of which no row stays.
        fragments: New ones.
        rows: Rows in these.
        stamp: Further properties of the transaction.
    """

    read_version: int
    updated: tuple[FragmentMetadata, ...]
    removed: tuple[int, ...]
    fragments: tuple[FragmentMetadata, ...]
    rows: int
    stamp: Mapping[str, str]
    commit_message: str | None = None

    @property
    def deletes(self) -> bool:
        """Whether any row goes."""
        return bool(self.updated or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentKeys:
    """Keys that a merge did not find: a commit that changes which keys exist invalidates the merge.

    Attributes:
        fields: Ids of the fields that the merge compares.
        after_appends: Whether the merge is evaluated again after a concurrent append. If not, the
            appended rows count as appended after the merge.
    """

    fields: frozenset[int]
    after_appends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEdits:
    """What one statement does to the rows of a version.

    Attributes:
        read_version: The version that the statement read.
        fields: The columns that it had.
        before: The fragments that are edited, as they were, by id.
        updated: Those of them that stay, with more rows deleted, or other column files.
        removed: Ids of those of which no row stays.
        new: New fragments; those of rows that were moved carry their row ids.
        modified: Ids of the fields that column files were written for; none where rows move.
        offsets: Rows of each fragment that these have new values for, as roaring bitmaps.
        predicate: What a deletion was asked for, as Lance SQL.
        reads_others: Whether what is done to a row may depend on rows of other fragments, as it
            does with a subquery over the table.
        absence: What the edits know of keys that the table lacks; None where they do not depend on
            absent keys.
    """

    operation: Literal["update", "delete", "merge"]
    read_version: int
    fields: tuple[FieldIdentity, ...]
    before: Mapping[int, FragmentMetadata]
    updated: tuple[FragmentMetadata, ...] = ()
    removed: tuple[int, ...] = ()
    new: tuple[FragmentMetadata, ...] = ()
    modified: tuple[int, ...] = ()
    offsets: Mapping[int, bytes] = dataclasses.field(default_factory=dict)
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    predicate: str | None = None
    reads_others: bool = False
    absence: AbsentKeys | None = None
    commit_message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommitResult(InWords):
    """What a commit did.

    Attributes:
        uri: Location of the table.
        operation: `create`, `append`, `overwrite`, `backfill`, `refresh`, `update`, `delete`,
            `merge` or `index`.
        job_id: Id of the job, as stamped into the transaction.
        version: The version that was made; where a backfill found no fragment any more that it
            could write to, the one that it looked at.
        read_version: The version that the job read; None where there was no table.
        rows: Rows written; of a backfill, rows whose value is in `version`.
        fragments: Fragments written to.
        retries: How often the commit was tried again.
        columns: Columns that a backfill filled.
        added_columns: Those of them that it added.
        input_columns: Columns that the values were taken to depend on.
        inputs_from: How these were determined; None where the operation was not a backfill.
        fragments_gone: Fragments that concurrent writers removed; their values were not needed any
            more.
        rows_carried: Those of `rows` that concurrent writers had moved, or whose fragment they had
            changed: their values were carried over.
        rows_nulled: Rows given that are NULL in `version`, because their inputs changed meanwhile.
        rows_gone: Rows given whose value is in no fragment of `version`, mostly because they were
            deleted meanwhile. An upper bound where only some rows of a fragment were given.
        new_rows: Live rows of `version` in fragments that the snapshot did not have; they got no
            value from this job.
        rows_inserted: Rows that a merge added.
        rows_updated: Rows that an update or a merge changed.
        rows_deleted: Rows that a deletion or a merge removed.
    """

    uri: str
    operation: Literal["create", "append", "overwrite", "backfill", "refresh", "update", "delete", "merge", "index"]
    job_id: str
    version: int
    read_version: int | None
    rows: int
    fragments: int
    retries: int = 0
    columns: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    input_columns: tuple[str, ...] = ()
    inputs_from: InputsFrom | None = None
    fragments_gone: tuple[int, ...] = ()
    rows_carried: int = 0
    rows_nulled: int = 0
    rows_gone: int = 0
    new_rows: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0

    @property
    def text(self) -> str:
        """What it did, in words: `backfill of 1,000 rows in 4 fragments, version 3`."""
        changed = listed(
            (self.rows_inserted, "inserted"), (self.rows_updated, "updated"), (self.rows_deleted, "deleted")
        )
        done = changed or f"{counted(self.rows, 'row')} in {counted(self.fragments, 'fragment')}"
        return f"{self.operation} of {done}, version {self.version}"

    def at(self, version: int) -> CommitResult:
        """Returns the result of a commit that made a version."""
        return dataclasses.replace(self, version=version)

    def to_json(self) -> str:
        """Returns what is stamped into the transaction: all but the version, not known yet."""
        values = dataclasses.asdict(self)
        del values["version"], values["uri"]
        values["fragments_gone"] = list(self.fragments_gone[:_LISTED_FRAGMENTS])
        return json.dumps(values, sort_keys=True)

    @staticmethod
    def from_json(text: str, *, uri: str, version: int) -> CommitResult:
        """Returns the result of a summary. Keys that a newer release added are left out.

        Raises:
            ValueError: The text is no summary of lance-spark.
        """
        known = {field.name for field in dataclasses.fields(CommitResult)}
        read = {k: v for k, v in load_object(text, _SUMMARY_KINDS).items() if k in known}
        check_fields(read, dict.fromkeys(read.keys() & _COUNTS, int))
        check_fields(read, dict.fromkeys(read.keys() & _LISTS, list))
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
        return CommitResult(**{**values, "uri": uri, "version": version})


_SUMMARY_KINDS: Kinds = {
    "operation": str,
    "job_id": str,
    "read_version": (int, type(None)),
    "rows": int,
    "fragments": int,
}
_LISTS = frozenset({"columns", "added_columns", "input_columns", "fragments_gone"})
_COUNTS = frozenset(
    {"retries", "rows_carried", "rows_nulled", "rows_gone", "new_rows", "rows_inserted", "rows_updated", "rows_deleted"}
)
