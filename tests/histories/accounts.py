"""Rules about what a backfill tells, and about the calls of its UDF."""

from __future__ import annotations

from collections import Counter

from tests.histories.administration import CleanUp, Rename, Restore, Ruin
from tests.histories.jobs import CHECKPOINT, is_selected, value
from tests.histories.model import Run, Story
from tests.histories.operations import INPUT, Append, Compact, Delete, Operation, RewriteInput, RewriteTarget
from tests.histories.processes import Caught
from tests.histories.provenance import is_verifiable, stale_rows


def is_excused(story: Story, run: Run, error: Caught, ruined: frozenset[str] | None) -> bool:
    """Tells whether a backfill may fail with an error.

    Args:
        story: What became of the history.
        run: The backfill.
        error: Its error.
        ruined: Targets that somebody took away for good.
    """
    if ruined is not None and run.start.column in ruined and error.kind == "CommitImpossibleError":
        return True
    since = [act for number, act in story.acts if number > run.snapshot]
    cleaned = [act for act in since if isinstance(act, CleanUp)]
    if any(act.files for act in cleaned) and error.kind == "CommitOutcomeUnknownError":
        return True  # files went in the moment of the commit
    if not run.is_write:
        return False
    if (
        any(isinstance(act, Rename) and act.column == run.start.column for act in since)
        and error.kind == "CommitConflictError"
    ):
        return True
    added = run.start.column == "d" and (any(isinstance(act, Restore) for act in since) or story.overlapping(run))
    if added and error.kind in ("CommitImpossibleError", "CommitConflictError"):
        return True  # the column that it adds: another one added it too, or a restore took it away
    changed = any(seen.by != run.name for number, seen in story.versions.items() if number > run.snapshot)
    if run.start.on_stale == "error" and changed and error.kind == "CommitConflictError":
        return True
    if any(act.files for act in cleaned) and error.kind == "CommitConflictError":
        return True  # what was written and not committed is gone
    if cleaned and error.kind == "SnapshotError":
        return True  # a task of the write began after it
    # Nobody can tell any more where rows moved to, or which of them changed; nor whether rows that are gone are among new ones.
    moved = any(act.moves_rows or isinstance(act, (Compact, RewriteInput, RewriteTarget, Restore)) for act in since)
    moved |= any(isinstance(act, Delete) for act in since) and any(isinstance(act, Append) for act in since)
    moved |= bool(story.overlapping(run))
    taken_back = error.kind == "CommitConflictError" and "taken back" in error.trace
    return bool(cleaned) and moved and (error.kind == "CommitImpossibleError" or taken_back)


def wrong_counters(story: Story, run: Run) -> list[str]:
    """Returns counters of a backfill's result that tell of what did not happen."""
    told = run.outcome
    if not isinstance(told, dict) or run.end is None:
        return []
    acts = [act for number, act in story.acts if run.snapshot < number <= run.end]
    steps = [after for _, after in story.steps(run.snapshot, run.end) if after.by != run.name]
    inputs = INPUT[run.start.column]
    changed = any(
        before.rows[key][inputs] != row[inputs]
        for before, after in story.steps(run.snapshot, run.end)
        for key, row in after.rows.items()
        if key in before.rows
    )
    unclear = any(isinstance(act, (CleanUp, Restore)) for act in acts) or not story.stable
    unclear |= any(isinstance(step.by, Ruin) for step in steps)
    may_be: dict[str, bool] = {
        "rows_recomputed": changed or unclear,
        "rows_nulled": (changed or unclear) and (run.is_write or run.start.on_stale == "null"),
        "rows_carried": any(
            act.moves_rows
            or isinstance(act, (Compact, RewriteInput, RewriteTarget, Restore))
            or (isinstance(act, Rename) and act.column == run.start.column)
            for act in acts
        )
        or unclear
        or bool(story.overlapping(run)),
        "rows_gone": bool(acts) or unclear or bool(story.overlapping(run)),
        "rows_failed": False,
        "new_rows": any(step.rows.keys() - story.versions[run.snapshot].rows.keys() for step in steps) or unclear,
    }
    found = [f"{name} is {told[name]}" for name, may in may_be.items() if told.get(name) and not may]
    foreign = sorted({*told.get("versions", ())} - {*story.commits(run)})
    if foreign:
        found.append(f"versions {foreign} are not its own")
    return found


