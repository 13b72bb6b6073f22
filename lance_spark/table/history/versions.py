"""Versions of a table, tags and branches: a part of its facade."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.backfill.request import columns_of
from lance_spark.commit.changes import CommitNote, CommitResult
from lance_spark.commit.conflicts import history
from lance_spark.commit.conflicts.history import JOB_KEY, MESSAGE_KEY, USER_KEY, Event, event_of, summary_of
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import MAIN_BRANCH, DatasetRef, branches_of, moment_of, tags_of
from lance_spark.errors import (
    OptionError,
    StableRowIdsError,
    UnsupportedOperationError,
    VersionNotFoundError,
    refusals_as_errors,
)
from lance_spark.lance_compat import is_missing, plain, version_of
from lance_spark.options import OWN_PROPERTIES
from lance_spark.table.history.branches import Branches
from lance_spark.table.history.differences import TableDiff, diff_of
from lance_spark.table.history.names import check_tag_name, is_possible_tag
from lance_spark.words import InWords, listed

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation, Transaction

    from lance_spark.table.reference import TableReference
    from lance_spark.table.table import Table

last_commit = ARGUMENTS.function(history.last_commit)
"""The public form: commits run in processes of Spark, which check no arguments."""

_OPERATIONS = {
    "Append": "append",
    "Overwrite": "overwrite",
    "Delete": "delete",
    "Update": "update",
    "Merge": "columns",
    "Project": "columns",
    "DataReplacement": "backfill",
    "Rewrite": "compaction",
    "CreateIndex": "index",
    "UpdateConfig": "metadata",
    "Clone": "clone",
}
_OF_NO_ROWS = ("Merge", "Project", "DataReplacement", "Rewrite", "CreateIndex", "UpdateConfig", "Clone")


@ARGUMENTS.methods
class Tags:
    """The tags of a table's branch: names of versions. Made by :attr:`lance_spark.Table.tags`.

    A tag is no version of its own; a version with a tag is not cleaned up. No two tags of a table
    have the same name, whatever branch they are of.
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._ref = ref

    def list(self) -> dict[str, int]:
        """Returns the versions of this branch by the names of their tags, sorted."""
        found = tags_of(self._ref.open_latest())
        return {
            name: int(found[name]["version"]) for name in sorted(found) if found[name]["branch"] == self._ref.branch
        }

    def get_version(self, tag: str) -> int:
        """Returns the version of a tag.

        Raises:
            VersionNotFoundError: There is no such tag.
        """
        found = self.list()
        if tag not in found:
            raise self._unknown(tag, found)
        return found[tag]

    def create(self, tag: str, version: int | str) -> None:
        """Makes a tag.

        Args:
            tag: Its name: ASCII letters, digits, `.`, `-` and `_`, and no number.
            version: A version, another tag of it, or `branch:number`.

        Raises:
            VersionNotFoundError: There is no such version.
            OptionError: The name is not valid, or taken.
            TableUnwritableError: The store refused.
        """
        head = self._of_branch(version)
        with refusals_as_errors(self._ref.uri):
            check_tag_name(tag, branches_of(head))
            try:
                head.tags.create(tag, head.version)
            except (ValueError, OSError, TypeError) as error:
                if isinstance(error, OSError) and not is_missing(error):
                    raise
                raise OptionError("tag", tag, f"a name that is valid, and not taken ({plain(error)})") from error

    def update(self, tag: str, version: int | str) -> None:
        """Moves a tag to a version.

        Raises:
            VersionNotFoundError: There is no such tag, or no such version.
            TableUnwritableError: The store refused.
        """
        self.get_version(tag)
        head = self._of_branch(version)
        with self._changing(tag):
            head.tags.update(tag, head.version)

    def delete(self, tag: str) -> None:
        """Deletes a tag; the version stays until it is cleaned up.

        A tag that another writer gave a name with letters outside ASCII is deleted too. Lance can
        list no tags of the table until then.

        Raises:
            VersionNotFoundError: There is no such tag.
            TableUnwritableError: The store refused.

        Example:
            >>> table.tags.delete("gold")  # doctest: +SKIP
        """
        if str(tag).isascii():
            self.get_version(tag)
        elif not is_possible_tag(tag):
            raise VersionNotFoundError(self._ref.uri, tag, available="Lance has no tag with such a character")
        with self._changing(tag):
            self._ref.open_latest().tags.delete(tag)

    def _of_branch(self, version: int | str) -> lance.LanceDataset:
        """Returns a version, open: Lance's tags are of the branch that they are made through."""
        return self._ref.pin(version).open()

    @contextlib.contextmanager
    def _changing(self, tag: str) -> Iterator[None]:
        """Turns what Lance says of a change of a tag that was there into errors of ours."""
        with refusals_as_errors(self._ref.uri):
            try:
                yield
            except ValueError as error:  # the tag, or the version, was deleted in this moment
                raise VersionNotFoundError(self._ref.uri, tag, available=plain(error)) from error

    def _unknown(self, tag: str, found: dict[str, int]) -> VersionNotFoundError:
        names = f"its tags are {', '.join(found)}" if found else "it has no tags"
        return VersionNotFoundError(self._ref.uri, tag, available=names)

    def __repr__(self) -> str:
        return f"Tags({self.list()})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableVersion(InWords):
    """A version of a table: what it did, and what there was then.

    Attributes:
        version: Its number.
        timestamp: When it was committed, in UTC.
        operation: What it did: `create`, `append`, `overwrite`, `backfill`, `refresh`, `update`,
            `delete`, `merge`, `index`, `compaction`, `restore of version 3`, or a change of
            `columns` or `metadata`; `unknown` where nothing says so any more.
        user: Who committed it; None where its writer does not say so: other engines, and changes
            whose commits Lance makes by itself (new and renamed columns, compactions, updates of
            indexes).
        message: Message of the commit, or None.
        properties: Properties that were given for it.
        job_id: The job that committed it, or None.
        rows_added: Rows that it added; None where nothing says how many.
        rows_removed: Rows that it removed; None where nothing says how many.
        rows: Rows of the table.
        fragments: Fragments of the table.
        bytes: Size of the data files that it names.
    """

    version: int
    timestamp: datetime
    operation: str
    user: str | None
    message: str | None
    properties: dict[str, str]
    job_id: str | None
    rows_added: int | None
    rows_removed: int | None
    rows: int
    fragments: int
    bytes: int

    @property
    def text(self) -> str:
        """What it did, in words: `version 3: append by ann@host, 5 rows added`."""
        by = "" if self.user is None else f" by {self.user}"
        did = f"version {self.version}: {self.operation}{by}"
        return listed(
            did, (self.rows_added or 0, "rows added"), (self.rows_removed or 0, "rows removed"), self.message or ""
        )

    @staticmethod
    def of(dataset: lance.LanceDataset) -> TableVersion:
        """Returns the version that a dataset is open at. Reads its transaction."""
        event = event_of(dataset, dataset.version)
        ours = summary_of(event, dataset.uri)
        numbers = version_of(dataset)["metadata"]
        added, removed = _rows_changed(event, ours, int(numbers["total_rows"]))
        return TableVersion(
            version=dataset.version,
            timestamp=moment_of(version_of(dataset)),
            operation=_operation(event) if ours is None else ours.operation,
            user=event.properties.get(USER_KEY),
            message=event.properties.get(MESSAGE_KEY),
            properties={name: text for name, text in event.properties.items() if not name.startswith(OWN_PROPERTIES)},
            job_id=event.properties.get(JOB_KEY),
            rows_added=added,
            rows_removed=removed,
            rows=int(numbers["total_rows"]),
            fragments=int(numbers["total_fragments"]),
            bytes=int(numbers["total_files_size"]),
        )


