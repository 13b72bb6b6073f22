"""Rules for the counters of a backfill's result, and for the calls of its UDF."""

from __future__ import annotations

from collections import Counter

from tests.histories.administration import CleanUp, Rename, Restore, Ruin
from tests.histories.jobs import CHECKPOINT, is_selected, value
from tests.histories.model import BackfillRun, Story
from tests.histories.operations import (
    INPUT,
    Append,
    Compact,
    Delete,
    Operation,
    RewriteInput,
    RewriteTarget,
)
from tests.histories.processes import Caught
from tests.histories.provenance import is_verifiable, stale_rows


def is_excused(
    story: Story, run: BackfillRun, error: Caught, ruined: frozenset[str] | None
) -> bool:
    """Tells whether a backfill may fail with an error.

    Args:
        story: The recorded story of the history.
        run: The backfill.
        error: Its error.
        ruined: Targets that a concurrent writer removed for good.
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
    added = run.start.column == "d" and (
        any(isinstance(act, Restore) for act in since) or story.overlapping(run)
    )
    if added and error.kind in ("CommitImpossibleError", "CommitConflictError"):
        return True  # a cleanup deleted files at the moment of the commit
    changed = any(
        version.by != run.name
        for number, version in story.versions.items()
        if number > run.snapshot
    )
    if run.start.on_stale == "error" and changed and error.kind == "CommitConflictError":
        return True
    if any(act.files for act in cleaned) and error.kind == "CommitConflictError":
        return (
            True  # the column to add: another write added the same column, or a restore removed it
        )
    if cleaned and error.kind == "SnapshotError":
        return True  # a cleanup deleted the written files before the commit
    # After a cleanup, the transactions no longer prove moves and changes of rows, or the fate of deleted rows.
    untraceable = any(
        act.moves_rows or isinstance(act, (Compact, RewriteInput, RewriteTarget, Restore))
        for act in since
    )
    untraceable |= any(isinstance(act, Delete) for act in since) and any(
        isinstance(act, Append) for act in since
    )
    untraceable |= bool(story.overlapping(run))
    taken_back = error.kind == "CommitConflictError" and "taken back" in error.trace
    return bool(cleaned) and untraceable and (error.kind == "CommitImpossibleError" or taken_back)


def wrong_counters(story: Story, run: BackfillRun) -> list[str]:
    """Returns counters of a backfill's result that report events absent from the history."""
    outcome = run.outcome
    if not isinstance(outcome, dict) or run.end is None:
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
        "new_rows": any(
            step.rows.keys() - story.versions[run.snapshot].rows.keys() for step in steps
        )
        or unclear,
    }
    wrong = [
        f"{name} is {outcome[name]}"
        for name, may in may_be.items()
        if outcome.get(name) and not may
    ]
    foreign = sorted({*outcome.get("versions", ())} - {*story.commits(run)})
    if foreign:
        wrong.append(f"versions {foreign} are not its own")
    return wrong


def unaccounted_calls(story: Story) -> list[str]:
    """Returns calls of UDFs without a reason in the history: the same row and input a second time."""
    counts = Counter(story.calls)
    kills = [run for run in story.runs.values() if run.killed]
    lost, unexplained = 0, []
    for (column, x), count in sorted(counts.items()):
        runs = [
            run for run in story.runs.values() if run.start.column == column and not run.is_write
        ]
        if not any(_had(story, run, x) for run in runs):
            unexplained.append(f"{column} of {x}: no row had this input while a backfill ran")
            continue
        surplus = count - 1 - _reasons(story, runs, column, x)
        if surplus <= 0:
            continue
        lost += surplus
        if surplus > sum(run.start.column == column for run in kills):
            unexplained.append(
                f"{column} of {x} (row {x // 1000}): {count} calls, {surplus} more than accounted for"
            )
    if lost > CHECKPOINT * len(kills) and not unexplained:
        unexplained.append(
            f"{lost} rows were computed again, and {len(kills)} processes were killed"
        )
    return unexplained


def _had(story: Story, run: BackfillRun, x: int) -> bool:
    end = story.head.number if run.end is None else run.end
    numbers = range(run.snapshot, end + 1)
    return any(
        story.versions[n].rows.get(x // 1000, {}).get(INPUT[run.start.column]) == x for n in numbers
    )


def _may_be_stale(story: Story, run: BackfillRun, key: int) -> bool:
    """Tells whether a row may have had an outdated value while a backfill ran."""
    end = story.head.number if run.end is None else run.end
    numbers = range(run.snapshot, end + 1)
    return not is_verifiable(story, end) or any(
        key in stale_rows(story, run.start.column, n) for n in numbers
    )


def _reasons(story: Story, runs: list[BackfillRun], column: str, x: int) -> int:
    """Returns how often a row may be recomputed from the same input, by reason."""
    key, name = x // 1000, INPUT[column]
    reasons = 0
    # A backfill with an explicit filter recomputes rows with a value.
    reasons += sum(
        run.start.where is not None and is_selected(run.start.where, key) for run in runs
    )
    # Two concurrent backfills of a column each compute rows without a committed value.
    reasons += sum(bool([o for o in story.overlapping(run) if not o.is_write]) for run in runs)
    reasons += sum(run.start.stale and _may_be_stale(story, run, key) for run in runs)
    stirred = False
    for before, after in story.steps(story.first, story.head.number):
        old, new, by = before.rows.get(key), after.rows.get(key), after.by
        # Filling another column stamps the rows of a fragment as updated.
        stirred |= isinstance(by, str) and story.runs[by].start.column != column
        if not isinstance(by, Operation) or new is None:
            # A write replaces a computed value by its own value, or by NULL.
            reasons += (
                isinstance(by, str)
                and story.runs[by].is_write
                and story.runs[by].start.column == column
            )
            continue
        relocated = by.moves_rows and after.places[key] != before.places.get(key)
        rewritten = isinstance(by, (RewriteInput, RewriteTarget))
        stirred |= relocated or (
            rewritten and any(before.places.get(k) == before.places.get(key) for k in by.keys)
        )
        # The record of rows computed as NULL is kept by position in the fragment.
        stirred |= isinstance(by, Compact) and value(x) is None
        reasons += relocated and not story.stable
        reasons += isinstance(by, Restore)
        reasons += (
            isinstance(by, (RewriteTarget,)) and old is not None and old[column] != new[column]
        )
        reasons += by.name == "upsert" and old is not None and old[column] != new[column]
        reasons += isinstance(by, RewriteInput) and by.to == "first" and new[name] == x
    cleanups = sum(isinstance(act, CleanUp) for _, act in story.acts)
    if stirred or not story.stable:
        # After a cleanup the inputs of a row are unknown, and count as changed.
        reasons += cleanups
    if any(run.killed for run in runs):
        # The checkpoints of a killed process serve the next run while their files exist and the rows can be traced.
        reasons += cleanups
    if any(run.start.on_stale == "null" for run in runs):
        # A row with unknown inputs becomes NULL, and the next run computes it.
        reasons += cleanups
    return reasons
