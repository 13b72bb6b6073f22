"""What the tasks of a job tell, added up. On the driver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lance_spark.backfill.spec import FragmentRows, RangeOutcome


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
        carried: The last answer for each range, by fragment and first row.
        round: The same, of the current round alone.
        void: Those of `computed` whose range came to nothing, because the version that it read was cleaned up: its rows come again.
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
    round: dict[tuple[int, int], RangeOutcome] = field(default_factory=dict)
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
        for (fragment, _), outcome in self.round.items():
            found[fragment] = found.get(fragment, 0) + outcome.held
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
        if is_void:
            self.void += outcome.computed
            return
        # Numbers alone: which rows they were takes megabytes where a filter chose them, and is known to the records.
        numbers = replace(outcome, rows=FragmentRows(), seconds={})
        self.carried[outcome.fragment_id, outcome.start] = numbers
        self.round[outcome.fragment_id, outcome.start] = numbers
        self.recomputed += outcome.recomputed
        self.selected += outcome.selected
        self.reused += outcome.reused
        self.skipped += outcome.skipped
        self.crashed += outcome.crashed
        if outcome.error is None and outcome.complete and outcome.file is None:
            self.clean.add(outcome.fragment_id)
            if outcome.inherited:
                self.inherited.append(outcome)
