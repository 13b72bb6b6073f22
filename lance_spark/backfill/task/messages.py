"""Messages between the driver and the tasks of a backfill: plain values.

Answers have a JSON form, because a task also leaves them in the table's store while it runs, and
nothing that lies in a store is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.dataset import DatasetRef
from lance_spark.rows.input_reader import BlobReadStrategy
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
        committed: Those of them whose values the job has committed.
        unchanged: Those of them that are still there, with the same input files.
        on_stale: Whether rows whose inputs have changed are computed again, or are NULL.
    """

    snapshot_version: int
    covered: frozenset[int]
    finished: frozenset[int]
    committed: frozenset[int]
    unchanged: frozenset[int]
    on_stale: OnStale


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillSpec:
    """What all tasks of a job share.

    Attributes:
        snapshot: The pinned table.
        staging: The job's files.
        job_id: Id of the job, as the user knows it.
        udf: The pickled UDF.
        key: What values depend on, but for the rows.
        inputs: The input columns, in the order of the UDF's parameters.
        outputs: Pairs of output field (empty for the whole value) and target column.
        targets: The target columns as files hold them.
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
        threads: Threads of a task that compute.
        blob_strategy: How blobs are read.
        blob_buffer_bytes: Most bytes of blobs that are held at once.
        report_s: Seconds after which a task tells again what it has done.
        round: Which round of the job it is; two may read the same version.
    """

    snapshot: DatasetRef
    staging: Staging
    job_id: str
    udf: bytes
    key: CheckpointKey
    inputs: tuple[FieldIdentity, ...]
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
    round: int = 0

    @property
    def lineage_after(self) -> int | None:
        """Version from which on compactions are followed to find what was computed before.

        None where there is nothing.
        """
        return min(self.bases, default=None)

    @property
    def recomputes(self) -> bool:
        """Whether rows with a value are selected without a filter, but for those that are known to be up to date."""
        return self.redefined or self.stale

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input columns."""
        return tuple(column.name for column in self.inputs)

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Field ids of the input columns and all that is below them."""
        return tuple(number for column in self.inputs for number in column.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneRows:
    """What is known of a fragment's rows, and still true: this UDF computed them from these inputs, and the table has these values.

    Attributes:
        computed: Rows that have a value of this UDF version, NULL results included.
        nulls: Those of them whose value is NULL.
        skip: Rows that are not to be selected although the filter selects them.
    """

    computed: RowSet = field(default_factory=RowSet.empty)
    nulls: RowSet = field(default_factory=RowSet.empty)
    skip: RowSet = field(default_factory=RowSet.empty)

    def __or__(self, other: DoneRows) -> DoneRows:
        return DoneRows(
            computed=self.computed | other.computed, nulls=self.nulls | other.nulls, skip=self.skip | other.skip
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentWork:
    """A range of one fragment's physical rows.

    Attributes:
        fragment_id: Id of the fragment.
        start: First row.
        stop: Row after the last.
        ranges: All ranges that the fragment is cut into, as pairs of start and stop.
        done: What is known of rows that were computed before.
        search: Whether there may be checkpoints of the fragment.
        assembles: Whether it is the whole fragment, after all of its ranges have left checkpoints.
        failed: Rows that have had their call in this round, and failed.
    """

    fragment_id: int
    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    done: DoneRows
    search: bool
    assembles: bool = False
    failed: RowSet = field(default_factory=RowSet.empty)

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

    Attributes:
        number: Number of the task in its job.
        work: The ranges.
        isolate: Whether the UDF runs in a process of its own, because an earlier attempt died.
    """

    number: int
    work: tuple[FragmentWork, ...]
    isolate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRows:
    """Which rows of a fragment were given a value, or failed.

    Attributes:
        computed: Rows with a value of this UDF version, NULL results included.
        nulls: Those of them whose value is NULL.
        failed: Rows that were skipped by a policy, or that killed their process.
        own: Those of `computed` that this job computed or took over; the others had their value
            before.
    """

    computed: RowSet = field(default_factory=RowSet.empty)
    nulls: RowSet = field(default_factory=RowSet.empty)
    failed: RowSet = field(default_factory=RowSet.empty)
    own: RowSet = field(default_factory=RowSet.empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """What became of one range of a fragment, or of the whole fragment.

    Attributes:
        fragment_id: Id of the fragment.
        start: First row of the range.
        stop: Row after the last.
        assembled: Whether it is the whole fragment, after all of its ranges; then `computed` counts
            only calls made anew.
        selected: Rows of the range that were selected, but for those that an earlier round has
            computed.
        computed: Rows for which the UDF was called and returned.
        reused: Of the selected rows those that checkpoints served.
        skipped: Rows that a policy skipped.
        crashed: Rows that killed their process.
        carried: Rows that an earlier round has computed, and whose value was put into a new column
            file.
        recomputed: Those of `computed` that an earlier round has computed from other inputs.
        nulled: Rows that are NULL because their inputs changed after an earlier round.
        retries: Calls that were tried again.
        seconds: Time per stage.
        file: Name of the fragment's column file.
        file_bytes: Its size.
        source: Identity of the fragment's inputs.
        rows: The fragment's rows, where it is complete; of one of several ranges, its failed rows.
        complete: Whether the whole fragment is done; without a file there was nothing to write.
        inherited: Whether `rows` says more than the records of the fragment do, because rows were
            followed from older versions.
        checkpoints: Whether checkpoints were left that a commit makes superfluous.
        error: Why the range failed, or None.
        error_type: Qualified name of the exception.
    """

    fragment_id: int
    start: int
    stop: int
    assembled: bool = False
    selected: int = 0
    computed: int = 0
    reused: int = 0
    skipped: int = 0
    crashed: int = 0
    carried: int = 0
    recomputed: int = 0
    nulled: int = 0
    retries: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None
    file_bytes: int | None = None
    source: str = ""
    rows: FragmentRows = field(default_factory=FragmentRows)
    complete: bool = False
    inherited: bool = False
    checkpoints: bool = False
    error: str | None = None
    error_type: str | None = None

    @property
    def key(self) -> tuple[int, int, bool]:
        """The key of its work."""
        return self.fragment_id, self.start, self.assembled

    @property
    def has_effect(self) -> bool:
        """Tells whether the range has anything to write."""
        return bool(self.computed or self.reused or self.carried or self.nulled or self.rows.failed)

    def to_json(self) -> dict[str, Any]:
        """Returns the form that is kept in the store."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["seconds"] = dict(self.seconds)
        values["rows"] = {f.name: getattr(self.rows, f.name).to_text() for f in dataclasses.fields(self.rows)}
        return values

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RangeOutcome:
        """Reads it back."""
        rows = FragmentRows(**{name: RowSet.from_text(text) for name, text in values["rows"].items()})
        return RangeOutcome(**{**values, "rows": rows})


def dump_outcomes(outcomes: list[RangeOutcome]) -> bytes:
    """Returns outcomes as bytes."""
    return json.dumps([outcome.to_json() for outcome in outcomes]).encode()


def load_outcomes(payload: bytes) -> list[RangeOutcome]:
    """Reads outcomes back."""
    return [RangeOutcome.from_json(values) for values in json.loads(payload)]
