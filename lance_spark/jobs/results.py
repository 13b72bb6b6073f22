"""Results of jobs: backfills and refreshes, and the outcomes of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from lance_spark.display import Displayable, join_counts

if TYPE_CHECKING:
    from lance_spark.jobs.records import JobRecord

Status = Literal["PENDING", "RUNNING", "DONE", "PARTIAL", "FAILED", "CANCELLED", "DEAD"]
"""DONE: every selected row has a value or was skipped by policy. PARTIAL: some fragments are
committed, others failed, or the job ended early, at its budget or without its service. FAILED: no
missing value could be committed. CANCELLED: ended by the user; complete fragments are committed.
DEAD: the driver is gone."""

ENDED: frozenset[Status] = frozenset({"DONE", "PARTIAL", "FAILED", "CANCELLED", "DEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfResult:
    """Outcome of a job for a column.

    Attributes:
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        rows_processed: Rows with a new value, computed or from a checkpoint.
        rows_skipped: Rows skipped by a policy.
        input_columns: The UDF's inputs.

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
        result = books.backfill("double")
        print(result.columns["double"].rows_processed)  # 10
        ```
    """

    udf_name: str
    udf_version: str
    rows_processed: int
    rows_skipped: int
    input_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BackfillJobResult(Displayable):
    """Outcome of a backfill.

    Attributes:
        job_id: Id of the job.
        status: Final status, or RUNNING.
        table_name: Name of the table.
        table_uri: Location of the table.
        launched_at: Start of the job.
        completed_at: End of the job; None while the job runs.
        columns: Outcome for each column.
        where: The user's filter.
        read_version: Version read by the job.
        versions: Committed versions.
        rows_selected: Rows selected for a value.
        rows_computed: Rows for which the UDF returned.
        rows_from_checkpoint: Rows with a value from an earlier run.
        rows_skipped: Rows skipped by a policy.
        rows_failed: Rows that neither have a value nor were skipped, if their number is known.
        rows_carried: Rows whose value was carried over in rounds after the first, because a
            concurrent commit had moved the rows or changed their fragment.
        rows_recomputed: Subset of `rows_computed` whose inputs a concurrent commit had changed.
            These rows were computed again in rounds after the first.
        rows_nulled: Rows left NULL because a concurrent commit changed their inputs; only with
            `on_stale="null"`.
        rows_stale: Rows with an out-of-date value that the job did not select, at the last version
            examined by the job. Either their inputs changed after the value was written, or another
            version of the UDF computed the value. `stale=True` selects these rows.
        rows_unverified: Part of `rows_stale` that may be up to date. Either a cleanup removed the
            history, or the table has no stable row ids and an update moved the rows.
        rows_gone: Rows by which the table has shrunk since the read version, without counting added
            rows.
        new_rows: Rows added since the read version, as far as known; these rows have no value yet.
        fragments_total: Fragments with work.
        fragments_done: Fragments with a commit, or without work.
        fragments_failed: Reasons of failed fragments, by fragment.
        rows_remaining: Rows that a further run computes, at most, after an early end.
        cost: Cost of the rows for the UDF, by its setting `cost`; 0 without the setting.
        message: Reason of an early end or a failure, or the earlier commit of the transaction.
            None for a complete job.
        retries: Retried UDF calls and commits.
        rows_deduplicated: Saved calls: rows without a call of their own, because a UDF with
            `deduplicate=True` was called for equal inputs.
        batch_rows: Maximum rows of a call of a UDF over batches, after a call ran out of memory,
            over all processes the smallest number. None: no call ran out of memory.
        seconds: Time per stage. The stages of tasks are sums over tasks. Either the task loads the
            UDF (load), waits for inputs (wait), calls the UDF (compute), or waits for the limits of
            a service (limit). Concurrently, other threads of the task read inputs (read), and write
            checkpoints (checkpoint) and column files (write). The stages commit and total are the
            driver's.

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
        result = books.backfill("double")
        print(result.status, result.rows_computed, result.rows_carried)  # DONE 10 0
        ```
    """

    job_id: str
    status: Status
    table_name: str
    table_uri: str
    launched_at: datetime
    completed_at: datetime | None = None
    columns: Mapping[str, UdfResult] = field(default_factory=dict)
    where: str | None = None
    read_version: int | None = None
    versions: tuple[int, ...] = ()
    rows_selected: int = 0
    rows_computed: int = 0
    rows_from_checkpoint: int = 0
    rows_skipped: int = 0
    rows_failed: int = 0
    rows_carried: int = 0
    rows_recomputed: int = 0
    rows_nulled: int = 0
    rows_stale: int = 0
    rows_unverified: int = 0
    rows_gone: int = 0
    new_rows: int = 0
    fragments_total: int = 0
    fragments_done: int = 0
    fragments_failed: Mapping[int, str] = field(default_factory=dict)
    rows_remaining: int = 0
    cost: float = 0.0
    message: str | None = None
    retries: int = 0
    rows_deduplicated: int = 0
    batch_rows: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Summary of the outcome: `DONE: 297 computed, 3 skipped, version 12`."""
        rest = f", {self.rows_remaining:,} remain" if self.rows_remaining else ""
        return f"{self.status}: {join_row_counts(self)}{rest}"

    @property
    def fragments_left(self) -> int:
        """Fragments still to do."""
        return self.fragments_total - self.fragments_done

    @property
    def rows_processed(self) -> int:
        """Rows with a new value, computed or from a checkpoint."""
        return self.rows_computed + self.rows_from_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RefreshJobResult(Displayable):
    """Outcome of a refresh of a materialized view.

    Attributes:
        job_id: Id of the job.
        status: Final status, or RUNNING.
        table_name: Name of the view.
        table_uri: Location of the view.
        source_uri: Location of its source.
        source_version: Version of the source that the refresh shows.
        previous_version: Version of the source before the refresh; None for the first refresh.
        launched_at: Start of the job.
        completed_at: End of the job; None while the job runs.
        rows_added: Rows added to the view, before their columns of UDFs are computed. In a
            chunker's view this includes new chunks of a row that was chunked again.
        rows_recomputed: Rows rewritten because columns used by the view changed. In a view over a
            Spark query, such rows count as removed and added.
        rows_removed: Rows removed, because their source row is gone, is no longer selected by the
            view, or was chunked again.
        rows_chunked: Rows of the source for which the chunker returned.
        rows_from_checkpoint: Rows with chunks from an earlier, unfinished refresh.
        rows_skipped: Rows of the source skipped by the chunker's policy. After a lost race of the
            commit, the chunker skips a row once more, and the row counts twice.
        fragments_total: Fragments of the source with possible changes.
        fragments_done: Finished fragments.
        versions: Versions of the view committed with the rows.
        cost: Cost of the rows for the chunker and the UDFs, by their setting `cost`; 0 without the
            setting.
        message: Reason of an early end, at the budget of an agent; None otherwise.
        backfills: Results of the columns of UDFs, by column.
        seconds: Time of `place`, `commit`, `backfill` and in `total`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        db.create_materialized_view("dear", "SELECT id, price FROM books WHERE price > 50")
        dear = db.open_table("dear")
        result = dear.refresh()
        print(result.source_version, result.rows_added)
        ```
    """

    job_id: str
    status: Status
    table_name: str
    table_uri: str
    source_uri: str
    source_version: int
    previous_version: int | None
    launched_at: datetime
    completed_at: datetime | None = None
    rows_added: int = 0
    rows_recomputed: int = 0
    rows_removed: int = 0
    rows_chunked: int = 0
    rows_from_checkpoint: int = 0
    rows_skipped: int = 0
    fragments_total: int = 0
    fragments_done: int = 0
    versions: tuple[int, ...] = ()
    cost: float = 0.0
    message: str | None = None
    backfills: Mapping[str, BackfillJobResult] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Summary of the outcome: `DONE: 12 added, 3 removed, source version 7, version 4`."""
        rows = join_counts(
            (self.rows_added, "added"),
            (self.rows_recomputed, "made anew"),
            (self.rows_removed, "removed"),
            (self.rows_skipped, "skipped"),
        )
        versions = join_counts(
            f"source version {self.source_version}", _show_last_version(self.versions)
        )
        return f"{self.status}: {rows or 'no row changed'}, {versions}"

    @property
    def rows_refreshed(self) -> int:
        """Rows added or rewritten."""
        return self.rows_added + self.rows_recomputed

    @property
    def rows_processed(self) -> int:
        """Rows added, rewritten, or removed."""
        return self.rows_refreshed + self.rows_removed

    @property
    def rows_computed(self) -> int:
        """Rows for which a UDF or the chunker returned, over all UDFs."""
        results = {result.job_id: result for result in self.backfills.values()}
        return self.rows_chunked + sum(result.rows_computed for result in results.values())


def join_row_counts(result: BackfillJobResult | JobRecord) -> str:
    """Joins the counts of a job's rows with its last version, for a summary."""
    rows = join_counts(
        (result.rows_computed, "computed"),
        (result.rows_from_checkpoint, "from checkpoints"),
        (result.rows_skipped, "skipped"),
        (result.rows_failed, "failed"),
    )
    return join_counts(rows or "no row computed", _show_last_version(result.versions))


def _show_last_version(versions: tuple[int, ...]) -> str:
    return f"version {versions[-1]}" if versions else ""
