"""Histories of views, their outcome, and the rows they allow, version by version.

The allowed rows of a version of a view follow from the version before it and from its author. An operation of another
writer changes a view like any table. The commit of a refresh moves the view from a version of its source to another.
View rows stay as they are unless a used column changed. All other rows are recomputed, and keep a UDF's value if its
input is the same. A commit of a column's values fills only NULL cells, with the right values.
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
class StartRefresh(Short):
    """Starts a refresh of a view, and lets it run to a point, or to its `end`.

    Attributes:
        run: Its name.
        until: The point; a number after its name tells how often the refresh passes the point before it stops.
        view: The view.
        back: Requests the version of the source so many versions before the latest; None requests no version.
        fault: The fault of its next commit.
    """

    run: str
    until: str = "end"
    view: str = "v"
    back: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ResumeRefresh(Short):
    """Lets a waiting refresh run to another point."""

    run: str
    until: str = "end"
    fault: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class KillRefresh(Short):
    """Kills a waiting refresh."""

    run: str


@dataclass(frozen=True, slots=True, repr=False)
class ActOn(Short):
    """Another writer does something to a table."""

    table: str
    operation: Operation


Step = StartRefresh | ResumeRefresh | KillRefresh | ActOn


@dataclass(frozen=True, slots=True, repr=False)
class ViewHistory(Short):
    """A source, its views, and the steps that change them, in order. Refreshes that still wait then run to their end,
    in order.

    Attributes:
        fragments: Rows of each fragment of the source.
        chain: Whether the view has a view of its own.
        rows: Most rows of a fragment of a view.
    """

    fragments: tuple[int, ...]
    steps: tuple[Step, ...]
    chain: bool = False
    rows: int = 1000


# Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedRows:
    """The effect of a refresh's commit on a view.

    Attributes:
        rows: Its rows, by the row ids of its source.
        out: Row ids of source rows whose view rows were deleted and stay out.
        pending: Row ids of source rows without a computed `u`.
        added: Rows added to the view.
        recomputed: Rows written again.
        removed: Rows removed from the view.
    """

    rows: ById
    out: frozenset[int]
    pending: frozenset[int]
    added: int
    recomputed: int
    removed: int


@dataclass(slots=True, kw_only=True)
class Track:
    """A table, version by version.

    Attributes:
        name: Its name.
        uri: Its location.
        versions: Its versions.
        acts: Changes by other writers, each with the latest version after the change.
        kept_versions: Versions that cleanups have kept.
    """

    name: str
    uri: str
    versions: dict[int, Version] = field(default_factory=dict)
    acts: list[tuple[int, Operation]] = field(default_factory=list)
    kept_versions: frozenset[int] = frozenset()

    @property
    def head(self) -> Version:
        return self.versions[max(self.versions)]

    def world(self) -> World:
        """Returns the present state of the table, for an operation."""
        return World(
            rows=self.head.by_key,
            used=frozenset(key for version in self.versions.values() for key in version.places),
            stable=True,
            kept_rows={
                number: version.by_key
                for number, version in self.versions.items()
                if number in self.kept_versions
            },
            places=self.head.places,
        )


@dataclass(slots=True, kw_only=True)
class RefreshRun:
    """A refresh and its outcome.

    Attributes:
        name: Its unique name.
        start: The step of its start.
        refresh: The refresh.
        requested_version: The requested version of the source; None for the latest.
        began: The latest versions of all tables at its begin.
        ended: The latest versions of all tables at its end; None during its run.
        target: The required version of the source after the refresh.
        undisturbed: Whether no other event happened between its steps.
        overlapping: Number of other refreshes of its view with an overlapping wait.
        calls: Number of calls before its begin.
        right: The required effect of its last commit of rows.
    """

    name: str
    start: StartRefresh
    refresh: Refresh
    requested_version: int | None
    began: dict[str, int]
    ended: dict[str, int] | None = None
    target: int = 0
    undisturbed: bool = True
    overlapping: int = 0
    calls: int = 0
    right: RefreshedRows | None = None

    @property
    def failed(self) -> Caught | None:
        outcome = self.refresh.outcome
        return outcome if isinstance(outcome, Caught) else None


# Rules


def refreshed(shape: Shape, before: Version, then: ById | None, current: ById) -> RefreshedRows:
    """Returns the effect of a refresh on a version of a view.

    Args:
        shape: The view.
        before: The version.
        then: The source's rows in the version that the view shows; None if unknown or deleted.
        current: The source's rows in the version that the view must show afterwards.
    """
    rows: ById = {}
    out, pending = set[int](), set[int]()
    old = {} if then is None else before.by_source
    added = recomputed = 0
    for number, row in current.items():
        if not shape.selects(row):
            continue
        old_source_row = then.get(number) if then is not None else None
        if (
            old_source_row is not None
            and shape.selects(old_source_row)
            and shape.same(old_source_row, row)
        ):
            if number in before.out:
                out.add(number)
            else:
                rows[number] = old.get(number, {ID: number})  # a missing row is an error
            continue
        new_row = dict.fromkeys(before.names) | {ID: number, "key": row["key"], "e": shape.e(row)}
        old_row = old.get(number)
        if (
            old_row is not None
            and old_source_row is not None
            and old_source_row[shape.input] == row[shape.input]
        ):
            new_row["u"] = old_row["u"]
        if new_row["u"] is None:
            pending.add(number)
        rows[number] = new_row
        added += old_row is None
        recomputed += old_row is not None
    removed = len(before.rows) - (0 if then is None else len(old.keys() & rows.keys()))
    return RefreshedRows(
        rows=rows,
        out=frozenset(out),
        pending=frozenset(pending),
        added=added,
        recomputed=recomputed,
        removed=removed,
    )


def wrong_fill(shape: Shape, before: Version, after: Version, source: ById) -> Iterator[str]:
    """Yields errors in a commit of a column's values."""
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
    """Returns the inputs of the view's rows whose value is missing."""
    missing_values: Counter[int] = Counter()
    for row in version.rows.values():
        origin = source.get(row[ID])  # type: ignore[arg-type]
        if origin is not None and row["u"] is None and shape.u(origin) is not None:
            missing_values[origin[shape.input]] += 1  # type: ignore[index]
    return missing_values


def differences(expected: ById, actual: ById) -> str:
    """Returns the rows in which two versions differ."""
    numbers = sorted(n for n in expected.keys() | actual.keys() if expected.get(n) != actual.get(n))
    return "; ".join(f"row {n}: {actual.get(n)} instead of {expected.get(n)}" for n in numbers)


def rows_of(result: Any) -> tuple[int, int, int]:
    return result.rows_added, result.rows_recomputed, result.rows_removed
