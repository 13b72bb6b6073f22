"""Histories of views, what became of them, and what is right, version by version.

What a version of a view has to hold follows from the version before it, and from who made it. An operation of another writer changes it as
it changes any table. The commit of a refresh brings it from one version of its source to another: rows of which nothing that the view uses
has changed stay as they are, all others are made anew, and a value of the UDF is taken along where its input is the same. A commit of a
column's values puts values into NULL cells alone, and the right ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.histories.operations import Operation, Short, World
from tests.histories.processes import Caught
from tests.histories.views.refreshes import Refresh
from tests.histories.views.tables import ID, ById, Shape, Version

# Steps


@dataclass(frozen=True, slots=True, repr=False)
class Start(Short):
    """Starts a refresh of a view, and lets it go on to a point, or to its `end`.

    Attributes:
        run: Its name.
        until: The point; a number after it is how often it comes there.
        view: The view.
        back: So many versions before the latest is the version of the source that it is asked for; None asks for none.
        fault: What becomes of its next commit.
    """

    run: str
    until: str = "end"
    view: str = "v"
    back: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Go(Short):
    """Lets a refresh that waits go on to another point."""

    run: str
    until: str = "end"
    fault: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Kill(Short):
    """Kills a refresh where it waits."""

    run: str


@dataclass(frozen=True, slots=True, repr=False)
class Act(Short):
    """Another writer does something to a table."""

    table: str
    operation: Operation


Step = Start | Go | Kill | Act


@dataclass(frozen=True, slots=True, repr=False)
class History(Short):
    """A source, its views, and what happens to them, one step after the other. What still waits then is let go to its end, in order.

    Attributes:
        fragments: Rows of each fragment of the source.
        chain: Whether there is a view of the view.
        rows: Rows of a fragment of a view, at most.
    """

    fragments: tuple[int, ...]
    steps: tuple[Step, ...]
    chain: bool = False
    rows: int = 1000


# What became of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What the commit of a refresh makes of a view.

    Attributes:
        rows: Its rows, by the row ids of its source.
        out: Row ids of the source of which rows stay out, because they were deleted in the view.
        pending: Row ids of the source of whose rows `u` is to be computed.
        added: Rows that come.
        moved: Rows that are written anew.
        removed: Rows that go.
    """

    rows: ById
    out: frozenset[int]
    pending: frozenset[int]
    added: int
    moved: int
    removed: int


@dataclass(slots=True, kw_only=True)
class Track:
    """A table, version by version.

    Attributes:
        name: Its name.
        uri: Its location.
        versions: Its versions.
        acts: What other writers did to it, with the version that each ended at.
        left: Versions that a cleanup has left.
    """

    name: str
    uri: str
    versions: dict[int, Version] = field(default_factory=dict)
    acts: list[tuple[int, Operation]] = field(default_factory=list)
    left: frozenset[int] = frozenset()

    @property
    def head(self) -> Version:
        return self.versions[max(self.versions)]

    def world(self) -> World:
        """Returns what is there now, for an operation."""
        return World(
            rows=self.head.by_key,
            used=frozenset(key for seen in self.versions.values() for key in seen.places),
            stable=True,
            kept={number: seen.by_key for number, seen in self.versions.items() if number in self.left},
            places=self.head.places,
        )


@dataclass(slots=True, kw_only=True)
class Run:
    """A refresh, and what became of it.

    Attributes:
        name: Its name, which no other has.
        start: How it was started.
        refresh: The refresh.
        asked: The version of the source that it was asked for; None for the latest.
        began: The latest versions of all tables when it began.
        ended: Those when it ended; None while it waits.
        target: The version of the source that it is to show.
        alone: Whether nothing else happened between its steps.
        overlapping: How many others of its view waited meanwhile.
        calls: How many calls there were before it.
        right: What its last commit of rows had to make of the view.
    """

    name: str
    start: Start
    refresh: Refresh
    asked: int | None
    began: dict[str, int]
    ended: dict[str, int] | None = None
    target: int = 0
    alone: bool = True
    overlapping: int = 0
    calls: int = 0
    right: Refreshed | None = None

    @property
    def failed(self) -> Caught | None:
        outcome = self.refresh.outcome
        return outcome if isinstance(outcome, Caught) else None


# What is right


def refreshed(shape: Shape, before: Version, then: ById | None, now: ById) -> Refreshed:
    """Returns what a refresh makes of a version of a view.

    Args:
        shape: The view.
        before: The version.
        then: The source's rows in the version that it shows; None where that is not known, or not there any more.
        now: The source's rows in the version that it is to show.
    """
    rows: ById = {}
    out, pending = set[int](), set[int]()
    old = {} if then is None else before.by_source
    added = moved = 0
    for number, row in now.items():
        if not shape.selects(row):
            continue
        known = then.get(number) if then is not None else None
        if known is not None and shape.selects(known) and shape.same(known, row):
            if number in before.out:
                out.add(number)
            else:
                rows[number] = old.get(number, {ID: number})  # it must be there
            continue
        made = dict.fromkeys(before.names) | {ID: number, "key": row["key"], "e": shape.e(row)}
        there = old.get(number)
        if there is not None and known is not None and known[shape.input] == row[shape.input]:
            made["u"] = there["u"]
        if made["u"] is None:
            pending.add(number)
        rows[number] = made
        added += there is None
        moved += there is not None
    gone = len(before.rows) - (0 if then is None else len(old.keys() & rows.keys()))
    return Refreshed(rows=rows, out=frozenset(out), pending=frozenset(pending), added=added, moved=moved, removed=gone)


def wrong_fill(shape: Shape, before: Version, after: Version, source: ById) -> Iterator[str]:
    """Yields what is wrong with a commit of a column's values."""
    if before.rows.keys() != after.rows.keys():
        yield f"rows {sorted(before.rows.keys() ^ after.rows.keys())} came or went"
        return
    for number, row in after.rows.items():
        was = before.rows[number]
        if {**was, "u": None} != {**row, "u": None}:
            yield f"{was} became {row}"
        elif was["u"] != row["u"]:
            right = shape.u(source[row[ID]]) if row[ID] in source else None  # type: ignore[index]
            if was["u"] is not None or row["u"] != right:
                yield f"u of row {row} was {was['u']}, and is to be {right}"


def unfilled(shape: Shape, version: Version, source: ById) -> Counter[int]:
    """Returns the inputs of the rows of a view that have no value, but are to have one."""
    found: Counter[int] = Counter()
    for row in version.rows.values():
        origin = source.get(row[ID])  # type: ignore[arg-type]
        if origin is not None and row["u"] is None and shape.u(origin) is not None:
            found[origin[shape.input]] += 1  # type: ignore[index]
    return found


def differences(expected: ById, found: ById) -> str:
    """Returns in which rows two versions differ."""
    numbers = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
    return "; ".join(f"row {n}: {found.get(n)} instead of {expected.get(n)}" for n in numbers)


def rows_of(result: Any) -> tuple[int, int, int]:
    return result.rows_added, result.rows_recomputed, result.rows_removed
