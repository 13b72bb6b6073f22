"""A model of the time and the requests of a backfill, for a table on an object store.

The model has three parts. The start and the end of a job are requests in sequence. Between both,
the slots read, compute and write at the same time, so the slowest of these determines their time.
Commits run during that time, except the last. docs/sizing.md has the formulas and measured runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.display import Displayable
from lance_spark.errors import OptionError, counted

if TYPE_CHECKING:
    from lance_spark.backfill.planning.explain import BackfillPlan
    from lance_spark.jobs.records import JobRecord

# Measured with benchmarks/sizing.py.
_FIXED_ROUNDS = 32
_ROUNDS_PER_FRAGMENT, _ROUNDS_PER_COMMIT = 1.0, 8
_FIXED_READS, _FIXED_WRITES = 70, 60
_READS_PER_FRAGMENT, _WRITES_PER_FRAGMENT = 1.0, 1.0
_READS_PER_REPORT, _WRITES_PER_REPORT = 1.0, 1.0
_READS_PER_COMMIT, _WRITES_PER_COMMIT = 6, 4

_REPORT_S, _COMMIT_S = 1.0, 2.0
"""Minimum seconds between two reports of a task about its finished files, and between two commits
of the driver."""

_SPARK_S = 1.0
"""Seconds of Spark and of the driver, without requests."""

_READ_BYTES, _PART_BYTES = 8 << 20, 5 << 20
"""Bytes of a request for a large page, and of a part of a large file."""

_MANIFEST_BYTES = 190
"""Bytes of a fragment in a manifest. Each commit reads and writes a whole manifest."""

_COMPACT_ROWS = 1 << 20
"""Rows of a fragment after a compaction."""

_WORTHWHILE = 0.1
"""Minimum share of the time that an advice saves."""

GET_PRICE, PUT_PRICE = 0.0004 / 1000, 0.005 / 1000
"""US dollars per request of Amazon S3 (Standard, us-east-1): for reads, and for writes."""

SLOT_BYTES_PER_S = 50e6
"""Bytes per second between a slot and the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of a backfill.

    Attributes:
        rows: Rows to compute.
        fragments: Fragments with work.
        table_fragments: Fragments of the table.
        tasks: Tasks of the job.
        input_bytes: Bytes of the inputs on storage.
        output_bytes: Bytes of the values.
        commits: Commits of the job.
        row_seconds: Seconds of a row in one process of the UDF.
    """

    rows: int
    fragments: int
    table_fragments: int
    tasks: int
    input_bytes: float
    output_bytes: float
    commits: int
    row_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster and its object store.

    Attributes:
        slots: Tasks at once.
        latency_s: Seconds of a request without its data.
        bytes_per_s: Bytes per second between a slot and the store.
        get_price: Price of a read.
        put_price: Price of a write or a list.
    """

    slots: int
    latency_s: float
    bytes_per_s: float = SLOT_BYTES_PER_S
    get_price: float = GET_PRICE
    put_price: float = PUT_PRICE


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BackfillEstimate(Displayable):
    """The estimated time and price of a backfill on a cluster.

    Attributes:
        slots: Tasks at once.
        latency_s: Seconds of a request.
        seconds: Seconds of the whole job.
        call_seconds: Seconds with calls of the UDF, by the speed of earlier jobs; None without one.
        transfer_seconds: Seconds of the transfer of inputs and values.
        request_seconds: Seconds of the requests of tasks.
        commit_seconds: Seconds of all commits.
        reads: Requests that read.
        writes: Requests that write or list.
        request_cost: Price of the requests, in US dollars by default.
        advice: Sentences about changes that make the job cheaper.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        table = lance_spark.connect("./tables").create_table("prices", [{"price": 2}])
        table.add_columns({"doubled": (double, ["price"])})
        plan = table.plan_backfill("doubled")
        estimate = plan.estimate(slots=200, latency_s=0.03)
        print(estimate.explain())
        ```
    """

    slots: int
    latency_s: float
    seconds: float
    call_seconds: float | None
    transfer_seconds: float
    request_seconds: float
    commit_seconds: float
    reads: int
    writes: int
    request_cost: float
    advice: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Summary of the estimate."""
        least = "at least " if self.call_seconds is None else ""
        requests = f"{self.reads + self.writes:,} requests (${self.request_cost:,.2f})"
        return f"{least}{show_seconds(self.seconds)} on {counted(self.slots, 'slot')}, {requests}"

    def explain(self) -> str:
        """Returns the estimate as readable text."""
        calls = (
            "unknown: no job has called the UDF yet"
            if self.call_seconds is None
            else show_seconds(self.call_seconds)
        )
        parts = [
            f"calls {calls}",
            f"transfer {show_seconds(self.transfer_seconds)}",
            f"requests {show_seconds(self.request_seconds)}",
            f"commits {show_seconds(self.commit_seconds)}",
        ]
        least = "at least " if self.call_seconds is None else ""
        lines = [
            f"On {counted(self.slots, 'slot')}, {self.latency_s * 1000:,.4g} ms per request",
            f"  time         {least}{show_seconds(self.seconds)} ({', '.join(parts)})",
            f"  requests     {self.reads:,} reads, {self.writes:,} writes and lists: ${self.request_cost:,.2f}",
            *(f"  cheaper      {sentence}" for sentence in self.advice),
        ]
        return "\n".join(lines)


def show_seconds(seconds: float) -> str:
    """Returns a duration in a readable unit."""
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 120 else f"{seconds:,.1f} s"


def find_row_seconds(jobs: Iterable[JobRecord], plan: BackfillPlan) -> float | None:
    """Returns the seconds of a row in the newest job of a plan's UDF and its version, or None."""
    udf = plan.udf_name, plan.udf_version
    for job in jobs:
        seconds = job.seconds.get("compute", 0.0) + job.seconds.get("limit", 0.0)
        if (job.udf_name, job.udf_version) == udf and job.rows_computed and seconds:
            return seconds / job.rows_computed
    return None


