"""Raises errors for impossible commits of column files, with cause, time and remedy."""

from __future__ import annotations

from collections.abc import Sequence

from lance_spark.commit.changes import ColumnsToCommit
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.conflicts.verdicts import Verdict, judge_column, judge_input, judge_new_column
from lance_spark.dataset import moments_of
from lance_spark.errors import CommitConflictError, CommitImpossibleError


def refuse_other_columns(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], *, token: str | None, uri: str
) -> None:
    """Raises if target or input columns are no longer the snapshot's columns.

    `token` is the token of the columns added by this commit itself; None before their addition.

    Raises:
        CommitImpossibleError: A column was dropped or changed, or may be a different column.
        CommitConflictError: A concurrent writer added a column of the same name.
    """
    where = f"Table: {uri}, version {head.dataset.version}, read at version {change.read_version}."
    targets = [
        judge_column(column, head.fields, changes, by_name=change.by_name)
        if column.id >= 0
        else judge_new_column(column, head.fields, mine=token, is_filled=head.is_filled)
        for column in change.targets
    ]
    for judgement in [*targets, *(judge_input(column, head.fields, changes) for column in change.inputs)]:
        if judgement.verdict is Verdict.IMPOSSIBLE:
            moments = moments_of(head.dataset, judgement.versions)
            raise CommitImpossibleError(
                f"The values cannot be applied: {judgement.reason}{moments}. {where} {change.advice}", uri=uri
            )
    for judgement in targets:
        if judgement.verdict is Verdict.CONFLICT:
            raise CommitConflictError(
                f"The values cannot be applied: {judgement.reason}. {where} {change.advice} Or choose another name.",
                uri=uri,
            )


def refuse_renamed(change: ColumnsToCommit, head: Head, uri: str) -> None:
    """Raises a conflict for a renamed target column, because Lance finds columns by name."""
    names = {column.id: column.name for column in head.fields}
    for column in change.targets:
        name = names.get(column.id, column.name)
        if name != column.name:
            raise CommitConflictError(
                f"Column {column.name!r} was renamed to {name!r} during the computation of its values. Table: {uri}, "
                f"version {head.dataset.version}, read at version {change.read_version}. {change.advice}",
                uri=uri,
            )


def refuse_overwritten(change: ColumnsToCommit, head: Head, changes: Sequence[Change], uri: str) -> None:
    """Raises for values without a remaining fragment, if the table was overwritten."""
    overwrites = [event for event in changes if event.operation == "Overwrite"]
    if overwrites:
        last = overwrites[-1]
        raise CommitImpossibleError(
            f"The table was overwritten: {last.text}{moments_of(head.dataset, [last.version])}. Table: {uri}, read at "
            f"version {change.read_version}. {change.advice}",
            uri=uri,
        )