class Versions(Sequence[TableVersion]):
    """The versions of a table that are kept, oldest first. Made by `Table.versions`.

    Their numbers are listed once, by one listing of the store. Each version is read when it is
    asked for: its manifest, of about 200 bytes a fragment, and its transaction. So of a table of
    many versions take the last ones: `table.versions[-20:]`.
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._dataset = ref.open()
        self._numbers: list[int] = sorted(one["version"] for one in self._dataset.version_refs())

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> TableVersion: ...
    @overload
    def __getitem__(self, index: slice) -> list[TableVersion]: ...
    def __getitem__(self, index: int | slice) -> TableVersion | list[TableVersion]:
        if isinstance(index, slice):
            return [self._read(number) for number in self._numbers[index]]
        return self._read(self._numbers[index])

    def _read(self, number: int) -> TableVersion:
        try:
            return TableVersion.of(self._dataset.checkout_version(number))
        except (OSError, ValueError) as error:
            available = f"it was there a moment ago ({plain(error)})"
            raise VersionNotFoundError(self._dataset.uri, str(number), available=available) from error

    def __repr__(self) -> str:
        return f"<Versions: {self._numbers[0]} to {self._numbers[-1]}, {len(self)} kept>"


def _operation(event: Event) -> str:
    """Returns in words what a version did that has no summary of ours."""
    operation: Any = event.operation
    if event.name == "Restore":
        return f"restore of version {operation.version}"
    return "create" if event.name == "Overwrite" and event.version == 1 else _OPERATIONS.get(event.name, event.name)


def _rows_changed(event: Event, ours: CommitResult | None, rows: int) -> tuple[int | None, int | None]:
    """Returns how many rows a version added and removed, as far as its transaction says so."""
    operation: Any = event.operation
    if ours is not None and ours.operation in ("update", "delete", "merge"):
        return ours.rows_inserted, ours.rows_deleted
    if event.name in _OF_NO_ROWS:
        return 0, 0
    if event.name == "Append":
        return sum(fragment.physical_rows for fragment in operation.fragments), 0
    if event.name == "Overwrite":
        return rows, 0 if event.version == 1 else None
    return None, None


class TableVersions(ABC):
    """The methods of :class:`lance_spark.Table` for its versions."""

    name: str
    uri: str
    _latest: DatasetRef
    _shown: DatasetRef
    _checkpoint: str | None
    _query_spark: Callable[[], SparkSession]

    @property
    def _ref(self) -> DatasetRef:
        """The table, for what may change it.

        Raises:
            UnsupportedOperationError: An older version is checked out.
        """
        if self._shown.version is not None:
            raise UnsupportedOperationError(
                f"version {self._shown.version} is checked out, and only the latest version can be changed - "
                f"{self.uri} - call checkout_latest(), or restore() to make this one the latest"
            )
        return self._latest

    def get_reference(self) -> TableReference:
        """Returns the table, and what is checked out, as a value for other processes."""
        from lance_spark.table.reference import TableReference

        shown = self._shown
        elsewhere = shown.uri != self.uri
        return TableReference(
            uri=self.uri,
            name=self.name,
            branch=self._latest.branch,
            version=f"{shown.branch or MAIN_BRANCH}:{shown.version}" if elsewhere else shown.version,
            storage_options=self._latest.storage,
            checkpoint=self._checkpoint,
        )

    @property
    def versions(self) -> Versions:
        """The versions that are kept, oldest first; each is read when it is asked for."""
        return Versions(self._shown)

    @property
    def tags(self) -> Tags:
        """The tags of the table, of versions of its branch."""
        return Tags(self._latest)

    @property
    def branches(self) -> Branches:
        """The branches of the table."""
        return Branches(self._latest, self._at)

    def current_branch(self) -> str | None:
        """Returns the branch that is read and written; None is the main one."""
        return self._latest.branch

    @abstractmethod
    def _at(self, ref: DatasetRef) -> Table:
        """Returns the table at another branch."""

    def checkout(self, version: int | str) -> None:
        """Shows an older version from now on, in this object; changes are refused then.

        `branches.checkout` returns the table at a branch, which can be changed.

        Args:
            version: Its number on this branch, a tag, `branch:number`, or the name of a branch for
                its latest version.

        Raises:
            VersionNotFoundError: There is no such version.
        """
        self._shown = self._latest.pin(_checked(version))

    def checkout_latest(self) -> None:
        """Shows the latest version of the table's own branch again, and follows it."""
        self._shown = self._latest

    def restore(
        self,
        version: int | str | None = None,
        *,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Makes an older version the latest, as a new version, which this object shows then.

        No data is copied, and the versions in between stay.

        Args:
            version: Its number, or a tag of this branch; None is the one that is checked out.
            commit_message: Kept with the version.
            properties: Kept with the version, too: texts by names.

        Raises:
            VersionNotFoundError: There is no such version.
            OptionError: None is given, and none is checked out.
            UnsupportedOperationError: It is a version of another branch.
            CommitConflictError: Other writers kept changing the table first.
        """
        if version is None and self._shown.version is None:
            raise OptionError("version", None, "a version or a tag, or none where one is checked out")
        old = self._shown if version is None else self._latest.pin(_checked(version))
        if old.uri != self._latest.uri:
            raise UnsupportedOperationError(
                f"{old!r} is of another branch, and a branch goes back to versions of its own - {self.uri} - nothing "
                f"was changed; branches.checkout({(old.branch or MAIN_BRANCH)!r}) returns the table there, and "
                "branches.create makes a branch of any version"
            )
        note = CommitNote.of(commit_message, properties)
        given = dict(note.properties) | ({} if note.message is None else {MESSAGE_KEY: note.message})

        def make_latest(_: lance.LanceDataset) -> LanceOperation.BaseOperation:
            from lance import LanceOperation

            return LanceOperation.Restore(old.open().version)

        change_schema(self._latest, make_latest, properties=given)
        self.checkout_latest()

    def read_transaction(self, version: int) -> Transaction | None:
        """Returns what a version did, as pylance has it; None where that was cleaned up.

        Raises:
            VersionNotFoundError: There is no such version.
        """
        pinned = self._latest.pin(_checked(version))
        found: Transaction | None = pinned.open().read_transaction(pinned.version or 0)
        return found

    def diff(
        self, first: int | str, second: int | str | None = None, *, columns: str | Sequence[str] | None = None
    ) -> TableDiff:
        """Compares the rows of two versions by their values. Starts no Spark job.

        Tasks read the compared columns of fragments whose files or deleted rows differ, in a few
        batches at a time. The other fragments are left out by the manifests.

        Args:
            first: The older version, or a tag.
            second: The newer version, of the same branch; None is the latest.
            columns: Names of the compared columns. None compares the columns that both versions
                have, except columns that a UDF computes. A column of another name or a new column
                is left out. A value of a column with another type is cast before it is compared.

        Returns:
            Three DataFrames with all columns of their version: inserted, updated and deleted rows.

        Raises:
            VersionNotFoundError: A version does not exist.
            ColumnNotFoundError: A version lacks a column of `columns`.
            OptionError: `columns` holds no names.
            StableRowIdsError: The table has no stable row ids.
            UnsupportedOperationError: The versions belong to two branches.

        Example:
            >>> changes = table.diff("launch", columns=["price"])
            >>> changes.updated.select("id", "price").show()
        """
        before, after = (
            self._latest.pin(_checked(first), option="first"),
            self._latest.pin(None if second is None else _checked(second), option="second"),
        )
        if before.uri != after.uri:
            raise UnsupportedOperationError(
                f"{before!r} and {after!r} are of two branches, which give the same ids to new rows - nothing was read "
                "- compare versions of one branch, or by a key with exceptAll of two DataFrames"
            )
        for ref in (before, after):
            if not ref.open().has_stable_row_ids:
                raise StableRowIdsError(
                    f"rows have no stable ids, so nothing tells which row is which - {self.uri}, version {ref.version} "
                    "- write the table anew with enable_stable_row_ids=True",
                    uri=self.uri,
                )
        return diff_of(self._query_spark(), before, after, None if columns is None else columns_of(columns))


def _checked(version: int | str) -> int | str:
    if isinstance(version, bool) or not isinstance(version, (int, str)):
        raise OptionError("version", version, "the number of a version, or a tag")
    return version
