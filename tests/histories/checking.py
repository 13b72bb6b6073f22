"""Reads what became of a table, and compares it with what is right."""

from __future__ import annotations

import itertools
from typing import Any

import lance
from pyarrow import ArrowInvalid

from tests.histories.administration import CleanUp
from tests.histories.model import Judge, Run, Seen, Story, wrong_cells
from tests.histories.operations import Compact, Operation, World, names_of, read
from tests.histories.processes import Caught


class WrongError(AssertionError):
    """Something is not as it must be."""


def look(story: Story, uri: str, by: str | Operation) -> None:
    """Reads the versions that are new, and notes who made them."""
    head = lance.dataset(uri)
    there = {found["version"] for found in head.versions()}
    for number in range(story.head.number + 1, head.version + 1):
        rows, places = story.head.rows, story.head.places
        if number in there:
            try:
                rows, places = read(head.checkout_version(number))
            except ArrowInvalid:
                # A cleanup that slips in takes files away that are named a moment later; whoever named them must put that right.
                if not story.was_done(CleanUp, story.first, number):
                    raise
                story.broken.add(number)
        story.versions[number] = Seen(number=number, by=by, rows=rows, places=places)


def world_of(story: Story, uri: str) -> World:
    """Returns what is there now."""
    there = {found["version"] for found in lance.dataset(uri).versions()}
    return World(
        rows=story.head.rows,
        used=frozenset(key for seen in story.versions.values() for key in seen.rows),
        stable=story.stable,
        kept={number: seen.rows for number, seen in story.versions.items() if number in there},
        places=story.head.places,
        oldest=1 in there,
    )


def check_values(story: Story, run: Run) -> None:
    """Checks the versions that a backfill made, and the rows that it answers for.

    Raises:
        WrongError: One of them has a value that nobody may have given it.
    """
    for before, after in story.steps(run.snapshot, story.head.number):
        found = wrong_cells(story, run, before, after) if after.by == run.name else []
        if found:
            raise WrongError("; ".join(found))
    if isinstance(run.outcome, Caught):
        return
    found = []
    for end in story.judged(run):
        wrong = _wrong_rows(Judge(story=story, run=run, end=end))
        if not wrong:
            return
        found.append(wrong)
    raise WrongError(f"after {run.name}, {'; '.join(found[0])}: {run.outcome}")


def _wrong_rows(judge: Judge) -> list[str]:
    run, column, found = judge.run, judge.run.start.column, []
    for key, row in judge.story.versions[judge.end].rows.items():
        allowed = judge.allowed(key)
        if row.get(column) not in allowed:
            found.append(
                f"{column} of row {key} is {row.get(column)}, and not {' or '.join(map(str, allowed))} (read at version {run.snapshot}, "
                f"committed at {judge.story.commits(run)}, {judge.life(key)})"
            )
    return found


def check_indexes(story: Story, head: lance.LanceDataset) -> None:
    """Checks that scans find the same rows with indexes and without.

    Raises:
        WrongError: They do not.
    """
    compactions = [act for _, act in story.acts if isinstance(act, Compact)]
    if not story.stable and any(act.deferred for act in compactions[:-1]):
        return  # Lance finds no row by an index after a deferred compaction and another one, whatever was written.
    names = names_of(head)
    for column in ("v", "w", "a"):
        now, values = names[column], {key: row[column] for key, row in story.head.rows.items()}
        some = sorted(value for value in values.values() if value is not None)[::4]
        wanted = {
            f"{now} IS NULL": {key for key, value in values.items() if value is None},
            f"{now} < 0": {key for key, value in values.items() if value is not None and value < 0},
            f"{now} IN ({', '.join(map(str, some or [0]))})": {key for key, value in values.items() if value in some},
        }
        for (text, keys), use in itertools.product(wanted.items(), (True, False)):
            found = head.scanner(columns=["key"], filter=text, use_scalar_index=use).to_table()["key"].to_pylist()
            if sorted(found) != sorted(keys):
                raise WrongError(
                    f"{text} {'with' if use else 'without'} an index finds {sorted(found)}, not {sorted(keys)}"
                )


def differences(expected: Any, found: Any) -> str:
    keys = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return "; ".join(f"row {key}: {found.get(key)} instead of {expected.get(key)}" for key in keys)
