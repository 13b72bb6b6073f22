"""The plan of a backfill, for users. Plans run no job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from lance_spark.backfill.planning.cost_model import (
    BackfillEstimate,
    Cluster,
    Workload,
    advise,
    check_cluster,
    estimate,
    find_row_seconds,
)
from lance_spark.backfill.planning.fragment_plan import FragmentPlan
from lance_spark.backfill.planning.planner import SAMPLE_TASKS, PreparedBackfill
from lance_spark.backfill.planning.staleness import count_stale
from lance_spark.backfill.request import DEFAULT_COMMIT_GRANULARITY
from lance_spark.backfill.reuse.round_context import RoundContext, source_of, store_of
from lance_spark.backfill.reuse.stored_reference import StoredReference
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.display import Displayable
from lance_spark.errors import counted
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.column_file import fixed_bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BackfillPlan(Displayable):
    """The plan of a backfill.

    Attributes:
        table_name: Name of the table.
        table_uri: Location of the table.
        version: Version to read.
        columns: Columns to fill.
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        where: The filter, or None for rows without a value.
        exact: Whether rows were counted. Otherwise row counts are upper bounds.
        total_fragments: Fragments of the table with live rows.
        total_rows: Live rows of the table.
        fragments: Fragments with work in the window.
        total_tasks: Number of tasks.
        total_rows_pending: Rows to compute or to take from checkpoints.
        rows_from_checkpoint: Rows that checkpoints may serve, an upper bound.
        skipped_rows: Live rows of the window without work.
        skipped_fragments: Fragments of the window without work.
        rows_stale: Rows of the window with an outdated value: their inputs changed after the value
            was written, or another version of the UDF computed the value. `stale=True` selects
            these rows. An upper bound if `exact` is false.
        rows_unverified: The part of `rows_stale` that may be up to date: the history of the rows
            was cleaned up, or the table has no stable row ids and an update moved the rows.
        rows_outside: Rows to compute in fragments outside the window.
        input_bytes: Estimated bytes of input on storage.
        output_bytes: Minimum bytes of the values, by their types.
        stable_row_ids: Whether the table has stable row ids.
        udf_mismatch: Whether the backfill replaces values of an earlier UDF.
        sampled_rows: Rows computed by `plan_backfill(sample=)`; 0 without a sample.
        estimated_seconds: Estimated seconds of the calls for `rows_to_compute` rows, by the speed
            of the sample, spread over the concurrent tasks of the job, with its waits for the
            limits of a service. Without loads of the UDF. None without a sample.
        estimated_cost: Estimated cost of these rows, by `@udf(cost=)` for the sampled rows; None
            without a sample.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        plan = books.plan_backfill("double")
        print(plan.total_rows_pending, plan.total_tasks)
        ```
    """

    table_name: str
    table_uri: str
    version: int
    columns: tuple[str, ...]
    udf_name: str
    udf_version: str
    where: str | None
    exact: bool
    total_fragments: int
    total_rows: int
    fragments: int
    total_tasks: int
    total_rows_pending: int
    rows_from_checkpoint: int
    skipped_rows: int
    skipped_fragments: int
    rows_stale: int
    rows_unverified: int
    rows_outside: int
    input_bytes: int
    output_bytes: int
    stable_row_ids: bool
    udf_mismatch: bool
    sampled_rows: int = 0
    estimated_seconds: float | None = None
    estimated_cost: float | None = None

    @property
    def has_work(self) -> bool:
        """Whether any row needs a value."""
        return self.total_rows_pending > 0

    @property
    def rows_to_compute(self) -> int:
        """Minimum number of rows to compute with the UDF."""
        return max(0, self.total_rows_pending - self.rows_from_checkpoint)

    @property
    def job_type(self) -> str:
        """`backfill`."""
        return "backfill"

    @property
    def column_name(self) -> str:
        """The column, or the first of several siblings."""
        return self.columns[0]

    @property
    def text(self) -> str:
        """Summary of the plan."""
        of = f"backfill of {', '.join(self.columns)} in {self.table_name}, version {self.version}"
        about = "" if self.exact else "at most "
        return (
            f"{of}: {about}{self.total_rows_pending:,} of {counted(self.total_rows, 'row')} to do"
        )

    def with_sample(self, sample: BackfillJobResult, tasks_at_once: int) -> BackfillPlan:
        """Returns the plan with an estimate by a job that computed a sample.

        Args:
            sample: The result of the job.
            tasks_at_once: Tasks of the later job at once.
        """
        sampled_rows = sample.rows_computed + sample.rows_skipped
        if not sampled_rows:
            return self
        rows = self.rows_to_compute / sampled_rows
        compute_s, limit_s = sample.seconds.get("compute", 0.0), sample.seconds.get("limit", 0.0)
        # The tasks of the sample waited together for the limits of a service. More tasks do not
        # shorten this time.
        seconds = compute_s / tasks_at_once + limit_s / min(tasks_at_once, SAMPLE_TASKS)
        return replace(
            self,
            sampled_rows=sampled_rows,
            estimated_seconds=rows * seconds,
            estimated_cost=rows * sample.cost,
        )

    def estimate(
        self,
        *,
        slots: int,
        latency_s: float,
        jobs: Iterable[JobRecord] = (),
        commit_granularity: int | None = DEFAULT_COMMIT_GRANULARITY,
    ) -> BackfillEstimate:
        """Estimates the time and the requests of the backfill on a cluster with an object store.

        Computes without requests; docs/sizing.md has the model and its accuracy.

        Args:
            slots: Tasks at once.
            latency_s: Seconds of a request to the store, without its data.
            jobs: The jobs of the table, newest first, for the speed of the UDF. Without a job of
                this version of the UDF, the estimate has no time for calls.
            commit_granularity: Finished fragments per commit; None for a single commit at the end.

        Returns:
            The estimate, with advice.

        Raises:
            OptionError: A value is out of range.

        Example:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            plan = books.plan_backfill("double", concurrency=200)
            print(plan.estimate(slots=200, latency_s=0.03, jobs=books.list_jobs()).explain())
            ```
        """
        check_cluster(slots, latency_s)
        row_seconds = find_row_seconds(jobs, self)
        work = Workload(
            rows=self.rows_to_compute,
            fragments=self.fragments,
            table_fragments=self.total_fragments,
            tasks=self.total_tasks,
            input_bytes=self.input_bytes,
            output_bytes=self.output_bytes,
            commits=math.ceil(self.fragments / commit_granularity)
            if commit_granularity
            else min(1, self.fragments),
            row_seconds=row_seconds or 0.0,
        )
        cluster = Cluster(slots=slots, latency_s=latency_s)
        result = replace(estimate(work, cluster), advice=advise(work, cluster, self.total_rows))
        return result if row_seconds else replace(result, call_seconds=None)

    def explain(self) -> str:
        """Returns the plan as readable text."""
        about = "" if self.exact else "at most "
        rows = self.where or f"without a value{' of this UDF' if self.udf_mismatch else ''}"
        rows_of = f"{about}{self.total_rows_pending:,} of {counted(self.total_rows, 'row')}"
        fragments_of = f"{self.fragments:,} of {counted(self.total_fragments, 'fragment')}"
        lines = [
            f"Backfill of {', '.join(self.columns)} in {self.table_name}, version {self.version}",
            f"  UDF          {self.udf_name}, version {self.udf_version}",
            f"  rows         {rows}",
            f"  to do        {rows_of} in {fragments_of}",
            f"  checkpoints  may serve {counted(self.rows_from_checkpoint, 'row')}",
            f"  tasks        {self.total_tasks:,}, about {self.input_bytes / (1 << 20):,.1f} MiB of input",
        ]
        if self.rows_stale:
            stale = about + counted(self.rows_stale, "row")
            unknown = f", {self.rows_unverified:,} of them perhaps" if self.rows_unverified else ""
            lines.append(
                f"  stale        {stale} with a value that is out of date{unknown}; stale=True selects them"
            )
        if self.rows_outside:
            outside = about + counted(self.rows_outside, "row")
            lines.append(
                f"  outside      {outside} in fragments that num_frags and skip_frags leave out"
            )
        if not self.stable_row_ids:
            lines.append(
                "  note         the table has no stable row ids: where the history of a compaction was cleaned up, "
                "moved rows are computed again"
            )
        if self.estimated_seconds is not None:
            cost = f", cost {self.estimated_cost:,.4g}" if self.estimated_cost else ""
            sample = f"by a sample of {counted(self.sampled_rows, 'row')}"
            lines.append(f"  estimate     {self.estimated_seconds:,.1f} s{cost}, {sample}")
        if not self.has_work:
            lines.append("  nothing to do")
        return "\n".join(lines)


def view_of(
    prepared: PreparedBackfill, outside: PreparedBackfill | None, table_name: str, *, exact: bool
) -> BackfillPlan:
    """Returns the plan of a prepared backfill.

    If `prepared` is limited to a window, `outside` is the same backfill of all fragments.
    """
    spec, dataset = prepared.spec, prepared.dataset
    work = prepared.work(scan=exact)
    inside = {plan.fragment_id for plan in prepared.plans}
    outside_plans = (
        ()
        if outside is None
        else tuple(plan for plan in outside.plans if plan.fragment_id not in inside)
    )
    beyond = replace(prepared, plans=outside_plans).work(scan=exact)
    pending = sum(plan.rows_to_do for plan in work)
    stale = count_stale(prepared, with_nulls=True)
    return BackfillPlan(
        table_name=table_name,
        table_uri=spec.snapshot.uri,
        version=spec.snapshot.version or 0,
        columns=prepared.columns,
        udf_name=spec.key.udf_name,
        udf_version=spec.key.udf_version,
        where=spec.where,
        exact=exact,
        total_fragments=len(inside) + len(outside_plans),
        total_rows=dataset.count_rows(),
        fragments=len(work),
        total_tasks=len(prepared.cut(work, SparkSession.getActiveSession())),
        total_rows_pending=pending,
        rows_from_checkpoint=min(pending, _checkpointed(prepared, work)),
        skipped_rows=sum(plan.live_rows for plan in prepared.plans) - pending,
        skipped_fragments=len(prepared.plans) - len(work),
        rows_stale=stale.rows,
        rows_unverified=stale.unverified,
        rows_outside=sum(plan.rows_to_do for plan in beyond),
        input_bytes=sum(plan.input_bytes for plan in work),
        output_bytes=pending * sum(fixed_bytes(field.type) for field in spec.targets.schema),
        stable_row_ids=dataset.has_stable_row_ids,
        udf_mismatch=prepared.definition.is_redefined,
    )


def _checkpointed(prepared: PreparedBackfill, work: Sequence[FragmentPlan]) -> int:
    """Returns the number of rows that checkpoints and finished column files may serve."""
    spec, store = prepared.spec, store_of(prepared.spec)
    selector, history = (
        spec.row_selector,
        ValueHistory(RoundContext(spec), SnapshotRows(prepared.dataset)),
    )
    rows = 0
    for plan in work:
        fragment = prepared.dataset.get_fragment(plan.fragment_id)
        if fragment is None:
            continue
        source = source_of(spec, fragment.metadata)
        of_any_job = 0
        for entry in prepared.entries.get(source, ()):
            count = entry.rows
            if entry.kind == "reference":
                reference = StoredReference.of(store.read_reference(entry, spec.key, source))
                count = 0 if reference is None else len(reference.rows.computed)
            if selector.is_served_by(entry.job_id):
                rows += count
            else:
                of_any_job += count
        if of_any_job:
            within = plan.rows(history)
            rows += min(
                of_any_job, len(selector.served_by_any_job(within, selector.select(within)))
            )
    return rows
