"""Updates and deletions of rows by conditions in Lance SQL: :class:`Statement`. On the driver.

Tasks over the fragments of a version evaluate a statement, and one commit makes one version. After
a conflict, tasks evaluate the changed fragments again at the latest version, and the results of the
other fragments stay. The result always equals the statement at one version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lance_spark.commit.changes import NO_NOTE, CommitNote, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.dml.assignments import Assignments, check_assignments, check_where
from lance_spark.dml.column_files import targets_of
from lance_spark.dml.edits import Edit, EditSpec, Task
from lance_spark.dml.results import ChangeResult, RowEditResult, edits_of
from lance_spark.dml.rounds import retry_statement
from lance_spark.dml.strategy import (
    UpdateStrategy,
    choose_strategy,
    known_matches,
    named_columns,
    task_bytes,
    work_of,
)
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import pack_fragments
from lance_spark.staging.area import Staging

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession


@dataclass(slots=True, kw_only=True)
class _Evaluated:
    """The evaluation of a statement at a version.

    Attributes:
        fragments: The fragments of the version, by id.
        pending: Ids of the fragments without a result.
        results: The results of the other fragments with a matching row.
    """

    ref: DatasetRef
    fields: tuple[FieldIdentity, ...]
    fragments: dict[int, FragmentMetadata]
    pending: set[int]
    results: list[RowEditResult] = field(default_factory=list)

    @staticmethod
    def at(ref: DatasetRef, dataset: lance.LanceDataset) -> _Evaluated:
        """Returns the evaluation of a version without results."""
        fragments = {
            fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()
        }
        return _Evaluated(
            ref=ref,
            fields=field_identities(dataset.lance_schema),
            fragments=fragments,
            pending=set(fragments),
        )

    def carry_over(self, before: _Evaluated) -> None:
        """Takes the results of unchanged fragments from an earlier version."""
        if not set(before.fields) <= set(self.fields):
            return
        same = {
            number
            for number, fragment in before.fragments.items()
            if self.fragments.get(number) == fragment
        }
        # A task may have moved rows of several fragments into one fragment.
        self.results = [result for result in before.results if same.issuperset(result.fragments)]
        self.pending -= same - _fragments_of(before.results)
        self.pending -= _fragments_of(self.results)


def _fragments_of(results: Iterable[RowEditResult]) -> set[int]:
    return {number for result in results for number in result.fragments}


class Statement:
    """An update or a deletion, first of a pinned version. Belongs to one thread of the driver.

    Raises:
        FilterError, OptionError, ColumnNotFoundError, ValueConversionError,
            UnsupportedOperationError: The statement does not fit the table.
        UnsafeStoreError: The store loses concurrent commits.
    """

    def __init__(
        self,
        spark: SparkSession,
        ref: DatasetRef,
        *,
        where: str | None,
        sets: Assignments | None,
        table_name: str,
    ) -> None:
        self._ref = ref
        self._where = where
        self._sets = sets
        self._expressions = {} if sets is None else dict(sets.expressions)
        self._columns = () if sets is None else sets.columns
        self._policy = CommitPolicy.of(None)
        refuse_unsafe_store(ref.uri, ref.storage, allow=self._policy.allow_unsafe)
        dataset = ref.open()
        self._checked: tuple[DatasetRef, pa.RecordBatch | None] = ref, self._check(dataset)
        self._operation: Literal["delete", "update"] = "delete" if sets is None else "update"
        self._staging = Staging.of_new_job(ref, table_files=count_data_files(dataset), marked=False)
        tag = SparkJobTag.of(
            self._staging.job_id, f"lance-spark: {self._operation} of {table_name}"
        )
        self._spark = spark
        self._jobs = SparkJobs(spark, tag, answers_errors=True)
        self._strategy: UpdateStrategy | None = None if sets else "delete"
        self._evaluated: _Evaluated | None = None

    def run(self, note: CommitNote = NO_NOTE) -> ChangeResult:
        """Evaluates and commits the statement.

        Raises:
            CommitConflictError: Other writers kept committing first. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.
            LanceSparkError: A task failed on a value, or on a file. Nothing was changed.
        """
        return retry_statement(self._ref, self._staging, self._policy, self._edits_of, note)

    def _edits_of(self, ref: DatasetRef) -> RowEdits | None:
        dataset = ref.open()
        self._evaluated = self._evaluate(ref, dataset, self._evaluated)
        edits = edits_of(ref, dataset, self._evaluated.results, self._operation, self._columns)
        return None if edits is None else replace(edits, predicate=self._where)

    def _check(self, dataset: lance.LanceDataset) -> pa.RecordBatch | None:
        if self._sets is not None:
            return check_assignments(dataset, self._sets, self._ref.uri)
        check_where(dataset, self._where, self._ref.uri)
        return None

    def _evaluate(
        self, ref: DatasetRef, dataset: lance.LanceDataset, before: _Evaluated | None
    ) -> _Evaluated:
        """Evaluates the statement at a version. Unchanged fragments keep their results."""
        if self._checked[0] != ref:
            self._checked = ref, self._check(dataset)
        evaluated = _Evaluated.at(ref, dataset)
        if before is not None:
            evaluated.carry_over(before)
        pending = {number: evaluated.fragments[number] for number in sorted(evaluated.pending)}
        evaluated.results += self._changed(self._spec(ref, dataset), dataset, pending)
        return evaluated

    def _spec(self, ref: DatasetRef, dataset: lance.LanceDataset) -> EditSpec:
        """Returns the shared description of all tasks."""
        return EditSpec(
            table=ref,
            staging=self._staging,
            where=self._where,
            expressions=tuple(self._expressions.items()),
            constants=self._checked[1],
            targets=targets_of(dataset, self._columns) if self._columns else None,
            stable=dataset.has_stable_row_ids,
        )

    def _read_columns(self, dataset: lance.LanceDataset) -> list[str]:
        """Returns all columns of the statement."""
        texts = [self._where or "", *self._expressions.values()]
        return sorted({*named_columns(dataset.schema, *texts), *self._columns})

    def _changed(
        self, spec: EditSpec, dataset: lance.LanceDataset, fragments: dict[int, FragmentMetadata]
    ) -> list[RowEditResult]:
        """Runs tasks over some fragments."""
        physical = {number: fragment.physical_rows for number, fragment in fragments.items()}
        columns = self._read_columns(dataset)
        matches = known_matches(spec.table, spec.where, fragments)
        spec = replace(spec, mask=matches.mask)

        def run(task: Callable[[int], Task], numbers: Iterable[int]) -> list[RowEditResult]:
            work = work_of(
                spec.table, dataset, columns, {number: physical[number] for number in numbers}
            )
            packs = pack_fragments(work, task_bytes(self._spark, work))
            edits = [Edit(spec=spec, task=task(len(packs)), fragments=pack) for pack in packs]
            return self._jobs.results(edits, RowEditResult)

        if self._strategy is None and matches.unknown:
            results = run(
                lambda tasks: "count" if tasks > 1 else "cheaper",
                sorted((*matches.matched, *matches.unknown)),
            )
            if len(results) == 1:
                self._strategy = results[0].strategy
                return results
            matched = {
                number: rows for result in results for number, rows in sorted(result.counts.items())
            }
        else:
            matched = dict(sorted((matches.matched | matches.unknown).items()))
        if not matched:
            return []
        if self._strategy is None:
            self._strategy = choose_strategy(spec.table, dataset, self._columns, matched, physical)
        strategy = self._strategy
        return run(lambda _: strategy, matched)
