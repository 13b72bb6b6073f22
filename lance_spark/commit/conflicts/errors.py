"""Why a commit of column files cannot be: errors with what happened, when, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lance_spark.commit.changes import ColumnsToCommit
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.conflicts.verdicts import Change, Verdict, judge_column, judge_new_column
from lance_spark.dataset import moments_of
from lance_spark.errors import CommitConflictError, CommitImpossibleError

_NAMED_FRAGMENTS = 10
"""Fragments that a message names."""


def refuse_other_columns(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], *, token: str | None, uri: str
) -> None:
    """Refuses values whose columns are not the snapshot's columns any more.

    Args:
        change: What is to be committed.
        head: The version that it is to be committed on.
        changes: What happened since the snapshot.
        token: What this commit has put into the columns that it added itself; None if it has not yet.
        uri: Location of the table.

    Raises:
        CommitImpossibleError: A column was dropped or changed, or may be another one.
        CommitConflictError: Somebody else added a column of the same name.
    """
    for column in change.targets:
        if column.id >= 0:
            judgement = judge_column(column, head.fields, changes)
        else:
            judgement = judge_new_column(column.name, column.type, head.fields, mine=token, is_filled=head.is_filled)
        if judgement.verdict is Verdict.IMPOSSIBLE:
            raise CommitImpossibleError(
                f"the values cannot be applied: {judgement.reason}{moments_of(head.dataset, judgement.versions)} - at {uri}, version "
                f"{head.dataset.version}, read at version {change.read_version} - nothing was committed; read the table again and "
                "write again; values in checkpoints stay, and serve a column that is the same",
                uri=uri,
            )
        if judgement.verdict is Verdict.CONFLICT:
            raise CommitConflictError(
                f"{judgement.reason} - at {uri}, version {head.dataset.version}, read at version {change.read_version} - "
                "nothing was committed; read the table again and write again, or choose another name",
                uri=uri,
            )


def refuse_overwritten(change: ColumnsToCommit, head: Head, changes: Sequence[Change], uri: str) -> None:
    """Refuses values of which no fragment is there any more, where an overwrite is why.

    Raises:
        CommitImpossibleError: It is.
    """
    overwritten = [one for one in changes if one.operation == "Overwrite"]
    if overwritten:
        last = overwritten[-1]
        raise CommitImpossibleError(
            f"the table was overwritten: {last.text}{moments_of(head.dataset, [last.version])} - at {uri}, read at version "
            f"{change.read_version} - nothing was committed; read the table again and write again",
            uri=uri,
        )


def refuse_untold_moves(change: ColumnsToCommit, head: Head, uri: str) -> None:
    """Refuses values of rows of which some were written anew elsewhere, where the version that tells which ones was cleaned up.

    Stable row ids come with the versions at which rows were made and last written: a row that is as old as the values, and was written
    since, has moved. Without them nobody could tell, and rows that moved are as whoever moved them left them.

    Raises:
        CommitImpossibleError: Rows with values are not where they were, and there are such rows.
    """
    there = {part.fragment_id for part in change.fragments}
    before = {part.fragment_id: part.fragment.num_deletions for part in change.fragments}
    lost = any(n not in head.fragments or head.fragments[n].num_deletions > count for n, count in before.items())
    elsewhere = [head.dataset.get_fragment(number) for number in head.fragments if number not in there]
    if not lost or not elsewhere or not head.dataset.has_stable_row_ids:
        return
    version = change.read_version
    moved = head.dataset.scanner(
        columns=[],
        with_row_id=True,
        fragments=[fragment for fragment in elsewhere if fragment is not None],
        filter=f"_row_created_at_version <= {version} AND _row_last_updated_at_version > {version}",
        limit=1,
    )
    if moved.to_table().num_rows:
        raise CommitImpossibleError(
            f"rows were updated since version {version}, which was cleaned up, so that nothing tells whether their values are right - at {uri}, "
            f"version {head.dataset.version} - nothing was committed; read the table again and write again",
            uri=uri,
        )


def conflict_error(
    change: ColumnsToCommit, uri: str, blocked: Mapping[int, str], version: int, done: str
) -> CommitConflictError:
    """Returns the error for fragments whose values do not fit.

    Args:
        change: What is to be committed.
        uri: Location of the table.
        blocked: Why, by fragment.
        version: The version that was looked at.
        done: What became of the commit.
    """
    reasons: dict[str, list[int]] = {}
    for fragment, reason in blocked.items():
        reasons.setdefault(reason, []).append(fragment)
    parts = "; ".join(
        f"fragment{'s' if len(ids) > 1 else ''} {shown(ids)}: {reason}" for reason, ids in reasons.items()
    )
    hint = ""
    if change.inputs_from == "all" and any("input columns" in reason for reason in blocked.values()):
        hint = ", and name the columns that the values depend on with option('input_columns', ...): all were assumed"
    return CommitConflictError(
        f"{len(blocked)} of {len(change.fragments)} fragments changed since version {change.read_version}, so that the values do not fit: "
        f"{parts} - at {uri}, version {version} - {done}; read the table again and write again{hint}",
        uri=uri,
        fragments=sorted(blocked),
    )


def shown(ids: Sequence[int]) -> str:
    """Returns a few ids of fragments, for a message."""
    more = len(ids) - _NAMED_FRAGMENTS
    return ", ".join(map(str, ids[:_NAMED_FRAGMENTS])) + (f" and {more} more" if more > 0 else "")


def lost_column(change: ColumnsToCommit, head: Head, changes: Sequence[Change]) -> str | None:
    """Tells what became of a target column that is not there any more as it was committed."""
    for column in change.targets:
        if column.id >= 0:
            judgement = judge_column(column, head.fields, changes)
            if judgement.verdict is not Verdict.VALID:
                return judgement.reason
        elif all(now.name != column.name for now in head.fields):
            return f"column {column.name!r}: it was dropped or renamed"
    return None
