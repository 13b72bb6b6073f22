"""Judges the fragments of a commit against one version of the table: gives :mod:`lance_spark.commit.conflicts.verdicts` what it decides by."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns
from lance_spark.commit.conflicts.identity import FieldIdentity, fragment_identity
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.conflicts.verdicts import Change, Judgement, judge_fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentJudge:
    """What all fragments of a version are judged by. Made once per version: there may be 100,000 of them, and thousands of changes.

    Attributes:
        head: The version.
        changes: What happened since the version that the values belong to.
        inputs: The inputs that are still there; one that was dropped meanwhile cannot have been rewritten.
        targets: The target columns when the values were computed; as they are now where the commit adds them.
        targets_now: The target columns of the version.
        blanks: Names of files of NULLs that the commit itself has put there.
    """

    head: Head
    changes: Sequence[Change]
    inputs: tuple[FieldIdentity, ...]
    targets: tuple[FieldIdentity, ...]
    targets_now: tuple[FieldIdentity, ...]
    blanks: frozenset[str]

    @staticmethod
    def of(
        change: ColumnsToCommit, head: Head, changes: Sequence[Change], *, token: str | None, blanks: Collection[str]
    ) -> FragmentJudge:
        """Collects it."""
        there = {column.id for column in head.fields}
        now = targets_now(change, head, token)
        return FragmentJudge(
            head=head,
            changes=changes,
            inputs=tuple(column for column in change.inputs if column.id in there),
            targets=tuple(column for column in change.targets if column.id >= 0) or now,
            targets_now=now,
            blanks=frozenset(blanks),
        )

    def fragment(self, part: FragmentColumns, *, ours: str | None = None) -> Judgement:
        """Judges the column file of one fragment; `ours` is its name where it was committed already."""
        there = self.head.fragments.get(part.fragment_id)
        then = fragment_identity(part.fragment, self.inputs, self.targets)
        now = None if there is None else fragment_identity(there, self.inputs, self.targets_now)
        if now is not None and self.blanks:
            others = tuple(file for file in now.targets if file.partition(":")[0] not in self.blanks)
            now = dataclasses.replace(now, targets=others)
        return judge_fragment(then, now, self.changes, ours=ours)


def targets_now(change: ColumnsToCommit, head: Head, token: str | None) -> tuple[FieldIdentity, ...]:
    """Returns the target columns of a version, under whatever name they are there."""
    ids = {column.id for column in change.targets if column.id >= 0}
    new = set(change.new_columns.names)
    return tuple(
        column
        for column in head.fields
        if column.id in ids or column.name in new or (column.token is not None and column.token == token)
    )
