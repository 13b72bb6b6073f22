"""Commits column files on top of whatever came first: the backfill's side of the committer.

Each round looks at the head, judges every fragment by identity (:mod:`lance_spark.commit.rebase`), adds the columns that are new as
all-NULL ones, and commits the column files of all valid fragments with one DataReplacement. All or nothing: one fragment that cannot be
applied as it is ends the commit with a typed error, and nothing of it is in the table.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.committer import properties_of, run_rounds
from lance_spark.commit.entries import data_files, file_named, same_columns
from lance_spark.commit.history import UNDONE_KEY, Event, events_between
from lance_spark.commit.identity import (
    TOKEN_KEY,
    FieldIdentity,
    FragmentIdentity,
    field_identities,
    files_of,
    fragment_identity,
)
from lance_spark.commit.rebase import (
    Change,
    Decision,
    Judgement,
    SeenHistory,
    Verdict,
    decide,
    judge_column,
    judge_fragment,
    judge_new_column,
)
from lance_spark.commit.snapshot import open_snapshot
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
)

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_logger = logging.getLogger(__name__)

_NAMED_FRAGMENTS = 10
"""Fragments that a message names."""

RestoreFile = Callable[[int], StagedColumns]
"""Stages a file with the values that a fragment's target columns have in the snapshot, NULL where they are new."""

BlankFile = Callable[[int, Sequence[str]], StagedColumns]
"""Stages a file of a fragment in which the named target columns are NULL."""


