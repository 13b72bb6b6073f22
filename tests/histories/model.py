"""Histories, their outcome, and the allowed values: pure functions over the contents of versions.

The allowed values follow from the table's own history, with the rows and the author of every version. A version of
another writer must hold the rows of the version before, plus the writer's change. A version of a backfill may change
only cells of its target. At the end of a backfill, :class:`Judge` derives the allowed values of each row from the
changes since the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.histories.administration import CleanUp, Restore
from tests.histories.jobs import is_selected, value, written_value
from tests.histories.operations import (
    INPUT,
    Compact,
    Operation,
    RewriteInput,
    RewriteTarget,
    Row,
    Rows,
    Short,
)
from tests.histories.processes import Caught
from tests.histories.provenance import is_verifiable, stale_rows

Door = Literal["job", "driver", "write"]
"""A job of the table API in this process, the same with a driver of its own, or a DataFrame write."""


# Steps


@dataclass(frozen=True, slots=True, repr=False)
class StartBackfill(Short):
    """Starts a backfill, and lets it run to a gate: `call K` (of the UDF, for row K), `written` (the files of a write),
    `commit` (after the look at the head, before the commit), `landed` (after the commit, before its reply) or `end`.
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
class ResumeBackfill(Short):
    """Lets a waiting backfill run to another gate."""

    run: str
    until: str = "end"


@dataclass(frozen=True, slots=True, repr=False)
class KillBackfill(Short):
    """Kills a backfill's process, if it has its own."""

    run: str


@dataclass(frozen=True, slots=True, repr=False)
class Act(Short):
    """Another writer acts."""

    operation: Operation


Step = StartBackfill | ResumeBackfill | KillBackfill | Act


@dataclass(frozen=True, slots=True, repr=False)
class BackfillHistory(Short):
    """A table, and the steps that change it, in order. Backfills that still run then run to their end, in order."""

    fragments: tuple[int, ...]
    steps: tuple[Step, ...]
    stable: bool = True
    indexed: bool = False
    fresh: bool = False
    """Whether the history ends with a backfill of outdated rows."""


# Outcome


@dataclass(slots=True, kw_only=True)
class RecordedVersion:
    """A version.

    Attributes:
        number: Its number.
        by: Name of the backfill or the operation that committed the version.
        rows: Its rows.
        places: The fragment of each row.
    """

    number: int
    by: str | Operation
    rows: Rows
    places: dict[int, int]


@dataclass(slots=True, kw_only=True)
class BackfillRun:
    """A backfill and its outcome.

    Attributes:
        start: The step of its start.
        snapshot: The version read by the backfill.
        began: Number of backfills begun or ended before its begin.
        ended: Number of backfills begun or ended before its end; None during its run.
        end: The latest version at its end.
        outcome: The counters of its result, or its error; None during its run, and after a kill.
        killed: Whether its process was killed.
    """

    start: StartBackfill
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
        return written_value(x) if self.is_write else value(x)


@dataclass(slots=True, kw_only=True)
class Story:
    """The outcome of a history so far.

    Attributes:
        stable: Whether row ids are stable.
        first: The first version with the targets.
        versions: All versions since then.
        runs: The backfills, by name.
        acts: Changes by other writers, each with the latest version after the change.
        calls: Calls of UDFs: column and input.
        broken: Unreadable versions, because a cleanup deleted their files.
    """

    stable: bool
    first: int
    versions: dict[int, RecordedVersion] = field(default_factory=dict)
    runs: dict[str, BackfillRun] = field(default_factory=dict)
    acts: list[tuple[int, Operation]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)

    @property
    def head(self) -> RecordedVersion:
        return self.versions[max(self.versions)]

    def steps(self, after: int, upto: int) -> Iterator[tuple[RecordedVersion, RecordedVersion]]:
        """Yields pairs of a version and its predecessor."""
        for number in range(after + 1, upto + 1):
            yield self.versions[number - 1], self.versions[number]

    def commits(self, run: BackfillRun) -> list[int]:
        return [version.number for version in self.versions.values() if version.by == run.name]

    def judged(self, run: BackfillRun) -> range:
        """Returns the versions accepted as the base of a backfill's answer: from the last look after its last commit up
        to its end.
        """
        assert run.end is not None
        return range(max(self.commits(run), default=run.end), run.end + 1)

    def overlapping(self, run: BackfillRun) -> list[BackfillRun]:
        """Returns other backfills of the same column whose run overlaps with this run."""
        return [
            another
            for another in self.runs.values()
            if another is not run
            and another.start.column == run.start.column
            and (run.ended is None or another.began < run.ended)
            and (another.ended is None or run.began < another.ended)
        ]

    def begin(self, start: StartBackfill) -> BackfillRun:
        """Records the begin of a backfill."""
        run = self.runs[start.run] = BackfillRun(
            start=start, snapshot=self.head.number, began=self._tick()
        )
        return run

    def end(self, run: BackfillRun) -> None:
        """Records the end of a backfill."""
        run.end, run.ended = self.head.number, self._tick()

    def _tick(self) -> int:
        return len(self.runs) + sum(run.ended is not None for run in self.runs.values())

    def was_done(self, kind: type[Operation], after: int, upto: int) -> bool:
        return any(isinstance(act, kind) and after < number <= upto for number, act in self.acts)

    def is_crossed(self, run: BackfillRun) -> bool:
        """Tells whether another writer committed between a backfill's snapshot and its last commit."""
        last = max(self.commits(run), default=run.end or 0)
        return any(
            version.by != run.name and run.snapshot < version.number < last
            for version in self.versions.values()
        )


