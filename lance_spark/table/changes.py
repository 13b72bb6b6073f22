"""Changes of a table's rows: a part of its facade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from lance_spark.columns.primary_key import primary_key_of, set_primary_key
from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.changes import CommitNote
from lance_spark.dataset import DatasetRef
from lance_spark.dml.assignments import Assignments, names_of
from lance_spark.dml.clauses import MergeClauses, MergeInput, MergeInsertBuilder
from lance_spark.dml.merge import Merge
from lance_spark.dml.results import ChangeResult
from lance_spark.dml.statement import Statement
from lance_spark.errors import OptionError
from lance_spark.table.versions import TableVersions
from lance_spark.views.definition import refuse_view


class TableChanges(TableVersions):
    """The methods of :class:`lance_spark.Table` for changes of rows."""

    def update(
        self,
        where: str | None = None,
        values: Mapping[str, object] | None = None,
        *,
        values_sql: Mapping[str, str] | None = None,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
        txn_app_id: str | None = None,
        txn_version: int | None = None,
    ) -> ChangeResult:
        """Sets columns of rows, as one version.

        Tasks evaluate conditions and expressions next to the rows. They write new column files of
        the set columns, or move the matching rows to new fragments if that is cheaper: if twice the
        bytes of these rows are less than the bytes of the set columns in their fragments. Rows of a
        table with blobs are never moved. Row ids stay.

        The result is the result of the statement at one version. Rows changed by concurrent writers
        are evaluated again, up to `LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES` times. Concurrently
        appended rows are unchanged.

        Args:
            where: Condition on rows, in Lance SQL; None is all rows.
            values: Python values by column, within the exact range of the column's type; None is
                NULL.
            values_sql: Expressions in Lance SQL by column, over the old row.
            commit_message: Message of the version.
            properties: Properties of the version: texts by name.
            txn_app_id: Id of the application that writes each of its transactions once, such as the
                id of a streaming query. Needs `txn_version`.
            txn_version: Number of the transaction, such as the id of a micro-batch. The call
                returns the earlier result if the transaction was committed before.

        Raises:
            FilterError: The condition is not valid, or fails on a value.
            ColumnNotFoundError: The table has no such column.
            OptionError: Nothing is set, a column is set twice, or an expression is not valid.
            ValueConversionError: A value does not fit its column. Nothing was changed.
            UnsupportedOperationError: The table is a view, or an older version is checked out.
            StreamRewoundError: The application has committed a later transaction.
            CommitConflictError: Concurrent writers won every round. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.update("id = 3", values_sql={"price": "price + 1"})
            assert books.to_arrow(["price"], "id = 3").to_pylist() == [{"price": 31}]
            ```
        """
        values, expressions = dict(values or {}), dict(values_sql or {})
        if not values and not expressions:
            raise OptionError("values", None, "values by column, or expressions with values_sql")
        twice = sorted(values.keys() & expressions.keys())
        if twice:
            raise OptionError("values_sql", ", ".join(twice), "columns that values does not set")
        sets = Assignments(where=where, values=values, expressions=expressions)
        return self._change(
            where,
            sets,
            CommitNote.of(commit_message, properties, AppTransaction.of(txn_app_id, txn_version)),
        )

    def delete(
        self,
        where: str,
        *,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
        txn_app_id: str | None = None,
        txn_version: int | None = None,
    ) -> ChangeResult:
        """Deletes rows, as one version.

        Tasks evaluate the condition next to the rows, and write deletion files. Data files stay
        unchanged. Concurrent writers are handled as in :meth:`update`.

        Args:
            where: Condition on rows, in Lance SQL; `true` deletes all.
            commit_message: Message of the version.
            properties: Properties of the version: texts by name.
            txn_app_id: Id of the application that writes each of its transactions once, such as the
                id of a streaming query. Needs `txn_version`.
            txn_version: Number of the transaction, such as the id of a micro-batch. The call
                returns the earlier result if the transaction was committed before.

        Raises:
            FilterError: The condition is not valid, or fails on a value.
            UnsupportedOperationError: The table is a view, or an older version is checked out.
            StreamRewoundError: The application has committed a later transaction.
            CommitConflictError: Concurrent writers won every round. Nothing was deleted.
            CommitOutcomeUnknownError: The store did not answer.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("price > 50")
            assert books.count_rows() == 6
            ```
        """
        if where is None:
            raise OptionError("where", None, "a condition in Lance SQL; 'true' deletes all rows")
        return self._change(
            where,
            None,
            CommitNote.of(commit_message, properties, AppTransaction.of(txn_app_id, txn_version)),
        )

    def set_unenforced_primary_key(self, columns: str | Sequence[str]) -> None:
        """Sets the column that identifies a row, once.

        Lance stores the primary key without enforcing it. `merge_insert()` without columns compares
        this column.

        Args:
            columns: The column, or a list of one column: text, binary, int or bigint, without NULL.

        Raises:
            ColumnNotFoundError: The table has no such column.
            OptionError: The columns are not one column, the column accepts NULL or has another
                type, or the table has a primary key.
            CommitConflictError: Concurrent writers changed the table again and again.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            db = lance_spark.connect("library")
            schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("price", pa.int64())])
            books = db.create_table("books", schema=schema)
            books.set_unenforced_primary_key("id")
            merge = books.merge_insert().when_matched_update_all().when_not_matched_insert_all()
            assert merge.execute([{"id": 1, "price": 5}]).rows_inserted == 1
            ```
        """
        set_primary_key(self._ref, names_of(columns))

    def merge_insert(self, on: str | Sequence[str] | None = None) -> MergeInsertBuilder:
        """Starts a merge of rows by key.

        The methods of the builder choose the actions for matching and other rows, and its `execute`
        merges a source.

        Args:
            on: Key columns, with the same names in the table and in the source; by default the
                primary key of the table.

        Returns:
            The builder.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            merge = books.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute([{"id": 9, "price": 1}, {"id": 10, "price": 2}])
            assert books.count_rows() == 11
            ```
        """
        keys = names_of(on or primary_key_of(self._ref.open_latest()))
        if not keys or len(set(keys)) < len(keys):
            raise OptionError(
                "on",
                ", ".join(keys),
                "key columns, each once, or none with set_unenforced_primary_key",
            )
        return MergeInsertBuilder(MergeClauses(on=keys), self._merge)

    def _merge(
        self,
        clauses: MergeClauses,
        source: MergeInput,
        note: CommitNote,
        timeout: timedelta | None = None,
    ) -> ChangeResult:
        ref = self._rows_ref()
        data = source.repaired(ref.open().schema)
        return Merge(self._spark(), ref, clauses, data, table_name=self.name, timeout=timeout).run(
            note
        )

    def _change(
        self, where: str | None, sets: Assignments | None, note: CommitNote
    ) -> ChangeResult:
        ref = self._rows_ref()
        return Statement(self._spark(), ref, where=where, sets=sets, table_name=self.name).run(note)

    def _rows_ref(self) -> DatasetRef:
        """Returns the latest version, for changes of its rows."""
        ref = self._ref.pin(None)
        refuse_view(ref.open())
        return ref