def commit_columns(
    snapshot: DatasetRef,
    change: ColumnsToCommit,
    *,
    job_id: str,
    restore_file: RestoreFile,
    blank_file: BlankFile,
    policy: CommitPolicy | None = None,
    history: SeenHistory | None = None,
) -> CommitResult:
    """Commits column files as one version. Runs in Spark's commit process, without a session.

    A new column takes a version more: it is added as all NULL first, since a Merge that carried values would have to be sent again on a
    conflict, and pylance then drops other columns or brings deleted rows back. A death between the two leaves the column all NULL.

    Args:
        snapshot: The table, at the version that the values belong to.
        change: The column files.
        job_id: Identifies the job over attempts; a second commit with the same id returns the result of the first.
        restore_file: Stages a fragment's previous values; called only if a commit has to be taken back.
        blank_file: Stages NULLs; called where a fragment has files of some of the target columns and not of others.
        policy: Bounds of the retries; by default as the environment says.
        history: What earlier commits have read, where a job of one snapshot makes several, each under an id of its own; is added to.

    Returns:
        What was committed.

    Raises:
        CommitConflictError: Fragments changed meanwhile so that the values do not fit: compacted, or an input or target column was
            rewritten in place. Or somebody added the same column. Nothing was committed.
        CommitImpossibleError: The column was dropped or changed, or the table was overwritten or restored. Nothing was committed.
        CommitOutcomeUnknownError: Whether the commit happened cannot be told. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    history = history or SeenHistory()
    since = max(change.read_version, history.upto)
    job = _ColumnCommit(
        snapshot=snapshot,
        change=change,
        job_id=job_id,
        restore_file=restore_file,
        blank_file=blank_file,
        changes=history.changes,
        seen=since,
    )
    try:
        result = run_rounds(snapshot, job_id, since, job.run_round, policy or CommitPolicy.of(None))
    finally:
        history.upto = job.seen
    _logger.info(
        "backfill of %s committed to %s as version %d: %d rows in %d fragments, read at version %d, inputs %s (from %s), "
        "%d fragments and %d rows gone meanwhile, %d new rows without a value, %d retries (job %s)",
        ", ".join(result.columns), result.uri, result.version, result.rows, result.fragments, change.read_version,
        ", ".join(result.input_columns) or "none", result.inputs_from, len(result.fragments_gone), result.rows_gone,
        result.new_rows, result.retries, job_id,
    )  # fmt: skip
    return result


@dataclass(slots=True, kw_only=True)
class _Head:
    """One version that was looked at."""

    dataset: lance.LanceDataset
    fields: tuple[FieldIdentity, ...]
    fragments: dict[int, FragmentMetadata]

    @staticmethod
    def of(dataset: lance.LanceDataset) -> _Head:
        fragments = {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}
        return _Head(dataset=dataset, fields=field_identities(dataset.lance_schema), fragments=fragments)


@dataclass(slots=True, kw_only=True)
class _ColumnCommit:
    """The state of one commit over its rounds: what is known of the history, and which columns it has added."""

    snapshot: DatasetRef
    change: ColumnsToCommit
    job_id: str
    restore_file: RestoreFile
    blank_file: BlankFile
    changes: list[Change]
    seen: int
    token: str | None = None
    then: dict[int, FragmentMetadata] = field(default_factory=dict)
    blanks: set[str] = field(default_factory=set)

    @property
    def uri(self) -> str:
        return self.snapshot.uri

    def run_round(self, dataset: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        """Does one round, as :class:`~lance_spark.commit.committer.Round` says."""
        if dataset is None:
            raise CommitImpossibleError(f"the table was deleted - at {self.uri} - nothing was committed", uri=self.uri)
        snapshot = open_snapshot(self.snapshot)
        if not self.then:
            self.then = _Head.of(snapshot).fragments
        head = _Head.of(dataset)
        self._look_back(head.dataset)
        decision = self._judge(head)
        added = self._add_columns(head)
        if isinstance(added, (Lost, Unknown)):
            return added
        if added is not None:
            head = _Head.of(added)
            self._look_back(head.dataset)
            decision = self._judge(head)
        filled = self._fill_gaps(head, decision)
        if isinstance(filled, (Lost, Unknown)):
            return filled
        if filled is not None:
            head = _Head.of(filled)
            self._look_back(head.dataset)
            decision = self._judge(head)
        return self._replace(head, decision, retries)

    def _look_back(self, dataset: lance.LanceDataset) -> None:
        for event in events_between(dataset, self.seen, dataset.version):
            self.changes.append(_change_of(event))
        self.seen = max(self.seen, dataset.version)

    def _judge(self, head: _Head) -> Decision:
        """Judges columns and fragments, and raises where anything stands in the way."""
        for column in self.change.targets:
            if column.id >= 0:
                judgement = judge_column(column, head.fields, self.changes)
            else:
                judgement = judge_new_column(
                    column.name, column.type, head.fields, mine=self.token, is_filled=lambda now: _is_filled(head, now)
                )
            if judgement.verdict is Verdict.IMPOSSIBLE:
                raise CommitImpossibleError(
                    f"the values cannot be applied: {judgement.reason} - at {self.uri}, version {head.dataset.version}, read at version "
                    f"{self.change.read_version} - nothing was committed; read the table again and write again",
                    uri=self.uri,
                )
            if judgement.verdict is Verdict.CONFLICT:
                raise CommitConflictError(
                    f"{judgement.reason} - at {self.uri}, version {head.dataset.version}, read at version {self.change.read_version} - "
                    "nothing was committed; read the table again and write again, or choose another name",
                    uri=self.uri,
                )
        decision = decide({part.fragment_id: self._judge_fragment(part, head) for part in self.change.fragments})
        if decision.blocked:
            raise self._conflict(decision.blocked, head.dataset.version, "nothing was committed")
        return decision

    def _judge_fragment(self, part: FragmentColumns, head: _Head) -> Judgement:
        # A column that was dropped meanwhile cannot have been rewritten; the values were computed from what it held.
        still = {column.id for column in head.fields}
        inputs = [column for column in self.change.inputs if column.id in still]
        then = self._identity(self.then[part.fragment_id], inputs, self.change.targets)
        now_fragment = head.fragments.get(part.fragment_id)
        now = None if now_fragment is None else self._identity(now_fragment, inputs, self._targets_now(head))
        if now is not None and self.blanks:
            others = tuple(file for file in now.targets if file.partition(":")[0] not in self.blanks)
            now = dataclasses.replace(now, targets=others)
        return judge_fragment(then, now, self.changes)

    def _identity(
        self, fragment: FragmentMetadata, inputs: Sequence[FieldIdentity], targets: Sequence[FieldIdentity]
    ) -> FragmentIdentity:
        return fragment_identity(fragment, inputs, [column for column in targets if column.id >= 0])

    def _targets_now(self, head: _Head) -> tuple[FieldIdentity, ...]:
        """Returns the target columns of a version, under whatever name they are there."""
        ids = {column.id for column in self.change.targets if column.id >= 0}
        new = set(self.change.new_columns.names)
        return tuple(
            column
            for column in head.fields
            if column.id in ids or column.name in new or (column.token is not None and column.token == self.token)
        )

    def _conflict(self, blocked: Mapping[int, str], version: int, done: str) -> CommitConflictError:
        reasons: dict[str, list[int]] = {}
        for fragment, reason in blocked.items():
            reasons.setdefault(reason, []).append(fragment)
        parts = "; ".join(
            f"fragment{'s' if len(ids) > 1 else ''} {_shown(ids)}: {reason}" for reason, ids in reasons.items()
        )
        return CommitConflictError(
            f"{len(blocked)} of {len(self.change.fragments)} fragments changed since version {self.change.read_version}, so that the "
            f"values do not fit: {parts} - at {self.uri}, version {version} - {done}; read the table again and write again"
            f"{self._inputs_hint(blocked)}",
            uri=self.uri,
            fragments=sorted(blocked),
        )

    def _inputs_hint(self, blocked: Mapping[int, str]) -> str:
        if self.change.inputs_from != "all" or not any("input columns" in reason for reason in blocked.values()):
            return ""
        return ", and name the columns that the values depend on with option('input_columns', ...): all were assumed"

    def _add_columns(self, head: _Head) -> lance.LanceDataset | Lost | Unknown | None:
        """Adds the new columns that the head lacks, as all NULL. Returns the dataset with them, None if there was nothing to add."""
        import pyarrow as pa
        from lance.commit import CommitConflictError as LanceConflict

        names = {column.name for column in head.fields}
        missing = [arrow for arrow in self.change.new_columns if arrow.name not in names]
        if not missing:
            return None
        token = self.token or uuid.uuid4().hex
        stamped = []
        for arrow in missing:
            metadata: dict[bytes | str, bytes | str] = dict((arrow.metadata or {}).items())
            metadata[TOKEN_KEY] = token
            stamped.append(arrow.with_nullable(True).with_metadata(metadata))
        try:
            # pylance builds the Merge from this handle's version and refuses it if anything but an index or the configuration came
            # first (measured), so nobody's column or deletion is overwritten.
            head.dataset.add_columns(pa.schema(stamped))
        except LanceConflict as error:
            return Lost(race=True, error=error)
        except OSError as error:
            return Unknown(error=error)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise CommitError(
                f"Lance cannot add columns {', '.join(repr(f.name) for f in missing)}: {error} - at {self.uri} - nothing was committed",
                uri=self.uri,
            ) from error
        self.token = token
        return self.snapshot.open_latest()

    def _fill_gaps(self, head: _Head, decision: Decision) -> lance.LanceDataset | Lost | Unknown | None:
        """Gives fragments that have files of some target columns files of the others too, with NULLs, which these columns are there anyway.

        Measured: a DataReplacement replaces a file of a fragment, or adds one, but does not do both in one. Returns the dataset with them,
        None where there was nothing to do.
        """
        from lance import LanceOperation

        gaps: dict[tuple[str, ...], list[int]] = {}
        for fragment in decision.valid:
            columns = self._targets_now(head)
            without = tuple(c.name for c in columns if not files_of(head.fragments[fragment], c.ids))
            if without and len(without) < len(columns):
                gaps.setdefault(without, []).append(fragment)
        dataset = None
        for names, fragments in gaps.items():
            base = dataset or head.dataset
            staged = [self.blank_file(fragment, names) for fragment in fragments]
            # Before the commit: where its answer is lost, the next round meets these files.
            self.blanks.update(file.name for file in staged)
            groups = [
                LanceOperation.DataReplacementGroup(*pair)
                for pair in zip(fragments, data_files(base, staged), strict=True)
            ]
            outcome = attempt_commit(
                base,
                LanceOperation.DataReplacement(groups),
                read_version=base.version,
                properties={},
                storage_options=self.snapshot.storage,
            )
            if not isinstance(outcome, Landed):
                return outcome
            dataset = outcome.dataset
        return dataset

    def _replace(self, head: _Head, decision: Decision, retries: int) -> CommitResult | Lost | Unknown:
        from lance import LanceOperation

        result = self._result(head, decision, retries)
        if not decision.valid:
            return dataclasses.replace(result, version=head.dataset.version)
        staged = {part.fragment_id: part.staged for part in self.change.fragments}
        files = data_files(head.dataset, [staged[fragment] for fragment in decision.valid])
        groups = [LanceOperation.DataReplacementGroup(*pair) for pair in zip(decision.valid, files, strict=True)]
        outcome = attempt_commit(
            head.dataset,
            LanceOperation.DataReplacement(groups),
            read_version=head.dataset.version,
            properties=properties_of(result, self.change.commit_message),
            storage_options=self.snapshot.storage,
        )
        if not isinstance(outcome, Landed):
            return outcome
        landed = outcome.dataset
        if landed.version != head.dataset.version + 1:
            self._check_slipped(landed, decision)
        return dataclasses.replace(result, version=landed.version)

    def _result(self, head: _Head, decision: Decision, retries: int) -> CommitResult:
        parts = {part.fragment_id: part for part in self.change.fragments}
        gone = sum(parts[fragment].rows for fragment in decision.gone)
        for fragment in decision.valid:
            deleted = head.fragments[fragment].num_deletions - self.then[fragment].num_deletions
            gone += min(deleted, parts[fragment].rows)
        return CommitResult(
            uri=self.uri,
            operation="backfill",
            job_id=self.job_id,
            version=0,
            read_version=self.change.read_version,
            rows=sum(part.rows for part in parts.values()) - gone,
            fragments=len(decision.valid),
            retries=retries,
            columns=tuple(column.name for column in self.change.targets),
            added_columns=tuple(self.change.new_columns.names),
            input_columns=tuple(column.name for column in self.change.inputs),
            inputs_from=self.change.inputs_from,
            fragments_gone=decision.gone,
            rows_gone=gone,
            new_rows=sum(f.num_rows for i, f in head.fragments.items() if i not in self.then),
        )

    def _check_slipped(self, landed: lance.LanceDataset, decision: Decision) -> None:
        """Takes the commit back if something that it does not fit slipped in between the look at the head and the commit.

        Measured: pylance accepts a DataReplacement over an in-place rewrite of an input column without a conflict.
        """
        head = _Head.of(landed)
        self._look_back(landed)
        parts = {part.fragment_id: part for part in self.change.fragments}
        lost = self._lost_columns(head)
        blocked = dict.fromkeys(decision.valid, lost) if lost is not None else {}
        for fragment in decision.valid if lost is None else ():
            now = head.fragments.get(fragment)
            still = {column.id for column in head.fields}
            inputs = [column for column in self.change.inputs if column.id in still]
            then = self._identity(self.then[fragment], inputs, self.change.targets)
            identity = None if now is None else self._identity(now, inputs, self._targets_now(head))
            judgement = judge_fragment(then, identity, self.changes, ours=parts[fragment].staged.name)
            if judgement.verdict is not Verdict.VALID:
                blocked[fragment] = judgement.reason
        if not blocked:
            return
        _logger.warning(
            "version %d of %s is taken back: fragments %s changed while it was committed",
            landed.version,
            self.uri,
            _shown(list(blocked)),
        )
        self._take_back(decision)
        raise self._conflict(blocked, landed.version, "the commit was taken back at once")

    def _lost_columns(self, head: _Head) -> str | None:
        """Tells what became of a target column that is not there any more as it was committed."""
        for column in self.change.targets:
            if column.id >= 0:
                judgement = judge_column(column, head.fields, self.changes)
                if judgement.verdict is not Verdict.VALID:
                    return judgement.reason
            elif all(now.name != column.name for now in head.fields):
                return f"column {column.name!r}: it was dropped or renamed"
        return None

    def _take_back(self, decision: Decision) -> None:
        """Gives the fragments that still have our file their previous values again."""
        from lance import LanceOperation

        parts = {part.fragment_id: part for part in self.change.fragments}
        staged = {fragment: self.restore_file(fragment) for fragment in decision.valid}

        def one_round(dataset: lance.LanceDataset | None, _retries: int) -> CommitResult | Lost | Unknown:
            nothing = CommitResult(
                uri=self.uri,
                operation="backfill",
                job_id=self.job_id,
                version=0,
                read_version=None,
                rows=0,
                fragments=0,
            )
            if dataset is None:
                return nothing
            head = _Head.of(dataset)
            live = {i for column in self._targets_now(head) for i in column.ids}
            groups = []
            for fragment in decision.valid:
                now = head.fragments.get(fragment)
                mine = None if now is None else file_named(now, parts[fragment].staged.name)
                if mine is not None and live.intersection(mine.fields):
                    # It has the columns of the file that it replaces, under their ids: names may have changed.
                    groups.append(LanceOperation.DataReplacementGroup(fragment, same_columns(mine, staged[fragment])))
            if not groups:
                return nothing
            outcome = attempt_commit(
                dataset,
                LanceOperation.DataReplacement(groups),
                read_version=dataset.version,
                properties={UNDONE_KEY: self.job_id},
                storage_options=self.snapshot.storage,
            )
            return (
                dataclasses.replace(nothing, version=outcome.dataset.version)
                if isinstance(outcome, Landed)
                else outcome
            )

        try:
            run_rounds(self.snapshot, f"{self.job_id}-undo", self.seen, one_round, CommitPolicy())
        except (CommitError, OSError) as error:
            raise CommitOutcomeUnknownError(
                f"input columns changed while the values were committed, and the values could not be taken back: {error} - "
                f"at {self.uri}, fragments {_shown(list(decision.valid))} - backfill these fragments again",
                uri=self.uri,
            ) from error


def _change_of(event: Event) -> Change:
    from lance import LanceOperation

    operation = event.operation
    compacted: frozenset[int] = frozenset()
    schema = None
    if isinstance(operation, LanceOperation.Rewrite):
        compacted = frozenset(old.id for group in operation.groups for old in group.old_fragments)
    if isinstance(operation, LanceOperation.Project):
        schema = field_identities(operation.schema)
    name = None if operation is None else event.name
    return Change(version=event.version, operation=name, compacted=compacted, schema=schema)


def _is_filled(head: _Head, column: FieldIdentity) -> bool:
    return any(files_of(fragment, column.ids) for fragment in head.fragments.values())


def _shown(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:_NAMED_FRAGMENTS])) + (
        f" and {len(ids) - _NAMED_FRAGMENTS} more" if len(ids) > _NAMED_FRAGMENTS else ""
    )
