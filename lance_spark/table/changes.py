"""Changes of a table's rows: a part of its facade."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from lance_spark.commit.changes import CommitNote
from lance_spark.dataset import DatasetRef
from lance_spark.dml.assignments import Assignments, names_of
from lance_spark.dml.clauses import MergeClauses, MergeInsertBuilder
from lance_spark.dml.merge import Merge
from lance_spark.dml.result import ChangeResult
from lance_spark.dml.statement import Statement
from lance_spark.errors import OptionError
from lance_spark.table.history.versions import TableVersions
from lance_spark.tabular import Data
from lance_spark.views.definition import refuse_view


class TableChanges(TableVersions):
    """The methods of :class:`lance_spark.Table` that change rows."""

    name: str
    _spark: Callable[[], SparkSession]

    def update(
        self,
        where: str | None = None,
        values: Mapping[str, object] | None = None,
        *,
        values_sql: Mapping[str, str] | None = None,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> ChangeResult:
        """Sets columns of rows, as one version.

        Tasks evaluate conditions and expressions where the rows are. They write new column files of
        the columns that are set, and no other byte, or move the rows that match to new fragments
        where these are so few that it is cheaper: where twice their bytes, of all columns, are less
        than the bytes of the set columns in the fragments that hold them. Rows of a table with
        blobs are never moved. Row ids stay.

        The result is that of the statement at one version: of rows that concurrent writers change
        meanwhile, the new values are looked at, up to `LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES`
        times. Rows that are appended meanwhile are left alone.

        Args:
            where: Condition on rows, in Lance SQL; None is all rows.
            values: Values by column: Python values that the column's type holds exactly, None for
                NULL.
            values_sql: Expressions in Lance SQL by column, over the row as it was.
            commit_message: Kept with the version.
            properties: Kept with the version, too: texts by names.

        Raises:
            FilterError: The condition is not valid, or fails on a value.
            ColumnNotFoundError: There is no such column.
            OptionError: Nothing is set, a column is set twice, or an expression is not valid.
            ValueConversionError: A value does not fit its column. Nothing was changed.
            UnsupportedOperationError: The table is a view, or an older version is checked out.
            CommitConflictError: Other writers kept coming first. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.
        """
        values, expressions = dict(values or {}), dict(values_sql or {})
        if not values and not expressions:
            raise OptionError("values", None, "values by column, or expressions with values_sql")
        twice = sorted(values.keys() & expressions.keys())
        if twice:
            raise OptionError("values_sql", ", ".join(twice), "columns that values does not set")
        sets = Assignments(where=where, values=values, expressions=expressions)
        return self._change(where, sets, CommitNote.of(commit_message, properties))

    def delete(
        self, where: str, *, commit_message: str | None = None, properties: Mapping[str, str] | None = None
    ) -> ChangeResult:
        """Deletes rows, as one version.

        Tasks evaluate the condition where the rows are, and write which rows are gone; data files
        stay as they are. Beside other writers as :meth:`update` is.

        Args:
            where: Condition on rows, in Lance SQL; `true` deletes all.
            commit_message: Kept with the version.
            properties: Kept with the version, too: texts by names.

        Raises:
            FilterError: The condition is not valid, or fails on a value.
            UnsupportedOperationError: The table is a view, or an older version is checked out.
            CommitConflictError: Other writers kept coming first. Nothing was deleted.
            CommitOutcomeUnknownError: The store did not answer.
        """
        if where is None:
            raise OptionError("where", None, "a condition in Lance SQL; 'true' deletes all rows")
        return self._change(where, None, CommitNote.of(commit_message, properties))

    def merge_insert(self, on: str | Sequence[str]) -> MergeInsertBuilder:
        """Describes a merge of rows by key: what becomes of rows that match, and of the others.

        Args:
            on: Key columns, which the table and the source have under these names.

        Returns:
            A builder; its `execute` merges a source.
        """
        keys = names_of(on)
        if not keys or len(set(keys)) < len(keys):
            raise OptionError("on", ", ".join(keys), "key columns, each once")
        return MergeInsertBuilder(MergeClauses(on=keys), self._merge)

    def _merge(self, clauses: MergeClauses, data: Data, note: CommitNote) -> ChangeResult:
        ref = self._rows_ref()
        return Merge(self._spark(), ref, clauses, data, table_name=self.name).run(note)

    def _change(self, where: str | None, sets: Assignments | None, note: CommitNote) -> ChangeResult:
        ref = self._rows_ref()
        return Statement(self._spark(), ref, where=where, sets=sets, table_name=self.name).run(note)

    def _rows_ref(self) -> DatasetRef:
        """Returns the latest version, for what may change its rows."""
        ref = self._ref.pin(None)
        refuse_view(ref.open())
        return ref
