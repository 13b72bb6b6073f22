"""Histories, what became of them, and what is right: pure functions over the contents of versions.

What is right is derived from the table's own history. Every version's rows are known, and who made it. A version of somebody else must hold
exactly what the one before held, and their change. A version of a backfill may change cells of its target alone. When a backfill ends, each
row must have one of the values that the rules of :class:`Judge` allow, given what others did since its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.histories.administration import CleanUp, Restore
from tests.histories.jobs import is_selected, value, written
from tests.histories.operations import INPUT, Compact, Operation, RewriteInput, RewriteTarget, Row, Rows, Short
from tests.histories.processes import Caught
from tests.histories.provenance import is_verifiable, stale_rows

Door = Literal["job", "driver", "write"]
"""A job of the table API in this process, the same with a driver of its own, or a DataFrame write."""


# Steps


@dataclass(frozen=True, slots=True, repr=False)
class Start(Short):
    """Starts a backfill, and lets it go on to a gate: `call K` (of the UDF, for row K), `written` (a write's files), `commit` (it has looked at
    the head, and is about to commit), `landed` (it has committed, and does not know yet) or `end`.
    """

    run: str
    door: Door
    column: str
    where: Literal["all", "some"] | None = None
    until: str = "end"
    granularity: int | None = None
    task_size: int = 100
    on_stale: str | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Go(Short):
    """Lets a backfill that waits go on to another gate."""

    run: str
    until: str = "end"


@dataclass(frozen=True, slots=True, repr=False)
class Kill(Short):
    """Kills a backfill's process, if that is one of its own."""

    run: str


@dataclass(frozen=True, slots=True, repr=False)
class Act(Short):
    """Somebody else does something."""

    operation: Operation


Step = Start | Go | Kill | Act


@dataclass(frozen=True, slots=True, repr=False)
class History(Short):
    """A table, and what happens to it, one step after the other. What is still running then is let go to its end, in order."""

    fragments: tuple[int, ...]
    steps: tuple[Step, ...]
    stable: bool = True
    indexed: bool = False
    fresh: bool = False
    """Whether a backfill of what is out of date comes last."""


# What became of it


@dataclass(slots=True, kw_only=True)
class Seen:
    """A version.

    Attributes:
        number: Its number.
        by: Name of the backfill that made it, or the operation.
        rows: Its rows.
        places: The fragments of these.
    """

    number: int
    by: str | Operation
    rows: Rows
    places: dict[int, int]


@dataclass(slots=True, kw_only=True)
class Run:
    """A backfill, and what became of it.

    Attributes:
        start: How it was started.
        snapshot: The version that it reads.
        began: How many backfills had begun or ended before it began.
        ended: How many before it ended; None while it runs.
        end: The latest version when it ended.
        outcome: What its result said, or its error; None while it runs, and where it was killed.
        killed: Whether it was killed.
    """

    start: Start
    snapshot: int
    began: int = 0
    ended: int | None = None
    end: int | None = None
    outcome: dict[str, Any] | Caught | None = None
    killed: bool = False

    @property
    def name(self) -> str:
        return self.start.run

    @property
    def is_write(self) -> bool:
        return self.start.door == "write"

    def computed(self, x: Any) -> int | None:
        return written(x) if self.is_write else value(x)


@dataclass(slots=True, kw_only=True)
class Story:
    """What became of a history so far.

    Attributes:
        stable: Whether row ids are stable.
        first: The first version that has the targets.
        versions: Versions from there on.
        runs: The backfills, by name.
        acts: What others did, with the version that each ended at.
        calls: Calls of UDFs: column and input.
        broken: Versions that nobody can read, because a cleanup took their files away.
    """

    stable: bool
    first: int
    versions: dict[int, Seen] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    acts: list[tuple[int, Operation]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)

    @property
    def head(self) -> Seen:
        return self.versions[max(self.versions)]

    def steps(self, after: int, upto: int) -> Iterator[tuple[Seen, Seen]]:
        """Yields pairs of a version and the one before it."""
        for number in range(after + 1, upto + 1):
            yield self.versions[number - 1], self.versions[number]

    def commits(self, run: Run) -> list[int]:
        return [seen.number for seen in self.versions.values() if seen.by == run.name]

    def judged(self, run: Run) -> range:
        """Returns the versions for one of which a backfill answers: the one that it looked at last, after it had committed the last time."""
        assert run.end is not None
        return range(max(self.commits(run), default=run.end), run.end + 1)

    def overlapping(self, run: Run) -> list[Run]:
        """Returns other backfills of the same column that ran while this one did."""
        return [
            other
            for other in self.runs.values()
            if other is not run
            and other.start.column == run.start.column
            and (run.ended is None or other.began < run.ended)
            and (other.ended is None or run.began < other.ended)
        ]

    def begin(self, start: Start) -> Run:
        """Notes that a backfill begins."""
        run = self.runs[start.run] = Run(start=start, snapshot=self.head.number, began=self._tick())
        return run

    def end(self, run: Run) -> None:
        """Notes that a backfill has ended."""
        run.end, run.ended = self.head.number, self._tick()

    def _tick(self) -> int:
        return len(self.runs) + sum(run.ended is not None for run in self.runs.values())

    def was_done(self, kind: type[Operation], after: int, upto: int) -> bool:
        return any(isinstance(act, kind) and after < number <= upto for number, act in self.acts)

    def is_crossed(self, run: Run) -> bool:
        """Tells whether somebody else committed between a backfill's snapshot and its last commit."""
        last = max(self.commits(run), default=run.end or 0)
        return any(seen.by != run.name and run.snapshot < seen.number < last for seen in self.versions.values())


