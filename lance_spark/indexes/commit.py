"""Commits the segments of an index at the latest version: :func:`commit_index`.

A segment describes rows at the version of its build. The segment covers its fragments with the same
column files at the latest version. Lance scans the other fragments. Measured: pylance refuses an
index after a concurrent compaction, column file, overwrite or restore, and accepts an index whose
column was dropped or cast, although no query can use the index then.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit, check_landed
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.commit_loop import CommitPolicy, commit_job, properties_of
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, files_of
from lance_spark.commit.verify import take_back
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitImpossibleError,
    IndexExistsError,
    TableNotFoundError,
)
from lance_spark.indexes.definition import IndexDefinition
from lance_spark.indexes.listing import kind_of
from lance_spark.indexes.segments import named_segment, narrowed

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance.dataset import Index

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexToCommit:
    """An index with built segments.

    Attributes:
        column: The top-level column at the version of the build.
        files: Rows and column files of each fragment of the version of the build.
        segments: The built segments.
    """

    definition: IndexDefinition
    read_version: int
    column: FieldIdentity
    files: Mapping[int, tuple[int, tuple[str, ...]]]
    segments: Sequence[Index]

    @property
    def rows(self) -> int:
        """Number of rows of the segments' fragments."""
        return self.rows_of(self.segments)

    def rows_of(self, segments: Sequence[Index]) -> int:
        """Returns the number of rows of segments' fragments."""
        return sum(self.files[number][0] for segment in segments for number in segment.fragment_ids)

    def still_valid(self, head: lance.LanceDataset) -> frozenset[int]:
        """Returns the fragments whose segments are right at another version.

        Raises:
            CommitImpossibleError: The column was dropped, cast or renamed.
        """
        column = self.column
        if column not in field_identities(head.lance_schema):
            raise CommitImpossibleError(
                f"Column {column.name!r} was dropped, cast or renamed during the build of index "
                f"{self.definition.name!r}. Table: {head.uri}, version {head.version}. Nothing was committed. Create "
                "the index again.",
                uri=head.uri,
            )
        present = {fragment.fragment_id: fragment.metadata for fragment in head.get_fragments()}
        return frozenset(
            number
            for number, (_, files) in self.files.items()
            if number in present and files_of(present[number], column.ids) == files
        )


