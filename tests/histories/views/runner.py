"""Runs histories of views step by step, and checks every version."""

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
from lance_spark.views.state import CONFIG_KEY, STAMP_KEY, Refreshed, refreshed_of
from tests.histories.administration import CleanUp, Restore
from tests.histories.checking import WrongError
from tests.histories.jobs import value
from tests.histories.operations import Operation
from tests.histories.views import refreshes
from tests.histories.views.model import (
    ActOn,
    KillRefresh,
    RefreshRun,
    ResumeRefresh,
    StartRefresh,
    Step,
    Track,
    ViewHistory,
    differences,
    refreshed,
    rows_of,
    unfilled,
    wrong_fill,
)
from tests.histories.views.operations import OWN, FillOwn, Spoil, fitted
from tests.histories.views.refreshes import CURRENT, InlineSession
from tests.histories.views.tables import ID, SHAPES, Shape, Version, make_tables, read
from tests.support.faults import unused_files

MOST_AT_ONCE = 2
COMMITS = ("commit", "fill commit")


@dataclass(slots=True, kw_only=True)
class ViewTally:
    """Counts over histories.

    Attributes:
        histories: Number of histories.
        refreshes: Number of refreshes.
        hits: Events during a refresh, by table and operation, and by the point at which the refresh waited.
    """

    histories: int = 0
    refreshes: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def table(self) -> str:
        """Returns the counts as a table."""
        columns = [name for name in refreshes.POINTS if any(at == name for _, at in self.hits)]
        lines = [f"{'':30}" + "".join(f"{name[-9:]:>10}" for name in columns)]
        kinds = sorted({kind for kind, _ in self.hits})
        lines += [
            f"{kind:30}" + "".join(f"{self.hits[kind, name]:10}" for name in columns)
            for kind in kinds
        ]
        return "\n".join([*lines, f"{self.histories} histories, {self.refreshes} refreshes"])


