"""`UPDATE`, `DELETE` and `MERGE` of Spark SQL: :func:`change`. On the driver.

Spark evaluates conditions and expressions, and gives the changed rows with their addresses. Tasks
apply the rows, and a commit makes a single version. If a concurrent commit changed the statement's
input, the whole statement runs again at the latest version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType
from pyspark.storagelevel import StorageLevel

from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.changes import AbsentKeys, CommitNote, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import field_identities, ids_of
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.dml.column_files import targets_of
from lance_spark.dml.merge import spread
from lance_spark.dml.merge_tasks import ACTION, DELETE, INSERT, UPDATE, Apply, SetColumns, SetOrMove
from lance_spark.dml.results import ChangeResult, RowEditResult, edits_of
from lance_spark.dml.rounds import retry_statement
from lance_spark.dml.statement import Statement
from lance_spark.dml.strategy import TASK_BYTES, choose_strategy
from lance_spark.errors import SnapshotError, UnsupportedOperationError, VersionNotFoundError
from lance_spark.pushdown.filters import is_exact, translate
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.tasks import ANSWER_TO_ALL_ROWS
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.sql.catalog.tables import describe_version
from lance_spark.staging.area import Staging
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types.fields import is_blob
from lance_spark.views.definition import refuse_view

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_ACTIONS = {1: DELETE, 2: UPDATE, 3: INSERT, 4: INSERT}
"""Spark's action for a row: numbers of RowDeltaUtils, where 4 is a row to insert again."""


def change(arguments: Mapping[str, Any], rows: Any) -> dict[str, Any]:  # noqa: ANN401 - a Java object
    """Runs a statement, and returns its result. LanceRows.java gives its rows at a version.

    Raises:
        CommitConflictError: Concurrent writers kept committing first. Nothing was changed.
        UnsupportedOperationError: The table is a view.
        LanceSparkError: A task failed. Nothing was changed.
    """
    location = CatalogLocation.of(arguments)
    ref = _open_analyzed(
        DatasetRef.of_snapshot_json(
            arguments["opened"]["pin"], location.pinned_storage(arguments["name"])
        ),
        arguments["opened"]["schema"],
    )
    result = RowStatement(ref, arguments, rows).run()
    _LOG.info("%s of %s: %r", arguments["operation"], ref.uri, result)
    return {**asdict(result), "attempts": result.retries + bool(result.num_rows)}


def _open_analyzed(ref: DatasetRef, schema: str) -> DatasetRef:
    """Returns the version analyzed by Spark, or the latest if a cleanup deleted that version.

    Raises:
        SnapshotError: The latest version has other columns than Spark's `schema`.
    """
    try:
        ref.open()
    except VersionNotFoundError as error:
        latest = ref.pin(None)
        if describe_version(latest)["schema"] != schema:
            raise _changed_columns_error(ref) from error
        return latest
    return ref


def _changed_columns_error(ref: DatasetRef) -> SnapshotError:
    return SnapshotError(
        f"A concurrent writer dropped, renamed or changed columns of {ref.uri} while the statement ran. Nothing was "
        "changed. Run the statement again, after REFRESH TABLE if Spark has cached the table."
    )


