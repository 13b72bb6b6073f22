"""Messages between the driver and the tasks of a backfill: plain values.

Answers are JSON, because a task also leaves them in the table's store while it runs, and nothing
that lies in a store is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.dataset import DatasetRef
from lance_spark.environments.task import TaskEnvironment
from lance_spark.rows.input_reader import BlobReadStrategy
from lance_spark.rows.merge import RowMapping
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from udf_runtime.checkpoint import CheckpointKey

OnStale = Literal["recompute", "null"]

STAGES = ("read", "compute", "checkpoint", "write")
"""What a task's time is spent on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What a follow-up round has to know of the rounds before it.

    Attributes:
        snapshot_version: The version that the job read first.
        covered: Fragments of that version whose rows the job is to give a value.
        finished: Those of them of which the job has computed everything.
        committed: Fragments of any version whose values the job has committed.
        unchanged: Covered fragments that are still there, with the same input files.
        on_stale: Whether rows whose inputs have changed are computed again, or are NULL.
    """

    snapshot_version: int
    covered: frozenset[int]
    finished: frozenset[int]
    committed: frozenset[int]
    unchanged: frozenset[int]
    on_stale: OnStale


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInputs:
    """Where the inputs of a view's rows are: columns of its source, at a version."""

    source: DatasetRef
    columns: tuple[str, ...]