class ViewPlayer:
    """Runs one history."""

    def __init__(
        self, history: ViewHistory, *, home: Path, tally: ViewTally, spark: Any = None
    ) -> None:
        self._history = history
        self._tally = tally
        self._spark = spark or InlineSession()
        CURRENT.all, CURRENT.calls, CURRENT.refresh = [], [], None
        self._db = make_tables(str(home), self._spark, history.fragments, chain=history.chain)
        names = ["t", "v", *(["w"] if history.chain else [])]
        self.tracks = {name: Track(name=name, uri=f"{home}/{name}.lance") for name in names}
        self.runs: list[RefreshRun] = []
        self._waiting: dict[str, RefreshRun] = {}
        self._due: Counter[tuple[str, int]] = Counter()
        """How often each input may have been given to the UDF of each view."""
        self._undisturbed = True
        self._look("the test")

    def run(self) -> None:
        """Runs the steps, then lets waiting refreshes end, and checks the outcome.

        Raises:
            WrongError: A table or a result differs from the rules.
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
        if (
            isinstance(step, StartRefresh)
            and step.run not in self._waiting
            and len(self._waiting) < MOST_AT_ONCE
        ):
            if step.view in self.tracks and not any(
                track.head.doubled for track in self.tracks.values()
            ):
                self._start(step)
        elif isinstance(step, ResumeRefresh) and step.run in self._waiting:
            self._go(step.run, step.until, step.fault)
        elif isinstance(step, KillRefresh) and step.run in self._waiting:
            self._kill(step.run)
        elif isinstance(step, ActOn) and step.table in self.tracks:
            self._act(self.tracks[step.table], step.operation)

    # Other writers

    def _act(self, track: Track, operation: Operation) -> None:
        if track.head.doubled or (
            track.name == "t" and self._is_spoilt and not isinstance(operation, CleanUp)
        ):
            return
        world = track.world()
        change = fitted(operation, world)
        if change is None:
            return
        if isinstance(change, CleanUp) and any(
            run.refresh.at in COMMITS for run in self._waiting.values()
        ):
            change = (
                CleanUp()
            )  # a cleanup of unreferenced files at this moment would make an unreadable version
        self._note(f"{track.name}: {change.name}")
        calls = len(CURRENT.calls)
        before = track.head
        change.act(track.uri)
        if isinstance(change, Spoil):
            self._look(change)
            track.acts.append((track.head.number, change))
            return
        expected = change.change(deepcopy(before.by_key), world)
        self._look(change)
        track.acts.append((track.head.number, change))
        if track.head.by_key != expected:
            raise WrongError(
                f"{change} made of {track.name} {differences(expected, track.head.by_key)}"
            )
        if isinstance(change, FillOwn):
            expected_calls = Counter(
                row["e"]
                for row in before.rows.values()
                if row[OWN] is None and row["e"] is not None
            )
            actual_calls = Counter(x for _, x in CURRENT.calls[calls:])
            if {x: n for x, n in (actual_calls - expected_calls).items() if value(x) is not None}:
                raise WrongError(
                    f"a backfill of an own column called the UDF for {actual_calls}, and not {expected_calls}"
                )
        self._due.update(CURRENT.calls[calls:])

    @property
    def _is_spoilt(self) -> bool:
        return any(isinstance(act, Spoil) for _, act in self.tracks["t"].acts)

    def _note(self, kind: str) -> None:
        for run in self._waiting.values():
            run.undisturbed = False
            self._tally.hits[kind, run.refresh.at] += 1

    # Refreshes

    def _start(self, step: StartRefresh) -> None:
        shape = SHAPES[step.view]
        source = self.tracks[shape.source]
        requested_version = None
        if step.back is not None:
            older = sorted(source.kept_versions)
            requested_version = older[max(0, len(older) - 1 - step.back)]
        self._note("a refresh" if step.view == "v" else "a refresh of w")
        run = RefreshRun(
            name=f"{step.run} {len(self.runs)}",
            start=step,
            refresh=refreshes.start(
                self._db.open_table(step.view), self._spark, requested_version, self._history.rows
            ),
            requested_version=requested_version,
            began=self._heads(),
            target=requested_version or source.head.number,
            undisturbed=not self._waiting,
            calls=len(CURRENT.calls),
        )
        for waiting in self._waiting.values():
            both = waiting.start.view == step.view
            waiting.overlapping += both
            run.overlapping += both
        self.runs.append(run)
        self._waiting[step.run] = run
        self._go(step.run, step.until, step.fault)

    def _go(self, name: str, until: str, fault: str | None) -> None:
        run = self._waiting[name]
        for waiting in self._waiting.values():
            waiting.undisturbed &= waiting is run
        if fault is not None:
            self._tally.hits[f"fault: {fault}", run.refresh.at or "begin"] += 1
            run.undisturbed = False
        run.refresh.go(until, fault)
        self._look(run)
        if run.refresh.ended:
            self._end(name)

    def _kill(self, name: str) -> None:
        run = self._waiting[name]
        if self.tracks[run.start.view].head.doubled:
            return  # its commit would never be taken back
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

    def _allow_again(self, run: RefreshRun) -> None:
        """Allows a second computation of a refresh's rows, because it ended early or overlapped with another."""
        self._due.update(call for call in CURRENT.calls[run.calls :] if call[0] == run.start.view)

    def _heads(self) -> dict[str, int]:
        return {name: track.head.number for name, track in self.tracks.items()}

    # Versions

    def _look(self, by: Any) -> None:
        """Reads the new versions, and checks the versions of views."""
        for track in self.tracks.values():
            head = lance.dataset(track.uri)
            track.kept_versions = frozenset(version["version"] for version in head.versions())
            for number in range(max(track.versions, default=0) + 1, head.version + 1):
                if number not in track.kept_versions:
                    # Only a cleanup creates a version and deletes it.
                    track.versions[number] = track.head
                    continue
                table_version = read(track.name, head.checkout_version(number), by)
                if track.name in SHAPES and track.versions:
                    table_version = self._judged(SHAPES[track.name], track, table_version, head)
                track.versions[number] = table_version
            if track.name in SHAPES:
                self._check_state(track, head)

    def _check_state(self, track: Track, head: lance.LanceDataset) -> None:
        """Checks that the product knows the version that a view shows."""
        refreshed_state = refreshed_of(head)
        is_known = track.head.since in track.kept_versions or (
            refreshed_state is not None and not refreshed_state.lost
        )
        if track.head.doubled or not is_known:
            return
        if (None if refreshed_state is None else refreshed_state.version) != track.head.shows:
            raise WrongError(
                f"{track.name} shows version {track.head.shows} of its source, and not {refreshed_state}"
            )

    def _judged(
        self, shape: Shape, track: Track, version: Version, head: lance.LanceDataset
    ) -> Version:
        """Checks a version of a view, and returns it with its required contents."""
        before = track.head
        by, where = version.by, f"version {version.number} of {track.name}"
        source = self.tracks[shape.source].versions
        event = next(iter(events_between(head, version.number - 1, version.number)))
        if UNDONE_KEY in event.properties:
            return self._undone(track, version)
        if isinstance(by, Restore) and event.name == "Restore":
            assert by.version is not None
            version = version.like(track.versions[by.version])
            self._count_pending(shape, before, version)
            return version
        version = version.like(before)
        if STAMP_KEY in event.properties:
            return self._judge_rows(
                shape,
                track,
                version,
                Refreshed.from_json(event.properties[STAMP_KEY], "view").version,
            )
        ids = [row[ID] for row in version.rows.values()]
        if len(set(ids)) != len(ids) and not before.doubled:
            raise WrongError(f"{where} by {by} has rows twice: {sorted(ids)}")
        if isinstance(by, Operation):
            lost_ids = before.by_source.keys() - version.by_source.keys()
            version.out = before.out | lost_ids if isinstance(by, Operation) else before.out
            return version
        if isinstance(by, RefreshRun):
            then = {} if before.shows is None else source[before.shows].rows
            wrong = list(wrong_fill(shape, before, version, then))
            if wrong:
                raise WrongError(f"{where} by {by.name}: {'; '.join(wrong)}")
            if event.name == "UpdateConfig":
                stamp = Refreshed.from_json(
                    head.checkout_version(version.number).config()[CONFIG_KEY], "view"
                )
                return self._judge_note(shape, track, version, stamp)
        return version

    def _judge_note(
        self, shape: Shape, track: Track, version: Version, stamp: Refreshed
    ) -> Version:
        """Checks the configuration written by a refresh, which may be its only commit."""
        sources = self.tracks[shape.source].versions
        if stamp.version == version.shows or stamp.at < version.since:
            return version
        if any(isinstance(act, Restore) and number > stamp.at for number, act in track.acts):
            return version  # a restore removed the refresh's version, so its record has no effect
        at = track.versions[stamp.at]
        source_rows = sources[stamp.version].rows
        right = refreshed(
            shape, at, None if at.shows is None else sources[at.shows].rows, source_rows
        )
        if right.rows != at.by_source:
            raise WrongError(
                f"version {version.number} of {track.name} says that it shows {stamp}, and does not: {differences(right.rows, at.by_source)}"
            )
        version.out = frozenset(
            number
            for number in version.out
            if number in source_rows and shape.selects(source_rows[number])
        )
        version.shows, version.since = stamp.version, stamp.at
        return version

    def _judge_rows(self, shape: Shape, track: Track, version: Version, shows: int) -> Version:
        """Checks the commit of rows of a refresh."""
        before, run, sources = track.head, version.by, self.tracks[shape.source].versions
        start = run.refresh.landed[version.number]
        version.shows, version.since = shows, version.number
        read_version = start.view.version
        between = [track.versions[number] for number in range(read_version + 1, version.number)]
        passed_over = range(run.refresh.bases[version.number] + 1, version.number)
        if track.versions[passed_over.start - 1].rows and not track.kept_versions.issuperset(
            passed_over
        ):
            # Lance cannot know a commit of that moment: the refresh fails, and the next refresh recomputes all rows.
            version.doubled, run.undisturbed = True, False
            return version
        if (
            start.base is None
            and not track.versions[read_version].rows
            and any(another.rows for another in between)
        ):
            # The commit followed another first refresh, and must be taken back.
            version.doubled = True
            return version
        version.doubled &= start.base is not None  # unless the refresh recomputes all rows
        then = None if start.base is None else sources[start.base.version].rows
        if (
            start.base is None
            and track.versions[read_version].shows is not None
            and before.shows is not None
        ):
            self._excuse_rebuild(track, self.tracks[shape.source], before.shows)
        seen_then = track.versions[read_version].shows
        if run.requested_version is None and start.base is not None and shows < (seen_then or 0):
            raise WrongError(
                f"{run.name} brings {track.name} back from version {seen_then} to {shows}"
            )
        right = refreshed(shape, before, then, sources[shows].rows)
        ids = [row[ID] for row in version.rows.values()]
        if len(set(ids)) != len(ids):
            raise WrongError(
                f"version {version.number} of {track.name} by {run.name} has rows twice: {sorted(ids)}"
            )
        cleaned = (
            start.base is not None
            and start.base.version not in self.tracks[shape.source].kept_versions
        )
        if cleaned and version.by_source != right.rows:
            # A cleanup removed the version before the tasks read it, so the changes are unknown.
            right = refreshed(shape, before, None, sources[shows].rows)
            run.undisturbed = False
            if version.by_source.keys() != right.rows.keys() or any(
                (row["key"], row["e"]) != (right.rows[number]["key"], right.rows[number]["e"])
                for number, row in version.by_source.items()
            ):
                raise WrongError(
                    f"version {version.number} of {track.name}: {differences(right.rows, version.by_source)}"
                )
        elif version.by_source != right.rows:
            text = differences(right.rows, version.by_source)
            raise WrongError(
                f"version {version.number} of {track.name} by {run.name}, from {before.shows} to {shows}: {text}"
            )
        version.out = right.out
        for number in right.pending:
            x = sources[shows].rows[number][shape.input]
            if x is not None:
                self._due[shape.name, x] += 1
        run.right = right
        return version

    def _excuse_rebuild(self, track: Track, source: Track, shows: int) -> None:
        cleaned = any(isinstance(act, CleanUp) for _, act in track.acts)
        if shows in source.kept_versions and not cleaned:
            raise WrongError(
                f"{track.name} was made anew, though version {shows} of its source is there"
            )

    def _undone(self, track: Track, version: Version) -> Version:
        """Checks that the rows of a retracted commit are gone."""
        last = max(number for number, candidate in track.versions.items() if not candidate.doubled)
        before = track.versions[last]
        version = version.like(before)
        if version.by_source != before.by_source or len(version.rows) != len(before.rows):
            raise WrongError(
                f"version {version.number} of {track.name}: {differences(before.by_source, version.by_source)}"
            )
        return version

    def _count_pending(self, shape: Shape, before: Version, after: Version) -> None:
        """Allows calls for values that a restore removed."""
        if after.shows is not None:
            pending = unfilled(shape, after, self.tracks[shape.source].versions[after.shows].rows)
            self._due.update({(shape.name, x): count for x, count in pending.items()})

    # Checks

    def _excuse(self, run: RefreshRun, error: Any) -> str | None:
        """Returns the reason for which a refresh may fail, or None."""
        shape = SHAPES[run.start.view]
        source, view = self.tracks[shape.source], self.tracks[shape.name]
        since = [act for number, act in source.acts if number > run.began[source.name]]
        view_acts = [act for number, act in view.acts if number > run.began[view.name]]
        usable = source.versions[run.target].names
        if error.kind == "ViewSourceError":
            if any(isinstance(act, Spoil) for _, act in source.acts):
                return "the source was spoilt"
            if any(usable.get(name) != name for name in shape.used) or self._is_renamed(shape):
                return "a column was renamed"
        if any(isinstance(act, CleanUp) for act in since):
            return "a version of the source was cleaned up"
        if (
            any(isinstance(act, CleanUp) for act in view_acts)
            and "OSError: Dataset at path" not in error.text
        ):
            return "the version of the view that it read was cleaned up"
        return None

    def _is_renamed(self, shape: Shape) -> bool:
        names = self.tracks[shape.source].head.names
        return any(names.get(name) != name for name in shape.used)

    def _check_run(self, run: RefreshRun) -> None:
        """Checks the effect of a successful refresh."""
        shape = SHAPES[run.start.view]
        track, source = self.tracks[shape.name], self.tracks[shape.source]
        result = run.refresh.outcome
        if result.status != "DONE":
            raise WrongError(f"{run.name} ended {result}")
        shown_versions = [
            version.shows
            for number, version in track.versions.items()
            if number >= run.began[track.name]
        ]
        restored = any(
            isinstance(act, Restore) and number > run.began[track.name]
            for number, act in track.acts
        )
        if not (restored or run.overlapping) and not any(
            number == run.target or (run.requested_version is None and (number or 0) > run.target)
            for number in shown_versions
        ):
            raise WrongError(
                f"{run.name} was to show version {run.target}, and there were {shown_versions}"
            )
        ours = [call for call in CURRENT.calls[run.calls :] if call[0] == shape.name]
        if not run.overlapping and result.rows_computed != len(ours):
            raise WrongError(
                f"{run.name} tells of {result.rows_computed} calls, and there were {len(ours)}: {ours}"
            )
        if not run.undisturbed:
            return
        if track.head.shows is None:
            raise WrongError(f"after {run.name}, {track.name} shows nothing")
        unfilled_inputs = unfilled(shape, track.head, source.versions[track.head.shows].rows)
        if unfilled_inputs:
            raise WrongError(
                f"after {run.name}, rows with these inputs have no value: {sorted(unfilled_inputs)}"
            )
        right = run.right
        counts = rows_of(result)
        if counts != (
            (0, 0, 0) if right is None else (right.added, right.recomputed, right.removed)
        ):
            raise WrongError(f"{run.name} tells of {counts} rows, and there were {right}")

    def _settle(self) -> None:
        """Brings the views up to date, twice: nothing is done the second time."""
        for shape in SHAPES.values():
            track = self.tracks.get(shape.name)
            if track is None:
                continue
            spoilt = (shape.source == "t" and self._is_spoilt) or self._is_renamed(shape)
            before = track.head
            plan = (
                None if spoilt or before.doubled else self._db.open_table(shape.name).plan_refresh()
            )
            self._start(StartRefresh("settle", view=shape.name))
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
            calls, version = len(CURRENT.calls), track.head.number
            self._start(StartRefresh("settle", view=shape.name))
            if len(CURRENT.calls) != calls:
                raise WrongError(
                    f"a second refresh of {track.name} called the UDF again: {CURRENT.calls[calls:]}"
                )
            if track.head.number != version:
                raise WrongError(
                    f"a second refresh of {track.name} made version {track.head.number}"
                )
            again = self._db.open_table(shape.name).plan_refresh()
            if again.has_work:
                raise WrongError(f"after two refreshes there is work: {again}")

    def _check_end(self) -> None:
        self._check_calls()
        for track in self.tracks.values():
            head = lance.dataset(track.uri)
            for entry in head.versions():
                number = entry["version"]
                reread = read(track.name, head.checkout_version(number), None)
                if reread.rows != track.versions[number].rows:
                    text = differences(track.versions[number].rows, reread.rows)
                    raise WrongError(f"version {number} of {track.name} is not what it was: {text}")
            if track.head.doubled:
                raise WrongError(f"{track.name} has rows twice")
        for name in self.tracks.keys() & SHAPES.keys():
            uri = self.tracks[name].uri
            if any(run.refresh.killed or run.failed is not None for run in self.runs):
                lance_spark.cleanup(uri, older_than=dt.timedelta(0))
            unnamed_files = unused_files(uri) if Path(uri, "data").exists() else set()
            if unnamed_files:
                raise WrongError(
                    f"files of {name} are left that no version names: {sorted(unnamed_files)}"
                )

    def _check_calls(self) -> None:
        actual_calls = Counter(call for call in CURRENT.calls if value(call[1]) is not None)
        for call, count in actual_calls.items():
            if count > self._due[call]:
                raise WrongError(
                    f"the UDF of {call[0]} was called {count} times for {call[1]}, not {self._due[call]}"
                )
