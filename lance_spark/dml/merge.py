"""Merges: rows of a source inserted, updated and deleted by key, as one version. On the driver."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from lance_spark.commit.changes import AbsentKeys, CommitNote, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import ids_of
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.dml.clauses import MergeClauses
from lance_spark.dml.edits import Edit, EditSpec
from lance_spark.dml.merge_tasks import ACTION, DELETE, INSERT, UPDATE, Apply, MergeSmall
from lance_spark.dml.results import ChangeResult, RowEditResult, edits_of
from lance_spark.dml.rounds import retry_statement
from lance_spark.dml.source import MergeSource, read_table
from lance_spark.dml.strategy import TASK_BYTES, known_matches, named_columns, task_bytes, work_of
from lance_spark.dml.timeouts import MergeDeadline
from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaMismatchError,
    UnsupportedOperationError,
)
from lance_spark.ingest.rows import Data
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import pack_fragments
from lance_spark.spark_jobs.tasks import ANSWER_TO_ALL_ROWS
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.blobs import row_field
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types.fields import is_blob, quote_identifier

if TYPE_CHECKING:
    import lance
    from pyspark.sql import Column, DataFrame, SparkSession

_SOURCE_MARK = "row.given"
_DELETION_MARK = "row.deleted"
_INSERT_PARTS = 32


class Merge:
    """A merge, first of a pinned version. Belongs to one thread of the driver."""

    def __init__(
        self,
        spark: SparkSession,
        ref: DatasetRef,
        clauses: MergeClauses,
        data: Data,
        *,
        table_name: str,
        timeout: timedelta | None = None,
        family: str | None = None,
    ) -> None:
        self._deadline = MergeDeadline.of(timeout, ref.uri)
        self._deadline.check()
        self._ref = ref
        self._clauses = clauses
        self._policy = CommitPolicy.of(None)
        refuse_unsafe_store(ref.uri, ref.storage, allow=self._policy.allow_unsafe)
        dataset = self._ref.open()
        for name in clauses.on:
            if name not in dataset.schema.names:
                raise ColumnNotFoundError(
                    name, ref.uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
                )
        self._source = MergeSource(spark, data, dataset.schema)
        self._check(dataset)
        self._staging = Staging(
            uri=ref.uri, storage_options=ref.storage_options, job_id=new_id(family or "")
        )
        tag = SparkJobTag.of(self._staging.job_id, f"lance-spark: merge into {table_name}")
        self._jobs = SparkJobs(self._source.spark, tag, answers_errors=True)

    def run(self, note: CommitNote) -> ChangeResult:
        """Joins, applies, and commits."""
        return retry_statement(self._ref, self._staging, self._policy, self._evaluate, note)

    def _check(self, dataset: lance.LanceDataset) -> None:
        """Validates the source's columns against the table's columns."""
        self._source.check(
            pa.schema([row_field(field) for field in dataset.schema]), self._clauses.on
        )
        absent = [field for field in dataset.schema if field.name not in self._source.names]
        if self._clauses.inserts:
            self._refuse_required([field.name for field in absent if not field.nullable])
        if self._clauses.updates:
            self._refuse_blobs([field.name for field in absent if is_blob(field)])

    def _refuse_required(self, names: Sequence[str]) -> None:
        if names:
            raise SchemaMismatchError(
                f"The source of the merge lacks columns that may not be NULL: {', '.join(map(repr, names))}. Table: "
                f"{self._ref.uri}. Nothing was changed. Add the columns to the source, or leave "
                "when_not_matched_insert_all out."
            )

    def _refuse_blobs(self, names: Sequence[str]) -> None:
        if names:
            raise UnsupportedOperationError(
                f"The merge would move rows with the blobs of {', '.join(map(repr, names))}. Table: {self._ref.uri}. "
                "Nothing was changed. Add these columns to the source, or set the other columns with load_columns, "
                "which moves no blobs."
            )

    def _evaluate(self, ref: DatasetRef) -> RowEdits | None:
        with self._deadline.limit(self._jobs):
            return self._find_edits(ref)

    def _find_edits(self, ref: DatasetRef) -> RowEdits | None:
        dataset = ref.open()
        self._check(dataset)
        edits = edits_of(ref, dataset, self._results(ref, dataset))
        if edits is None or not self._clauses.inserts:
            return edits
        compared = {*self._clauses.on, *self._named_columns(dataset)}
        fields = ids_of(field for field in edits.fields if field.name in compared)
        return replace(edits, absence=AbsentKeys(fields=frozenset(fields)))

    def _results(self, ref: DatasetRef, dataset: lance.LanceDataset) -> list[RowEditResult]:
        small = self._small(ref, dataset)
        if small is not None:
            return self._jobs.results([small], RowEditResult)
        actions, value_schema = self._actions(ref, dataset)
        apply = self._apply(ref, dataset, value_schema)
        return self._jobs.answers(
            lambda: actions.mapInArrow(apply, ANSWER_TO_ALL_ROWS), RowEditResult
        )

    def _apply(self, ref: DatasetRef, dataset: lance.LanceDataset, values: StructType) -> Apply:
        return Apply(
            table=ref,
            staging=self._staging,
            values=values,
            layout=FileLayout.of_table(dataset, dataset.schema.names),
            stable=dataset.has_stable_row_ids,
        )

    def _small(self, ref: DatasetRef, dataset: lance.LanceDataset) -> MergeSmall | None:
        """Returns the only task of a small merge; None if Spark joins the keys."""
        clauses, keys = self._clauses, self._listed_keys()
        if keys is None or clauses.update_where is not None:
            return None
        where = self._condition_on(keys)
        metadata_by_number = {
            fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()
        }
        matches = known_matches(ref, where, metadata_by_number)
        physical = {
            number: metadata_by_number[number].physical_rows
            for number in (*matches.matched, *matches.unknown)
        }
        work = dict(work_of(ref, dataset, clauses.on, physical))
        fragments = sorted(work)
        if matches.unknown and sum(work.values()) > TASK_BYTES:
            # Most keys have at most one row in the table.
            if sum(heapq.nlargest(len(keys), work.values())) > TASK_BYTES:
                return None
            fragments = self._fragments_of_keys(ref, dataset, where, work) if keys else []
        if sum(work[number] for number in fragments) > TASK_BYTES:
            return None
        source = self._source.sent(ref, self._staging)
        return MergeSmall(
            apply=self._apply(ref, dataset, self._source.values),
            source=source,
            key=clauses.on[0],
            where=where,
            mask=matches.mask,
            fragments=tuple(fragments),
            updates=clauses.updates,
            inserts=clauses.inserts,
        )

    def _fragments_of_keys(
        self, ref: DatasetRef, dataset: lance.LanceDataset, where: str, work: Mapping[int, int]
    ) -> list[int]:
        """Returns the fragments with a matching row. Tasks scan the keys."""
        spec = EditSpec(
            table=ref, staging=self._staging, where=where, stable=dataset.has_stable_row_ids
        )
        fragments = sorted(work.items())
        packs = pack_fragments(fragments, task_bytes(self._source.spark, fragments))
        counts = self._jobs.results(
            [Edit(spec=spec, task="count", fragments=pack) for pack in packs], RowEditResult
        )
        return sorted(number for result in counts for number in result.counts)

    def _listed_keys(self) -> list[str] | None:
        """Returns the keys as literals of Lance SQL; None for many keys."""
        clauses = self._clauses
        return (
            None
            if clauses.deletes or len(clauses.on) > 1
            else self._source.list_values(clauses.on[0])
        )

    def _condition_on(self, keys: Sequence[str]) -> str:
        """Returns a condition in Lance SQL for all matching rows."""
        return (
            f"{quote_identifier(self._clauses.on[0])} IN ({', '.join(keys)})" if keys else "false"
        )

    def _actions(
        self, ref: DatasetRef, dataset: lance.LanceDataset
    ) -> tuple[DataFrame, StructType]:
        """Returns rows with actions, by fragment, and Spark's schema of the values."""
        clauses = self._clauses
        source = (
            self._source.frame(ref, self._staging)
            .withColumn(_SOURCE_MARK, sf.lit(True))
            .alias("source")
        )
        how = {
            (True, True): "full",
            (True, False): "left",
            (False, True): "right",
            (False, False): "inner",
        }
        names = [name for name in source.columns if name != _SOURCE_MARK]
        values = [sf.col(f"source.{quote_identifier(name)}").alias(name) for name in names]
        try:
            target = self._mark_deletions(self._target_rows(ref, dataset).alias("target"))
            joined = source.join(
                target, _same_keys(clauses.on), how[clauses.inserts, clauses.deletes]
            )
            rows = joined.select(
                sf.col(f"target.{ROW_ADDRESS}"), _action_of(clauses).alias(ACTION), *values
            )
            rows = rows.where(sf.col(ACTION).isNotNull())
            schema = rows.schema
        except AnalysisException as error:
            text = " and ".join(
                repr(where) for where in (clauses.update_where, clauses.delete_where) if where
            )
            accepted = (
                f"a condition in Spark SQL over source and target ({str(error).splitlines()[0]})"
            )
            raise OptionError("where", text, accepted) from error
        return spread(rows, clauses.on), StructType([schema[name] for name in names])

    def _mark_deletions(self, target: DataFrame) -> DataFrame:
        """Returns the rows of the table with a mark for rows to delete without a match.

        Before the join, the columns of the condition are those of the table alone.
        """
        if not self._clauses.deletes:
            return target
        return target.withColumn(_DELETION_MARK, _condition(self._clauses.delete_where)).alias(
            "target"
        )

    def _target_rows(self, ref: DatasetRef, dataset: lance.LanceDataset) -> DataFrame:
        conditions = self._named_columns(dataset)
        target_columns = [
            name for name in dataset.schema.names if name in self._clauses.on or name in conditions
        ]
        options = {
            "version": str(ref.version),
            "columns": json.dumps([*target_columns, ROW_ADDRESS]),
        }
        keys = self._listed_keys()
        if keys is not None:
            options["filter"] = self._condition_on(keys)  # an index may serve the filter
        return read_table(self._source.spark, ref, ref.uri, options)

    def _named_columns(self, dataset: lance.LanceDataset) -> list[str]:
        """Returns the columns of the conditions, and maybe further columns."""
        texts = [text for text in (self._clauses.update_where, self._clauses.delete_where) if text]
        return named_columns(dataset.schema, *texts)