def estimate(work: Workload, cluster: Cluster) -> BackfillEstimate:
    """Returns the estimate of a backfill, without advice."""
    slots, latency_s = max(1, min(cluster.slots, work.tasks)), cluster.latency_s
    # All slots wait for the last tasks.
    waves = math.ceil(work.tasks / slots) * slots / max(work.tasks, 1)
    data_bytes = work.input_bytes + work.output_bytes
    call_s = waves * work.rows * work.row_seconds / slots
    transfer_s = waves * data_bytes / (slots * cluster.bytes_per_s)
    request_s = waves * work.fragments * _ROUNDS_PER_FRAGMENT * latency_s / slots
    slot_s = max(call_s, transfer_s, request_s)
    commits = min(work.commits, 1 + math.floor(slot_s / _COMMIT_S))
    reports = min(work.fragments, slots * slot_s / _REPORT_S)
    manifest_bytes = _MANIFEST_BYTES * work.table_fragments
    commit_s = _ROUNDS_PER_COMMIT * latency_s + 2 * manifest_bytes / cluster.bytes_per_s
    fixed_s = _FIXED_ROUNDS * latency_s + _SPARK_S
    reads = _FIXED_READS + work.fragments * _READS_PER_FRAGMENT + commits * _READS_PER_COMMIT
    reads += (
        work.input_bytes / _READ_BYTES
        + commits * manifest_bytes / _READ_BYTES
        + reports * _READS_PER_REPORT
    )
    writes = _FIXED_WRITES + work.fragments * _WRITES_PER_FRAGMENT + commits * _WRITES_PER_COMMIT
    writes += (
        work.output_bytes / _PART_BYTES
        + commits * manifest_bytes / _PART_BYTES
        + reports * _WRITES_PER_REPORT
    )
    return BackfillEstimate(
        slots=cluster.slots,
        latency_s=latency_s,
        seconds=fixed_s + max(slot_s, commits * commit_s) + commit_s,
        call_seconds=call_s,
        transfer_seconds=transfer_s,
        request_seconds=request_s,
        commit_seconds=commits * commit_s,
        reads=round(reads),
        writes=round(writes),
        request_cost=reads * cluster.get_price + writes * cluster.put_price,
    )


def advise(work: Workload, cluster: Cluster, rows_of_table: int) -> tuple[str, ...]:
    """Returns sentences about changes that save a tenth of the time or of the requests' price."""
    present = estimate(work, cluster)
    sentences = []
    whole = max(1, math.ceil(rows_of_table / _COMPACT_ROWS))
    if whole * 2 <= work.table_fragments:
        share = whole / work.table_fragments
        fewer = max(1, round(work.fragments * share))
        compacted = replace(
            work,
            fragments=fewer,
            table_fragments=whole,
            commits=max(1, round(work.commits * share)),
        )
        later = estimate(compacted, cluster)
        if _saves(present, later) or later.request_cost < (1 - _WORTHWHILE) * present.request_cost:
            sentences.append(
                f"Compact the table first, to {counted(whole, 'fragment')}: then {show_seconds(later.seconds)}, and "
                f"{later.reads + later.writes:,} requests (${later.request_cost:,.2f})."
            )
    if work.tasks < cluster.slots and work.rows > work.tasks:
        smaller = replace(work, tasks=min(2 * cluster.slots, work.rows))
        later = estimate(smaller, cluster)
        if _saves(present, later):
            rows = math.ceil(work.rows / smaller.tasks)
            sentences.append(
                f"Only {work.tasks:,} of {counted(cluster.slots, 'slot')} have a task. With task_size={rows}: "
                f"{show_seconds(later.seconds)}."
            )
    if work.commits > 1:
        later = estimate(replace(work, commits=1), cluster)
        if _saves(present, later):
            sentences.append(
                f"With commit_granularity=None, a single commit at the end: {show_seconds(later.seconds)}."
            )
    return tuple(sentences)


def _saves(present: BackfillEstimate, later: BackfillEstimate) -> bool:
    return later.seconds < (1 - _WORTHWHILE) * present.seconds


def check_cluster(slots: int, latency_s: float) -> None:
    """Checks the size of a cluster.

    Raises:
        OptionError: A value is out of range.
    """
    if slots < 1:
        raise OptionError("slots", str(slots), "a number of tasks at once, 1 or more")
    if not 0 <= latency_s < math.inf:
        raise OptionError("latency_s", str(latency_s), "seconds of a request, 0 or more")
