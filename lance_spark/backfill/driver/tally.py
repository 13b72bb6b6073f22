"""What the tasks of a job tell, added up. On the driver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lance_spark.backfill.task.messages import FragmentRows, RangeOutcome

_VOID = -1
"""In place of the first row of a range: the fragment comes to nothing in this round."""

_NOTHING = RangeOutcome(fragment_id=0, start=0, stop=0)


@dataclass(slots=True)
class Tally:
    """What the answers of a job's tasks say so far, over its rounds.

    Attributes:
        selected: Rows that were selected.
        computed: Rows that the UDF was called for and gave a result, each time.
        recomputed: Those of them that the job had computed before, from other inputs.
        reused: Rows whose value an earlier run had left.
        skipped: Rows that a policy skipped.
        crashed: Rows that killed their process.
        retries: How often rows were tried again.
        seconds: Seconds of the tasks, by stage.
        carried: The last answer for each range, by fragment and first row, with what became of rows in the rounds before.
        round: The answers of the current round alone, by fragment, and then by first row.
        void: Those of `computed` whose fragment came to nothing, because the version that was read was cleaned up: its rows come again.
        fragments_total: Fragments that the job was to fill.
        clean: Fragments in which there was nothing to do.
        failed: Why fragments failed.
        inherited: Answers for fragments of which a compaction's old ones tell all.
        sources: Identities of the inputs that were read.
    """

    selected: int = 0
    computed: int = 0
    recomputed: int = 0
    reused: int = 0
    skipped: int = 0
    crashed: int = 0
    retries: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    carried: dict[tuple[int, int], RangeOutcome] = field(default_factory=dict)
    round: dict[int, dict[int, RangeOutcome]] = field(default_factory=dict)
    void: int = 0
    fragments_total: int = 0
    clean: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    inherited: list[RangeOutcome] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)

    @property
    def processed(self) -> int:
        """Rows that got a value of this job, each once."""
        return self.computed - self.recomputed - self.void + self.reused

    def held_now(self) -> dict[int, int]:
        """Returns how many rows the last round has looked after, by fragment."""
        found: dict[int, int] = {}
        for fragment, outcomes in self.round.items():
            found[fragment] = sum(outcome.held for outcome in outcomes.values())
        return found

    def add(self, outcome: RangeOutcome, *, is_void: bool) -> None:
        """Adds what became of a range; of one that is void, because what it was to read is gone, only what it cost: its rows come again."""
        self.sources.add(outcome.source)
        self.computed += outcome.computed
        self.retries += outcome.retries
        for stage, seconds in outcome.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if outcome.error is not None:
            self.failed[outcome.fragment_id] = outcome.error
        siblings = self.round.setdefault(outcome.fragment_id, {})
        if is_void or _VOID in siblings:
            # The next round answers for all of its rows, wherever they are then.
            for start in [start for start in siblings if start != _VOID]:
                self._take_out(siblings.pop(start))
            siblings[_VOID] = RangeOutcome(fragment_id=outcome.fragment_id, start=_VOID, stop=_VOID)
            self.void += outcome.computed
            return
        # Numbers alone: which rows they were takes megabytes where a filter chose them, and is known to the records.
        numbers = replace(outcome, rows=FragmentRows(), seconds={})
        siblings[outcome.start] = numbers
        nulled = outcome.nulled - self._take_back(outcome.again)
        before = self.carried.get((outcome.fragment_id, outcome.start), _NOTHING)
        self.carried[outcome.fragment_id, outcome.start] = replace(
            numbers,
            # A row that was carried over, or kept, is not told of again once it is committed; one that became NULL never is.
            carried=max(before.carried, outcome.carried),
            kept=max(before.kept, outcome.kept),
            nulled=before.nulled + nulled,
        )
        self.recomputed += outcome.recomputed
        self.selected += outcome.selected
        self.reused += outcome.reused
        self.skipped += outcome.skipped
        self.crashed += outcome.crashed
        if outcome.error is None and outcome.complete and outcome.file is None:
            self.clean.add(outcome.fragment_id)
            if outcome.inherited:
                self.inherited.append(outcome)

    def _take_back(self, rows: int) -> int:
        """Takes rows that had no value, and are told of again, out of what was told of them; returns how many had become NULL."""
        nulled = min(rows, sum(outcome.nulled for outcome in self.carried.values())) if rows else 0
        skipped = min(rows - nulled, self.skipped)
        self.skipped -= skipped
        self.crashed -= min(rows - nulled - skipped, self.crashed)
        return nulled

    def _take_out(self, outcome: RangeOutcome) -> None:
        """Makes the answer for a range void, of which it turns out that its fragment comes to nothing."""
        self.recomputed -= outcome.recomputed
        self.selected -= outcome.selected
        self.reused -= outcome.reused
        self.skipped -= outcome.skipped
        self.crashed -= outcome.crashed
        self.void += outcome.computed
        told = self.carried[outcome.fragment_id, outcome.start]
        self.carried[outcome.fragment_id, outcome.start] = replace(told, nulled=told.nulled - outcome.nulled)
