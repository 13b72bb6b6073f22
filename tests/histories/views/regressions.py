"""Histories of views that once failed."""

from __future__ import annotations

from tests.histories.administration import AddColumn, CleanUp, Restore
from tests.histories.operations import Append, Compact, Delete, DeleteFragment, Update
from tests.histories.views.model import ActOn, ResumeRefresh, StartRefresh, ViewHistory

REGRESSIONS: dict[str, ViewHistory] = {
    "a refresh noted what a restore in that moment had taken back, and the next one took it for true": ViewHistory(
        (7, 7),
        (
            StartRefresh("one"),
            ActOn("t", DeleteFragment((2,))),
            StartRefresh("one", "noting"),
            ActOn("v", Restore(back=3)),
            ResumeRefresh("one"),
        ),
    ),
    "of two refreshes that noted at once one failed": ViewHistory(
        (5, 5),
        (
            StartRefresh("one"),
            ActOn("t", Append((100, 102, 103))),
            StartRefresh("one", "noting"),
            ActOn("t", Delete((2, 3))),
            StartRefresh("two"),
            ResumeRefresh("one"),
        ),
    ),
    "a refresh failed where the version of the view that it had read was cleaned up before its commit": ViewHistory(
        (5, 6),
        (
            StartRefresh("one"),
            ActOn("t", Update((0, 2, 3), column="a")),
            StartRefresh("one", "look"),
            ActOn("v", CleanUp()),
            ResumeRefresh("one"),
        ),
    ),
    "rows that a restore of the source brought back, and a compaction moved then, never came": ViewHistory(
        (7, 7),
        (
            ActOn("t", Delete((2, 6, 11))),
            StartRefresh("one"),
            ActOn("t", Restore(back=1)),
            ActOn("t", Compact(all=True)),
            StartRefresh("one"),
        ),
    ),
    "a refresh whose commit was cleaned up before it was noted filled columns from the version before": ViewHistory(
        (8, 8),
        (
            StartRefresh("one"),
            ActOn("t", Update((0,), column="a")),
            StartRefresh("one", until="begin"),
            ResumeRefresh("one", until="landed"),
            ActOn("v", AddColumn("e1")),
            ActOn("v", CleanUp()),
        ),
    ),
    "a refresh hid that what it had committed over was cleaned up in that moment": ViewHistory(
        (8, 7),
        (
            StartRefresh("one"),
            ActOn("t", Update((0,), column="a")),
            StartRefresh("one", "commit"),
            ActOn("v", AddColumn("e1")),
            ActOn("v", CleanUp()),
        ),
    ),
    "the version that a refresh had compared with was cleaned up before its commit": ViewHistory(
        (5, 5),
        (
            ActOn("t", Append((100,))),
            StartRefresh("one"),
            ActOn("t", Update((0,), column="a")),
            StartRefresh("one"),
            ActOn("v", Delete((0,))),
            StartRefresh("one", "commit", back=1),
            ActOn("t", Append((100,))),
            ActOn("t", CleanUp()),
        ),
    ),
    "two first refreshes at once, of which the second is taken back": ViewHistory(
        (6, 6),
        (
            StartRefresh("one", "commit"),
            StartRefresh("two"),
            ActOn("v", Compact(all=True)),
            ResumeRefresh("one"),
        ),
    ),
}