@dataclass(slots=True, kw_only=True)
class _Life:
    """What happened to a row between a backfill's snapshot and its end, as far as the backfill did not do it.

    Attributes:
        inputs: The inputs that it had, in order, each once where it stayed.
        given: What others put into its target, with the version.
        left: What it would have in its target without the backfill.
        moved: Whether an update wrote it anew.
        relocated: Whether it is in another fragment now.
        touched: Whether an input of its fragment was written in place, maybe of other rows.
        stamped: Whether others wrote to any column in place, or filled one: then row versions do not tell that its inputs stayed.
        restored: Whether the table was restored.
    """

    inputs: list[int | None]
    given: list[tuple[int, int | None]] = field(default_factory=list)
    left: int | None = None
    moved: bool = False
    relocated: bool = False
    touched: bool = False
    stamped: bool = False
    restored: bool = False

    @property
    def changed(self) -> bool:
        return len(self.inputs) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Tells which values are right in a version when a backfill has looked at it, and has nothing more to do.

    Attributes:
        story: What became of the history.
        run: The backfill.
        end: The version.
    """

    story: Story
    run: Run
    end: int

    def allowed(self, key: int) -> frozenset[int | None]:
        """Returns the values that a row's target may have."""
        then = self.story.versions[self.run.snapshot].rows.get(key)
        selected = then is not None and self._is_selected(key, then)
        values = self._allowed(key, selected=selected)
        if self.run.start.stale and not is_verifiable(self.story, self.end):
            # A value that may be out of date is computed anew.
            values |= self._allowed(key, selected=then is not None)
        return values

    def _allowed(self, key: int, *, selected: bool) -> frozenset[int | None]:
        run, story = self.run, self.story
        then, life = story.versions[run.snapshot].rows.get(key), self.life(key)
        now = life.inputs[-1]
        ours = run.computed(now)
        # Without stable row ids nobody knows which rows of the fragments that an update made are which: all of them are computed, or none.
        lost = (self._lost_track() and (then is None or life.relocated)) or (life.restored and life.relocated)
        # Where the snapshot is gone, a job computes whatever has moved, and all of a fragment whose inputs were written.
        cleaned = story.was_done(CleanUp, run.snapshot, self.end)
        untold = not run.is_write and cleaned and (life.relocated or life.touched)
        unknown = (not story.stable and (life.moved or lost)) or untold
        if then is None or not selected:
            came_back = then is None and life.restored
            # Another round selects rows without a value, also those that have lost it.
            emptied = then is not None and life.left is None and run.start.where is None
            if run.is_write or not (unknown or came_back or emptied or (then is not None and life.changed)):
                return frozenset([life.left])
            is_somebodys = life.left is not None and life.left < 0 and not run.start.stale
            return frozenset([life.left] if is_somebodys and not unknown else [life.left, ours])
        if run.is_write:
            return frozenset(self._of_write(life, then, unknown=unknown))
        return frozenset(self._of_job(life, then, unknown=unknown))

    def _of_job(self, life: _Life, then: Row, *, unknown: bool) -> set[int | None]:
        run = self.run
        ours = run.computed(life.inputs[-1])
        others = self.story.overlapping(run)
        nulling = run.start.on_stale == "null" or any(o.is_write or o.start.on_stale == "null" for o in others)
        right = {ours}
        # Nobody can tell any more what its inputs were.
        cleaned = self.story.was_done(CleanUp, run.snapshot, self.end)
        untold = cleaned and (life.moved or life.touched or life.stamped)
        if nulling and untold:
            right = {ours, None}
        if life.changed and nulling:
            # Another job may have computed it from what its input is now; that serves this one too.
            back = life.inputs[-1] == life.inputs[0] or unknown or run.start.on_stale != "null" or bool(others)
            back |= untold
            right = {None, ours} if back else {None}
        if not life.given:
            return right
        version, last = life.given[-1]
        if unknown:
            return right | {last}
        late = any(commit < version for commit in self.story.commits(run))
        if run.start.where is None and not run.start.stale:
            if last is None:
                return right | {None} if late else right
            # What another backfill of the same function gave may be as old as ours.
            is_theirs = last < 0 or last % 10 == 1
            if is_theirs and not life.changed:
                return {last}
            return right | ({last} if is_theirs or life.restored else set())
        return right | {last} if late else right

    def _of_write(self, life: _Life, then: Row, *, unknown: bool) -> set[int | None]:
        ours = self.run.computed(then[INPUT[self.run.start.column]])
        given = {value for _, value in life.given[-1:]}
        if unknown:
            may_be = {life.left, None} if life.changed else {life.left}
            return may_be if life.moved and not life.restored else {*may_be, ours}
        if life.restored and life.relocated:
            return {life.left, ours}  # a restore took its fragment away, and brought it back where it was before
        if life.changed:
            return {None, *given, *([ours] if life.inputs[-1] == life.inputs[0] else [])}
        return {ours, *(given if life.moved or life.restored else set())}

    def _is_selected(self, key: int, then: Row) -> bool:
        start = self.run.start
        if start.stale:
            return then[start.column] is None or key in stale_rows(self.story, start.column, self.run.snapshot)
        if start.where is not None:
            return is_selected(start.where, key)
        return self.run.is_write or then[start.column] is None

    def _lost_track(self) -> bool:
        """Tells whether rows that updates made are among others in a fragment, or nobody knows any more how a fragment was made."""
        acts = [act for number, act in self.story.acts if self.run.snapshot < number <= self.end]
        mixed = any(act.moves_rows for act in acts) and any(isinstance(act, Compact) for act in acts)
        return mixed or any(isinstance(act, CleanUp) for act in acts)

    def life(self, key: int) -> _Life:
        """Returns what happened to a row that is there in the end."""
        run, column = self.run, self.run.start.column
        then = self.story.versions[run.snapshot].rows.get(key)
        life = _Life(inputs=[] if then is None else [then[INPUT[column]]])
        life.left = None if then is None else then.get(column)
        places = self.story.versions[run.snapshot].places, self.story.versions[self.end].places
        life.relocated = places[0].get(key) != places[1].get(key)
        for before, after in self.story.steps(run.snapshot, self.end):
            old, new = before.rows.get(key), after.rows.get(key)
            life.restored |= isinstance(after.by, Restore)
            if new is None:
                continue
            if isinstance(after.by, RewriteInput) and after.by.column == INPUT[column]:
                life.touched |= any(before.places.get(other) == before.places.get(key) for other in after.by.keys)
            if not life.inputs or life.inputs[-1] != new[INPUT[column]]:
                life.inputs.append(new[INPUT[column]])
            if isinstance(after.by, Operation) and after.by.moves_rows and after.places[key] != before.places.get(key):
                life.moved = True
            if after.by == run.name:
                continue
            life.stamped |= isinstance(after.by, (RewriteInput, RewriteTarget, str))
            if old is None:
                life.left = new.get(column)
                if then is not None:
                    life.given.append((after.number, life.left))
            elif old.get(column) != new.get(column):
                life.left = new.get(column)
                life.given.append((after.number, life.left))
        return life


