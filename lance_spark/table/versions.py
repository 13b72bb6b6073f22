"""Methods of a table for its versions, tags and branches: a part of the facade."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from lance_spark.backfill.request import columns_of
from lance_spark.changes.by_path import open_changes
from lance_spark.commit.changes import CommitNote
from lance_spark.commit.conflicts.history import MESSAGE_KEY
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import MAIN_BRANCH, DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.namespaces.reference import NamespaceTable
from lance_spark.table.branches import Branches
from lance_spark.versions.differences import TableDiff, check_comparable, diff_versions
from lance_spark.versions.tags import Tags
from lance_spark.versions.versions import Versions

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation, Transaction

    from lance_spark.table.reference import TableReference
    from lance_spark.table.table import Table


class TableVersions(ABC):
    """The methods of :class:`lance_spark.Table` for its versions."""

    name: str
    uri: str
    _latest: DatasetRef
    _shown: DatasetRef
    _spark: Callable[[], SparkSession]
    _query_spark: Callable[[], SparkSession]
    _checkpoint: str | None
    _progress: bool | None

    @property
    def _ref(self) -> DatasetRef:
        """The table, for changes.

        Raises:
            UnsupportedOperationError: An older version is checked out.
        """
        if self._shown.version is not None:
            raise UnsupportedOperationError(
                f"Version {self._shown.version} of {self.uri} is checked out, and only the latest version can be "
                "changed. Call checkout_latest(), or make this version the latest with restore()."
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
        table = NamespaceTable.of(self._latest.storage)
        return TableReference(
            uri=self.uri,
            name=self.name,
            branch=self._latest.branch,
            version=f"{ref.branch or MAIN_BRANCH}:{ref.version}"
            if is_other_branch
            else ref.version,
            storage_options=self._latest.storage,
            checkpoint=self._checkpoint,
            namespace_client_impl=None if table is None else table.client.implementation,
            table_id=None if table is None else table.table_id,
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

    def list_versions(self) -> list[dict[str, Any]]:
        """Returns number, time and metadata of each version, as LanceDB does. Reads all manifests.

        :attr:`versions` has the operations, too.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add([{"id": 10, "price": 100}])
            assert [version["version"] for version in books.list_versions()] == [1, 2]
            ```
        """
        return [dict(version) for version in self._latest.open_latest().versions()]

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
        self._shown = self._latest.pin(_check_version(version))

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
            commit_message: Message of the version.
            properties: Properties of the version: texts by name.

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
            raise OptionError(
                "version", None, "a version or a tag, or none where one is checked out"
            )
        old = self._shown if version is None else self._latest.pin(_check_version(version))
        if old.uri != self._latest.uri:
            raise UnsupportedOperationError(
                f"{old!r} is a version of another branch, so {self.uri} cannot be restored to it. Nothing was "
                f"changed. Open the other branch with branches.checkout({(old.branch or MAIN_BRANCH)!r}), or start a "
                "new branch at the version with branches.create."
            )
        note = CommitNote.of(commit_message, properties)
        all_properties = dict(note.properties) | (
            {} if note.message is None else {MESSAGE_KEY: note.message}
        )

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
        pinned = self._latest.pin(_check_version(version))
        transaction: Transaction | None = pinned.open().read_transaction(pinned.version or 0)
        return transaction

    def diff(
        self,
        first: int | str,
        second: int | str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
    ) -> TableDiff:
        """Compares the rows of two versions by their values. Starts no Spark job.

        Tasks read the compared columns of fragments with different files or deleted rows, in a few
        batches at a time. Manifests exclude the other fragments.

        Args:
            first: The older version, or a tag.
            second: The newer version, of the same branch; None is the latest.
            columns: Names of the compared columns. None compares the columns of both versions,
                except columns of a UDF. A renamed or new column is left out. A value of another
                type is cast before the comparison. A backfill of a compared column updates rows.

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
        before = self._latest.pin(_check_version(first), option="first")
        after = self._latest.pin(
            None if second is None else _check_version(second), option="second"
        )
        check_comparable(before, after)
        return diff_versions(
            self._query_spark(), before, after, None if columns is None else columns_of(columns)
        )

    def changes(
        self,
        first: int | str,
        last: int | str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        filter: str | None = None,
        net: bool = False,
    ) -> DataFrame:
        """Returns the changes of the rows in each of some versions. Starts no Spark job.

        A row of the DataFrame is a row that a version inserted, deleted or updated. An updated row
        comes twice: with its values before, and with its values after the version. The additional
        columns are `_rowid`, `_change_type` (`insert`, `delete`, `update_preimage` or
        `update_postimage`), `_commit_version` and `_commit_timestamp`.

        A row is an update only if a value of the columns differs. A compaction, an index, or a
        backfill of other columns changes no row. Tasks read only fragments with different files or
        deleted rows.

        Args:
            first: The first version, or a tag.
            last: The last version, or a tag; None is the latest.
            columns: Names of the columns; None takes all columns of the last version.
            filter: Condition in Lance SQL. A row that begins to match is an insert, and a row that
                ceases to match is a delete.
            net: Whether to compare the last version with the version before the first one. Rows
                that came and went in between are left out.

        Raises:
            VersionNotFoundError: A version does not exist.
            ChangeFeedError: A version was cleaned up, or the table has no stable row ids and a
                version did not only append rows.
            ColumnNotFoundError, FilterError: The last version lacks a column, or the filter is not
                valid.
            OptionError: `last` is before `first`.
            UnsupportedOperationError: A version belongs to another branch.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.update("id = 3", values={"price": 0})
            books.delete("id = 4")
            changes = books.changes(2, 3, columns=["id"]).collect()
            assert [(row.id, row._change_type) for row in changes] == [(4, "delete")]
            ```
        """
        start = self._version_on_branch(first, "first")
        end = self._latest if last is None else self._version_on_branch(last, "last")
        settings = {
            "change_feed": "true",
            "startingVersion": str(start.version),
            "deduplicationMode": "netChanges" if net else "dropCarryovers",
            "with_row_id": "true",
            **end.storage_settings,
            **({} if end.version is None else {"endingVersion": str(end.version)}),
            **({} if columns is None else {"columns": json.dumps(columns_of(columns))}),
            **({} if filter is None else {"filter": filter}),
        }
        # Spark would raise these errors as errors of its own.
        open_changes({"path": end.uri, **settings})
        return self._query_spark().read.format("lance").options(**settings).load(end.uri)

    def _version_on_branch(self, version: int | str, option: str) -> DatasetRef:
        pinned = self._latest.pin(_check_version(version), option=option)
        if pinned.uri != self._latest.uri:
            raise UnsupportedOperationError(
                f"{pinned!r} is a version of another branch than {self._latest!r}. Open the other branch with "
                f"branches.checkout({(pinned.branch or MAIN_BRANCH)!r})."
            )
        return pinned


def _check_version(version: int | str) -> int | str:
    if isinstance(version, bool) or not isinstance(version, (int, str)):
        raise OptionError("version", version, "the number of a version, or a tag")
    return version
