"""Versions of a table, tags and branches: a part of the facade."""

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

    A tag is no version of its own. A cleanup keeps tagged versions. All tags of a table have
    different names, on all branches.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.tags.create("launch", 1)
        assert books.tags.list() == {"launch": 1}
        ```
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._ref = ref

    def list(self) -> dict[str, int]:
        """Returns the versions of this branch by tag, sorted by the names of the tags.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            assert books.tags.list() == {"launch": 1}
            ```
        """
        infos = tags_of(self._ref.open_latest())
        return {
            name: int(infos[name]["version"]) for name in sorted(infos) if infos[name]["branch"] == self._ref.branch
        }

    def get_version(self, tag: str) -> int:
        """Returns the version of a tag.

        Raises:
            VersionNotFoundError: The branch has no such tag.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            assert books.tags.get_version("launch") == 1
            ```
        """
        versions = self.list()
        if tag not in versions:
            raise self._unknown(tag, versions)
        return versions[tag]

    def create(self, tag: str, version: int | str) -> None:
        """Creates a tag.

        Args:
            tag: Name of the tag: ASCII letters, digits, `.`, `-` and `_`, and no number.
            version: A version, another tag, or `branch:number`.

        Raises:
            VersionNotFoundError: The table has no such version.
            OptionError: The name is not valid, or taken.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", books.version)
            assert "launch" in books.tags.list()
            ```
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
            VersionNotFoundError: The branch has no such tag, or no such version.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            books.delete("price > 50")
            books.tags.update("launch", 2)
            assert books.tags.get_version("launch") == 2
            ```
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
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            books.tags.delete("launch")
            assert books.tags.list() == {}
            ```
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
    """A version of a table: its operation, and the state of the table.

    Attributes:
        version: Number of the version.
        timestamp: Time of the commit, in UTC.
        operation: The operation: `create`, `append`, `overwrite`, `backfill`, `refresh`, `update`,
            `delete`, `merge`, `index`, `compaction`, `restore of version 3`, or a change of
            `columns` or `metadata`; `unknown` without a transaction.
        user: The user of the commit; None for other engines and for commits of Lance itself (new
            and renamed columns, compactions, updates of indexes).
        message: Message of the commit, or None.
        properties: Properties of the commit.
        job_id: The job of the commit, or None.
        rows_added: Number of added rows; None if unknown.
        rows_removed: Number of removed rows; None if unknown.
        rows: Rows of the table.
        fragments: Fragments of the table.
        bytes: Size of the data files of the version.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add([{"id": 10, "price": 100}], commit_message="one more")
        version = books.versions[-1]
        assert (version.version, version.rows_added, version.message) == (2, 1, "one more")
        ```
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
        """Summary of the version: `version 3: append by ann@host, 5 rows added`."""
        by = "" if self.user is None else f" by {self.user}"
        did = f"version {self.version}: {self.operation}{by}"
        return listed(
            did, (self.rows_added or 0, "rows added"), (self.rows_removed or 0, "rows removed"), self.message or ""
        )

    @staticmethod
    def of(dataset: lance.LanceDataset) -> TableVersion:
        """Returns the version of an open dataset. Reads its transaction."""
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
    """The versions of a table, oldest first. Made by `Table.versions`.

    One listing of the store returns the numbers. An access reads the manifest of a version, of
    about 200 bytes a fragment, and its transaction. So take the last versions of a table with many
    versions: `table.versions[-20:]`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.delete("price > 50")
        assert [version.rows for version in books.versions[-2:]] == [10, 6]
        ```
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._dataset = ref.open()
        self._numbers: list[int] = sorted(version_ref["version"] for version_ref in self._dataset.version_refs())

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
    """Returns the operation of a version without a summary."""
    operation: Any = event.operation
    if event.name == "Restore":
        return f"restore of version {operation.version}"
    return "create" if event.name == "Overwrite" and event.version == 1 else _OPERATIONS.get(event.name, event.name)


def _rows_changed(event: Event, ours: CommitResult | None, rows: int) -> tuple[int | None, int | None]:
    """Returns the number of added and of removed rows; None if unknown."""
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
        """The table, for changes.

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
        """Returns the table and its checked out version as a value for other processes.

        Example:
            ```python
            import pickle

            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            reference = pickle.loads(pickle.dumps(books.get_reference()))
            assert reference.open().count_rows() == 10
            ```
        """
        from lance_spark.table.reference import TableReference

        ref = self._shown
        is_other_branch = ref.uri != self.uri
        return TableReference(
            uri=self.uri,
            name=self.name,
            branch=self._latest.branch,
            version=f"{ref.branch or MAIN_BRANCH}:{ref.version}" if is_other_branch else ref.version,
            storage_options=self._latest.storage,
            checkpoint=self._checkpoint,
        )

    @property
    def versions(self) -> Versions:
        """The versions of the table, oldest first. An access reads a version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add([{"id": 10, "price": 100}])
            assert [version.operation for version in books.versions] == ["create", "append"]
            ```
        """
        return Versions(self._shown)

    @property
    def tags(self) -> Tags:
        """The tags of the versions of the branch.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            books.delete("price > 50")
            assert books.to_spark(version="launch").count() == 10
            ```
        """
        return Tags(self._latest)

    @property
    def branches(self) -> Branches:
        """The branches of the table.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            trial = books.branches.create("trial")
            trial.delete("price > 50")
            assert (trial.count_rows(), books.count_rows()) == (6, 10)
            ```
        """
        return Branches(self._latest, self._at)

    def current_branch(self) -> str | None:
        """Returns the branch for reads and writes; None is the main branch.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.current_branch() is None
            assert books.branches.create("trial").current_branch() == "trial"
            ```
        """
        return self._latest.branch

    @abstractmethod
    def _at(self, ref: DatasetRef) -> Table:
        """Returns the table at another branch."""

    def checkout(self, version: int | str) -> None:
        """Checks out an older version in this object. Changes then raise.

        `branches.checkout` returns the table at a branch, for reads and changes.

        Args:
            version: Its number on this branch, a tag, `branch:number`, or a branch for its latest
                version.

        Raises:
            VersionNotFoundError: The table has no such version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("price > 50")
            books.checkout(1)
            assert books.count_rows() == 10
            ```
        """
        self._shown = self._latest.pin(_checked(version))

    def checkout_latest(self) -> None:
        """Checks out the latest version of the table's own branch, and follows new versions.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("price > 50")
            books.checkout(1)
            books.checkout_latest()
            assert books.count_rows() == 6
            ```
        """
        self._shown = self._latest

    def restore(
        self,
        version: int | str | None = None,
        *,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Makes an older version the latest, as a new version, and checks it out.

        No data is copied, and the versions in between stay.

        Args:
            version: Its number, or a tag of this branch; None is the checked out version.
            commit_message: A message that the version keeps.
            properties: Texts by name that the version keeps.

        Raises:
            VersionNotFoundError: The table has no such version.
            OptionError: No version is given, and none is checked out.
            UnsupportedOperationError: The version belongs to another branch.
            CommitConflictError: Concurrent writers changed the table again and again.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("price > 50")
            books.restore(1)
            assert (books.count_rows(), books.version) == (10, 3)
            ```
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
        all_properties = dict(note.properties) | ({} if note.message is None else {MESSAGE_KEY: note.message})

        def make_latest(_: lance.LanceDataset) -> LanceOperation.BaseOperation:
            from lance import LanceOperation

            return LanceOperation.Restore(old.open().version)

        change_schema(self._latest, make_latest, properties=all_properties)
        self.checkout_latest()

    def read_transaction(self, version: int) -> Transaction | None:
        """Returns the transaction of a version as pylance reads it; None after a cleanup.

        Raises:
            VersionNotFoundError: The table has no such version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            print(books.read_transaction(1))
            ```
        """
        pinned = self._latest.pin(_checked(version))
        transaction: Transaction | None = pinned.open().read_transaction(pinned.version or 0)
        return transaction

    def diff(
        self, first: int | str, second: int | str | None = None, *, columns: str | Sequence[str] | None = None
    ) -> TableDiff:
        """Compares the rows of two versions by their values. Starts no Spark job.

        Tasks read the compared columns of fragments with different files or deleted rows, in a few
        batches at a time. Manifests exclude the other fragments.

        Args:
            first: The older version, or a tag.
            second: The newer version, of the same branch; None is the latest.
            columns: Names of the compared columns. None compares the columns of both versions,
                except columns of a UDF. A renamed or new column is left out. A value of another
                type is cast before the comparison.

        Returns:
            Three DataFrames with all columns of their version: inserted, updated and deleted rows.

        Raises:
            VersionNotFoundError: A version does not exist.
            ColumnNotFoundError: A version lacks a column of `columns`.
            OptionError: `columns` holds no names.
            StableRowIdsError: The table has no stable row ids.
            UnsupportedOperationError: The versions belong to two branches.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("price > 50")
            assert books.diff(1).deleted.count() == 4
            ```
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
