"""Runs histories of views, one step after the other, and checks every version that comes of them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance

import lance_spark
from lance_spark.commit.conflicts.history import UNDONE_KEY, events_between
from lance_spark.views.state import CONFIG_KEY, STAMP_KEY, refreshed_of
from lance_spark.views.state import Refreshed as Stamp
from tests.histories.administration import CleanUp, Restore
from tests.histories.checking import WrongError
from tests.histories.jobs import value
from tests.histories.operations import Operation
from tests.histories.views import refreshes
from tests.histories.views.model import (
    Act,
    Go,
    History,
    Kill,
    Run,
    Start,
    Step,
    Track,
    differences,
    refreshed,
    rows_of,
    unfilled,
    wrong_fill,
)
from tests.histories.views.operations import OWN, FillOwn, Spoil, fitted
from tests.histories.views.refreshes import NOW, Here
from tests.histories.views.tables import ID, SHAPES, Shape, Version, make_tables, read
from tests.support.faults import unused_files

MOST_AT_ONCE = 2
COMMITS = ("commit", "fill commit")


@dataclass(slots=True, kw_only=True)
class Tally:
    """What histories hit.

    Attributes:
        histories: How many there were.
        refreshes: How many refreshes.
        hits: What happened beside a refresh: the table and what was done to it, and the point at which the refresh waited.
    """

    histories: int = 0
    refreshes: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def table(self) -> str:
        """Returns the counts as a table."""
        columns = [name for name in refreshes.POINTS if any(at == name for _, at in self.hits)]
        lines = [f"{'':30}" + "".join(f"{name[-9:]:>10}" for name in columns)]
        kinds = sorted({kind for kind, _ in self.hits})
        lines += [f"{kind:30}" + "".join(f"{self.hits[kind, name]:10}" for name in columns) for kind in kinds]
        return "\n".join([*lines, f"{self.histories} histories, {self.refreshes} refreshes"])


class Runner:
    """Runs one history."""

    def __init__(self, history: History, *, home: Path, tally: Tally, spark: Any = None) -> None:
        self._history = history
        self._tally = tally
        self._spark = spark or Here()
        NOW.all, NOW.calls, NOW.refresh = [], [], None
        self._db = make_tables(str(home), self._spark, history.fragments, chain=history.chain)
        names = ["t", "v", *(["w"] if history.chain else [])]
        self.tracks = {name: Track(name=name, uri=f"{home}/{name}.lance") for name in names}
        self.runs: list[Run] = []
        self._waiting: dict[str, Run] = {}
        self._due: Counter[tuple[str, int]] = Counter()
        """How often each input may have been given to the UDF of each view."""
        self._undisturbed = True
        self._look("the test")

    def run(self) -> None:
        """Runs the steps, lets what still waits then come to its end, and checks.

        Raises:
            WrongError: Something is not as it must be.
        """
        try:
            for step in self._history.steps:
                self._do(step)
            for name in [*self._waiting]:
                self._go(name, "end", None)
            self._settle()
            self._check_end()
        finally:
            for run in self._waiting.values():
                run.refresh.kill()
        self._tally.histories += 1
        self._tally.refreshes += len(self.runs)

    def _do(self, step: Step) -> None:
        if isinstance(step, Start) and step.run not in self._waiting and len(self._waiting) < MOST_AT_ONCE:
            if step.view in self.tracks and not any(track.head.doubled for track in self.tracks.values()):
                self._start(step)
        elif isinstance(step, Go) and step.run in self._waiting:
            self._go(step.run, step.until, step.fault)
        elif isinstance(step, Kill) and step.run in self._waiting:
            self._kill(step.run)
        elif isinstance(step, Act) and step.table in self.tracks:
            self._act(self.tracks[step.table], step.operation)

    # Other writers

    def _act(self, track: Track, operation: Operation) -> None:
        if track.head.doubled or (track.name == "t" and self._is_spoilt and not isinstance(operation, CleanUp)):
            return
        world = track.world()
        found = fitted(operation, world)
        if found is None:
            return
        if isinstance(found, CleanUp) and any(run.refresh.at in COMMITS for run in self._waiting.values()):
            found = CleanUp()  # what deletes files of no version in that moment makes a version that cannot be read
        self._note(f"{track.name}: {found.name}")
        calls = len(NOW.calls)
        before = track.head
        found.act(track.uri)
        if isinstance(found, Spoil):
            self._look(found)
            track.acts.append((track.head.number, found))
            return
        expected = found.change(deepcopy(before.by_key), world)
        self._look(found)
        track.acts.append((track.head.number, found))
        if track.head.by_key != expected:
            raise WrongError(f"{found} made of {track.name} {differences(expected, track.head.by_key)}")
        if isinstance(found, FillOwn):
            wanted = Counter(row["e"] for row in before.rows.values() if row[OWN] is None and row["e"] is not None)
            made = Counter(x for _, x in NOW.calls[calls:])
            if {x: n for x, n in (made - wanted).items() if value(x) is not None}:
                raise WrongError(f"a backfill of an own column called the UDF for {made}, and not {wanted}")
        self._due.update(NOW.calls[calls:])

    @property
    def _is_spoilt(self) -> bool:
        return any(isinstance(act, Spoil) for _, act in self.tracks["t"].acts)

    def _note(self, kind: str) -> None:
        for run in self._waiting.values():
            run.alone = False
            self._tally.hits[kind, run.refresh.at] += 1

    # Refreshes

    def _start(self, step: Start) -> None:
        shape = SHAPES[step.view]
        source = self.tracks[shape.source]
        asked = None
        if step.back is not None:
            older = sorted(source.left)
            asked = older[max(0, len(older) - 1 - step.back)]
        self._note("a refresh" if step.view == "v" else "a refresh of w")
        run = Run(
            name=f"{step.run} {len(self.runs)}",
            start=step,
            refresh=refreshes.start(self._db.open_table(step.view), self._spark, asked, self._history.rows),
            asked=asked,
            began=self._heads(),
            target=asked or source.head.number,
            alone=not self._waiting,
            calls=len(NOW.calls),
        )
        for other in self._waiting.values():
            both = other.start.view == step.view
            other.overlapping += both
            run.overlapping += both
        self.runs.append(run)
        self._waiting[step.run] = run
        self._go(step.run, step.until, step.fault)

    def _go(self, name: str, until: str, fault: str | None) -> None:
        run = self._waiting[name]
        for other in self._waiting.values():
            other.alone &= other is run
        if fault is not None:
            self._tally.hits[f"fault: {fault}", run.refresh.at or "begin"] += 1
            run.alone = False
        run.refresh.go(until, fault)
        self._look(run)
        if run.refresh.ended:
            self._end(name)

    def _kill(self, name: str) -> None:
        run = self._waiting[name]
        if self.tracks[run.start.view].head.doubled:
            return  # nothing takes back what it has committed
        self._tally.hits["kill", run.refresh.at] += 1
        at = run.refresh.at
        run.refresh.kill()
        self._look(run)
        del self._waiting[name]
        run.ended = self._heads()
        self._undisturbed = False
        if at in ("call", "fill commit", "fill landed"):
            self._allow_again(run)

    def _end(self, name: str) -> None:
        run = self._waiting.pop(name)
        run.ended = self._heads()
        if run.failed is not None:
            self._undisturbed = False
            self._allow_again(run)
            why = self._excuse(run, run.failed)
            if why is None:
                raise WrongError(f"refresh {run.name} failed: {run.failed.trace}")
            return
        if run.overlapping:
            self._allow_again(run)
        self._check_run(run)

    def _allow_again(self, run: Run) -> None:
        """Allows that what a refresh computed is computed again, because it was ended, or was not the only one."""
        self._due.update(call for call in NOW.calls[run.calls :] if call[0] == run.start.view)

    def _heads(self) -> dict[str, int]:
        return {name: track.head.number for name, track in self.tracks.items()}

    # Versions

    def _look(self, by: Any) -> None:
        """Reads the versions that are new, and checks those of views."""
        for track in self.tracks.values():
            head = lance.dataset(track.uri)
            track.left = frozenset(kept["version"] for kept in head.versions())
            for number in range(max(track.versions, default=0) + 1, head.version + 1):
                if number not in track.left:
                    # Only a cleanup makes a version, and takes it away.
                    track.versions[number] = track.head
                    continue
                seen = read(track.name, head.checkout_version(number), by)
                if track.name in SHAPES and track.versions:
                    seen = self._judged(SHAPES[track.name], track, seen, head)
                track.versions[number] = seen
            if track.name in SHAPES:
                self._check_state(track, head)

    def _check_state(self, track: Track, head: lance.LanceDataset) -> None:
        """Checks that the product knows what a view shows."""
        told = refreshed_of(head)
        known = track.head.since in track.left or (told is not None and not told.lost)
        if track.head.doubled or not known:
            return
        if (None if told is None else told.version) != track.head.shows:
            raise WrongError(f"{track.name} shows version {track.head.shows} of its source, and not {told}")

    def _judged(self, shape: Shape, track: Track, seen: Version, head: lance.LanceDataset) -> Version:
        """Returns a version of a view with what it has to be, and checks it."""
        before = track.head
        by, where = seen.by, f"version {seen.number} of {track.name}"
        source = self.tracks[shape.source].versions
        event = next(iter(events_between(head, seen.number - 1, seen.number)))
        if UNDONE_KEY in event.properties:
            return self._undone(track, seen)
        if isinstance(by, Restore) and event.name == "Restore":
            assert by.version is not None
            seen = seen.like(track.versions[by.version])
            self._count_pending(shape, before, seen)
            return seen
        seen = seen.like(before)
        if STAMP_KEY in event.properties:
            return self._judge_rows(shape, track, seen, Stamp.from_json(event.properties[STAMP_KEY], "view").version)
        ids = [row[ID] for row in seen.rows.values()]
        if len(set(ids)) != len(ids) and not before.doubled:
            raise WrongError(f"{where} by {by} has rows twice: {sorted(ids)}")
        if isinstance(by, Operation):
            gone = before.by_source.keys() - seen.by_source.keys()
            seen.out = before.out | gone if isinstance(by, Operation) else before.out
            return seen
        if isinstance(by, Run):
            then = {} if before.shows is None else source[before.shows].rows
            wrong = list(wrong_fill(shape, before, seen, then))
            if wrong:
                raise WrongError(f"{where} by {by.name}: {'; '.join(wrong)}")
            if event.name == "UpdateConfig":
                noted = Stamp.from_json(head.checkout_version(seen.number).config()[CONFIG_KEY], "view")
                return self._judge_note(shape, track, seen, noted)
        return seen

    def _judge_note(self, shape: Shape, track: Track, seen: Version, noted: Stamp) -> Version:
        """Checks what a refresh has put into the configuration, which may be all that it did."""
        sources = self.tracks[shape.source].versions
        if noted.version == seen.shows or noted.at < seen.since:
            return seen
        if any(isinstance(act, Restore) and number > noted.at for number, act in track.acts):
            return seen  # a restore has taken back what it is about, and nothing is to be made of it
        at = track.versions[noted.at]
        now = sources[noted.version].rows
        right = refreshed(shape, at, None if at.shows is None else sources[at.shows].rows, now)
        if right.rows != at.by_source:
            raise WrongError(
                f"version {seen.number} of {track.name} says that it shows {noted}, and does not: {differences(right.rows, at.by_source)}"
            )
        seen.out = frozenset(number for number in seen.out if number in now and shape.selects(now[number]))
        seen.shows, seen.since = noted.version, noted.at
        return seen

    def _judge_rows(self, shape: Shape, track: Track, seen: Version, shows: int) -> Version:
        """Checks the commit of rows of a refresh."""
        before, run, sources = track.head, seen.by, self.tracks[shape.source].versions
        start = run.refresh.landed[seen.number]
        seen.shows, seen.since = shows, seen.number
        read_version = start.view.version
        others = [track.versions[number] for number in range(read_version + 1, seen.number)]
        passed_over = range(run.refresh.bases[seen.number] + 1, seen.number)
        if track.versions[passed_over.start - 1].rows and not track.left.issuperset(passed_over):
            # Lance cannot know what was committed in that moment: the refresh fails, and the next one makes all rows anew.
            seen.doubled, run.alone = True, False
            return seen
        if start.base is None and not track.versions[read_version].rows and any(one.rows for one in others):
            # It landed where another first refresh has, and is to be taken back.
            seen.doubled = True
            return seen
        seen.doubled &= start.base is not None  # unless all rows are made anew
        then = None if start.base is None else sources[start.base.version].rows
        if start.base is None and track.versions[read_version].shows is not None and before.shows is not None:
            self._excuse_rebuild(track, self.tracks[shape.source], before.shows)
        seen_then = track.versions[read_version].shows
        if run.asked is None and start.base is not None and shows < (seen_then or 0):
            raise WrongError(f"{run.name} brings {track.name} back from version {seen_then} to {shows}")
        right = refreshed(shape, before, then, sources[shows].rows)
        ids = [row[ID] for row in seen.rows.values()]
        if len(set(ids)) != len(ids):
            raise WrongError(f"version {seen.number} of {track.name} by {run.name} has rows twice: {sorted(ids)}")
        cleaned = start.base is not None and start.base.version not in self.tracks[shape.source].left
        if cleaned and seen.by_source != right.rows:
            # It was cleaned up before the tasks could look, so nothing tells what changed.
            right = refreshed(shape, before, None, sources[shows].rows)
            run.alone = False
            if seen.by_source.keys() != right.rows.keys() or any(
                (row["key"], row["e"]) != (right.rows[number]["key"], right.rows[number]["e"])
                for number, row in seen.by_source.items()
            ):
                raise WrongError(f"version {seen.number} of {track.name}: {differences(right.rows, seen.by_source)}")
        elif seen.by_source != right.rows:
            text = differences(right.rows, seen.by_source)
            raise WrongError(
                f"version {seen.number} of {track.name} by {run.name}, from {before.shows} to {shows}: {text}"
            )
        seen.out = right.out
        for number in right.pending:
            x = sources[shows].rows[number][shape.input]
            if x is not None:
                self._due[shape.name, x] += 1
        run.right = right
        return seen

    def _excuse_rebuild(self, track: Track, source: Track, shows: int) -> None:
        cleaned = any(isinstance(act, CleanUp) for _, act in track.acts)
        if shows in source.left and not cleaned:
            raise WrongError(f"{track.name} was made anew, though version {shows} of its source is there")

    def _undone(self, track: Track, seen: Version) -> Version:
        """Checks that what was taken back is gone."""
        last = max(number for number, one in track.versions.items() if not one.doubled)
        before = track.versions[last]
        seen = seen.like(before)
        if seen.by_source != before.by_source or len(seen.rows) != len(before.rows):
            raise WrongError(f"version {seen.number} of {track.name}: {differences(before.by_source, seen.by_source)}")
        return seen

    def _count_pending(self, shape: Shape, before: Version, after: Version) -> None:
        """Allows calls for what a restore has taken away."""
        if after.shows is not None:
            pending = unfilled(shape, after, self.tracks[shape.source].versions[after.shows].rows)
            self._due.update({(shape.name, x): count for x, count in pending.items()})

    # Checks

    def _excuse(self, run: Run, error: Any) -> str | None:
        """Returns why a refresh may have failed; None where it may not."""
        shape = SHAPES[run.start.view]
        source, view = self.tracks[shape.source], self.tracks[shape.name]
        since = [act for number, act in source.acts if number > run.began[source.name]]
        beside = [act for number, act in view.acts if number > run.began[view.name]]
        usable = source.versions[run.target].names
        if error.kind == "ViewSourceError":
            if any(isinstance(act, Spoil) for _, act in source.acts):
                return "the source was spoilt"
            if any(usable.get(name) != name for name in shape.used) or self._is_renamed(shape):
                return "a column was renamed"
        if any(isinstance(act, CleanUp) for act in since):
            return "a version of the source was cleaned up"
        if any(isinstance(act, CleanUp) for act in beside) and "OSError: Dataset at path" not in error.text:
            return "the version of the view that it read was cleaned up"
        return None

    def _is_renamed(self, shape: Shape) -> bool:
        names = self.tracks[shape.source].head.names
        return any(names.get(name) != name for name in shape.used)

    def _check_run(self, run: Run) -> None:
        """Checks what a refresh that ended well has made."""
        shape = SHAPES[run.start.view]
        track, source = self.tracks[shape.name], self.tracks[shape.source]
        result = run.refresh.outcome
        if result.status != "DONE":
            raise WrongError(f"{run.name} ended {result}")
        shown = [seen.shows for number, seen in track.versions.items() if number >= run.began[track.name]]
        restored = any(isinstance(act, Restore) and number > run.began[track.name] for number, act in track.acts)
        if not (restored or run.overlapping) and not any(
            one == run.target or (run.asked is None and (one or 0) > run.target) for one in shown
        ):
            raise WrongError(f"{run.name} was to show version {run.target}, and there were {shown}")
        ours = [call for call in NOW.calls[run.calls :] if call[0] == shape.name]
        if not run.overlapping and result.rows_computed != len(ours):
            raise WrongError(f"{run.name} tells of {result.rows_computed} calls, and there were {len(ours)}: {ours}")
        if not run.alone:
            return
        if track.head.shows is None:
            raise WrongError(f"after {run.name}, {track.name} shows nothing")
        left = unfilled(shape, track.head, source.versions[track.head.shows].rows)
        if left:
            raise WrongError(f"after {run.name}, rows with these inputs have no value: {sorted(left)}")
        right = run.right
        told = rows_of(result)
        if told != ((0, 0, 0) if right is None else (right.added, right.moved, right.removed)):
            raise WrongError(f"{run.name} tells of {told} rows, and there were {right}")

    def _settle(self) -> None:
        """Brings the views up to date, twice: nothing is done the second time."""
        for shape in SHAPES.values():
            track = self.tracks.get(shape.name)
            if track is None:
                continue
            spoilt = (shape.source == "t" and self._is_spoilt) or self._is_renamed(shape)
            before = track.head
            plan = None if spoilt or before.doubled else self._db.open_table(shape.name).plan_refresh()
            self._start(Start("settle", view=shape.name))
            run = self.runs[-1]
            if run.failed is not None:
                if track.head.rows != before.rows:
                    raise WrongError(f"a refresh that failed changed {track.name}: {run.failed}")
                continue
            result = run.refresh.outcome
            if plan is not None and (
                plan.rows_added + plan.rows_recomputed != result.rows_added + result.rows_recomputed
                or plan.rows_removed < result.rows_removed
            ):
                raise WrongError(f"{plan} was told, and {rows_of(result)} was done")
            calls, version = len(NOW.calls), track.head.number
            self._start(Start("settle", view=shape.name))
            if len(NOW.calls) != calls:
                raise WrongError(f"a second refresh of {track.name} called the UDF again: {NOW.calls[calls:]}")
            if track.head.number != version:
                raise WrongError(f"a second refresh of {track.name} made version {track.head.number}")
            again = self._db.open_table(shape.name).plan_refresh()
            if again.has_work:
                raise WrongError(f"after two refreshes there is work: {again}")

    def _check_end(self) -> None:
        self._check_calls()
        for track in self.tracks.values():
            head = lance.dataset(track.uri)
            for kept in head.versions():
                number = kept["version"]
                now = read(track.name, head.checkout_version(number), None)
                if now.rows != track.versions[number].rows:
                    text = differences(track.versions[number].rows, now.rows)
                    raise WrongError(f"version {number} of {track.name} is not what it was: {text}")
            if track.head.doubled:
                raise WrongError(f"{track.name} has rows twice")
        for name in self.tracks.keys() & SHAPES.keys():
            uri = self.tracks[name].uri
            if any(run.refresh.killed or run.failed is not None for run in self.runs):
                lance_spark.cleanup(uri, older_than=dt.timedelta(0))
            left = unused_files(uri) if Path(uri, "data").exists() else set()
            if left:
                raise WrongError(f"files of {name} are left that no version names: {sorted(left)}")

    def _check_calls(self) -> None:
        made = Counter(call for call in NOW.calls if value(call[1]) is not None)
        for call, count in made.items():
            if count > self._due[call]:
                raise WrongError(f"the UDF of {call[0]} was called {count} times for {call[1]}, not {self._due[call]}")
