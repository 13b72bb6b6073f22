"""Checks that a history shares with the small-scope test."""

from __future__ import annotations

import itertools
from typing import Any

import lance
from pyarrow import ArrowInvalid

from tests.histories.administration import CleanUp
from tests.histories.model import BackfillRun, Judge, RecordedVersion, Story, wrong_cells
from tests.histories.operations import Compact, Operation, World, names_of, read
from tests.histories.processes import Caught


class WrongError(AssertionError):
    """The table, a result or an error differs from the rules."""


def look(story: Story, uri: str, by: str | Operation) -> None:
    """Reads the new versions, and records their author."""
    head = lance.dataset(uri)
    kept_versions = {version["version"] for version in head.versions()}
    for number in range(story.head.number + 1, head.version + 1):
        rows, places = story.head.rows, story.head.places
        if number in kept_versions:
            try:
                rows, places = read(head.checkout_version(number))
            except ArrowInvalid:
                # A concurrent cleanup may delete files just before a commit names them. The committing writer must
                # repair that.
                if not story.was_done(CleanUp, story.first, number):
                    raise
                story.broken.add(number)
        story.versions[number] = RecordedVersion(number=number, by=by, rows=rows, places=places)


def world_of(story: Story, uri: str) -> World:
    """Returns the present state of the table."""
    kept_versions = {version["version"] for version in lance.dataset(uri).versions()}
    return World(
        rows=story.head.rows,
        used=frozenset(key for version in story.versions.values() for key in version.rows),
        stable=story.stable,
        kept_rows={
            number: version.rows
            for number, version in story.versions.items()
            if number in kept_versions
        },
        places=story.head.places,
        oldest=1 in kept_versions,
    )


def check_values(story: Story, run: BackfillRun) -> None:
    """Checks the versions of a backfill, and the rows in its responsibility.

    Raises:
        WrongError: A version holds a value without a legal source.
    """
    for before, after in story.steps(run.snapshot, story.head.number):
        wrong_lists = wrong_cells(story, run, before, after) if after.by == run.name else []
        if wrong_lists:
            raise WrongError("; ".join(wrong_lists))
    if isinstance(run.outcome, Caught):
        return
    wrong_lists = []
    for end in story.judged(run):
        wrong = _wrong_rows(Judge(story=story, run=run, end=end))
        if not wrong:
            return
        wrong_lists.append(wrong)
    raise WrongError(f"after {run.name}, {'; '.join(wrong_lists[0])}: {run.outcome}")


def _wrong_rows(judge: Judge) -> list[str]:
    run, column, wrong = judge.run, judge.run.start.column, []
    for key, row in judge.story.versions[judge.end].rows.items():
        allowed = judge.allowed(key)
        if row.get(column) not in allowed:
            wrong.append(
                f"{column} of row {key} is {row.get(column)}, and not {' or '.join(map(str, allowed))} (read at version {run.snapshot}, "
                f"committed at {judge.story.commits(run)}, {judge.life(key)})"
            )
    return wrong


def check_indexes(story: Story, head: lance.LanceDataset) -> None:
    """Checks that scans find the same rows with and without indexes.

    Raises:
        WrongError: The rows differ.
    """
    compactions = [act for _, act in story.acts if isinstance(act, Compact)]
    if not story.stable and any(act.deferred for act in compactions[:-1]):
        return  # After a deferred compaction followed by another compaction, Lance finds no row by an index.
    names = names_of(head)
    for column in ("v", "w", "a"):
        current_name, values = (
            names[column],
            {key: row[column] for key, row in story.head.rows.items()},
        )
        some = sorted(value for value in values.values() if value is not None)[::4]
        expected_keys = {
            f"{current_name} IS NULL": {key for key, value in values.items() if value is None},
            f"{current_name} < 0": {
                key for key, value in values.items() if value is not None and value < 0
            },
            f"{current_name} IN ({', '.join(map(str, some or [0]))})": {
                key for key, value in values.items() if value in some
            },
        }
        for (text, keys), use in itertools.product(expected_keys.items(), (True, False)):
            keys_found = (
                head.scanner(columns=["key"], filter=text, use_scalar_index=use)
                .to_table()["key"]
                .to_pylist()
            )
            if sorted(keys_found) != sorted(keys):
                raise WrongError(
                    f"{text} {'with' if use else 'without'} an index finds {sorted(keys_found)}, not {sorted(keys)}"
                )


def differences(expected: Any, actual: Any) -> str:
    keys = sorted(
        key for key in expected.keys() | actual.keys() if expected.get(key) != actual.get(key)
    )
    return "; ".join(f"row {key}: {actual.get(key)} instead of {expected.get(key)}" for key in keys)
