"""Histories of views that once failed."""

from __future__ import annotations

from tests.histories.administration import AddColumn, CleanUp, Restore
from tests.histories.operations import Append, Compact, Delete, DeleteFragment, Update
from tests.histories.views.model import Act, Go, History, Start

REGRESSIONS: dict[str, History] = {
    "a refresh noted what a restore in that moment had taken back, and the next one took it for true": History(
        (7, 7),
        (
            Start("one"),
            Act("t", DeleteFragment((2,))),
            Start("one", "noting"),
            Act("v", Restore(back=3)),
            Go("one"),
        ),
    ),
    "of two refreshes that noted at once one failed": History(
        (5, 5),
        (
            Start("one"),
            Act("t", Append((100, 102, 103))),
            Start("one", "noting"),
            Act("t", Delete((2, 3))),
            Start("two"),
            Go("one"),
        ),
    ),
    "a refresh failed where the version of the view that it had read was cleaned up before its commit": History(
        (5, 6),
        (
            Start("one"),
            Act("t", Update((0, 2, 3), column="a")),
            Start("one", "look"),
            Act("v", CleanUp()),
            Go("one"),
        ),
    ),
    "rows that a restore of the source brought back, and a compaction moved then, never came": History(
        (7, 7),
        (
            Act("t", Delete((2, 6, 11))),
            Start("one"),
            Act("t", Restore(back=1)),
            Act("t", Compact(all=True)),
            Start("one"),
        ),
    ),
    "a refresh whose commit was cleaned up before it was noted filled columns from the version before": History(
        (8, 8),
        (
            Start("one"),
            Act("t", Update((0,), column="a")),
            Start("one", until="begin"),
            Go("one", until="landed"),
            Act("v", AddColumn("e1")),
            Act("v", CleanUp()),
        ),
    ),
    "a refresh hid that what it had committed over was cleaned up in that moment": History(
        (8, 7),
        (
            Start("one"),
            Act("t", Update((0,), column="a")),
            Start("one", "commit"),
            Act("v", AddColumn("e1")),
            Act("v", CleanUp()),
        ),
    ),
    "the version that a refresh had compared with was cleaned up before its commit": History(
        (5, 5),
        (
            Act("t", Append((100,))),
            Start("one"),
            Act("t", Update((0,), column="a")),
            Start("one"),
            Act("v", Delete((0,))),
            Start("one", "commit", back=1),
            Act("t", Append((100,))),
            Act("t", CleanUp()),
        ),
    ),
    "two first refreshes at once, of which the second is taken back": History(
        (6, 6),
        (Start("one", "commit"), Start("two"), Act("v", Compact(all=True)), Go("one")),
    ),
}
