"""Commits what the tasks of a compaction wrote: :func:`commit_compacted`.

pylance refuses all of a compaction where a concurrent commit touched any of its fragments, added a
column or built an index; and it takes what came between for compatible where the transactions were
cleaned up, which would bring deleted rows back. So each part is judged here by itself, by identity:
a part whose fragments are at the head what they were when they were read is committed there,
whatever came between, and the others are given back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.commit.commit_loop import commit_with_retries
from lance_spark.commit.conflicts.history import events_between, first_naming, named_files
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.conflicts.table_state import Fragments
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
    panics_as_errors,
)
from lance_spark.lance_compat import files_of_rewrite, is_preempted, is_taken_slot, plain, rewrite_as_of, tells_rows

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the parts of a compaction depend on beside their fragments.

    Attributes:
        columns: Field ids and type of each column, by its id.
        segments: Fragments of each part of an index, by its id.
    """

    columns: Mapping[int, tuple[tuple[int, ...], str]]
    segments: Mapping[str, frozenset[int]]

    @staticmethod
    def of(dataset: lance.LanceDataset) -> Basis:
        """Reads it from an open version."""
        return Basis(
            columns={one.id: (one.ids, one.type) for one in field_identities(dataset.lance_schema)},
            segments={
                one.uuid: frozenset(one.fragment_ids) for index in dataset.describe_indices() for one in index.segments
            },
        )

    def keeps_columns_of(self, before: Basis) -> bool:
        """Tells whether no column of an older version was replaced by one of the same id.

        Columns may come, go, and be renamed; but Lance gives the id of one that went to the next.
        """
        return all(self.columns.get(number, column) == column for number, column in before.columns.items())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compacted:
    """What one task wrote: new fragments in the place of old ones, in no version yet.

    Attributes:
        olds: The fragments as they were read.
        rewrite: pylance's `RewriteResult`, as JSON.
    """

    olds: tuple[FragmentMetadata, ...]
    rewrite: str

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the data files that it wrote."""
        return tuple(name for fragment in files_of_rewrite(self.rewrite) for name in fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """What became of parts of a compaction.

    Attributes:
        version: The version that was made, or None.
        committed: Parts that are in it.
        lost: The others, and why: concurrent commits came first. No version has their files.
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
    make_rounds: Callable[[CommitPolicy], Rounds] = lambda policy: Rounds(policy=policy),
) -> CompactionOutcome:
    """Commits those parts whose fragments are as they were read, as one version.

    Runs on the driver. `missing` returns those of some data files that are not there. Indexes are
    kept up in this process, unless that is deferred. What other writers deleted, updated or filled
    in stays as they left it.

    Raises:
        CommitOutcomeUnknownError: The store did not answer; or the files were deleted in the moment
            of the commit; or what came first was cleaned up in that moment.
        CommitError: The commit did not happen, for another reason than concurrent commits.
    """
    # What the last attempt without an answer sent: its files are of no other job.
    unanswered: list[CompactionOutcome] = []

    def find(head: lance.LanceDataset, _after: int) -> CompactionOutcome | None:
        for sent in unanswered[-1:]:
            landed = _landed_version(head, sent)
            if landed is not None:
                return _with_version(ref, landed, sent, missing)
        return None

    def one_round(head: lance.LanceDataset | None, _retries: int) -> CompactionOutcome | Lost | Unknown:
        if head is None:
            raise TableNotFoundError(ref.uri)
        fits, lost = _sorted(head, basis, parts, missing)
        if not fits:
            return CompactionOutcome(version=None, committed=(), lost=tuple(lost))
        looked_at = head.version
        sent = CompactionOutcome(version=looked_at, committed=tuple(fits), lost=tuple(lost))
        outcome = _attempt(ref, head, fits, defer_index_remap=defer_index_remap)
        if isinstance(outcome, Unknown):
            unanswered.append(sent)
        return _with_version(ref, head, sent, missing) if isinstance(outcome, Landed) else outcome

    advice = "written files are kept; compact again when the store answers"
    try:
        return commit_with_retries(
            ref, one_round, find, policy or CommitPolicy.of(None), since=0, advice=advice, make_rounds=make_rounds
        )
    except CommitConflictError as error:
        return CompactionOutcome(version=None, committed=(), lost=tuple((part, str(error)) for part in parts))


