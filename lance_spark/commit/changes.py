"""Picklable requests and results of commits: the files written by a job, and their outcome.

This module does not touch storage. pylance itself pickles the Lance objects in the values
(fragments, data files).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.display import Displayable, join_counts
from lance_spark.errors import OptionError, counted
from lance_spark.options.io_options import WRITE_ID_PROPERTY, check_property
from lance_spark.rows.row_set import RowSet
from lance_spark.stored_json import Kinds, check_fields, load_object

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.app_transaction import AppTransaction, PendingTransaction

InputsFrom = Literal["option", "plan", "all"]
"""Source of a backfill's input columns: the option, the plan of the write, or all other columns."""

_LISTED_FRAGMENTS = 1000
"""Maximum number of fragment ids in a transaction's summary. Manifests keep the summary for the
lifetime of the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """The user's annotation of a commit: a message, properties by name, and a transaction."""

    message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    transaction: AppTransaction | None = None

    @staticmethod
    def of(
        message: str | None,
        properties: Mapping[str, str] | None,
        transaction: AppTransaction | None = None,
    ) -> CommitNote:
        """Validates the message and the properties.

        Raises:
            OptionError: A value is no text, or a name belongs to Lance or to this package.
        """
        if message is not None and not isinstance(message, str):
            raise OptionError("commit_message", message, "a text")
        for name, value in (properties or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise OptionError(f"properties[{name!r}]", value, "texts by names")
            check_property(name, value)
        pairs = tuple(sorted((properties or {}).items()))
        return CommitNote(message=message, properties=pairs, transaction=transaction)

    def with_write_id(self, write_id: str) -> CommitNote:
        """Returns the annotation with the id of a write."""
        return replace(self, properties=(*self.properties, (WRITE_ID_PROPERTY, write_id)))


NO_NOTE = CommitNote()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToCommit:
    """New rows, written as fragments not yet part of any version.

    Attributes:
        mode: `create` makes a new table; `append` adds to the table, or creates a missing table;
            `overwrite` makes a version of only these rows.
        fields: The fields with the ids in the fragments' data files: of the table at
            `read_version`, or as numbered by a new table.
        fragments: The fragments, in the order of their future ids.
        read_version: The version of the write's plan; None if no table existed.
        data_storage_version: File format of a new table. A new table with fragments has
            their format.
        transaction: The transaction of an application; None for other writes.
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
    transaction: PendingTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedColumns:
    """A column file in the table's `data` folder, not yet part of any version."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentColumns:
    """New values of columns for every physical row of one fragment, staged in one file.

    Attributes:
        fragment: The fragment as of the write of its values.
        staged: The file with all target columns, and exactly the fragment's number of
            physical rows.
        given: Rows with values from the job. For all other rows the file repeats the
            table's values.
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
        """Number of rows with values from the job."""
        return len(self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebasedColumns:
    """Values for moved or changed rows in one fragment of the latest version.

    Attributes:
        columns: The values, staged for this fragment; None if no value needs writing.
        carried: Number of rows with the job's value.
        nulled: Number of NULL rows: their inputs differ from the inputs of the computed value.
        covered: Number of the fragment's live rows from the snapshot.
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
        targets: The columns to write, with their identity in the snapshot; id -1 if the commit adds
            the column.
        new_columns: Arrow fields of the columns to add, in the order of `targets`.
        inputs: The input columns of the values, as of the snapshot.
        advice: The last sentences of an error: what was committed, and what to do.
        by_name: Whether the values fit any target of the same id, name and type. A load matches by
            key, so an unknown history of its column does no harm.
        transaction: The transaction of an application; None for other writes.
    """

    read_version: int
    targets: tuple[FieldIdentity, ...]
    new_columns: pa.Schema
    inputs: tuple[FieldIdentity, ...]
    inputs_from: InputsFrom
    fragments: tuple[FragmentColumns, ...]
    commit_message: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    advice: str = "Nothing was committed. Read the table again and write again."
    by_name: bool = False
    transaction: PendingTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToReplace:
    """Rows to delete and rows to add, in one version.

    Attributes:
        read_version: The only version that the deletions apply to.
        updated: Fragments of this version with more rows deleted.
        removed: Ids of fragments without remaining rows.
        fragments: New fragments.
        rows: Number of rows in the new fragments.
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
        """Whether the commit deletes any row."""
        return bool(self.updated or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentKeys:
    """Keys that a merge did not find. A commit that adds or removes keys invalidates the merge.

    Attributes:
        fields: Ids of the fields compared by the merge.
        after_appends: Whether a concurrent append makes the merge run again. If not, the appended
            rows count as appended after the merge.
    """

    fields: frozenset[int]
    after_appends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEdits:
    """The edits of one statement to the rows of a version.

    Attributes:
        read_version: The version read by the statement.
        fields: The columns of this version.
        before: The edited fragments before the edits, by id.
        updated: Remaining edited fragments, with more rows deleted, or other column files.
        removed: Ids of edited fragments without remaining rows.
        new: New fragments. Fragments of moved rows carry the row ids.
        modified: Ids of the fields with new column files; empty if rows move.
        offsets: Rows of each fragment with new values in the column files, as roaring bitmaps.
        predicate: The condition of a deletion, as Lance SQL.
        reads_others: Whether the edit of a row may depend on rows of other fragments, as with a
            subquery over the table.
        absence: Knowledge of keys absent from the table; None if the edits do not depend on
            absent keys.
        transaction: The transaction of an application; None for other statements.
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
    transaction: PendingTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommitResult(Displayable):
    """The result of a commit.

    Attributes:
        uri: Location of the table.
        operation: `create`, `append`, `overwrite`, `backfill`, `refresh`, `update`, `delete`,
            `merge` or `index`.
        job_id: Id of the job, as stamped into the transaction.
        version: The new version. If a backfill has no fragment left to write to, the latest version
            of its round.
        read_version: The version that the job read; None if no table existed.
        rows: Rows written. For a backfill, rows whose value is in `version`.
        fragments: Number of fragments written to.
        retries: Number of retries of the commit.
        columns: Columns filled by a backfill.
        added_columns: Subset of `columns` added by the backfill.
        input_columns: Assumed input columns of the values.
        inputs_from: Source of `input_columns`; None if the operation was not a backfill.
        fragments_gone: Fragments removed by concurrent writers, whose values became unnecessary.
        rows_carried: Subset of `rows` moved by concurrent writers, or in fragments changed by
            concurrent writers. The commit carried over their values.
        rows_nulled: Rows of the job that are NULL in `version`, because their inputs
            changed concurrently.
        rows_gone: Rows of the job whose value is in no fragment of `version`, mostly because
            of concurrent deletions. An upper bound if the job gave values for only some rows
            of a fragment.
        new_rows: Live rows of `version` in fragments absent from the snapshot, without a value from
            this job.
        rows_inserted: Rows added by a merge.
        rows_updated: Rows changed by an update or a merge.
        rows_deleted: Rows removed by a deletion or a merge.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.update(where="id = 3", values={"price": 0})
        commit = lance_spark.last_commit("library/books.lance")
        print(commit.operation, commit.rows_updated)  # update 1
        ```
    """

    uri: str
    operation: Literal[
        "create", "append", "overwrite", "backfill", "refresh", "update", "delete", "merge", "index"
    ]
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
        """Summary of the commit, such as `backfill of 1,000 rows in 4 fragments, version 3`."""
        row_counts = join_counts(
            (self.rows_inserted, "inserted"),
            (self.rows_updated, "updated"),
            (self.rows_deleted, "deleted"),
        )
        size = row_counts or f"{counted(self.rows, 'row')} in {counted(self.fragments, 'fragment')}"
        return f"{self.operation} of {size}, version {self.version}"

    def at(self, version: int) -> CommitResult:
        """Returns the result with the version of the commit."""
        return dataclasses.replace(self, version=version)

    def to_json(self) -> str:
        """Returns the transaction's summary, without the location and the still unknown version."""
        values = dataclasses.asdict(self)
        del values["version"], values["uri"]
        values["fragments_gone"] = list(self.fragments_gone[:_LISTED_FRAGMENTS])
        return json.dumps(values, sort_keys=True)

    @staticmethod
    def from_json(text: str, *, uri: str, version: int) -> CommitResult:
        """Returns the result of a summary. Keys from a newer release are dropped.

        Raises:
            ValueError: The text is no summary of lance-spark.
        """
        names = {field.name for field in dataclasses.fields(CommitResult)}
        read = {k: v for k, v in load_object(text, _SUMMARY_KINDS).items() if k in names}
        check_fields(read, dict.fromkeys(read.keys() & _COUNTS, int))
        check_fields(read, dict.fromkeys(read.keys() & _LISTS, list))
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in read.items()
        }
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
    {
        "retries",
        "rows_carried",
        "rows_nulled",
        "rows_gone",
        "new_rows",
        "rows_inserted",
        "rows_updated",
        "rows_deleted",
    }
)