@dataclass(slots=True, kw_only=True)
class _Life:
    """Changes of a row between a backfill's snapshot and its end, except changes by the backfill.

    Attributes:
        inputs: Its inputs in order, without repetitions.
        foreign_values: Values of other writers in its target, with their versions.
        without_run: The value in its target without the backfill.
        was_moved: Whether an update rewrote the row.
        relocated: Whether the row is in another fragment at the end.
        touched: Whether an input of its fragment was written in place, possibly for other rows.
        stamped: Whether another writer wrote or filled a column in place. Then row versions cannot prove that the
            inputs stayed.
        restored: Whether the table was restored.
    """

    inputs: list[int | None]
    foreign_values: list[tuple[int, int | None]] = field(default_factory=list)
    without_run: int | None = None
    was_moved: bool = False
    relocated: bool = False
    touched: bool = False
    stamped: bool = False
    restored: bool = False

    @property
    def changed(self) -> bool:
        return len(self.inputs) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Tells the allowed values in a version after which a backfill has nothing left to do.

    Attributes:
        story: The story of the history.
        run: The backfill.
        end: The version.
    """

    story: Story
    run: BackfillRun
    end: int

    def allowed(self, key: int) -> frozenset[int | None]:
        """Returns the allowed values of a row's target."""
        then = self.story.versions[self.run.snapshot].rows.get(key)
        selected = then is not None and self._is_selected(key, then)
        values = self._allowed(key, selected=selected)
        if self.run.start.stale and not is_verifiable(self.story, self.end):
            # A possibly outdated value is recomputed.
            values |= self._allowed(key, selected=then is not None)
        return values

    def _allowed(self, key: int, *, selected: bool) -> frozenset[int | None]:
        run, story = self.run, self.story
        then, life = story.versions[run.snapshot].rows.get(key), self.life(key)
        current_input = life.inputs[-1]
        ours = run.computed(current_input)
        # Without stable row ids, the rows of an update's fragments cannot be matched with old rows: all of them are
        # computed, or none.
        lost = (self._lost_track() and (then is None or life.relocated)) or (
            life.restored and life.relocated
        )
        # Without the snapshot, a job recomputes all moved rows, and every row of a fragment whose inputs were written.
        cleaned = story.was_done(CleanUp, run.snapshot, self.end)
        untold = not run.is_write and cleaned and (life.relocated or life.touched)
        unknown = (not story.stable and (life.was_moved or lost)) or untold
        if then is None or not selected:
            came_back = then is None and life.restored
            # Another round selects rows without a value, including rows whose value was removed.
            emptied = then is not None and life.without_run is None and run.start.where is None
            if run.is_write or not (
                unknown or came_back or emptied or (then is not None and life.changed)
            ):
                return frozenset([life.without_run])
            is_somebodys = (
                life.without_run is not None and life.without_run < 0 and not run.start.stale
            )
            return frozenset(
                [life.without_run] if is_somebodys and not unknown else [life.without_run, ours]
            )
        if run.is_write:
            return frozenset(self._of_write(life, then, unknown=unknown))
        return frozenset(self._of_job(life, then, unknown=unknown))

    def _of_job(self, life: _Life, then: Row, *, unknown: bool) -> set[int | None]:
        run = self.run
        ours = run.computed(life.inputs[-1])
        overlapping = self.story.overlapping(run)
        nulling = run.start.on_stale == "null" or any(
            o.is_write or o.start.on_stale == "null" for o in overlapping
        )
        right = {ours}
        # Whether the former inputs of the row are unknown.
        cleaned = self.story.was_done(CleanUp, run.snapshot, self.end)
        untold = cleaned and (life.was_moved or life.touched or life.stamped)
        if nulling and untold:
            right = {ours, None}
        if life.changed and nulling:
            # Another job may have computed the row from its present input, and this job may use the value.
            back = (
                life.inputs[-1] == life.inputs[0]
                or unknown
                or run.start.on_stale != "null"
                or bool(overlapping)
            )
            back |= untold
            right = {None, ours} if back else {None}
        if not life.foreign_values:
            return right
        version, last = life.foreign_values[-1]
        if unknown:
            return right | {last}
        late = any(commit < version for commit in self.story.commits(run))
        if run.start.where is None and not run.start.stale:
            if last is None:
                return right | {None} if late else right
            # A value of another backfill with the same function may be as old as ours.
            is_theirs = last < 0 or last % 10 == 1
            if is_theirs and not life.changed:
                return {last}
            return right | ({last} if is_theirs or life.restored else set())
        return right | {last} if late else right

    def _of_write(self, life: _Life, then: Row, *, unknown: bool) -> set[int | None]:
        ours = self.run.computed(then[INPUT[self.run.start.column]])
        last_foreign = {value for _, value in life.foreign_values[-1:]}
        if unknown:
            may_be = {life.without_run, None} if life.changed else {life.without_run}
            return may_be if life.was_moved and not life.restored else {*may_be, ours}
        if life.restored and life.relocated:
            return {
                life.without_run,
                ours,
            }  # a restore removed its fragment, and returned the row to its former place
        if life.changed:
            return {None, *last_foreign, *([ours] if life.inputs[-1] == life.inputs[0] else [])}
        return {ours, *(last_foreign if life.was_moved or life.restored else set())}

    def _is_selected(self, key: int, then: Row) -> bool:
        start = self.run.start
        if start.stale:
            return then[start.column] is None or key in stale_rows(
                self.story, start.column, self.run.snapshot
            )
        if start.where is not None:
            return is_selected(start.where, key)
        return self.run.is_write or then[start.column] is None

    def _lost_track(self) -> bool:
        """Tells whether updated rows share fragments with other rows, or a cleanup removed the lineage of a
        fragment.
        """
        acts = [act for number, act in self.story.acts if self.run.snapshot < number <= self.end]
        mixed = any(act.moves_rows for act in acts) and any(
            isinstance(act, Compact) for act in acts
        )
        return mixed or any(isinstance(act, CleanUp) for act in acts)

    def life(self, key: int) -> _Life:
        """Returns the changes of a row that exists at the end."""
        run, column = self.run, self.run.start.column
        then = self.story.versions[run.snapshot].rows.get(key)
        life = _Life(inputs=[] if then is None else [then[INPUT[column]]])
        life.without_run = None if then is None else then.get(column)
        places = self.story.versions[run.snapshot].places, self.story.versions[self.end].places
        life.relocated = places[0].get(key) != places[1].get(key)
        for before, after in self.story.steps(run.snapshot, self.end):
            old, new = before.rows.get(key), after.rows.get(key)
            life.restored |= isinstance(after.by, Restore)
            if new is None:
                continue
            if isinstance(after.by, RewriteInput) and after.by.column == INPUT[column]:
                life.touched |= any(
                    before.places.get(key_written) == before.places.get(key)
                    for key_written in after.by.keys
                )
            if not life.inputs or life.inputs[-1] != new[INPUT[column]]:
                life.inputs.append(new[INPUT[column]])
            if (
                isinstance(after.by, Operation)
                and after.by.moves_rows
                and after.places[key] != before.places.get(key)
            ):
                life.was_moved = True
            if after.by == run.name:
                continue
            life.stamped |= isinstance(after.by, (RewriteInput, RewriteTarget, str))
            if old is None:
                life.without_run = new.get(column)
                if then is not None:
                    life.foreign_values.append((after.number, life.without_run))
            elif old.get(column) != new.get(column):
                life.without_run = new.get(column)
                life.foreign_values.append((after.number, life.without_run))
        return life