def files_by_fragment(
    dataset: lance.LanceDataset, column: FieldIdentity
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Returns rows and column files of each fragment of a version."""
    fragments = (fragment.metadata for fragment in dataset.get_fragments())
    return {
        fragment.id: (fragment.num_rows, files_of(fragment, column.ids)) for fragment in fragments
    }


class TooMuchMovedError(CommitConflictError):
    """Most rows of an index have moved. Nothing was committed."""


def commit_index(
    ref: DatasetRef,
    index: IndexToCommit,
    *,
    job_id: str,
    least_share: float,
    policy: CommitPolicy | None = None,
) -> CommitResult:
    """Commits an index, in place of an index of its name. The result counts the covered rows.

    Runs on the driver. A second commit with the same `job_id` returns the result of the first.

    Args:
        ref: The table.
        index: The built index.
        job_id: Id of the job.
        least_share: Minimum share of the rows that the index must cover.
        policy: Limits of the retries.

    Raises:
        TooMuchMovedError: The index would cover a smaller share.
        IndexExistsError: An index of the name exists, and must not be replaced.
        CommitImpossibleError: The column was dropped, cast or renamed.
        CommitError: The commit failed for another reason.
    """
    policy = policy or CommitPolicy.of(None)
    one_round = functools.partial(_commit_once, ref, index, job_id, least_share, policy)
    check = functools.partial(_refuse_slipped, index=index, ref=ref, job_id=job_id, policy=policy)
    result = commit_job(ref, job_id, index.read_version, one_round, policy, check=check)
    _LOG.info("index %s of %s committed as version %d (job %s)",
        index.definition.name, result.uri, result.version, job_id)  # fmt: skip
    return result


def _commit_once(
    ref: DatasetRef,
    index: IndexToCommit,
    job_id: str,
    least_share: float,
    policy: CommitPolicy,
    head: lance.LanceDataset | None,
    retries: int,
) -> CommitResult | Lost | Unknown:
    from lance import LanceOperation

    if head is None:
        raise TableNotFoundError(ref.uri)
    valid = index.still_valid(head)
    segments = [
        narrowed(segment, [n for n in segment.fragment_ids if n in valid])
        for segment in index.segments
    ]
    rows = index.rows_of(segments)
    if rows < least_share * index.rows:
        raise TooMuchMovedError(
            f"Most rows were moved or rewritten during the build of index {index.definition.name!r}. Table: {ref.uri}, "
            f"version {head.version}. Nothing was committed. Create the index again.",
            uri=ref.uri,
        )
    result = CommitResult(
        uri=ref.uri,
        operation="index",
        job_id=job_id,
        version=0,
        read_version=index.read_version,
        rows=rows,
        fragments=len({number for segment in segments for number in segment.fragment_ids}),
        retries=retries,
        columns=(index.definition.column,),
    )
    removed = replaced_segments(head, index.definition)
    outcome = attempt_commit(
        head,
        LanceOperation.CreateIndex(new_indices=segments, removed_indices=removed),
        read_version=head.version,
        properties=properties_of(result, None),
        storage_options=ref.storage,
    )
    if not isinstance(outcome, Landed):
        return outcome
    landed, read = outcome.dataset, head.version
    check = functools.partial(_refuse_slipped, index=index, ref=ref, job_id=job_id, policy=policy)
    return check_landed(lambda: check(landed, read)) or dataclasses.replace(
        result, version=landed.version
    )


def replaced_segments(head: lance.LanceDataset, definition: IndexDefinition) -> list[Index]:
    """Returns the segments of the replaced index; an empty list for a new index.

    Raises:
        IndexExistsError: The index must not be replaced, or has another kind or column.
    """
    for description in head.describe_indices():
        if description.name != definition.name:
            continue
        field = head.lance_schema.field(definition.column)
        kind = kind_of(description.index_type)
        if (
            field is None
            or list(description.fields) != [field.id()]
            or _family(kind) != _family(definition.kind)
        ):
            reason = f", an index {kind} of column {', '.join(map(repr, description.field_names))}"
            raise IndexExistsError(
                definition.name, head.uri, reason=reason, hint="give the new index another name="
            )
        if not definition.replace:
            raise IndexExistsError(
                definition.name, head.uri, reason="", hint="replace=True makes it anew"
            )
        return [named_segment(segment.uuid, description.name) for segment in description.segments]
    return []


def _family(kind: str) -> str:
    return "vector" if kind.startswith("IVF") else "FTS" if kind == "FTS" else "scalar"


def _refuse_slipped(
    landed: lance.LanceDataset,
    read: int,
    *,
    index: IndexToCommit,
    ref: DatasetRef,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Takes back an index that would be wrong about rows because of commits after version `read`.

    Raises:
        CommitImpossibleError: The column was dropped, cast or renamed.
        CommitConflictError: Fragments were rewritten just before the commit.
        CommitOutcomeUnknownError: The table has the index, or may have it.
    """
    from lance import LanceOperation

    if landed.version == read + 1:
        return
    ours = {segment.uuid for segment in index.segments}

    def undo(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        own_segments = [
            named_segment(segment.uuid, description.name)
            for description in head.describe_indices()
            for segment in description.segments
            if segment.uuid in ours
        ]
        return (
            LanceOperation.CreateIndex(new_indices=[], removed_indices=own_segments)
            if own_segments
            else None
        )

    wrong: CommitConflictError | CommitImpossibleError | None = None
    try:
        valid = index.still_valid(landed)
        present = {fragment.fragment_id for fragment in landed.get_fragments()}
        indexed_fragments = {
            number
            for description in landed.describe_indices()
            for segment in description.segments
            if segment.uuid in ours
            for number in segment.fragment_ids
        }
        if not (indexed_fragments & present) <= valid:
            wrong = CommitConflictError(
                f"Rows were rewritten at the moment of the commit of index {index.definition.name!r}, so the index was "
                f"dropped. Table: {ref.uri}, version {landed.version}. Create the index again.",
                uri=ref.uri,
            )
    except CommitImpossibleError as error:
        wrong = error
    if wrong is not None:
        take_back(ref, undo, job_id=job_id, since=landed.version, policy=policy)
        raise wrong
