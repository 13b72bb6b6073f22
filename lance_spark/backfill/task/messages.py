"""Messages between the driver and the tasks of a backfill: plain values.

Outcomes travel as JSON, because a running task also writes them into the table's store, and no
object of a store is unpickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.commit.conflicts.row_lineage import LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import TaskArtifacts
from lance_spark.environments.task import TaskEnvironment
from lance_spark.jobs.row_errors import RowError
from lance_spark.rows.input_reader import BlobReadStrategy
from lance_spark.rows.merge import RowMapping
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from udf_runtime.checkpoint import CheckpointKey

if TYPE_CHECKING:
    from lance_spark.backfill.planning.selection import RowSelector
    from lance_spark.backfill.reuse.computed_rows import Records
    from lance_spark.backfill.reuse.prior_round_rows import FirstRound
    from lance_spark.backfill.task.source_reader import TableInputs
    from lance_spark.backfill.task.udf_processes import TaskDevices
    from lance_spark.backfill.task.value_source import ValueSource

OnStale = Literal["recompute", "null"]

RangeKey: TypeAlias = "tuple[int, int, bool, int]"
"""Identifies the work on a range within a round."""

STAGES = ("load", "read", "wait", "compute", "limit", "checkpoint", "write")
"""The stages of a task's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillSpec:
    """The shared description of all tasks of a round.

    Attributes:
        job_id: Id of the job for the user.
        value_source: Makes the values: calls of a UDF, chunks, or a join.
        row_selector: Selects the rows.
        prior_rounds: The state of earlier rounds of the job.
        key: The dependencies of values except the rows.
        inputs: The input columns of values, in the order of the UDF's parameters; for inputs in
            another table the column with row ids.
        input_source: Place of the inputs: this table, or the source of a view.
        outputs: Pairs of output field (empty for the whole value) and target column.
        target_ids: Field ids of the target columns and their nested fields.
        column: Identity of the target column in records.
        records: Records of earlier results; None if tasks read the records themselves.
        checkpoints: Location of the checkpoints; None is next to the table.
        bases: Versions at which rows may have been computed before they moved or changed, the
            newest first.
        lineages: Moves of rows since the versions of `bases`. Tasks find the missing moves.
        sizes: Minimum, maximum and initial rows of a batch.
        call_rows: Rows of a full call of the UDF.
        flush_s: Seconds between checkpoints.
        report_s: Seconds between reports of a task.
        round: Number of the round. Two rounds may read the same version.
        bound_at: The version at which the UDF replaced another UDF: older values are outdated. 0
            for a UDF without a predecessor.
        environment: The UDF's environment; None is the executors' own Python.
        artifacts: The way to the UDF's artifacts; None for a UDF without artifacts.
        devices: The devices of the UDF's processes; None without a request for devices.
    """

    snapshot: DatasetRef
    staging: Staging
    job_id: str
    value_source: ValueSource
    row_selector: RowSelector
    prior_rounds: FirstRound
    key: CheckpointKey
    inputs: tuple[FieldIdentity, ...]
    input_source: TableInputs
    outputs: tuple[tuple[str, str], ...]
    targets: Targets
    target_ids: tuple[int, ...] = ()
    column: str = ""
    records: Records | None = None
    checkpoints: str | None
    bases: tuple[int, ...] = ()
    lineages: Mapping[int, LineageFacts] = field(default_factory=dict, compare=False)
    sizes: tuple[int, int, int]
    call_rows: int = 1
    flush_s: float
    threads: int
    blob_strategy: BlobReadStrategy
    blob_buffer_bytes: int
    report_s: float
    round: int = 0
    bound_at: int = 0
    environment: TaskEnvironment | None = None
    artifacts: TaskArtifacts | None = None
    devices: TaskDevices | None = None

    @property
    def home(self) -> DatasetRef:
        """The table of the job, with checkpoints, reports and errors next to its data."""
        return DatasetRef(uri=self.staging.uri, storage_options=self.staging.storage_options)

    @property
    def round_id(self) -> str:
        """Identity of the round. Two rounds of a job may read the same version."""
        return f"{self.staging.job_id}/{self.round}"

    @property
    def lineage_after(self) -> int | None:
        """The oldest version of earlier results, where row lineage begins; None without results."""
        return min(self.bases, default=None)

    @property
    def where(self) -> str | None:
        """The user's filter in Lance SQL, or None."""
        return self.row_selector.where

    @property
    def equals_table_without_values(self) -> bool:
        """Whether a column file without any value would equal the table.

        After the first round, a failed row may have a value of its earlier inputs in the table.
        """
        return not self.round and not self.row_selector.selects_values

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input columns, in any table."""
        return self.input_source.names(self)

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Field ids of the input columns and their nested fields."""
        return tuple(number for column in self.inputs for number in column.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRows:
    """Known results for rows of a fragment.

    Attributes:
        computed: Rows with a value of this UDF version, NULL results included.
        nulls: Subset of `computed` whose value is NULL.
        failed: Rows without a value: a policy skipped them, they killed their process, or their
            inputs changed after an earlier round.
        own: Subset of `computed` that this job computed or took over from resumed jobs.
        skip: Rows to skip although the filter selects them.
    """

    computed: RowSet = field(default_factory=RowSet.empty)
    nulls: RowSet = field(default_factory=RowSet.empty)
    failed: RowSet = field(default_factory=RowSet.empty)
    own: RowSet = field(default_factory=RowSet.empty)
    skip: RowSet = field(default_factory=RowSet.empty)

    def __or__(self, other: FragmentRows) -> FragmentRows:
        return FragmentRows(**{name: rows | getattr(other, name) for name, rows in _fields(self)})

    def mapped(self, moved: RowMapping) -> FragmentRows:
        """Maps the rows to their current offsets, and drops deleted rows."""
        return FragmentRows(**{name: moved.new_rows(rows) for name, rows in _fields(self)})

    def to_json(self) -> dict[str, str]:
        """Returns the sets as texts of :meth:`RowSet.to_text`."""
        return {name: rows.to_text() for name, rows in _fields(self)}

    @staticmethod
    def from_json(values: Mapping[str, str]) -> FragmentRows:
        """Returns the sets from their texts."""
        return FragmentRows(**{name: RowSet.from_text(text) for name, text in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentWork:
    """A range of one fragment's physical rows.

    Attributes:
        ranges: All ranges of the fragment, as pairs of start and stop.
        done: Known results of earlier runs.
        search: Whether values of the fragment may exist, in checkpoints or in recorded files.
        has_checkpoints: Whether checkpoints of the fragment may exist.
        selected: The selected rows of all ranges, in the work on the whole fragment after its
            ranges.
        failed: Subset of `selected` that is NULL in the file: rows with a failed call, or rows
            whose inputs changed after an earlier round and that are not recomputed.
        turn: Number of earlier tasks that ended early, and left these rows.
    """

    fragment_id: int
    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    done: FragmentRows
    search: bool
    has_checkpoints: bool = True
    selected: RowSet | None = None
    failed: RowSet = field(default_factory=RowSet.empty)
    turn: int = 0

    @property
    def assembles(self) -> bool:
        """Whether the work is the whole fragment after its ranges."""
        return self.selected is not None

    @property
    def key(self) -> RangeKey:
        """Identity of the work and its outcome within a round."""
        return self.fragment_id, self.start, self.assembles, self.turn

    @property
    def is_whole(self) -> bool:
        """Whether the work is the whole fragment, and ends with a column file."""
        return self.assembles or (self.start, self.stop) == (0, self.end)

    @property
    def end(self) -> int:
        """The physical rows of the fragment."""
        return self.ranges[-1][1]

    def cut(self, start: int, stop: int) -> FragmentWork:
        """Returns the work on a part of the range, for a task after a task that ended early."""
        return replace(self.searched(), start=start, stop=stop, turn=self.turn + 1)

    def searched(self) -> FragmentWork:
        """Returns the work after an earlier task on the fragment, which may have left values."""
        return replace(self, search=True, has_checkpoints=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The limits of a task. At a limit, the task ends between two batches, and leaves other rows.

    Attributes:
        calls: Maximum number of rows for the UDF; None is no limit.
        cost: Maximum cost of the rows for the UDF; None is no limit.
        deadline: No batch begins after this time, in seconds since the epoch; None is no limit.
        splits: Whether the task ends after its first batches if the other rows take long. The
            driver divides the rows among the free slots.
    """

    calls: int | None = None
    cost: float | None = None
    deadline: float | None = None
    splits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work of a Spark task: ranges in sequence.

    Attributes:
        isolate: Whether the UDF runs in a process of its own, after an attempt whose process died.
        limits: Limits for all ranges together.
    """

    number: int
    work: tuple[FragmentWork, ...]
    isolate: bool = False
    limits: TaskLimits = TaskLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Numbers of rows, as sums over ranges and rounds.

    Attributes:
        selected: Selected rows. Rows of earlier rounds do not count again.
        valued: Selected rows with a value.
        reused: Selected rows with a value of an earlier run.
        skipped: Rows skipped by a policy, or kept without a match in a join.
        crashed: Rows that killed their process.
        carried: Rows of follow-up rounds with a value of an earlier round.
        recomputed: Recomputed rows of follow-up rounds.
        nulled: Rows of follow-up rounds that became NULL after a change of their inputs.
    """

    selected: int = 0
    valued: int = 0
    reused: int = 0
    skipped: int = 0
    crashed: int = 0
    carried: int = 0
    recomputed: int = 0
    nulled: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(**{name: count + getattr(other, name) for name, count in _fields(self)})

    def __sub__(self, other: RowCounts) -> RowCounts:
        return RowCounts(**{name: count - getattr(other, name) for name, count in _fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """The outcome of a range of a fragment, or of the whole fragment.

    Attributes:
        stop: End of the finished rows. A task that ended early leaves the rows from here to the end
            of the range.
        assembled: Whether the outcome is the whole fragment after its ranges. Then `counts` has
            skipped and crashed rows only, because the ranges counted the other rows.
        turn: The turn of the range, as in :class:`FragmentWork`.
        calls: Number of rows with a returned call of the UDF.
        deduplicated: Number of rows without a call, because the UDF was called for equal inputs.
        spent_calls: Rows for the UDF, failed rows included. In a further attempt of a task also
            rows in checkpoints of this job, because a dead attempt may have called them.
        spent_cost: Cost of the rows for the UDF.
        left: Rows to compute from `stop` to the end of the range.
        seconds: Time per stage.
        source: Identity of the fragment's inputs.
        rows: The new known results for the fragment's rows.
        selected: Rows of one of several ranges for the file of the fragment.
        failed: Subset of `selected` that is NULL in the file, as in :class:`FragmentWork`.
        todo: Rows for a join.
        again: Subset of `todo` with a value of an earlier round, certainly or maybe.
        outdated: Subset of `todo` with the value of an earlier key in the table.
        complete: Whether the whole fragment is done. No file means: no row to write.
        inherited: Whether `rows` has results from older versions that the records of the fragment
            lack.
        batch_rows: Maximum rows of a call, after a call ran out of memory; None before.
        error_type: Qualified name of the exception's class.
        row_errors: The first errors of the range.
    """

    fragment_id: int
    start: int
    stop: int
    assembled: bool = False
    turn: int = 0
    calls: int = 0
    deduplicated: int = 0
    spent_calls: int = 0
    spent_cost: float = 0.0
    left: RowSet = field(default_factory=RowSet.empty)
    retries: int = 0
    counts: RowCounts = RowCounts()
    seconds: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None
    file_bytes: int | None = None
    source: str = ""
    rows: FragmentRows = field(default_factory=FragmentRows)
    selected: RowSet = field(default_factory=RowSet.empty)
    failed: RowSet = field(default_factory=RowSet.empty)
    todo: RowSet = field(default_factory=RowSet.empty)
    again: RowSet = field(default_factory=RowSet.empty)
    outdated: RowSet = field(default_factory=RowSet.empty)
    complete: bool = False
    inherited: bool = False
    batch_rows: int | None = None
    error: str | None = None
    error_type: str | None = None
    row_errors: tuple[RowError, ...] = ()

    @property
    def key(self) -> RangeKey:
        """Identity of its work within the round."""
        return self.fragment_id, self.start, self.assembled, self.turn


def _fields(value: FragmentRows | RowCounts) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