# Rules about versions


def wrong_cells(
    story: Story, run: BackfillRun, before: RecordedVersion, after: RecordedVersion
) -> list[str]:
    """Returns the forbidden changes in a backfill's version: cells outside its target, and values without a source."""
    column, wrong = run.start.column, []
    if before.rows.keys() != after.rows.keys():
        lost_keys, new_keys = (
            before.rows.keys() - after.rows.keys(),
            after.rows.keys() - before.rows.keys(),
        )
        return [
            f"version {after.number} of {run.name} lost rows {sorted(lost_keys)}, and brought rows {sorted(new_keys)}"
        ]
    for key, old in before.rows.items():
        new_keys = after.rows[key]
        changed_names = {
            name for name in old.keys() | new_keys.keys() if old.get(name) != new_keys.get(name)
        } - {column}
        if changed_names:
            wrong.append(
                f"version {after.number} of {run.name} changed {sorted(changed_names)} of row {key}: {old} -> {new_keys}"
            )
        if old.get(column) != new_keys.get(column) and new_keys.get(column) not in _ever(
            story, run, key, after.number
        ):
            wrong.append(
                f"version {after.number} of {run.name} put {new_keys.get(column)} into row {key}: {old}"
            )
    return wrong


def _ever(story: Story, run: BackfillRun, key: int, upto: int) -> set[int | None]:
    """Returns the values of a row since a backfill's snapshot, and the results for its inputs since then."""
    rows = [
        version.rows[key]
        for number, version in story.versions.items()
        if run.snapshot <= number <= upto and key in version.rows
    ]
    computed = {run.computed(row[INPUT[run.start.column]]) for row in rows}
    return {None, *computed, *(row.get(run.start.column) for row in rows)}