def _landed_version(head: lance.LanceDataset, sent: CompactionOutcome) -> lance.LanceDataset | None:
    """Returns the version that an attempt without an answer made, or None.

    Other writers may have committed since. If the version was cleaned up, the oldest kept version
    with the files takes its place.
    """
    names = {name for part in sent.committed for name in part.files}
    version = first_naming(head, names, after=sent.version or 0)
    return None if version is None else head.checkout_version(version)


def _with_version(
    ref: DatasetRef,
    landed: lance.LanceDataset,
    sent: CompactionOutcome,
    missing: Callable[[Sequence[str]], Collection[str]],
) -> CompactionOutcome:
    """Returns what an attempt has committed, after a check that nothing was lost."""
    _refuse_unseen(ref, landed, sent.version or 0)
    _refuse_missing(ref, landed.version, sent.committed, missing)
    return dataclasses.replace(sent, version=landed.version)


def _sorted(
    head: lance.LanceDataset,
    basis: Basis,
    parts: Sequence[Compacted],
    missing: Callable[[Sequence[str]], Collection[str]],
) -> tuple[list[Compacted], list[tuple[Compacted, str]]]:
    """Returns the parts that fit a version, and the others with the reason."""
    now, fragments = Basis.of(head), Fragments(head)
    gone = frozenset(missing([name for part in parts for name in part.files]))
    built = [one for number, one in now.segments.items() if number not in basis.segments]
    fits, lost = list[Compacted](), list[tuple[Compacted, str]]()
    for part in parts:
        if not now.keeps_columns_of(basis):
            reason: str | None = "a column was replaced by another one"
        elif not gone.isdisjoint(part.files):
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
        # All of it: files, overlays, deletions, and versions of rows.
        elif fragments[old.id].to_json() != old.to_json():
            yield f"fragment {old.id} was changed"


def _index_at_odds(built: Sequence[frozenset[int]], part: Compacted) -> str | None:
    """Returns why a part does not fit with parts of indexes that it did not know of, or None.

    Measured: an index that knows some of a part's fragments, or of whose rows the part does not say
    where they went, loses them, or pylance refuses the commit.
    """
    olds = frozenset(old.id for old in part.olds)
    covers = [olds & one for one in built]
    if any(some and (some != olds or not tells_rows(part.rewrite)) for some in covers):
        return "an index was built or updated"
    return None


def _attempt(
    ref: DatasetRef, head: lance.LanceDataset, parts: Sequence[Compacted], *, defer_index_remap: bool
) -> Landed | Lost | Unknown:
    """Commits once; `head` is at the new version then."""
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
            f"Lance failed to commit a compaction: {plain(error)} - at {ref.uri} - nothing of it was committed",
            uri=ref.uri,
        ) from error
    if isinstance(outcome, Unknown) and is_preempted(outcome.error):
        return Lost(race=is_taken_slot(outcome.error), error=outcome.error)
    return outcome


def _refuse_unseen(ref: DatasetRef, landed: lance.LanceDataset, looked_at: int) -> None:
    """Raises where pylance could not see what came between the look and the commit."""
    unseen = [e.version for e in events_between(landed, looked_at, landed.version - 1) if e.operation is None]
    if unseen:
        raise CommitOutcomeUnknownError(
            f"fragments of version {looked_at} were compacted, and commits that came first (version {unseen[0]} and "
            "later) were cleaned up in that moment, so that what they deleted or changed may be undone - at "
            f"{ref.uri}, version {landed.version} - look at the rows that they changed, or restore version {looked_at}",
            uri=ref.uri,
        )


def _refuse_missing(
    ref: DatasetRef, version: int, parts: Sequence[Compacted], missing: Callable[[Sequence[str]], Collection[str]]
) -> None:
    """Raises where files were deleted in the moment of their commit: Lance commits all the same."""
    gone = sorted(missing([name for part in parts for name in part.files]))
    # Those of a fragment that was compacted again since then may rightly have gone.
    named = named_files(ref.open_latest(), gone, after=version - 1) if gone else frozenset()
    if named:
        raise CommitOutcomeUnknownError(
            f"{len(named)} data files were deleted while they were committed, as by a cleanup of files that no version "
            f"names, so that their rows cannot be read ({', '.join(sorted(named)[:_SHOWN_FILES])}) - at {ref.uri}, "
            f"version {version} - restore version {version - 1}, and compact again",
            uri=ref.uri,
        )