# Rules about versions


def wrong_cells(story: Story, run: Run, before: Seen, after: Seen) -> list[str]:
    """Returns what a backfill's version changed that is not its to change, or into what nobody computed."""
    column, found = run.start.column, []
    if before.rows.keys() != after.rows.keys():
        gone, new = before.rows.keys() - after.rows.keys(), after.rows.keys() - before.rows.keys()
        return [f"version {after.number} of {run.name} lost rows {sorted(gone)}, and brought rows {sorted(new)}"]
    for key, old in before.rows.items():
        new = after.rows[key]
        others = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)} - {column}
        if others:
            found.append(f"version {after.number} of {run.name} changed {sorted(others)} of row {key}: {old} -> {new}")
        if old.get(column) != new.get(column) and new.get(column) not in _ever(story, run, key, after.number):
            found.append(f"version {after.number} of {run.name} put {new.get(column)} into row {key}: {old}")
    return found


def _ever(story: Story, run: Run, key: int, upto: int) -> set[int | None]:
    """Returns what a row had, and what was computed of the inputs that it had, since a backfill's snapshot."""
    rows = [
        seen.rows[key] for number, seen in story.versions.items() if run.snapshot <= number <= upto and key in seen.rows
    ]
    computed = {run.computed(row[INPUT[run.start.column]]) for row in rows}
    return {None, *computed, *(row.get(run.start.column) for row in rows)}
