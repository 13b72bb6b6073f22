"""The clauses of a merge, and their builder: :class:`MergeInsertBuilder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from lance_spark.arguments import ARGUMENTS
from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.changes import CommitNote
from lance_spark.dml.results import ChangeResult
from lance_spark.errors import OptionError
from lance_spark.ingest.rows import Data
from lance_spark.ingest.vectors import OnBadVectors, VectorRepair


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClauses:
    """The clauses of a merge.

    Attributes:
        on: Key columns. A NULL key has no match.
        updates: Whether matched rows of the table get the source's values.
        update_where: Further condition for updates.
        inserts: Whether unmatched rows of the source are added.
        deletes: Whether unmatched rows of the table are deleted.
        delete_where: Further condition for deletions.
    """

    on: tuple[str, ...]
    updates: bool = False
    update_where: str | None = None
    inserts: bool = False
    deletes: bool = False
    delete_where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """The source of a merge.

    Attributes:
        data: The rows.
        on_bad_vectors: What happens to rows with a bad vector.
        fill_value: The number for `fill`.
    """

    data: Data
    on_bad_vectors: OnBadVectors
    fill_value: float

    def repaired(self, schema: pa.Schema) -> Data:
        """Returns the rows with repaired vectors for a table.

        Raises:
            OptionError: An argument is not valid.
        """
        repair = VectorRepair.of(self.on_bad_vectors, self.fill_value, schema, is_new=False)
        rows: Data = self.data if repair is None else repair.repair(self.data)
        return rows


@ARGUMENTS.methods
class MergeInsertBuilder:
    """Builder of a merge, from :meth:`lance_spark.Table.merge_insert`.

    :meth:`execute` runs the merge. Spark evaluates the conditions, because they may name columns of
    both sides: `source.price < target.price`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        merge = books.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        result = merge.execute([{"id": 9, "price": 5}, {"id": 10, "price": 7}])
        print(result.rows_updated, result.rows_inserted)  # 1 1
        ```
    """

    def __init__(
        self,
        clauses: MergeClauses,
        execute: Callable[[MergeClauses, MergeInput, CommitNote, timedelta | None], ChangeResult],
    ) -> None:
        self._clauses = clauses
        self._execute = execute

    def when_matched_update_all(self, where: str | None = None) -> MergeInsertBuilder:
        """Updates rows with a match in the source. Columns missing in the source keep their values.

        Args:
            where: Further condition, in Spark SQL over `source` and `target`.
        """
        return self._with(
            replace(self._clauses, updates=True, update_where=_check_condition(where))
        )

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Adds the source's rows without a match in the table."""
        return self._with(replace(self._clauses, inserts=True))

    def when_not_matched_by_source_delete(self, where: str | None = None) -> MergeInsertBuilder:
        """Deletes the table's rows without a match in the source.

        Args:
            where: Further condition, in Spark SQL over the table; `target.price` is `price`.
        """
        return self._with(
            replace(self._clauses, deletes=True, delete_where=_check_condition(where))
        )

    def execute(
        self,
        data: Data,
        on_bad_vectors: OnBadVectors = "error",
        fill_value: float = 0.0,
        *,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
        txn_app_id: str | None = None,
        txn_version: int | None = None,
        timeout: timedelta | None = None,
    ) -> ChangeResult:
        """Merges a source into the table, as one version.

        Spark joins the keys of both sides. Tasks write new and changed rows to new fragments, and
        write deletions. Rows keep their ids. If concurrent commits moved or changed affected rows,
        the merge runs again at the latest version. Memory: Spark's join, and some batches in each
        task.

        Args:
            data: Source: a Spark DataFrame of any size, or any data of `Table.add`. Columns missing
                in the source keep their values, and are NULL in new rows.
            on_bad_vectors: As in :meth:`lance_spark.Table.add`.
            fill_value: The number for `fill`.
            commit_message: Message of the version.
            properties: Properties of the version: texts by names.
            txn_app_id: Id of the application that writes each of its transactions once, such as the
                id of a streaming query. Needs `txn_version`.
            txn_version: Number of the transaction, such as the id of a micro-batch. The call
                returns the earlier result if the transaction was committed before.
            timeout: Maximum time until the commit begins. Spark's tasks end at this time.

        Raises:
            MergeTimeoutError: The commit did not begin in time. Nothing was changed.
            OptionError: The merge has no clause, or a condition is not valid.
            ColumnNotFoundError: A key is no column of the table or of the source.
            SchemaMismatchError, ValueConversionError: The source does not fit the table.
            MergeError: Several rows of the source match one row.
            UnsupportedOperationError: The merge would move rows with blobs.
            StreamRewoundError: The application has committed a later transaction.
            CommitConflictError: Other writers kept coming first. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.
        """
        if not (self._clauses.updates or self._clauses.inserts or self._clauses.deletes):
            accepted = "a clause first: when_matched_update_all, when_not_matched_insert_all, ..."
            raise OptionError("merge_insert", None, accepted)
        transaction = AppTransaction.of(txn_app_id, txn_version)
        source = MergeInput(data=data, on_bad_vectors=on_bad_vectors, fill_value=fill_value)
        return self._execute(
            self._clauses, source, CommitNote.of(commit_message, properties, transaction), timeout
        )

    def _with(self, clauses: MergeClauses) -> MergeInsertBuilder:
        return MergeInsertBuilder(clauses, self._execute)


def _check_condition(where: str | None) -> str | None:
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise OptionError("where", where, "a condition in Spark SQL, such as source.a > target.a")
    return where
