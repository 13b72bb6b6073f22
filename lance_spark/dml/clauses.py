"""What a merge does with rows, described step by step: :class:`MergeInsertBuilder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lance_spark.arguments import ARGUMENTS
from lance_spark.commit.changes import CommitNote
from lance_spark.dml.result import ChangeResult
from lance_spark.errors import OptionError
from lance_spark.tabular import Data


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClauses:
    """What a merge does with rows.

    Attributes:
        on: Key columns; NULL in one of them matches nothing.
        updates: Whether rows that match are set to the source's.
        update_where: Further condition for that.
        inserts: Whether the source's rows that match none are added.
        deletes: Whether the table's rows that match none are deleted.
        delete_where: Further condition for that.
    """

    on: tuple[str, ...]
    updates: bool = False
    update_where: str | None = None
    inserts: bool = False
    deletes: bool = False
    delete_where: str | None = None


@ARGUMENTS.methods
class MergeInsertBuilder:
    """A merge that is being described. Made by :meth:`lance_spark.Table.merge_insert`.

    Nothing is read before :meth:`execute`. Conditions are evaluated by Spark, because they may name
    columns of both sides, as `source.price < target.price`.
    """

    def __init__(
        self, clauses: MergeClauses, execute: Callable[[MergeClauses, Data, CommitNote], ChangeResult]
    ) -> None:
        self._clauses = clauses
        self._execute = execute

    def when_matched_update_all(self, where: str | None = None) -> MergeInsertBuilder:
        """Sets rows whose key the source has to the source's columns; others keep their values.

        Args:
            where: Further condition, in Spark SQL over `source` and `target`.
        """
        return self._with(replace(self._clauses, updates=True, update_where=_checked(where)))

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Adds the source's rows whose key the table does not have."""
        return self._with(replace(self._clauses, inserts=True))

    def when_not_matched_by_source_delete(self, where: str | None = None) -> MergeInsertBuilder:
        """Deletes the table's rows whose key the source does not have.

        Args:
            where: Further condition, in Spark SQL over `target`.
        """
        return self._with(replace(self._clauses, deletes=True, delete_where=_checked(where)))

    def execute(
        self, data: Data, *, commit_message: str | None = None, properties: Mapping[str, str] | None = None
    ) -> ChangeResult:
        """Merges a source into the table, as one version.

        Spark joins keys with the table's, and tasks write new rows, rows that change to new
        fragments, and which rows are gone. Row ids stay. Where concurrent commits moved or changed
        rows that are concerned, the whole is done again at the latest version. Memory: that of
        Spark's join, and some batches in each task.

        Args:
            data: Source: a Spark DataFrame of any size, or what `Table.add` takes. Columns that the
                table has and it has not stay as they are, and are NULL in new rows.
            commit_message: Kept with the version.
            properties: Kept with the version, too: texts by names.

        Raises:
            OptionError: No clause was given, or a condition is not valid.
            ColumnNotFoundError: A key is no column of the table or of the source.
            SchemaMismatchError, ValueConversionError: The source does not fit the table.
            MergeError: Several rows of the source match one row.
            UnsupportedOperationError: Rows that change would have to take blobs along.
            CommitConflictError: Other writers kept coming first. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.
        """
        if not (self._clauses.updates or self._clauses.inserts or self._clauses.deletes):
            accepted = "a clause first: when_matched_update_all, when_not_matched_insert_all, ..."
            raise OptionError("merge_insert", None, accepted)
        return self._execute(self._clauses, data, CommitNote.of(commit_message, properties))

    def _with(self, clauses: MergeClauses) -> MergeInsertBuilder:
        return MergeInsertBuilder(clauses, self._execute)


def _checked(where: str | None) -> str | None:
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise OptionError("where", where, "a condition in Spark SQL, such as source.a > target.a")
    return where
