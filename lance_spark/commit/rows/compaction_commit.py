"""Commits the fragments written by compaction tasks: :func:`commit_compacted`.

pylance refuses a whole compaction if a concurrent commit touched any of its fragments, added a
column or built an index. If the transactions in between were cleaned up, pylance treats the commits
as compatible, and deleted rows would come back. This module therefore judges each part separately,
by identity. A part is committed at the latest version if its fragments are unchanged since their
read, regardless of the commits in between. The remaining parts are returned to the caller.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt, check_landed
from lance_spark.commit.commit_loop import CommitPolicy, commit_with_retries
from lance_spark.commit.conflicts.history import first_naming, first_unknown, named_files
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.conflicts.table_state import Fragments
from lance_spark.commit.dropped import OpenedVersion, note_landed, refuse_dropped
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
    counted,
    panics_as_errors,
)
from lance_spark.lance_compat import (
    files_of_rewrite,
    is_preempted,
    is_taken_slot,
    plain,
    rewrite_as_of,
    tells_rows,
)
from lance_spark.storage.parallel_calls import begin_call

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Dependencies of compaction parts in addition to their fragments.

    Attributes:
        columns: Field ids and type of each column, by column id.
        segments: Fragment ids of each index segment, by segment id.
    """

    columns: Mapping[int, tuple[tuple[int, ...], str]]
    segments: Mapping[str, frozenset[int]]

    @staticmethod
    def of(dataset: lance.LanceDataset) -> Basis:
        """Reads the dependencies from an open version."""
        return Basis(
            columns={
                column.id: (column.ids, column.type)
                for column in field_identities(dataset.lance_schema)
            },
            segments={
                segment.uuid: frozenset(segment.fragment_ids)
                for index in dataset.describe_indices()
                for segment in index.segments
            },
        )

    def keeps_columns_of(self, before: Basis) -> bool:
        """Tells whether no column of an older version was replaced by a column of the same id.

        Columns may be added, dropped and renamed. Lance gives the id of a dropped column to the
        next added column.
        """
        return all(
            self.columns.get(number, column) == column for number, column in before.columns.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compacted:
    """The output of a task: new fragments in place of old fragments, in no version yet.

    Attributes:
        olds: The old fragments as read by the task.
        rewrite: pylance's `RewriteResult`, as JSON.
    """

    olds: tuple[FragmentMetadata, ...]
    rewrite: str

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the data files written by the task."""
        return tuple(name for fragment in files_of_rewrite(self.rewrite) for name in fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """The outcome of the commit of compaction parts.

    Attributes:
        version: The committed version, or None.
        committed: Parts in the version.
        lost: The other parts with reasons. Concurrent commits came first, and no version has the
            files of these parts.
    """

    version: int | None
    committed: tuple[Compacted, ...]
    lost: tuple[tuple[Compacted, str], ...]


def commit_compacted(
    ref: DatasetRef,
    basis: Basis,
    parts: Sequence[Compacted],
    *,
    missing: Callable[[Sequence[str]], Collection[str]],
    defer_index_remap: bool = False,
    policy: CommitPolicy | None = None,
) -> CompactionOutcome:
    """Commits all parts with fragments unchanged since the read, as a single version.

    Runs on the driver. `missing` returns the absent files of a list of data files. Indexes are
    updated in this process, unless deferred by `defer_index_remap`. Deletes, updates and filled
    values of other writers are preserved.

    Raises:
        CommitOutcomeUnknownError: The store did not answer, the files were deleted at the moment of
            the commit, or earlier commits were cleaned up at the same moment.
        CommitError: The commit failed for a reason other than concurrent commits.
    """
    names = [name for part in parts for name in part.files]

    def begin_look() -> Callable[[], frozenset[str]]:
        """Begins to look for absent files."""
        return begin_call(ref.uri, lambda: frozenset(missing(names)))

    # The first look overlaps the opening of the latest version.
    looks = [begin_look()]
    # The outcome of the last attempt without an answer or a check. No other job has its files.
    unanswered: list[tuple[CompactionOutcome, OpenedVersion]] = []

    def find(head: lance.LanceDataset, _after: int) -> CompactionOutcome | None:
        for sent, opened in unanswered[-1:]:
            landed = _landed_version(head, sent)
            if landed is not None:
                _refuse_lost_data(ref, landed, sent, missing, opened)
                return dataclasses.replace(sent, version=landed.version)
        return None

    def one_round(
        head: lance.LanceDataset | None, _retries: int
    ) -> CompactionOutcome | Lost | Unknown:
        if head is None:
            raise TableNotFoundError(ref.uri)
        find_absent = looks.pop() if looks else begin_look()
        fits, lost = _sorted(head, basis, parts, find_absent)
        if not fits:
            return CompactionOutcome(version=None, committed=(), lost=tuple(lost))
        looked_at, opened = head.version, OpenedVersion.of(head)
        sent = CompactionOutcome(version=looked_at, committed=tuple(fits), lost=tuple(lost))
        outcome = _attempt(ref, head, fits, defer_index_remap=defer_index_remap)
        if isinstance(outcome, Landed):
            landed = outcome.dataset
            check = functools.partial(_refuse_lost_data, ref, landed, sent, missing, opened)
            outcome = check_landed(check) or outcome
        if isinstance(outcome, Unknown):
            unanswered.append((sent, opened))
        return (
            dataclasses.replace(sent, version=head.version)
            if isinstance(outcome, Landed)
            else outcome
        )

    advice = "The written files are kept. Compact again when the store answers."
    try:
        return commit_with_retries(
            ref,
            one_round,
            find,
            policy or CommitPolicy.of(None),
            since=0,
            advice=advice,
            refuses_dropped=True,
        )
    except CommitConflictError as error:
        return CompactionOutcome(
            version=None, committed=(), lost=tuple((part, str(error)) for part in parts)
        )


def _landed_version(head: lance.LanceDataset, sent: CompactionOutcome) -> lance.LanceDataset | None:
    """Returns the version made by an attempt without an answer, or None.

    Other writers may have committed since. If the version was cleaned up, the oldest kept version
    with the files takes its place.
    """
    names = {name for part in sent.committed for name in part.files}
    version = first_naming(head, names, after=sent.version or 0)
    try:
        return None if version is None else head.checkout_version(version)
    except ValueError as error:  # a cleanup deleted the version at this moment
        raise OSError(f"version {version} is gone: {plain(error)}") from error


def _refuse_lost_data(
    ref: DatasetRef,
    landed: lance.LanceDataset,
    sent: CompactionOutcome,
    missing: Callable[[Sequence[str]], Collection[str]],
    opened: OpenedVersion,
) -> None:
    """Raises if a committed attempt may have lost data."""
    version, unseen = landed.version, copy.copy(landed)
    # Each thread has its own datasets. The thread of the commit takes versions back.
    checks = [
        begin_call(ref.uri, lambda: _refuse_unseen(ref, unseen, sent.version or 0)),
        begin_call(ref.uri, lambda: _refuse_missing(ref, version, sent.committed, missing)),
    ]
    refuse_dropped(ref, opened)
    for check in checks:
        check()


def _sorted(
    head: lance.LanceDataset,
    basis: Basis,
    parts: Sequence[Compacted],
    find_absent: Callable[[], frozenset[str]],
) -> tuple[list[Compacted], list[tuple[Compacted, str]]]:
    """Returns the parts fitting a version, and the remaining parts with the reason.

    `find_absent` waits for the names of absent files.
    """
    current, fragments = Basis.of(head), Fragments(head)
    absent_files = find_absent()
    built = [
        segment for number, segment in current.segments.items() if number not in basis.segments
    ]
    fits, lost = list[Compacted](), list[tuple[Compacted, str]]()
    for part in parts:
        if not current.keeps_columns_of(basis):
            reason: str | None = "a column was replaced by another one"
        elif not absent_files.isdisjoint(part.files):
            reason = "its files were deleted, as by a cleanup of files that no version names"
        else:
            reason = next(_changes(fragments, part), None) or _index_at_odds(built, part)
        if reason is None:
            fits.append(part)
        else:
            lost.append((part, reason))
    return fits, lost


def _changes(fragments: Fragments, part: Compacted) -> Iterator[str]:
    for old in part.olds:
        if old.id not in fragments:
            yield f"fragment {old.id} is gone"
        # The comparison includes files, overlays, deletions, and versions of rows.
        elif fragments[old.id].to_json() != old.to_json():
            yield f"fragment {old.id} was changed"


def _index_at_odds(built: Sequence[frozenset[int]], part: Compacted) -> str | None:
    """Returns the reason for a conflict of a part with newer index segments, or None.

    Measured: an index segment loses the rows of a part, or pylance refuses the commit, in two
    cases. The segment has only some of the part's fragments, or the part does not map its rows to
    their new places.
    """
    olds = frozenset(old.id for old in part.olds)
    covers = [olds & segment for segment in built]
    if any(cover and (cover != olds or not tells_rows(part.rewrite)) for cover in covers):
        return "an index was built or updated"
    return None


def _attempt(
    ref: DatasetRef,
    head: lance.LanceDataset,
    parts: Sequence[Compacted],
    *,
    defer_index_remap: bool,
) -> Landed | Lost | Unknown:
    """Makes a single attempt; on success, `head` is at the new version."""
    from lance.optimize import Compaction

    rewrites = [rewrite_as_of(part.rewrite, head.version) for part in parts]

    def commit() -> lance.LanceDataset:
        with panics_as_errors():
            Compaction.commit(head, rewrites, {"defer_index_remap": defer_index_remap})
        return head

    try:
        outcome = attempt(ref.uri, ref.storage, commit)
    except (CommitError, RuntimeError) as error:
        if is_preempted(error):
            return Lost(race=is_taken_slot(error), error=error)
        raise CommitError(
            f"Lance failed to commit a compaction: {plain(error)}. Table: {ref.uri}. Nothing was committed.",
            uri=ref.uri,
        ) from error
    if isinstance(outcome, Unknown) and is_preempted(outcome.error):
        return Lost(race=is_taken_slot(outcome.error), error=outcome.error)
    if isinstance(outcome, Landed):
        note_landed(outcome.dataset)
    return outcome


def _refuse_unseen(ref: DatasetRef, landed: lance.LanceDataset, looked_at: int) -> None:
    """Raises if pylance could not see the commits between the check and this commit."""
    unknown = first_unknown(landed, looked_at)
    if unknown is not None:
        raise CommitOutcomeUnknownError(
            f"The compaction of version {looked_at} may have undone earlier commits (version {unknown} and later), "
            f"which were cleaned up at the same moment. Table: {ref.uri}, version {landed.version}. Check the rows "
            f"that these commits changed, or restore version {looked_at}.",
            uri=ref.uri,
        )


def _refuse_missing(
    ref: DatasetRef,
    version: int,
    parts: Sequence[Compacted],
    missing: Callable[[Sequence[str]], Collection[str]],
) -> None:
    """Raises if files were deleted at the moment of their commit; Lance commits regardless."""
    absent_files = sorted(missing([name for part in parts for name in part.files]))
    # Files of a fragment compacted again since then may rightly be absent.
    paths = (
        named_files(ref.open_latest(), absent_files, after=version - 1)
        if absent_files
        else frozenset()
    )
    if paths:
        raise CommitOutcomeUnknownError(
            f"A cleanup of unreferenced files deleted {counted(len(paths), 'data file')} during the commit, so their "
            f"rows cannot be read: {', '.join(sorted(paths)[:_SHOWN_FILES])}. Table: {ref.uri}, version {version}. "
            f"To recover, restore version {version - 1} and compact again.",
            uri=ref.uri,
        )