def unaccounted_calls(story: Story) -> list[str]:
    """Returns calls of UDFs that nothing accounts for: the same row and input again."""
    counts = Counter(story.calls)
    kills = [run for run in story.runs.values() if run.killed]
    lost, found = 0, []
    for (column, x), count in sorted(counts.items()):
        runs = [run for run in story.runs.values() if run.start.column == column and not run.is_write]
        if not any(_had(story, run, x) for run in runs):
            found.append(f"{column} of {x}: no row had this input while a backfill ran")
            continue
        surplus = count - 1 - _reasons(story, runs, column, x)
        if surplus <= 0:
            continue
        lost += surplus
        if surplus > sum(run.start.column == column for run in kills):
            found.append(f"{column} of {x} (row {x // 1000}): {count} calls, {surplus} more than accounted for")
    if lost > CHECKPOINT * len(kills) and not found:
        found.append(f"{lost} rows were computed again, and {len(kills)} processes were killed")
    return found


def _had(story: Story, run: Run, x: int) -> bool:
    end = story.head.number if run.end is None else run.end
    numbers = range(run.snapshot, end + 1)
    return any(story.versions[n].rows.get(x // 1000, {}).get(INPUT[run.start.column]) == x for n in numbers)


def _may_be_stale(story: Story, run: Run, key: int) -> bool:
    """Tells whether a row may have had a value that was out of date while a backfill ran."""
    end = story.head.number if run.end is None else run.end
    numbers = range(run.snapshot, end + 1)
    return not is_verifiable(story, end) or any(key in stale_rows(story, run.start.column, n) for n in numbers)


def _reasons(story: Story, runs: list[Run], column: str, x: int) -> int:
    """Returns how often a row may be computed again from the same input, and by what reason."""
    key, name = x // 1000, INPUT[column]
    reasons = 0
    # Whoever asks for rows that have a value gets them computed.
    reasons += sum(run.start.where is not None and is_selected(run.start.where, key) for run in runs)
    # Two backfills of one column at once each compute what the other one has not committed yet.
    reasons += sum(bool([o for o in story.overlapping(run) if not o.is_write]) for run in runs)
    reasons += sum(run.start.stale and _may_be_stale(story, run, key) for run in runs)
    stirred = False
    for before, after in story.steps(story.first, story.head.number):
        old, new, by = before.rows.get(key), after.rows.get(key), after.by
        # Filling another column stamps the rows of a fragment as updated.
        stirred |= isinstance(by, str) and story.runs[by].start.column != column
        if not isinstance(by, Operation) or new is None:
            # A write puts values of its own, or none, in place of what a backfill computed.
            reasons += isinstance(by, str) and story.runs[by].is_write and story.runs[by].start.column == column
            continue
        moved = by.moves_rows and after.places[key] != before.places.get(key)
        rewritten = isinstance(by, (RewriteInput, RewriteTarget))
        stirred |= moved or (rewritten and any(before.places.get(k) == before.places.get(key) for k in by.keys))
        # That NULL was computed is known of rows by where they are.
        stirred |= isinstance(by, Compact) and value(x) is None
        reasons += moved and not story.stable
        reasons += isinstance(by, Restore)
        reasons += isinstance(by, (RewriteTarget,)) and old is not None and old[column] != new[column]
        reasons += by.name == "upsert" and old is not None and old[column] != new[column]
        reasons += isinstance(by, RewriteInput) and by.to == "first" and new[name] == x
    cleanups = sum(isinstance(act, CleanUp) for _, act in story.acts)
    if stirred or not story.stable:
        # What its inputs were is not known any more, and counts as something else.
        reasons += cleanups
    if any(run.killed for run in runs):
        # What a killed process left serves the next one for as long as its files are there, and the way of the rows is known.
        reasons += cleanups
    if any(run.start.on_stale == "null" for run in runs):
        # A row of which nobody knows any more what its input was is NULL, and the next one computes it.
        reasons += cleanups
    return reasons
