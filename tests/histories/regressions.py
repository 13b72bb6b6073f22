"""Histories that once failed."""

from __future__ import annotations

from tests.histories.administration import AddColumn, CleanUp, DropColumn, Index, Rename, Ruin
from tests.histories.model import Act, BackfillHistory, KillBackfill, ResumeBackfill, StartBackfill
from tests.histories.operations import (
    Append,
    Compact,
    Delete,
    DeleteFragment,
    InsertOnly,
    RewriteInput,
    RewriteTarget,
    Update,
    Upsert,
)

REGRESSIONS: dict[str, BackfillHistory] = {
    "a write was killed after Lance had put its commit behind a change of an input: its values counted as those of the new input": BackfillHistory(
        (5, 5, 5),
        (
            StartBackfill("one", "write", "v", until="commit"),
            Act(RewriteInput((0,), column="a")),
            ResumeBackfill("one", until="commit"),
            KillBackfill("one"),
        ),
    ),
    "rows that moved to a fragment which was looked at after its own one had been committed counted as never computed": BackfillHistory(
        (7, 8, 8),
        (
            StartBackfill(
                "one", "job", "v", where="some", until="call 19", granularity=2, on_stale="null"
            ),
            Act(RewriteInput((4, 5, 8, 11, 14), column="b", to="first")),
            StartBackfill(
                "two", "job", "v", until="call 14", granularity=1, task_size=4, on_stale="null"
            ),
            StartBackfill("two", "write", "w", until="commit"),
            Act(AddColumn("e1", null=True)),
            Act(Update((2, 3, 4, 12, 17), column="a")),
            ResumeBackfill("one", until="landed"),
            Act(Update((1, 21))),
        ),
        indexed=True,
    ),
    "rows that an update had moved were left out without a word where the snapshot was cleaned up": BackfillHistory(
        (5, 8, 5, 6),
        (
            StartBackfill("one", "write", "v", where="all", until="written"),
            Act(Rename("w")),
            ResumeBackfill("two", until="commit"),
            Act(Update((3, 10, 13))),
            Act(CleanUp()),
            StartBackfill("two", "job", "v", until="call 2"),
            Act(Upsert((1, 3, 6, 17), changed=(0, 21))),
            ResumeBackfill("one", until="commit"),
            Act(Ruin("w", "drop")),
        ),
    ),
    "the whole table was deleted: what a commit had named was gone with an old version": BackfillHistory(
        (7, 6, 7, 7),
        (
            StartBackfill("one", "write", "v", until="landed"),
            Act(DeleteFragment((6, 12, 16, 17, 24))),
            Act(CleanUp()),
            Act(RewriteInput((6, 12, 17, 20, 24))),
            Act(CleanUp()),
            StartBackfill("two", "job", "v", where="all", until="commit", granularity=1),
            Act(Rename("w")),
            Act(Index("w")),
        ),
        indexed=True,
    ),
    "the same, of a job whose snapshot was cleaned up": BackfillHistory(
        (5, 6, 6, 8),
        (
            StartBackfill(
                "one",
                "job",
                "v",
                where="some",
                until="commit",
                granularity=1,
                task_size=4,
                on_stale="null",
            ),
            Act(AddColumn("e2", null=True)),
            StartBackfill("two", "job", "w", until="landed"),
            Act(DeleteFragment((0, 15, 19, 21, 22))),
            Act(Update((0, 1, 17, 24), column="a")),
            Act(CleanUp(files=True)),
        ),
        stable=False,
        indexed=True,
    ),
    "the same, after a compaction": BackfillHistory(
        (6, 8, 5),
        (
            StartBackfill(
                "one", "job", "v", where="all", until="landed", granularity=1, on_stale="null"
            ),
            Act(Compact(all=True)),
            Act(Append((116,))),
            Act(InsertOnly((102, 120))),
            Act(CleanUp()),
        ),
        stable=False,
        indexed=True,
        fresh=True,
    ),
    "rows of a range whose version was gone were counted as selected and not computed, and then once more": BackfillHistory(
        (6, 7, 8),
        (
            StartBackfill("one", "job", "w", until="landed", granularity=2, task_size=4),
            Act(DeleteFragment((15,))),
            StartBackfill("two", "write", "d", until="written", on_stale="error"),
            Act(RewriteTarget((0, 20))),
            Act(AddColumn("e1")),
            Act(CleanUp(files=True)),
            ResumeBackfill("one", until="commit"),
            Act(RewriteTarget((2, 9, 20, 22, 24), column="w")),
        ),
        stable=False,
    ),
    "files that were cleaned up before they were committed ended a write with an error that said nothing": BackfillHistory(
        (8, 5, 5, 6),
        (
            StartBackfill("one", "write", "d", where="all", until="commit"),
            Act(CleanUp(files=True)),
            StartBackfill(
                "two", "job", "v", until="landed", granularity=2, task_size=4, on_stale="null"
            ),
            Act(Compact(all=True, deferred=True)),
            Act(InsertOnly((116, 124, 127))),
        ),
        fresh=True,
    ),
    "a file that was cleaned up between two rounds of a commit ended a job": BackfillHistory(
        (7, 8, 8, 8),
        (
            StartBackfill(
                "one", "job", "v", where="some", until="call 17", granularity=1, task_size=4
            ),
            Act(Rename("e1")),
            Act(CleanUp(files=True)),
            Act(DropColumn("e1")),
            Act(Upsert((5, 8, 10, 17, 19), value="null")),
            Act(RewriteInput((7, 11, 15, 19, 21), to="first")),
            StartBackfill("two", "job", "w", until="call 20", granularity=1, task_size=4),
            StartBackfill("two", "write", "d", where="some", until="commit"),
        ),
        stable=False,
    ),
    "what was there before a commit that lost its files was looked for in a version that was cleaned up": BackfillHistory(
        (8, 5, 8, 5),
        (
            Act(Update((1, 2, 3, 12, 23))),
            StartBackfill("two", "job", "w", until="commit"),
            Act(Delete((2, 7, 21))),
            Act(CleanUp(files=True)),
        ),
        stable=False,
    ),
    "the same, beside a write": BackfillHistory(
        (8, 5, 8, 5),
        (
            StartBackfill("one", "write", "d", until="landed"),
            Act(Update((9,), column="b")),
            Act(Update((1, 2, 3, 12, 23))),
            StartBackfill("two", "job", "w", until="commit", task_size=4),
            Act(Delete((2, 7, 21))),
            StartBackfill("two", "job", "v", where="all", until="landed", granularity=2),
            Act(CleanUp(files=True)),
        ),
        stable=False,
        indexed=True,
    ),
    "values that a follow-up round had committed counted as none, after a rewrite of inputs and a cleanup beside it": BackfillHistory(
        (7, 8, 7, 5),
        (
            StartBackfill("one", "job", "v", until="commit"),
            Act(Compact(rows=12, all=True)),
            ResumeBackfill("one", until="call 19"),
            Act(RewriteInput((1, 4, 8, 21, 24))),
            Act(CleanUp()),
        ),
    ),
    "a write counted fewer than no new rows where a row that it had carried over was moved again before its next look": BackfillHistory(
        (5, 5, 5),
        (
            StartBackfill("one", "write", "v", until="written"),
            Act(Update((0,), column="a")),
            Act(Compact(rows=12)),
            StartBackfill("two", "job", "v", until="commit"),
            ResumeBackfill("one", until="commit"),
            Act(Update((0,), column="a")),
        ),
    ),
    "a value that an upsert gave together with its input counted as out of date": BackfillHistory(
        (6, 6, 6),
        (StartBackfill("one", "job", "v"), Act(Upsert((3, 8), changed=(3,), value="given"))),
    ),
    "a value that was given after a change of its input counted as out of date": BackfillHistory(
        (6, 6, 6),
        (StartBackfill("one", "write", "v"), Act(RewriteInput((3,))), Act(RewriteTarget((3,)))),
        fresh=True,
    ),
}
