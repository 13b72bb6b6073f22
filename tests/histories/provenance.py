"""Derives from the versions of a history the input behind each stored value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.histories.administration import CleanUp, Restore
from tests.histories.operations import INPUT, Row

if TYPE_CHECKING:
    from tests.histories.model import BackfillRun, RecordedVersion, Story

Sources = dict[int, int | None]
"""The input of each row's value, by key; None for a row without a value."""


def sources_of(story: Story, column: str) -> dict[int, Sources]:
    """Returns the inputs to which the values of each version belong."""
    sources: dict[int, Sources] = {}
    for number, version in sorted(story.versions.items()):
        if isinstance(version.by, Restore) and version.by.version in sources:
            sources[number] = sources[version.by.version]
            continue
        before = story.versions.get(number - 1)
        sources[number] = dict(_sources(version, before, sources.get(number - 1, {}), column))
    return sources


def _sources(
    version: RecordedVersion, before: RecordedVersion | None, old_sources: Sources, column: str
) -> Iterator[tuple[int, int | None]]:
    for key, row in version.rows.items():
        value = row.get(column)
        if before is not None and key in before.rows and before.rows[key].get(column) == value:
            yield key, old_sources.get(key)
        else:
            yield key, _source(row, value, column, is_ours=isinstance(version.by, str))


def _source(row: Row, value: int | None, column: str, *, is_ours: bool) -> int | None:
    """Returns the input of a new value. A value of a backfill contains its input."""
    if value is None:
        return None
    return value // 10 if is_ours and value >= 0 else row[INPUT[column]]


def stale_rows(story: Story, column: str, number: int) -> set[int]:
    """Returns the keys of the rows of a version with a value of other inputs than they have."""
    sources, rows = sources_of(story, column)[number], story.versions[number].rows
    return {
        key
        for key, source in sources.items()
        if source is not None and source != rows[key][INPUT[column]]
    }


def is_verifiable(story: Story, upto: int) -> bool:
    """Tells whether the history shows, for every row, the input of its value."""
    has_moved_rows = any(act.moves_rows for number, act in story.acts if number <= upto)
    return not story.was_done(CleanUp, story.first, upto) and (story.stable or not has_moved_rows)


def wrong_stale_count(story: Story, run: BackfillRun) -> list[str]:
    """Returns errors in the count of outdated rows in the result of a job.

    A result answers for any of the versions of :meth:`Story.judged`.
    """
    assert isinstance(run.outcome, dict)
    most, unverified = run.outcome["rows_stale"], run.outcome["rows_unverified"]
    with_nulls = run.start.where is not None
    wrong_counts = [
        wrong_count(story, run.start.column, number, most, unverified, with_nulls=with_nulls)
        for number in story.judged(run)
    ]
    return [] if None in wrong_counts else [str(wrong_counts[0])]


def wrong_count(
    story: Story, column: str, number: int, most: int, unverified: int, *, with_nulls: bool
) -> str | None:
    """Returns the error in a count of outdated rows at a version; with `with_nulls`, rows without a value may count."""
    if unverified and is_verifiable(story, number):
        return f"{unverified} rows are not verified, and the history tells of all"
    stale = stale_rows(story, column, number)
    empty = (
        sum(row[column] is None for row in story.versions[number].rows.values())
        if with_nulls
        else 0
    )
    if most - unverified - empty <= len(stale) <= most:
        return None
    return f"rows_stale is {most}, {unverified} of them perhaps, and rows {sorted(stale)} of version {number} are out of date"
