"""States of the fragments of a job, and sums over its tasks. Runs on the driver."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from lance_spark.backfill.task.messages import FragmentWork, RangeOutcome, RowCounts
from lance_spark.rows.row_set import RowSet


class FragmentStatus(enum.Enum):
    """Status of a fragment."""

    PENDING = "pending"
    """Tasks work on the fragment, or a later round will."""
    COMPUTED = "computed"
    """The column file is written and not committed."""
    COMMITTED = "committed"
    NOTHING_TO_DO = "nothing to do"
    CONFLICT = "conflict"
    """The fragment changed, and its values do not fit. A follow-up round computes the changes."""
    FAILED = "failed"
    """The fragment failed, and would fail at another version, too."""


_FINAL_STATUSES = (FragmentStatus.COMMITTED, FragmentStatus.NOTHING_TO_DO)


@dataclass(slots=True, kw_only=True)
class FragmentState:
    """A fragment of the version that a round reads. Counts and rows belong to this round.

    Attributes:
        file: Name of the committed column file.
        answered: The finished ranges, as pairs of start and stop.
        selected: Selected rows of a fragment with several ranges.
        failed: Failed rows of `selected`.
        todo: Rows for a join.
        again: Subset of `todo` with a value of an earlier round, certainly or maybe.
        outdated: Subset of `todo` with the value of an earlier key in the table.
        source: Identity of the inputs of `todo`.
    """

    status: FragmentStatus = FragmentStatus.PENDING
    reason: str = ""
    file: str | None = None
    counts: RowCounts = field(default_factory=RowCounts)
    answered: set[tuple[int, int]] = field(default_factory=set)
    selected: RowSet = field(default_factory=RowSet.empty)
    failed: RowSet = field(default_factory=RowSet.empty)
    todo: RowSet = field(default_factory=RowSet.empty)
    again: RowSet = field(default_factory=RowSet.empty)
    outdated: RowSet = field(default_factory=RowSet.empty)
    source: str = ""

    def is_waiting_after(self, outcome: RangeOutcome, work: FragmentWork) -> bool:
        """Adds the outcome of a range. Tells whether the fragment waits for ranges or a join."""
        self.answered.add((outcome.start, outcome.stop))
        self.selected |= outcome.selected
        self.failed |= outcome.failed
        self.todo |= outcome.todo
        self.again |= outcome.again
        self.outdated |= outcome.outdated
        self.source = outcome.source
        return sum(stop - start for start, stop in self.answered) < work.end or bool(self.todo)

    def assembly(self, work: FragmentWork) -> FragmentWork:
        """Returns the work on the whole fragment, after the work on its ranges."""
        whole = replace(work.searched(), start=0, stop=work.end)
        return replace(whole, selected=self.selected, failed=self.failed)

    def end(self, status: FragmentStatus, reason: str = "") -> None:
        """Ends the work on the fragment."""
        self.status, self.reason = status, reason
        self.counts = RowCounts()
        self.selected = self.failed = self.todo = self.again = self.outdated = RowSet.empty()


class FragmentStates:
    """The states of a job's fragments over its rounds, and its sums.

    The job's thread writes them. Any thread may read the sums.

    Attributes:
        calls: Rows for which the UDF was called and returned.
        deduplicated: Rows without a call, because the UDF was called for equal inputs.
        cost: Cost of the rows for the UDF.
        seconds: Time of the tasks, by stage.
        batch_rows: The smallest maximum of rows of a call, after calls ran out of memory.
        sources: Identities of the inputs of all outcomes.
        inherited: Finished fragments of this round with more known rows than in their records.
        unselected: Rows computed as NULL in finished fragments of this round without a selected
            row, by fragment.
    """

    def __init__(self) -> None:
        self.counts = RowCounts()
        self.calls = 0
        self.deduplicated = 0
        self.retries = 0
        self.cost = 0.0
        self.seconds: dict[str, float] = {}
        self.batch_rows: int | None = None
        self.sources: set[str] = set()
        self.inherited: list[RangeOutcome] = []
        self.unselected: dict[int, RowSet] = {}
        self._states: dict[int, FragmentState] = {}

    def begin_round(self, fragments: Collection[int]) -> None:
        """Makes the fragments of a round pending."""
        self.inherited.clear()
        self.unselected.clear()
        self._states.update({number: FragmentState() for number in fragments})

    def add(
        self, outcome: RangeOutcome, work: FragmentWork, *, is_void: bool
    ) -> FragmentWork | RangeOutcome | None:
        """Adds the outcome of a range, and returns a file to commit, or more work.

        `is_void` means: a cleanup deleted the version of the range, and another round computes its
        rows.
        """
        self._count_work(outcome)
        state = self._states.setdefault(outcome.fragment_id, FragmentState())
        if state.status is FragmentStatus.CONFLICT:
            return None
        if is_void:
            self.voids(outcome.fragment_id, outcome.error or "")
            return None
        self.counts += outcome.counts
        state.counts += outcome.counts
        if outcome.error is not None:
            state.end(FragmentStatus.FAILED, outcome.error)
        if state.status is FragmentStatus.FAILED:
            return None
        if not outcome.complete:
            if state.is_waiting_after(outcome, work):
                return None
            if state.selected:
                return state.assembly(work)
        elif outcome.file is not None:
            state.end(FragmentStatus.COMPUTED)
            return outcome
        if not state.counts.selected:
            self.unselected[outcome.fragment_id] = outcome.rows.nulls
        state.end(FragmentStatus.NOTHING_TO_DO)
        if outcome.inherited:
            self.inherited.append(outcome)
        return None

    def _count_work(self, outcome: RangeOutcome) -> None:
        """Counts the work on a range, of any use or not."""
        if not outcome.todo:
            self.sources.add(outcome.source)
        self.calls += outcome.calls
        self.deduplicated += outcome.deduplicated
        self.retries += outcome.retries
        if outcome.batch_rows is not None:
            self.batch_rows = min(outcome.batch_rows, self.batch_rows or outcome.batch_rows)
        self.cost += outcome.spent_cost
        for stage, seconds in outcome.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def to_join(self) -> dict[int, RowSet]:
        """Returns the rows for a join, by fragment."""
        pending = (
            (n, state)
            for n, state in self._states.items()
            if state.status is FragmentStatus.PENDING
        )
        return {number: state.todo for number, state in pending if state.todo}

    def filled_by_join(self, work: Mapping[int, FragmentWork]) -> dict[int, FragmentWork]:
        """Returns the work on the files of the fragments whose values all come from the join."""
        pending = (
            (n, state)
            for n, state in self._states.items()
            if state.status is FragmentStatus.PENDING
        )
        return {
            number: replace(
                work[number], start=0, stop=work[number].end, search=False, has_checkpoints=False
            )
            for number, state in pending
            if state.todo and not (state.selected or state.failed or state.outdated)
        }

    def joined(self, work: FragmentWork, matched: RowSet) -> FragmentWork | None:
        """Adds the matched rows of a fragment after a join, and returns the following work.

        A row without a match keeps its present value, even if the row's origin is unknown. The row
        becomes NULL only if this job wrote the value of another key.
        """
        state = self._states[work.fragment_id]
        self.sources.add(state.source)
        again = state.again & matched
        nulled = state.outdated - matched
        fresh = matched - again
        self.calls += len(matched)
        counts = RowCounts(
            valued=len(fresh),
            recomputed=len(again),
            skipped=len(state.todo - state.again - matched),
            nulled=len(nulled),
        )
        self.counts += counts
        state.counts += counts
        state.selected |= matched | nulled
        state.failed |= nulled
        state.todo = state.again = state.outdated = RowSet.empty()
        if state.selected:
            return state.assembly(work)
        state.end(FragmentStatus.NOTHING_TO_DO)
        return None

    def voids(self, number: int, reason: str) -> None:
        """Notes a fragment of a deleted version. Another round computes its rows."""
        state = self._states[number]
        self.counts -= state.counts
        state.end(FragmentStatus.CONFLICT, reason)

    def committed(self, number: int, file: str) -> None:
        """Notes that the values of a fragment are committed."""
        self._states[number] = FragmentState(status=FragmentStatus.COMMITTED, file=file)

    def conflicts(self, reasons: Mapping[int, str]) -> None:
        """Notes fragments whose values do not fit the latest version."""
        for number, reason in reasons.items():
            self._states[number] = FragmentState(status=FragmentStatus.CONFLICT, reason=reason)

    def fails(self, number: int, reason: str) -> None:
        """Notes that a fragment failed, unless the fragment is done."""
        if not self.is_done(number):
            self._states[number] = FragmentState(status=FragmentStatus.FAILED, reason=reason)

    def is_done(self, number: int) -> bool:
        """Tells whether the table has all values of a fragment."""
        return number in self._states and self._states[number].status in _FINAL_STATUSES

    def finished_fragments(self) -> dict[int, str | None]:
        """Returns the finished fragments with their committed files."""
        return {
            number: state.file
            for number, state in list(self._states.items())
            if state.status in _FINAL_STATUSES
        }

    def of(self, status: FragmentStatus) -> set[int]:
        """Returns the fragments of a status."""
        return {number for number, state in list(self._states.items()) if state.status is status}

    def reasons(self, *statuses: FragmentStatus) -> dict[int, str]:
        """Returns the reasons of the fragments of some statuses."""
        return {
            number: state.reason
            for number, state in list(self._states.items())
            if state.status in statuses
        }