def _same_keys(on: Sequence[str]) -> Column:
    """Returns the condition for matching rows of source and target."""
    matches = sf.lit(True)
    for name in map(quote_identifier, on):
        matches &= sf.col(f"source.{name}") == sf.col(f"target.{name}")
    return matches


def _action_of(clauses: MergeClauses) -> Column:
    """Returns the action for a joined row, or NULL."""
    in_source, in_target = (
        sf.col(f"source.`{_SOURCE_MARK}`").isNotNull(),
        sf.col(f"target.{ROW_ADDRESS}").isNotNull(),
    )
    action = sf.lit(None).cast("int")
    if clauses.deletes:
        action = sf.when(
            in_target & ~in_source & sf.col(f"target.`{_DELETION_MARK}`"), DELETE
        ).otherwise(action)
    if clauses.updates:
        action = sf.when(
            in_target & in_source & _condition(clauses.update_where), UPDATE
        ).otherwise(action)
    if clauses.inserts:
        action = sf.when(in_source & ~in_target, INSERT).otherwise(action)
    return action


def _condition(where: str | None) -> Column:
    return sf.lit(True) if where is None else sf.expr(f"({where}\n)")


def spread(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns rows partitioned by fragment and ordered by address; new rows partitioned by keys."""
    key = (
        sf.hash(*(sf.col(quote_identifier(name)) for name in keys))
        if keys
        else sf.spark_partition_id()
    )
    part = sf.coalesce(sf.shiftright(ROW_ADDRESS, 32), -1 - sf.pmod(key, sf.lit(_INSERT_PARTS)))
    return rows.repartition(part).sortWithinPartitions(ROW_ADDRESS)