class Selects(Protocol):
    """What selects the rows of a job that fills no column. Picklable."""

    def rows(self, fragment_id: int, start: int, stop: int) -> RowSet:
        """Returns rows of a range of a fragment's physical rows. Runs on executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillSpec:
    """What all tasks of a job share.

    Attributes:
        job_id: Id of the job, as the user knows it.
        udf: The pickled UDF.
        key: What values depend on, but for the rows.
        inputs: The columns that values depend on; the input columns, in the order of the UDF's
            parameters, unless these are in another table.
        reads: The input columns, where they are in another table: then `inputs` is the column that
            tells which rows of that are meant.
        outputs: Pairs of output field (empty for the whole value) and target column.
        target_ids: Field ids of the target columns and all that is below them.
        column: Identity of the target column in records.
        where: The user's filter in Lance SQL; None selects rows without a value.
        redefined: Whether the column has had another UDF before: then rows with a value are
            selected too, unless `skip` says otherwise.
        serving_jobs: Jobs whose checkpoints may serve rows that have a value. Rows without one are
            served by any.
        checkpoints: Where checkpoints are kept; None is beside the table.
        bases: Versions at which rows may have been computed before they moved or changed, the
            newest first.
        follow_up: What the job covers, where this is not its first round.
        stale: Whether rows with a value are selected too that is not known to be up to date.
        sizes: Least, most and first rows of a batch.
        flush_s: Seconds after which computed values are persisted.
        report_s: Seconds after which a task tells again what it has done.
        joins: Whether the values come from a join, and not from calls: tasks select rows and leave
            them to it, and put together what it has left in checkpoints.
        selects: What selects the rows of a job that leaves all values in checkpoints, and fills no
            column; None for all other jobs.
        round: Which round of the job it is; two may read the same version.
        bound_at: The version at which the UDF replaced another one: older values are out of date.
            0 for a UDF that replaced none.
        environment: The UDF's environment; None is the executors' own Python.
    """

    snapshot: DatasetRef
    staging: Staging
    job_id: str
    udf: bytes
    key: CheckpointKey
    inputs: tuple[FieldIdentity, ...]
    reads: SourceInputs | None
    outputs: tuple[tuple[str, str], ...]
    targets: Targets
    target_ids: tuple[int, ...]
    column: str
    where: str | None
    redefined: bool
    serving_jobs: frozenset[str]
    checkpoints: str | None
    bases: tuple[int, ...]
    follow_up: FollowUp | None
    stale: bool
    sizes: tuple[int, int, int]
    flush_s: float
    threads: int
    blob_strategy: BlobReadStrategy
    blob_buffer_bytes: int
    report_s: float
    joins: bool
    selects: Selects | None = None
    round: int = 0
    bound_at: int = 0
    environment: TaskEnvironment | None = None

    @property
    def home(self) -> DatasetRef:
        """The table that the job belongs to: checkpoints, reports and errors are beside it."""
        return DatasetRef(uri=self.staging.uri, storage_options=self.staging.storage_options)

    @property
    def lineage_after(self) -> int | None:
        """Version from which on compactions are followed, if anything was computed before."""
        return min(self.bases, default=None)

    @property
    def recomputes(self) -> bool:
        """Whether rows with a value are selected too, unless they are known to be up to date."""
        return self.redefined or self.stale

    @property
    def calls_filtered(self) -> bool:
        """Whether every row that the user's filter matches is called, whatever is known of it."""
        return self.where is not None and not self.stale

    def is_served_by(self, job_id: str) -> bool:
        """Tells whether all results of a job stand for a call.

        Without a filter those of any job do. With one only those of the jobs that this one goes on
        with do; of another job's, values serve rows that have none and were not computed as NULL.
        """
        return not self.calls_filtered or job_id in self.serving_jobs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input columns, in whichever table they are."""
        return tuple(column.name for column in self.inputs) if self.reads is None else self.reads.columns

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Field ids of the input columns and all that is below them."""
        return tuple(number for column in self.inputs for number in column.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRows:
    """What is known of some rows of a fragment.

    Attributes:
        computed: Rows with a value of this UDF version, NULL results included.
        nulls: Those of them whose value is NULL.
        failed: Rows that have none: a policy skipped them, they killed their process, or their
            inputs changed after an earlier round.
        own: Those of `computed` that this job computed or took over; the others had their value
            before.
        skip: Rows that are not to be selected although the filter selects them.
    """

    computed: RowSet = field(default_factory=RowSet.empty)
    nulls: RowSet = field(default_factory=RowSet.empty)
    failed: RowSet = field(default_factory=RowSet.empty)
    own: RowSet = field(default_factory=RowSet.empty)
    skip: RowSet = field(default_factory=RowSet.empty)

    def __or__(self, other: FragmentRows) -> FragmentRows:
        return FragmentRows(**{name: rows | getattr(other, name) for name, rows in _fields(self)})

    def mapped(self, moved: RowMapping) -> FragmentRows:
        """Returns the rows of them that are still there, as they are numbered now."""
        return FragmentRows(**{name: moved.new_rows(rows) for name, rows in _fields(self)})

    def to_json(self) -> dict[str, str]:
        """Returns the sets as texts of :meth:`RowSet.to_text`."""
        return {name: rows.to_text() for name, rows in _fields(self)}

    @staticmethod
    def from_json(values: Mapping[str, str]) -> FragmentRows:
        """Reads them back."""
        return FragmentRows(**{name: RowSet.from_text(text) for name, text in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentWork:
    """A range of one fragment's physical rows.

    Attributes:
        ranges: All ranges that the fragment is cut into, as pairs of start and stop.
        done: What is known of rows that were computed before.
        search: Whether there may be checkpoints of the fragment.
        selected: Of the whole fragment, after all of its ranges have left checkpoints: the rows
            that they have selected.
        failed: Those of them that are NULL in the file: they had their call and failed, or their
            inputs changed after an earlier round and are not to be computed again.
    """

    fragment_id: int
    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    done: FragmentRows
    search: bool
    selected: RowSet | None = None
    failed: RowSet = field(default_factory=RowSet.empty)

    @property
    def assembles(self) -> bool:
        """Whether it is the whole fragment, after all of its ranges."""
        return self.selected is not None

    @property
    def key(self) -> tuple[int, int, bool]:
        """What tells it, and its outcome, from the others of a round."""
        return self.fragment_id, self.start, self.assembles

    @property
    def is_whole(self) -> bool:
        """Tells whether it is the whole fragment, and ends with a column file."""
        return self.assembles or len(self.ranges) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work of one Spark task: ranges that are worked on one after the other.

    `isolate` runs the UDF in a process of its own, because an earlier attempt died.
    """

    number: int
    work: tuple[FragmentWork, ...]
    isolate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """How many rows; sums over ranges and rounds.

    Attributes:
        selected: Rows that were selected, each once: but for those that an earlier round has
            computed.
        valued: Those of them that got a value.
        reused: Those of them whose value an earlier run had left.
        skipped: Rows that a policy skipped, or that a join has no value for and that keep theirs.
        crashed: Rows that killed their process.
        carried: Rows of follow-up rounds whose value an earlier round had computed.
        recomputed: Rows of follow-up rounds that were computed once more.
        nulled: Rows of follow-up rounds that became NULL because their inputs had changed.
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
    """What became of one range of a fragment, or of the whole fragment.

    Attributes:
        assembled: Whether it is the whole fragment, after all of its ranges, which have answered
            for its rows; then `counts` are of skipped and crashed rows only.
        calls: Rows for which the UDF was called and returned.
        seconds: Time per stage.
        source: Identity of the fragment's inputs.
        rows: What is known of the fragment's rows from now on.
        selected: Of one of several ranges: the rows that a file of the fragment has to have.
        failed: Those of them that are NULL in the file, as in :class:`FragmentWork`.
        todo: Rows whose values a join is to bring.
        again: Those of them that an earlier round has given a value, or may have.
        outdated: Those of them whose value in the table belongs to a key that they had before.
        complete: Whether the whole fragment is done; without a file there was nothing to write.
        inherited: Whether `rows` says more than the records of the fragment do, because rows were
            followed from older versions.
        error_type: Qualified name of the exception.
    """

    fragment_id: int
    start: int
    stop: int
    assembled: bool = False
    calls: int = 0
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
    error: str | None = None
    error_type: str | None = None

    @property
    def key(self) -> tuple[int, int, bool]:
        """The key of its work."""
        return self.fragment_id, self.start, self.assembled


_Fields: TypeAlias = FragmentRows | RowCounts | RangeOutcome


def dump_outcomes(outcomes: list[RangeOutcome]) -> bytes:
    """Returns outcomes as JSON."""
    return json.dumps(outcomes, default=_form).encode()


def load_outcomes(payload: bytes) -> list[RangeOutcome]:
    """Reads outcomes back."""
    return [
        RangeOutcome(
            **values
            | {name: RowSet.from_text(values[name]) for name in ("selected", "failed", "todo", "again", "outdated")}
            | {"counts": RowCounts(**values["counts"]), "rows": FragmentRows.from_json(values["rows"])}
        )
        for values in json.loads(payload)
    ]


def _form(value: RowSet | _Fields) -> object:
    return value.to_text() if isinstance(value, RowSet) else dict(_fields(value))


def _fields(value: _Fields) -> list[tuple[str, Any]]:
    return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