class RowStatement:
    """A statement. Belongs to a single thread of the driver.

    An `insert` is a `MERGE` with only new rows.
    """

    def __init__(self, ref: DatasetRef, arguments: Mapping[str, Any], rows: Any) -> None:  # noqa: ANN401 - as above
        from pyspark import SparkContext

        self._ref = ref
        self._operation: Literal["delete", "update", "merge", "insert"] = arguments["operation"]
        self._columns: Sequence[str] = arguments["columns"]
        self._unchanged_columns: Sequence[str] = arguments["kept"]
        self._predicate = arguments["predicate"]
        self._reads_others: bool = arguments["reads_others"]
        self._read_columns: frozenset[str] = frozenset(arguments["read_columns"])
        self._rows = rows
        self._name = arguments["name"]
        self._note = CommitNote.of(None, None, AppTransaction.of_options(arguments["options"]))
        self._policy = CommitPolicy.of(None)
        refuse_unsafe_store(ref.uri, ref.storage, allow=self._policy.allow_unsafe)
        dataset = ref.open()
        refuse_view(dataset)
        if self._operation == "merge" and any(is_blob(field) for field in dataset.schema):
            raise UnsupportedOperationError(
                f"SQL has no values for blob columns, which rows of a MERGE would need. Table: {ref.uri}. Nothing was "
                "changed. Use merge_insert of the table API with their bytes, or UPDATE, which keeps blobs unchanged."
            )
        self._fields = set(field_identities(dataset.lance_schema))
        self._spark = SparkSession(SparkContext.getOrCreate(), rows.session())
        self._staging = Staging.of_new_job(ref, table_files=count_data_files(dataset), marked=False)
        tag = SparkJobTag.of(
            self._staging.job_id, f"lance-spark: {self._operation} of {self._name}"
        )
        self._jobs = SparkJobs(self._spark, tag)

    def run(self) -> ChangeResult:
        """Evaluates and commits."""
        if self._operation == "update" and not self._columns:
            return ChangeResult(version=self._ref.version or 0)  # each column is set to itself
        where = self._in_lance_sql()
        if where is not None:
            return Statement(
                self._spark, self._ref, where=where, sets=None, table_name=self._name
            ).run(self._note)
        return retry_statement(self._ref, self._staging, self._policy, self._make_edits, self._note)

    def _in_lance_sql(self) -> str | None:
        """Returns the condition of a deletion if its whole meaning is the same in Lance."""
        if self._predicate is None:
            return None
        schema = self._ref.open().schema
        return translate(self._predicate, schema) if is_exact(self._predicate, schema) else None

    def _make_edits(self, ref: DatasetRef) -> RowEdits | None:
        edits = self._evaluate(ref)
        if edits is None:
            return None
        absence = None
        if self._operation in ("merge", "insert"):
            compared = ids_of(field for field in edits.fields if field.name in self._read_columns)
            absence = AbsentKeys(fields=frozenset(compared))
        return replace(edits, reads_others=self._reads_others, absence=absence)

    def _evaluate(self, ref: DatasetRef) -> RowEdits | None:
        dataset = ref.open()
        if not self._fields <= set(field_identities(dataset.lance_schema)):
            raise _changed_columns_error(ref)
        if self._operation == "update":
            return self._update(ref, dataset)
        rows, small = self._read_rows(ref, by_fragment=self._operation == "delete")
        if self._operation == "insert":
            rows = rows.coalesce(1) if small else rows
        if self._operation == "merge":
            if not self._columns:
                rows = rows.where(sf.col(ACTION) != UPDATE)  # each column is set to itself
            rows = (
                rows.coalesce(1).sortWithinPartitions(ROW_ADDRESS)
                if small
                else spread(rows, _list_keys(rows))
            )
        operation = "merge" if self._operation == "insert" else self._operation
        return edits_of(ref, dataset, self._apply_rows(ref, dataset, rows), operation=operation)

    def _read_rows(self, ref: DatasetRef, *, by_fragment: bool) -> tuple[DataFrame, bool]:
        """Returns the rows, and whether a single task makes all rows.

        The rows have an address, an action, and values by the names of their columns. With
        `by_fragment`, all rows of a fragment are in the same task, by address.
        """
        java_rows = self._rows.at(json.dumps(describe_version(ref)), by_fragment)
        small = self._rows.bytes() <= TASK_BYTES
        rows = DataFrame(java_rows, self._spark).toDF(ROW_ADDRESS, ACTION, *self._columns)
        spark_action = sf.col(ACTION)
        action = sf.coalesce(
            *(sf.when(spark_action == number, sf.lit(name)) for number, name in _ACTIONS.items())
        )
        rows = rows.withColumn(ACTION, action)
        return rows.coalesce(1) if small and by_fragment else rows, small

    def _update(self, ref: DatasetRef, dataset: lance.LanceDataset) -> RowEdits | None:
        """Sets columns or moves the rows, by the lower cost.

        Spark stores rows made by functions of the user until the commit, so that no function runs
        twice for a row.
        """
        rows, small = self._read_rows(ref, by_fragment=True)
        if not self._rows.calls():
            return self._set_or_move(ref, dataset, rows, small=small)
        rows = rows.persist(StorageLevel.DISK_ONLY)
        try:
            return self._set_or_move(ref, dataset, rows, small=False, stored_rows=rows)
        finally:
            rows.unpersist()

    def _set_or_move(
        self,
        ref: DatasetRef,
        dataset: lance.LanceDataset,
        rows: DataFrame,
        *,
        small: bool,
        stored_rows: DataFrame | None = None,
    ) -> RowEdits | None:
        """Applies rows, grouped by fragment; `stored_rows` are the same rows, stored by Spark."""
        setting = SetColumns(
            table=ref,
            staging=self._staging,
            values=StructType(rows.schema.fields[2:]),
            targets=targets_of(dataset, self._columns),
        )
        if small:
            task = SetOrMove(setting=setting, moving=self._make_task(ref, dataset, rows))
            results = self._jobs.answers(
                lambda: rows.mapInArrow(task, ANSWER_TO_ALL_ROWS), RowEditResult
            )
        elif self._sets_columns(ref, dataset, stored_rows):
            results = self._jobs.answers(
                lambda: rows.mapInArrow(setting, ANSWER_TO_ALL_ROWS), RowEditResult
            )
        else:
            results = self._apply_rows(ref, dataset, rows)
        return edits_of(ref, dataset, results, "update", self._columns)

    def _sets_columns(
        self, ref: DatasetRef, dataset: lance.LanceDataset, stored_rows: DataFrame | None
    ) -> bool:
        """Tells whether new column files cost less than rewriting the changed rows."""
        rows = (
            stored_rows if stored_rows is not None else self._read_rows(ref, by_fragment=False)[0]
        )
        counts = rows.groupBy(sf.shiftright(ROW_ADDRESS, 32)).count()
        matched = {int(row[0]): int(row[1]) for row in counts.toLocalIterator()}
        physical = {
            fragment.fragment_id: fragment.metadata.physical_rows
            for fragment in dataset.get_fragments()
        }
        return choose_strategy(ref, dataset, self._columns, matched, physical) == "columns"

    def _apply_rows(
        self, ref: DatasetRef, dataset: lance.LanceDataset, rows: DataFrame
    ) -> list[RowEditResult]:
        task = self._make_task(ref, dataset, rows)
        return self._jobs.answers(lambda: rows.mapInArrow(task, ANSWER_TO_ALL_ROWS), RowEditResult)

    def _make_task(self, ref: DatasetRef, dataset: lance.LanceDataset, rows: DataFrame) -> Apply:
        return Apply(
            table=ref,
            staging=self._staging,
            values=StructType(rows.schema.fields[2:]),
            layout=FileLayout.of_table(dataset, dataset.schema.names),
            stable=dataset.has_stable_row_ids,
            insert_only=tuple(self._unchanged_columns),
        )


def _list_keys(rows: DataFrame) -> list[str]:
    """Returns the columns of values for spreading rows to insert."""
    nested = (ArrayType, MapType, StructType)
    return [
        field.name for field in rows.schema.fields[2:] if not isinstance(field.dataType, nested)
    ]
