"""Updates and deletions of rows by conditions in Lance SQL: :class:`Statement`. On the driver.

Tasks over the fragments of a version evaluate a statement, and one commit makes one version. After
a conflict, tasks evaluate the changed fragments again at the latest version, and the results of the
other fragments stay. The result always equals the statement at one version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import NO_NOTE, CommitNote, RowEdits
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, ids_of
from lance_spark.commit.data_files import data_files
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.dml.assignments import Assignments, check_assignments, check_where
from lance_spark.dml.column_files import targets_of
from lance_spark.dml.edits import Edit, EditSpec, Task
from lance_spark.dml.result import ChangeResult
from lance_spark.dml.rounds import retry_statement
from lance_spark.dml.row_edit_result import RowEditResult, WrittenColumnFile
from lance_spark.dml.strategy import UpdateStrategy, choose_strategy, known_matches, named_columns, task_bytes, work_of
from lance_spark.errors import UnsupportedOperationError
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import pack_fragments
from lance_spark.staging.area import Staging, new_id

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata
    from pyspark.sql import SparkSession


@dataclass(slots=True, kw_only=True)
class _Evaluated:
    """The evaluation of a statement at a version.

    Attributes:
        seen: The evaluated fragments of the version, by id.
    """

    ref: DatasetRef
    fields: tuple[FieldIdentity, ...]
    seen: dict[int, FragmentMetadata]
    results: list[RowEditResult] = field(default_factory=list)


class Statement:
    """An update or a deletion, first of a pinned version. Belongs to one thread of the driver.

    Raises:
        FilterError, OptionError, ColumnNotFoundError, ValueConversionError,
            UnsupportedOperationError: The statement does not fit the table.
        UnsafeStoreError: The store loses concurrent commits.
    """

    def __init__(
        self, spark: SparkSession, ref: DatasetRef, *, where: str | None, sets: Assignments | None, table_name: str
    ) -> None:
        self._ref = ref
        self._where = where
        self._sets = sets
        self._policy = CommitPolicy.of(None)
        refuse_unsafe_store(ref.uri, ref.storage, allow=self._policy.allow_unsafe)
        self._checked: tuple[DatasetRef, pa.RecordBatch | None] = self._ref, self._check(self._ref.open())
        self._operation: Literal["delete", "update"] = "delete" if sets is None else "update"
        self._staging = Staging(uri=ref.uri, storage_options=ref.storage_options, job_id=new_id())
        tag = SparkJobTag.of(self._staging.job_id, f"lance-spark: {self._operation} of {table_name}")
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
        self._evaluated = self._evaluate(ref, self._evaluated)
        return self._edits(self._evaluated)

    def _check(self, dataset: lance.LanceDataset) -> pa.RecordBatch | None:
        if self._sets is not None:
            return check_assignments(dataset, self._sets, self._ref.uri)
        check_where(dataset, self._where, self._ref.uri)
        return None

    # Evaluation

    def _evaluate(self, ref: DatasetRef, before: _Evaluated | None) -> _Evaluated:
        """Evaluates the statement at a version. Unchanged fragments keep their results."""
        dataset = ref.open()
        if self._checked[0] != ref:
            self._checked = ref, self._check(dataset)
        fields = field_identities(dataset.lance_schema)
        seen_fragments = {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}
        evaluated = _Evaluated(ref=ref, fields=fields, seen=seen_fragments)
        pending = set(seen_fragments)
        if before is not None and set(before.fields) <= set(fields):
            same = {number for number, fragment in before.seen.items() if seen_fragments.get(number) == fragment}
            # A task may have moved rows of several fragments into one fragment.
            evaluated.results = [result for result in before.results if same.issuperset(result.fragments)]
            pending -= same - {number for result in before.results for number in result.fragments}
            pending -= {number for result in evaluated.results for number in result.fragments}
        sets = self._sets
        spec = EditSpec(
            table=ref,
            staging=self._staging,
            where=self._where,
            expressions=tuple(sets.expressions.items()) if sets else (),
            constants=self._checked[1],
            targets=targets_of(dataset, sets.columns) if sets else None,
            stable=dataset.has_stable_row_ids,
        )
        texts = [text for text in (self._where, *(sets.expressions.values() if sets else ())) if text]
        columns = {*named_columns(dataset.schema, *texts), *(sets.columns if sets else ())}
        evaluated.results += self._changed(
            spec, dataset, sorted(columns), {n: seen_fragments[n] for n in sorted(pending)}
        )
        return evaluated

    def _changed(
        self,
        spec: EditSpec,
        dataset: lance.LanceDataset,
        columns: Sequence[str],
        fragments: dict[int, FragmentMetadata],
    ) -> list[RowEditResult]:
        """Runs tasks over some fragments. `columns` are all columns of the statement."""
        physical = {number: fragment.physical_rows for number, fragment in fragments.items()}

        def run(task: Callable[[int], Task], numbers: Iterable[int]) -> list[RowEditResult]:
            work = work_of(spec.table, dataset, columns, {number: physical[number] for number in numbers})
            packs = pack_fragments(work, task_bytes(self._spark, work))
            edits = [Edit(spec=spec, task=task(len(packs)), fragments=pack) for pack in packs]
            return self._jobs.results(edits, RowEditResult)

        matched, unknown = known_matches(spec.table, spec.where, fragments)
        if self._strategy is None and unknown:
            results = run(lambda tasks: "count" if tasks > 1 else "cheaper", sorted((*matched, *unknown)))
            if len(results) == 1:
                self._strategy = results[0].strategy
                return results
            matched = {number: rows for result in results for number, rows in sorted(result.counts.items())}
        else:
            matched = dict(sorted((matched | unknown).items()))
        if not matched:
            return []
        if self._strategy is None:
            assert self._sets is not None
            self._strategy = choose_strategy(spec.table, dataset, self._sets.columns, matched, physical)
        strategy = self._strategy
        return run(lambda _: strategy, matched)

    # Commit

    def _edits(self, now: _Evaluated) -> RowEdits | None:
        """Returns the edits for the commit; None if no row matches."""
        new = tuple(fragment for result in now.results for fragment in result.new_fragments())
        staged = {file.fragment_id: file for result in now.results for file in result.columns}
        edits = RowEdits(
            operation=self._operation,
            read_version=now.ref.version or 0,
            fields=now.fields,
            before={},
            updated=tuple(fragment for result in now.results for fragment in result.updated_fragments()),
            removed=tuple(number for result in now.results for number in result.removed),
            new=new,
            rows_updated=sum(result.changed for result in now.results),
            rows_deleted=sum(result.deleted for result in now.results),
            predicate=self._where,
        )
        if staged:
            assert self._sets is not None
            edits = with_columns(edits, now.ref.open(), self._sets.columns, list(staged.values()), now.seen)
        if not edits.rows_updated and not edits.rows_deleted:
            return None
        touched = [*(fragment.id for fragment in edits.updated), *edits.removed]
        return replace(edits, before={number: now.seen[number] for number in touched})


def edits_of_columns(
    ref: DatasetRef, dataset: lance.LanceDataset, results: Sequence[RowEditResult], columns: Sequence[str]
) -> RowEdits | None:
    """Returns the edits of an update with column files for the commit; None without files."""
    staged = [file for result in results for file in result.columns]
    if not staged:
        return None
    rows = SnapshotRows(dataset)
    seen_fragments = {file.fragment_id: rows.existing_fragment(file.fragment_id).metadata for file in staged}
    edits = RowEdits(
        operation="update",
        read_version=ref.version or 0,
        fields=field_identities(dataset.lance_schema),
        before=seen_fragments,
        updated=(),
        removed=(),
        new=(),
        rows_updated=sum(result.changed for result in results),
    )
    return with_columns(edits, dataset, columns, staged, seen_fragments)


def with_columns(
    edits: RowEdits,
    dataset: lance.LanceDataset,
    columns: Sequence[str],
    staged: Sequence[WrittenColumnFile],
    seen: Mapping[int, FragmentMetadata],
) -> RowEdits:
    """Returns edits with additional column files of fragments.

    Args:
        edits: The other edits of the statement.
        dataset: The version of the statement.
        columns: The columns of the files.
        staged: The column files.
        seen: The fragments of the version, by id.
    """
    modified = ids_of(field for field in edits.fields if field.name in columns)
    files = data_files(dataset, [file.staged for file in staged])
    updated = tuple(
        _with_file(seen[staged_file.fragment_id], file, frozenset(modified))
        for staged_file, file in zip(staged, files, strict=True)
    )
    offsets = {file.fragment_id: file.rows for file in staged}
    return replace(
        edits,
        updated=updated,
        modified=tuple(sorted(modified)),
        offsets=offsets if dataset.has_stable_row_ids else {},
    )


def _with_file(fragment: FragmentMetadata, file: DataFile, modified: frozenset[int]) -> FragmentMetadata:
    """Returns a fragment with a new file for the modified fields, in place of earlier files.

    Raises:
        UnsupportedOperationError: Overlays of the fragment would hide the new values.
    """
    from lance.fragment import DataFile

    if fragment.overlays:
        raise UnsupportedOperationError(
            f"fragment {fragment.id} has overlays of another tool, which would hide new column files - nothing was "
            "changed - compact the table first: compact_files()"
        )
    files = []
    for old in fragment.files:
        fields = [_REPLACED if number in modified else number for number in old.fields]
        if any(number != _REPLACED for number in fields):
            files.append(
                old if fields == list(old.fields) else DataFile(
                    old.path, fields, list(old.column_indices), old.file_major_version, old.file_minor_version,
                    old.file_size_bytes, old.base_id,
                )
            )  # fmt: skip
    return replace(fragment, files=[*files, file])


_REPLACED = -2
"""In place of the id of a field with a newer file."""
