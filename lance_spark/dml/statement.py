"""Updates and deletions of rows by conditions in Lance SQL: :class:`Statement`. On the driver.

A statement is evaluated at one version by tasks over its fragments, and committed as one version.
Where concurrent commits changed what it read, the fragments that changed are evaluated again, at
the latest version, and the others keep what was done: the result is always that of the statement
at one version.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import NO_NOTE, CommitNote, RowEdits, StagedColumns
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, ids_of
from lance_spark.commit.data_files import data_files
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.dml.answers import Answer, RowJobs
from lance_spark.dml.assignments import Assignments, check_assignments, check_where
from lance_spark.dml.column_files import targets_of
from lance_spark.dml.edits import Edit, EditSpec, Task
from lance_spark.dml.result import ChangeResult
from lance_spark.dml.rounds import run_rounds
from lance_spark.dml.ways import Way, cheaper_way, known_matches, named_columns, work_of
from lance_spark.errors import UnsupportedOperationError
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.area import Staging, new_id

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata
    from pyspark.sql import SparkSession


@dataclass(slots=True, kw_only=True)
class _Evaluated:
    """What a statement does at one version.

    Attributes:
        seen: The fragments of that version that were looked at, as they were, by id.
    """

    ref: DatasetRef
    fields: tuple[FieldIdentity, ...]
    seen: dict[int, FragmentMetadata]
    answers: list[Answer] = field(default_factory=list)


class Statement:
    """An update or a deletion, first of a pinned version. Belongs to one thread of the driver.

    Raises:
        FilterError, OptionError, ColumnNotFoundError, ValueConversionError,
            UnsupportedOperationError: It does not fit the table.
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
        self._jobs = RowJobs(
            spark=spark,
            tag=f"lance-spark-{self._staging.job_id}",
            description=f"lance-spark: {self._operation} of {table_name}",
        )
        self._way: Way | None = None if sets else "delete"
        self._evaluated: _Evaluated | None = None

    def run(self, note: CommitNote = NO_NOTE) -> ChangeResult:
        """Evaluates and commits the statement.

        Raises:
            CommitConflictError: Other writers kept coming first. Nothing was changed.
            CommitOutcomeUnknownError: The store did not answer.
            LanceSparkError: A task failed on a value, or on a file. Nothing was changed.
        """
        return run_rounds(self._ref, self._staging, self._policy, self._edits_of, note)

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
        """Returns the statement at a version; what has not changed since is taken as it was."""
        dataset = ref.open()
        if self._checked[0] != ref:
            self._checked = ref, self._check(dataset)
        fields = field_identities(dataset.lance_schema)
        seen = {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}
        now = _Evaluated(ref=ref, fields=fields, seen=seen)
        pending = set(seen)
        if before is not None and set(before.fields) <= set(fields):
            same = {number for number, fragment in before.seen.items() if seen.get(number) == fragment}
            # Rows of several fragments may have been moved into one.
            now.answers = [answer for answer in before.answers if same.issuperset(answer.fragments)]
            pending -= same - {number for answer in before.answers for number in answer.fragments}
            pending -= {number for answer in now.answers for number in answer.fragments}
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
        now.answers += self._changed(spec, dataset, sorted(columns), {n: seen[n] for n in sorted(pending)})
        return now

    def _changed(
        self,
        spec: EditSpec,
        dataset: lance.LanceDataset,
        columns: Sequence[str],
        fragments: dict[int, FragmentMetadata],
    ) -> list[Answer]:
        """Returns what tasks did to some fragments, where `columns` are all that they look at."""
        physical = {number: fragment.physical_rows for number, fragment in fragments.items()}

        def run(task: Callable[[int], Task], numbers: Iterable[int]) -> list[Answer]:
            work = work_of(spec.table, dataset, columns, {number: physical[number] for number in numbers})
            return self._jobs.over_fragments(
                work, lambda units: Edit(spec=spec, task=task(len(units)), units=units)
            )  # fmt: skip

        matched, unknown = known_matches(spec.table, spec.where, fragments)
        if self._way is None and unknown:
            answers = run(lambda tasks: "count" if tasks > 1 else "cheaper", sorted((*matched, *unknown)))
            if len(answers) == 1:
                self._way = answers[0].way
                return answers
            matched = {number: rows for answer in answers for number, rows in sorted(answer.counts.items())}
        else:
            matched = dict(sorted((matched | unknown).items()))
        if not matched:
            return []
        if self._way is None:
            assert self._sets is not None
            self._way = cheaper_way(spec.table, dataset, self._sets.columns, matched, physical)
        way = self._way
        return run(lambda _: way, matched)

    # Commit

    def _edits(self, now: _Evaluated) -> RowEdits | None:
        """Returns what is to be committed; None where no row matches."""
        new = tuple(fragment for answer in now.answers for fragment in answer.new_fragments())
        staged = {one[0]: one for answer in now.answers for one in answer.columns}
        edits = RowEdits(
            operation=self._operation,
            read_version=now.ref.version or 0,
            fields=now.fields,
            before={},
            updated=tuple(fragment for answer in now.answers for fragment in answer.updated_fragments()),
            removed=tuple(number for answer in now.answers for number in answer.removed),
            new=new,
            rows_updated=sum(answer.changed for answer in now.answers),
            rows_deleted=sum(answer.deleted for answer in now.answers),
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
    ref: DatasetRef, dataset: lance.LanceDataset, answers: Sequence[Answer], columns: Sequence[str]
) -> RowEdits | None:
    """Returns what is to be committed of an update that wrote column files; None for nothing."""
    staged = [one for answer in answers for one in answer.columns]
    if not staged:
        return None
    rows = SnapshotRows(dataset)
    seen = {one[0]: rows.existing_fragment(one[0]).metadata for one in staged}
    edits = RowEdits(
        operation="update",
        read_version=ref.version or 0,
        fields=field_identities(dataset.lance_schema),
        before=seen,
        updated=(),
        removed=(),
        new=(),
        rows_updated=sum(answer.changed for answer in answers),
    )
    return with_columns(edits, dataset, columns, staged, seen)


def with_columns(
    edits: RowEdits,
    dataset: lance.LanceDataset,
    columns: Sequence[str],
    staged: Sequence[tuple[int, str, int | None, str]],
    seen: Mapping[int, FragmentMetadata],
) -> RowEdits:
    """Returns edits that also put column files into fragments.

    Args:
        edits: What else the statement does.
        dataset: The version that it read.
        columns: The columns that the files have.
        staged: Fragment, name and size of each file, and the rows that got values, in Base64.
        seen: The fragments as they were, by id.
    """
    modified = ids_of(one for one in edits.fields if one.name in columns)
    files = data_files(dataset, [StagedColumns(name=name, size_bytes=size) for _, name, size, _ in staged])
    updated = tuple(
        _with_file(seen[one[0]], file, frozenset(modified)) for one, file in zip(staged, files, strict=True)
    )
    offsets = {number: base64.b64decode(given) for number, _, _, given in staged}
    return replace(
        edits,
        updated=updated,
        modified=tuple(sorted(modified)),
        offsets=offsets if dataset.has_stable_row_ids else {},
    )


def _with_file(fragment: FragmentMetadata, file: DataFile, modified: frozenset[int]) -> FragmentMetadata:
    """Returns a fragment in which a file has the modified fields, in place of the files before.

    Raises:
        UnsupportedOperationError: It has overlays, which would hide the new values.
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
"""In place of the id of a field that a newer file holds."""
