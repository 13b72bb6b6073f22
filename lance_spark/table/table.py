"""Tables: the facade of everything that is done with one Lance table.

Methods check their arguments and pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS, takes
from lance_spark.backfill.driver.job import BackfillJob
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.explain import BackfillPlan, view_of
from lance_spark.backfill.planning.planner import Prepared, prepare
from lance_spark.backfill.request import (
    DEFAULT_CONCURRENCY,
    BackfillParameters,
    BackfillRequest,
    StartedBackfill,
    WaitingBackfill,
    columns_of,
)
from lance_spark.backfill.reuse.translate_addresses import latest_addresses
from lance_spark.backfill.watch import Watch
from lance_spark.columns.adding import add_columns
from lance_spark.columns.altering import alter_columns, drop_columns
from lance_spark.columns.binding import binding_of
from lance_spark.dataset import DatasetRef
from lance_spark.environments.task import JobEnvironments
from lance_spark.errors import OptionError
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.model import BackfillJobResult, ErrorRecord, JobRecord
from lance_spark.jobs.progress import Progress
from lance_spark.objects import checkpoint_place
from lance_spark.session.sessions import session_time_zone
from lance_spark.table.changes import TableChanges
from lance_spark.table.display import describe, render_html
from lance_spark.table.loads import TableLoads
from lance_spark.table.rows import TableRows
from lance_spark.table.searching import TableSearching
from lance_spark.table.upkeep import TableUpkeep
from lance_spark.table.views import TableViews
from lance_spark.views.definition import define, existing_view
from udf_runtime import UDF, Manifest, UnpackedUDF

Transforms = Mapping[str, "str | UDF | tuple[UDF, list[str]]"] | UDF | UnpackedUDF


@ARGUMENTS.methods
class Table(TableRows, TableSearching, TableChanges, TableLoads, TableUpkeep, TableViews):
    """A Lance table, at its latest version, or at one that was checked out.

    Made by :meth:`lance_spark.Connection.open_table`. All methods run on the driver and may be
    called from any thread.

    Attributes:
        name: Name of the table.
        uri: Its location; that of the branch where it is opened at one.
    """

    def __init__(
        self,
        ref: DatasetRef,
        name: str,
        spark: Callable[[], SparkSession],
        *,
        query_spark: Callable[[], SparkSession],
        checkpoint: str | None = None,
        progress: bool | None = None,
        default_manifest: Callable[[], Manifest | None] = lambda: None,
    ) -> None:
        self.name = name
        self.uri = ref.uri
        self._latest = self._shown = ref
        self._spark = spark
        self._query_spark = query_spark
        self._checkpoint = checkpoint
        self._progress = progress
        self._default_manifest = default_manifest

    def _at(self, ref: DatasetRef) -> Table:
        """Returns the table at another branch."""
        # The folder that tables share has one of each place, and there one of each table.
        shared = None if self._checkpoint is None else self._checkpoint.rsplit("/", 2)[0]
        return Table(
            ref,
            self.name,
            self._spark,
            query_spark=self._query_spark,
            checkpoint=None if shared is None else checkpoint_place(shared, ref.uri),
            progress=self._progress,
            default_manifest=self._default_manifest,
        )

    # Columns

    def add_columns(self, transforms: Transforms) -> None:
        """Adds computed columns, for :meth:`backfill` to fill, and SQL columns, computed at once.

        Everything is checked before anything changes, and columns of UDFs are added in one commit
        without data.

        Args:
            transforms: One of

                * `{"name": "SQL"}`: an expression in Lance SQL over the table's columns;
                * `{"name": udf}`: the UDF's parameters are named like its input columns;
                * `{"name": (udf, ["a", "b"])}`: its parameters are bound to these columns, in
                  order;
                * `udf`, returning `Columns[T]`: one column per field of T, computed by one call;
                * `UnpackedUDF(udf, prefix="img_")`: the same with prefixed names.

                A dict may hold several columns of the first three forms. PySpark's `pandas_udf` and
                `arrow_udf` objects are UDFs too.

        Raises:
            RegistrationError: A UDF or an expression does not fit the table: inputs are missing or
                of another type, ...
            ColumnExistsError: A column is there already.
            UnsupportedTypeError: Lance cannot store a column.
            CommitConflictError: Other writers kept changing the table first.

        Warns:
            UserWarning: Types of inputs cannot be checked, because the UDF's parameters have no
                annotations.
        """
        add_columns(self._ref, transforms, manifest=self._default_manifest(), time_zone=self._time_zone)

    def alter_columns(self, *alterations: Mapping[str, object]) -> None:
        """Alters columns.

        Args:
            *alterations: Each is a dict with `path`, the column, and

                * `udf`: another UDF for it, with `input_columns` where its parameters are named
                  otherwise. Values that are there count as out of date, and the next backfill
                  computes all rows once. A UDF of another type is refused, unless `recreate` is
                  true: then the column is dropped with its values and added anew;
                * or `name`, `nullable`, `data_type` (an Arrow type). A cast writes the column anew
                  and keeps its comment, encoding, other field metadata and UDF. It fails on a
                  value that does not fit, such as a fraction for an integer type;
                * or `drop_udf`: True. The values stay, and the column has no UDF any more.

        Raises:
            RegistrationError: An alteration is not valid, or a cast depends on the session's time
                zone, on Spark's text format, or does not hold every value of the column's UDF.
                Nothing was changed.
            ColumnNotFoundError: A column is not there.

        Example:
            >>> table.alter_columns({"path": "score", "data_type": pa.float64()})  # doctest: +SKIP
        """
        alter_columns(self._ref, alterations, manifest=self._default_manifest(), time_zone=self._time_zone)

    def drop_columns(self, columns: str | Sequence[str]) -> None:
        """Drops columns.

        Raises:
            ColumnNotFoundError: One is not there; none was dropped.
            SchemaMismatchError: None would be left; none was dropped.
        """
        drop_columns(self._ref, columns_of(columns))

    def get_manifest(self, column: str | None = None) -> Manifest | None:
        """Returns the environment that a column's UDF was registered with; None without one.

        Args:
            column: The column; None is the chunker or the table function of a view.

        Raises:
            ColumnNotFoundError: It is not there.
            ViewError: Without a column, the table is no view.
        """
        dataset = self.to_lance()
        binding = existing_view(dataset).function if column is None else binding_of(dataset, column)
        return None if binding is None else binding.manifest

    # Backfills

    @takes(WaitingBackfill)
    def backfill(self, request: WaitingBackfill) -> BackfillJobResult:  # noqa: D417 - the fields are described
        """Fills a computed column, and returns when the job has ended.

        Reads one version, computes on Spark's executors, and commits new column files; no other
        byte of the table is written. What was computed is checkpointed: after any death the same
        call goes on, and calls the UDF again for at most what a running task had computed since its
        last checkpoint.

        Args:
            columns: The column; naming one of the sibling columns of a UDF that returns
                `Columns[T]` fills all of them.
            udf: A UDF to use this time instead of the stored one.
            where: Rows to compute, in Lance SQL. By default those without a value that were not
                computed as NULL. `"1=1"` computes all anew.
            concurrency: Most tasks of the job that run at once; None uses all slots of the cluster.
            intra_applier_concurrency: Threads per task that call the UDF.
            _admission_check: Whether to compare what the UDF asks for with what the cluster can
                give. By default as `LANCE_SPARK_ADMISSION__CHECK` says, else true.
            _admission_strict: Whether too little of it is an error, or a warning. By default as
                `LANCE_SPARK_ADMISSION__STRICT` says, else true.
            refresh_status_secs: Seconds between looks at running tasks.
            timeout: Longest wait. The job goes on after it.
            min_checkpoint_size: Least rows of an adaptive checkpoint; by default the UDF's, else 1.
            max_checkpoint_size: Most rows of a checkpoint; by default the UDF's, else the
                checkpoint size, which caps it.
            batch_checkpoint_flush_interval_seconds: Seconds after which results are persisted, by
                default 10; 0 persists each batch.
            blob_read_strategy: How blob inputs are read: `range` plans reads of many blobs at once,
                `legacy` opens one by one, `auto` is `range`.
            blob_read_buffer_size: Most bytes of blobs that a task holds at once; by default as
                `LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE` says, else 512 MiB.
            _enable_job_tracker_saves: Whether the job appears in the table's history.
            job_id: Id of the job. A job of the same id takes over what this one has computed, also
                for rows that have a value.
            commit_granularity: Finished fragments after which they are committed and visible; None
                commits all at the end.
            read_version: Version to read; by default the latest.
            task_shuffle_diversity: Refused: it has no meaning on Spark.
            batch_size: Deprecated name of `checkpoint_size`.
            checkpoint_size: Most rows of a checkpoint; an explicit one is also the first size. By
                default the UDF's, else 10,240.
            task_size: Rows per task; by default a half of the rows per slot, at most a fragment and
                512 MiB of input.
            num_frags: Fragments to process, by position; by default all.
            skip_frags: Fragments to leave out before the first.
            stale: Whether to select the rows without a value and the rows whose value is out of
                date: the inputs changed after the value was written, or another version of the UDF
                computed the value. With `where`, the filter selects among these rows.
            on_stale: What becomes of a row whose inputs a concurrent writer changes: it is
                computed again, or is NULL and counted.
            commit_max_retries: Rounds without progress after which a commit gives up, by default as
                `LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES` says, else 10. Races that others win do
                not count.
            commit_timeout: Time after which a commit gives up that keeps losing races, by default
                30 minutes.
            protect_snapshot: Whether to tag the version that is read while the job runs, so that
                `cleanup_old_versions` keeps it; that call then raises, or leaves the version out if
                it is asked to.

        Raises:
            ColumnNotFoundError, RegistrationError, UnsupportedOperationError, OptionError,
                FilterError: Something that was asked for is wrong; found before a job starts.
            StoredUdfError: The stored UDF is missing, damaged, not loadable here, or loading is
                forbidden.
            ResourcesUnavailableError: The UDF asks for what the cluster cannot give.
            BackfillIncompleteError: Selected rows have neither a value nor were skipped by a
                policy; `.result` says more. Complete fragments are committed.
            SkipThresholdExceededError: More rows were skipped than the UDF's policy allows.
            CommitImpossibleError: The column is gone, or has got another type or UDF.
            JobTimeoutError: The job has not ended in time; it goes on, and the error has its handle
                as `.job`.
        """
        return wait(self._start(request), request.timeout)

    @takes(StartedBackfill)
    def backfill_async(self, request: StartedBackfill) -> Job[BackfillJobResult] | Future[BackfillJobResult]:
        """Starts a backfill, and returns its handle at once.

        Mistakes in what was asked for are raised here. The parameters are those of
        :meth:`backfill`; `_return_future` says whether to return a `concurrent.futures.Future` of
        the result instead of a :class:`Job`.

        Raises:
            LanceSparkError: As in :meth:`backfill`, where it is found before the job starts.
        """
        job = self._start(request)
        return job.future if request._return_future else job  # noqa: SLF001 - the name of a public parameter

    def plan_backfill(  # noqa: PLR0913 - the specification's parameters
        self,
        col_name: str | list[str],
        *,
        udf: UDF | None = None,
        where: str | None = None,
        read_version: int | None = None,
        num_frags: int | None = None,
        skip_frags: int = 0,
        task_size: int | None = None,
        concurrency: int | None = DEFAULT_CONCURRENCY,
        exact: bool = True,
        stale: bool = False,
    ) -> BackfillPlan:
        """Says what a backfill would do. Starts no Spark job, and does not load a stored UDF.

        Args:
            col_name: The column, as in :meth:`backfill`.
            udf: As there.
            where: As there.
            read_version: As there.
            num_frags: As there.
            skip_frags: As there.
            task_size: As there.
            concurrency: As there; tasks are sized for so many slots.
            exact: Whether to count rows. That scans the filter's columns in this process, and may
                take long for a large table; otherwise the plan has upper bounds.
            stale: As there.

        Raises:
            LanceSparkError: As in :meth:`backfill`, where it is found before a job starts.
        """
        request = BackfillRequest(
            columns=columns_of(col_name),
            udf=udf,
            where=where,
            concurrency=concurrency,
            read_version=read_version,
            num_frags=num_frags,
            skip_frags=skip_frags,
            task_size=task_size,
            stale=stale,
            plan_only=True,
        )
        prepared = self._prepare(request)
        outside: Prepared | None = None
        if num_frags is not None or skip_frags:
            version = prepared.spec.snapshot.version
            whole = replace(request, read_version=version, num_frags=None, skip_frags=0, task_size=None)
            outside = self._prepare(whole)
        return view_of(prepared, outside, self.name, exact=exact)

    def watch(
        self,
        column: str | list[str],
        *,
        trigger: timedelta = timedelta(minutes=1),
        concurrency: int | None = DEFAULT_CONCURRENCY,
    ) -> Watch:
        """Keeps a computed column up to date: `backfill(column, stale=True)` for each new version.

        Runs in a thread of this process until `stop()` is called on what is returned, or a `with`
        block over it ends. A table without new versions costs one small request per look.

        Args:
            column: The column, as in :meth:`backfill`.
            trigger: Time between looks.
            concurrency: As in :meth:`backfill`.

        Raises:
            OptionError: `trigger` is not above 0.
            LanceSparkError: As in :meth:`plan_backfill`, for mistakes in what was asked for.
        """
        if trigger.total_seconds() <= 0:
            raise OptionError("trigger", trigger, "a timedelta above 0")
        self.plan_backfill(column, exact=False, stale=True)
        return Watch(self._ref, trigger, lambda: self.backfill(column, stale=True, concurrency=concurrency))

    # Jobs

    def list_jobs(self) -> list[JobRecord]:
        """Returns the jobs of the table, newest first; one whose driver is gone is DEAD."""
        return JobHistory(self._latest).jobs()

    def get_job(self, job_id: str) -> JobRecord:
        """Returns one job of the table.

        Raises:
            JobNotFoundError: It is not known.
        """
        return JobHistory(self._latest).job(job_id)

    def get_errors(
        self, job_id: str | None = None, column_name: str | None = None, error_type: str | None = None
    ) -> list[ErrorRecord]:
        """Returns error records, oldest first.

        Args:
            job_id: Only those of this job.
            column_name: Only those of this column.
            error_type: Only those of this exception type, with or without its module.
        """
        return JobHistory(self._latest).errors(job_id, column_name, error_type)

    def get_failed_row_addresses(self, job_id: str, column_name: str) -> list[int]:
        """Returns the addresses of the rows that failed in a job, ascending, each once.

        They are of the latest version: a row that a compaction moved has its new address, so that
        `backfill(column, where=f"_rowaddr IN ({...})")` computes just these rows again. A row that
        was deleted or updated since is left out.

        Args:
            job_id: The job.
            column_name: The column.

        Raises:
            JobNotFoundError: The job is not known, and no error of it is.
        """
        errors = self.get_errors(job_id, column_name)
        if not errors:
            self.get_job(job_id)
        addresses = [(error.table_version, error.row_address) for error in errors if error.row_address is not None]
        return latest_addresses(self._latest, addresses)

    def _time_zone(self) -> str:
        return session_time_zone(self._query_spark())

    def _prepare(self, request: BackfillRequest) -> Prepared:
        if request.udf is not None:
            request = replace(request, manifest=self._default_manifest(), time_zone=self._time_zone)
        return prepare(self._ref, request, checkpoints=self._checkpoint, define=define)

    def _start(self, request: BackfillParameters) -> Job[BackfillJobResult]:
        prepared = self._prepare(BackfillRequest.of(request))
        spark = self._spark()
        if request.admission_check:
            check_resources(spark, prepared.definition.udf, strict=request.admission_strict)
        return self._run(spark, prepared)

    def _run(self, spark: SparkSession, prepared: Prepared) -> Job[BackfillJobResult]:
        progress = Progress(title=f"{self.name}.{', '.join(prepared.columns)}", enabled=self._progress)
        environments = JobEnvironments(prepared.spec.snapshot, spark)
        job = BackfillJob(spark, prepared, self.name, progress, environments)
        job_type = prepared.definition.job_type
        return Job(job, prepared.spec.job_id, self.name, prepared.columns, job_type).start()

    def __repr__(self) -> str:
        return describe(self.name, self.to_lance())

    def _repr_html_(self) -> str:
        """The notebook's view: what the table is, its columns, and its first rows."""
        return render_html(self.name, self.to_lance())
