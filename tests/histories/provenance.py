"""Which input each stored value was computed from, or given for, as the versions of a history tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.histories.administration import CleanUp, Restore
from tests.histories.operations import INPUT, Row

if TYPE_CHECKING:
    from tests.histories.model import Run, Seen, Story

Sources = dict[int, int | None]
"""The input of each row's value, by key; None for a row without a value."""


def sources_of(story: Story, column: str) -> dict[int, Sources]:
    """Returns the inputs that the values of each version belong to."""
    known: dict[int, Sources] = {}
    for number, seen in sorted(story.versions.items()):
        if isinstance(seen.by, Restore) and seen.by.version in known:
            known[number] = known[seen.by.version]
            continue
        before = story.versions.get(number - 1)
        known[number] = dict(_sources(seen, before, known.get(number - 1, {}), column))
    return known


def _sources(seen: Seen, before: Seen | None, known: Sources, column: str) -> Iterator[tuple[int, int | None]]:
    for key, row in seen.rows.items():
        value = row.get(column)
        if before is not None and key in before.rows and before.rows[key].get(column) == value:
            yield key, known.get(key)
        else:
            yield key, _source(row, value, column, is_ours=isinstance(seen.by, str))


def _source(row: Row, value: int | None, column: str, *, is_ours: bool) -> int | None:
    """Returns what a new value belongs to: a value of a backfill says so itself."""
    if value is None:
        return None
    return value // 10 if is_ours and value >= 0 else row[INPUT[column]]


def stale_rows(story: Story, column: str, number: int) -> set[int]:
    """Returns the keys of the rows of a version with a value of other inputs than they have."""
    sources, rows = sources_of(story, column)[number], story.versions[number].rows
    return {key for key, source in sources.items() if source is not None and source != rows[key][INPUT[column]]}


def is_verifiable(story: Story, upto: int) -> bool:
    """Tells whether the history tells of every row which inputs its value belongs to."""
    moved = any(act.moves_rows for number, act in story.acts if number <= upto)
    return not story.was_done(CleanUp, story.first, upto) and (story.stable or not moved)


def wrong_stale_count(story: Story, run: Run) -> list[str]:
    """Returns what is wrong with the number of rows out of date in the result of a job.

    A result answers for one of the versions that :meth:`Story.judged` names.
    """
    assert isinstance(run.outcome, dict)
    most, unverified = run.outcome["rows_stale"], run.outcome["rows_unverified"]
    with_nulls = run.start.where is not None
    found = [
        wrong_count(story, run.start.column, number, most, unverified, with_nulls=with_nulls)
        for number in story.judged(run)
    ]
    return [] if None in found else [str(found[0])]


def wrong_count(story: Story, column: str, number: int, most: int, unverified: int, *, with_nulls: bool) -> str | None:
    """Returns what is wrong with a number of rows out of date at a version; rows without a value may count `with_nulls`."""
    if unverified and is_verifiable(story, number):
        return f"{unverified} rows are not verified, and the history tells of all"
    stale = stale_rows(story, column, number)
    empty = sum(row[column] is None for row in story.versions[number].rows.values()) if with_nulls else 0
    if most - unverified - empty <= len(stale) <= most:
        return None
    return f"rows_stale is {most}, {unverified} of them perhaps, and rows {sorted(stale)} of version {number} are out of date"
