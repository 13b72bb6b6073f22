"""Tables: the facade of all operations on a Lance table.

The methods check their arguments and call the parts of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias, overload

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.agent.watch import Watch
from lance_spark.arguments import ARGUMENTS, takes
from lance_spark.backfill.driver.job import BackfillJob
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.explain import BackfillPlan, view_of
from lance_spark.backfill.planning.planner import PreparedBackfill, prepare, slots_of
from lance_spark.backfill.planning.reservation import reserve
from lance_spark.backfill.request import (
    DEFAULT_CONCURRENCY,
    BackfillParameters,
    BackfillRequest,
    StartedBackfill,
    WaitingBackfill,
    columns_of,
)
from lance_spark.backfill.transactions import find_repeated
from lance_spark.columns.adding import add_columns
from lance_spark.columns.altering import alter_columns, drop_columns
from lance_spark.columns.binding import binding_of
from lance_spark.dataset import DatasetRef
from lance_spark.dml.results import ChangeResult
from lance_spark.environments.task import JobEnvironments
from lance_spark.errors import OptionError
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.progress import Progress
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.session.sessions import session_time_zone
from lance_spark.storage.objects import checkpoint_place
from lance_spark.table.agent_table import AgentTable
from lance_spark.table.blobs import TableBlobs
from lance_spark.table.changes import TableChanges
from lance_spark.table.column_metadata import TableColumnMetadata
from lance_spark.table.display import describe, render_html
from lance_spark.table.jobs import TableJobs
from lance_spark.table.loads import TableLoads
from lance_spark.table.searching import TableSearching
from lance_spark.table.upkeep import TableUpkeep
from lance_spark.table.views import TableViews
from lance_spark.views.definition import define, existing_view
from udf_runtime import UDF, Manifest, UnpackedUDF
from udf_runtime.arguments import is_whole_number

# mypy ignores the results of class decorators, so an object of a decorated class is only callable.
# A UDF of PySpark is callable, too.
_Function: TypeAlias = "UDF | Callable[..., object]"
Transforms = (
    Mapping[str, "str | _Function | tuple[_Function, list[str]]"]
    | UDF
    | UnpackedUDF
    | pa.Schema
    | pa.Field  # type: ignore[type-arg]  # at run time the class takes no parameters
    | list[pa.Field]  # type: ignore[type-arg]
)


@ARGUMENTS.methods
class Table(
    TableSearching,
    TableBlobs,
    TableChanges,
    TableColumnMetadata,
    TableLoads,
    TableUpkeep,
    TableViews,
    TableJobs,
):
    """A Lance table, at its latest version or at a checked out version.

    Made by :meth:`lance_spark.Connection.open_table`. All methods run on the driver, and any thread
    may call them.

    Attributes:
        name: Name of the table.
        uri: Location of the table, or of its branch.

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
        assert result.rows_computed == 10
        books.to_spark().where("double > 10").show()
        ```
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
        # Checkpoints of a table lie two levels below the shared folder.
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

    def add_columns(
        self, transforms: Transforms, *, auto_backfill: bool | None = None
    ) -> ChangeResult:
        """Adds computed columns for :meth:`backfill`, and SQL columns, which are computed at once.

        Everything is checked before anything changes. One commit adds the columns of UDFs, without
        data.

        Args:
            transforms: A dict from column names to SQL texts or UDFs, or a UDF of several columns.

                * `{"name": "SQL"}`: an expression in Lance SQL over the columns of the table;
                * `{"name": udf}`: the parameters of the UDF have the names of its input columns;
                * `{"name": (udf, ["a", "b"])}`: the parameters are bound to these columns, in
                  order;
                * `udf`, with the result `Columns[T]`: one column per field of T, from one call;
                * `UnpackedUDF(udf, prefix="img_")`: the same with prefixed names;
                * an Arrow field, a list of fields, or a schema: columns of NULL.

                A dict may hold several columns of the first three forms. PySpark's `pandas_udf` and
                `arrow_udf` objects are UDFs too.
            auto_backfill: Whether an agent keeps the columns up to date
                (:meth:`lance_spark.Connection.agent`). By default as `@udf(auto_backfill=)` of each
                UDF.

        Raises:
            RegistrationError: A UDF or an expression does not fit the table. For example, an input
                column is missing or has another type.
            ColumnExistsError: The table has such a column.
            UnsupportedTypeError: Lance cannot store a column.
            CommitConflictError: Concurrent writers changed the table again and again.

        Warns:
            UserWarning: The parameters of the UDF have no annotations, so the types of the inputs
                are unchecked.

        Example:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double, "half": "price / 2"})
            assert {"double", "half"} <= set(books.schema.names)
            ```
        """
        version = add_columns(
            self._ref,
            transforms,
            auto_backfill=auto_backfill,
            manifest=self._default_manifest(),
            time_zone=self._time_zone,
        )
        return ChangeResult(version=version)

    def alter_columns(self, *alterations: Mapping[str, object]) -> ChangeResult:
        """Alters columns.

        Args:
            *alterations: Dicts with the column as `path`, and

                * `udf`: another UDF, with `input_columns` if the names of its parameters differ.
                  Present values count as out of date, and the next backfill computes all rows once.
                  A UDF of another type needs `recreate=True`: the column is dropped with its
                  values, and added again;
                * or `name` (or `rename`), `nullable`, `data_type` (an Arrow type). A cast rewrites
                  the column in one commit, with a Spark job for more than 64 MiB of files, and
                  keeps its comment, encoding, other field metadata and UDF. Rows of concurrent
                  writers are cast, too. The cast fails on a value that does not fit, such as a
                  fraction for an integer type, or a list of another length than the vector type;
                * or `drop_udf`: True. The values stay, and the column has no UDF any more;
                * or `auto_backfill`: whether an agent keeps the column up to date. With `udf`, too;
                  by default the column keeps its choice.

        Raises:
            RegistrationError: An alteration is not valid, or a cast depends on the time zone of the
                session, depends on Spark's text format, or cannot hold every value of the column's
                UDF. Nothing was changed.
            ColumnNotFoundError: The table has no such column.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.alter_columns({"path": "price", "name": "cents"})
            books.alter_columns({"path": "id", "data_type": pa.int32()})
            assert books.schema.names == ["id", "cents"]
            ```
        """
        manifest = self._default_manifest()
        version = alter_columns(
            self._ref, alterations, manifest=manifest, time_zone=self._time_zone, spark=self._spark
        )
        return ChangeResult(version=version)

    def drop_columns(self, columns: str | Sequence[str]) -> ChangeResult:
        """Drops columns.

        Raises:
            ColumnNotFoundError: The table lacks a column. No column was dropped.
            SchemaMismatchError: No column would remain. No column was dropped.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.drop_columns("price")
            assert books.schema.names == ["id"]
            ```
        """
        return ChangeResult(version=drop_columns(self._ref, columns_of(columns)))

    def get_manifest(self, column: str | None = None) -> Manifest | None:
        """Returns the environment of a column's UDF at its registration.

        A UDF without an environment has None.

        Args:
            column: The column; None is the chunker or the table function of a view.

        Raises:
            ColumnNotFoundError: The table has no such column.
            ViewError: Without a column, the table is no view.

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
            assert books.get_manifest("double") is None
            ```
        """
        dataset = self.to_lance()
        binding = existing_view(dataset).function if column is None else binding_of(dataset, column)
        return None if binding is None else binding.manifest

    # Backfills

    @takes(WaitingBackfill)
    def backfill(self, request: WaitingBackfill) -> BackfillJobResult:  # noqa: D417 - the fields are described
        """Fills a computed column, and returns when the job has ended.

        The job reads one version, computes on Spark's executors, and commits new column files. No
        other byte of the table is written. Checkpoints keep the results: after the death of a job,
        the same call resumes the job. The UDF is called again only for rows since the last
        checkpoint of a running task.

        Args:
            columns: The column. For a UDF with the result `Columns[T]`, any of its columns fills
                all of them.
            udf: A UDF for this job, in place of the stored UDF.
            where: Rows to compute, in Lance SQL. By default rows whose value is NULL, except rows
                for which the UDF itself returned NULL. `"1=1"` computes all rows.
            concurrency: Maximum number of concurrent tasks of the job; None uses all slots of the
                cluster.
            intra_applier_concurrency: Threads per task for calls of the UDF.
            _admission_check: Whether to compare the resources of the UDF with those of the cluster.
                By default the value of `LANCE_SPARK_ADMISSION__CHECK`, else true.
            _admission_strict: Whether too few resources are an error, or a warning. By default the
                value of `LANCE_SPARK_ADMISSION__STRICT`, else true.
            refresh_status_secs: Seconds between looks at running tasks, for finished files and
                other ranges in turn.
            timeout: Longest wait. The job continues after the timeout.
            min_checkpoint_size: Minimum rows of an adaptive checkpoint; by default the UDF's, else
                1.
            max_checkpoint_size: Maximum rows of a checkpoint; by default the UDF's, else the
                checkpoint size, which caps it.
            batch_checkpoint_flush_interval_seconds: Seconds until results are persisted, by default
                10; 0 persists each batch.
            blob_read_strategy: How blob inputs are read: `range` plans reads of many blobs at once,
                `legacy` opens each blob, `auto` is `range`.
            blob_read_buffer_size: Maximum bytes of blobs in a task; by default the value of
                `LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE`, else 512 MiB.
            _enable_job_tracker_saves: Whether the history of the table has the job.
            job_id: Id of the job. A later job of the same id reuses all results of this job, also
                for rows that have a value.
            commit_granularity: Finished fragments per commit; None commits all at the end.
            read_version: Version to read; by default the latest.
            task_shuffle_diversity: Refused: without meaning on Spark.
            batch_size: Deprecated name of `checkpoint_size`.
            checkpoint_size: Maximum rows of a checkpoint, and the first size. By default the UDF's,
                else 10,240.
            task_size: Rows per task; by default half of the rows per slot, at most a fragment and
                512 MiB of input.
            num_frags: Number of fragments to process, by position; by default all.
            skip_frags: Number of fragments to skip before the first.
            stale: Whether to select rows without a value and rows with an outdated value: an input
                changed after the value was written, or another version of the UDF computed the
                value. With `where`, the filter selects among these rows.
            on_stale: What happens to a row whose inputs a concurrent writer changes: `recompute`
                computes the row again, `null` sets the row to NULL and counts the row.
            commit_max_retries: Rounds without progress until a commit gives up, by default the
                value of `LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES`, else 10. Lost races for a
                version do not count.
            commit_timeout: Time until a commit gives up without a won race, by default 30
                minutes.
            protect_snapshot: Whether to tag the version for the time of the job, so that
                `cleanup_old_versions` keeps the version. The cleanup then raises, unless tagged
                versions are ignored.
            max_calls: Maximum number of rows for which the job calls the UDF. Retries of a call do
                not count. If the process of a task dies, its rows since the last checkpoint are
                called in addition.
            max_seconds: Maximum duration of the job. No batch of rows begins after this time, and
                the job ends after the running batches.
            max_cost: Maximum cost of the rows with a call, by `@udf(cost=)` in the same unit. The
                costs are known before the calls, so the sum never exceeds the maximum. Exceptions
                are the same as for `max_calls`.
            txn_app_id: Id of the application that runs each of its transactions once, such as the
                name of a stream. The transaction ends after the last commit of the job, and only
                with the status DONE. After a crash, the repeated call resumes the job: committed
                values and checkpoints count, because the call has the same `job_id`.
            txn_version: Number of the transaction, such as the id of a micro-batch, together with
                `txn_app_id`. A repeated call computes nothing, and `message` of its result
                reports the earlier commit.

        Returns:
            The result of the job. If a budget of `max_calls`, `max_seconds` or `max_cost` is used
            up, the status is PARTIAL, `message` and `rows_remaining` tell the rest, and the
            computed values are kept. A later run continues without a repeated call.

        Raises:
            ColumnNotFoundError, RegistrationError, UnsupportedOperationError, OptionError,
                FilterError: An argument is wrong. No job was started.
            StoredUdfError: The stored UDF is missing or damaged, cannot be loaded, or loading is
                forbidden.
            ResourcesUnavailableError: The UDF needs more resources than the cluster has.
            BackfillIncompleteError: Selected rows have no value, and no policy skipped them.
                `.result` has the counts. Complete fragments are committed.
            SkipThresholdExceededError: More rows were skipped than the policy of the UDF allows.
            CommitImpossibleError: The column was dropped, or has another type or UDF.
            StreamRewoundError: The application has begun a later transaction.
            JobTimeoutError: The job did not end in time. It continues, and `.job` of the error is
                its handle.

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
            assert books.backfill("double").rows_computed == 10
            books.add([{"id": 10, "price": 100}])
            assert books.backfill("double").rows_computed == 1
            ```
        """
        return wait(self._start_once(BackfillRequest.of(request)), request.timeout)

    @overload
    @takes(BackfillParameters)
    def backfill_async(self, request: BackfillParameters) -> Job[BackfillJobResult]: ...
    @overload
    def backfill_async(
        self,
        columns: str | Sequence[str],
        *,
        _return_future: Literal[True],
        **parameters: Any,  # noqa: ANN401 - the other parameters
    ) -> Future[BackfillJobResult]: ...

    @takes(StartedBackfill)  # type: ignore[misc]  # it accepts the parameters of both
    def backfill_async(
        self, request: StartedBackfill
    ) -> Job[BackfillJobResult] | Future[BackfillJobResult]:
        """Starts a backfill, and returns its handle at once.

        Wrong arguments raise before the job starts. The parameters are those of :meth:`backfill`.
        With `_return_future`, the result is a `concurrent.futures.Future` in place of a
        :class:`Job`.

        Raises:
            LanceSparkError: An argument is wrong, as in :meth:`backfill`.

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
            job = books.backfill_async("double")
            assert job.result().rows_computed == 10
            ```
        """
        job = self._start_once(BackfillRequest.of(request))
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
        sample: int | None = None,
    ) -> BackfillPlan:
        """Describes what a backfill would do.

        Without a sample, a plan starts no Spark job, and loads no stored UDF.

        Args:
            col_name: The column, as in :meth:`backfill`.
            udf: As in :meth:`backfill`.
            where: As in :meth:`backfill`.
            read_version: As in :meth:`backfill`.
            num_frags: As in :meth:`backfill`.
            skip_frags: As in :meth:`backfill`.
            task_size: As in :meth:`backfill`.
            concurrency: As in :meth:`backfill`. Tasks are sized for this number of slots.
            exact: Whether to count rows. A count scans the columns of the filter in this process,
                and takes long for a large table. Without a count, the plan has upper bounds.
            stale: As in :meth:`backfill`.
            sample: Rows to compute on Spark for an estimate of time and cost, from eight places of
                the table. The job commits nothing, and the history shows the job as PARTIAL. Its
                values stay in checkpoints, and later backfills use them. The estimated time is the
                time of the calls, spread over the concurrent tasks of the job, with the waits of
                the sample for a service. Loads of the UDF come in addition.

        Raises:
            LanceSparkError: An argument is wrong, as in :meth:`backfill`.
            BackfillIncompleteError: The UDF failed for a row of the sample.

        Example:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf(cost=0.01)
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            print(books.plan_backfill("double"))
            print(books.plan_backfill("double", sample=5).estimated_cost)  # 0.05
            ```
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
        sampled = None if sample is None else self._compute_sample(request, sample)
        prepared = self._prepare(request)
        outside: PreparedBackfill | None = None
        if num_frags is not None or skip_frags:
            version = prepared.spec.snapshot.version
            whole = replace(
                request, read_version=version, num_frags=None, skip_frags=0, task_size=None
            )
            outside = self._prepare(whole)
        plan = view_of(prepared, outside, self.name, exact=exact)
        return plan if sampled is None else plan.with_sample(*sampled)

    def _compute_sample(self, request: BackfillRequest, rows: int) -> tuple[BackfillJobResult, int]:
        """Computes some rows of a planned backfill, and keeps their values in checkpoints.

        Returns also the number of tasks at once of the planned backfill.
        """
        if not is_whole_number(rows):
            raise OptionError("sample", rows, "a whole number of rows, 1 or more")
        prepared = self._prepare(replace(request, plan_only=False, is_sample=True, max_calls=rows))
        spark = self._spark()
        limit = reserve(spark, prepared.definition.resources).limit(prepared.request.concurrency)
        return wait(self._start(prepared), None), slots_of(spark, limit)

    def watch(
        self,
        column: str | list[str],
        *,
        trigger: timedelta = timedelta(minutes=1),
        concurrency: int | None = DEFAULT_CONCURRENCY,
    ) -> Watch:
        """Keeps a computed column up to date: `backfill(column, stale=True)` for each new version.

        A thread of this process runs the backfills until `stop()` of the result, or the end of a
        `with` block. A table without new versions costs one small request per look. After a
        failure, the next try comes after twice the `trigger`, then twice as late after each further
        failure, and after an hour at most.

        Args:
            column: The column, as in :meth:`backfill`.
            trigger: Time between looks.
            concurrency: As in :meth:`backfill`.

        Raises:
            OptionError: `trigger` is not above 0.
            LanceSparkError: An argument is wrong, as in :meth:`plan_backfill`.

        Example:
            ```python
            from datetime import timedelta

            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            with books.watch("double", trigger=timedelta(seconds=1)) as watch:
                watch.await_look()
            assert books.count_rows("double IS NOT NULL") == 10
            ```
        """
        if trigger.total_seconds() <= 0:
            raise OptionError("trigger", trigger, "a timedelta above 0")
        self.plan_backfill(column, exact=False, stale=True)
        return Watch(self.name, AgentTable(self, concurrency), columns_of(column), trigger)

    def _time_zone(self) -> str:
        return session_time_zone(self._query_spark())

    def _prepare(self, request: BackfillRequest) -> PreparedBackfill:
        if request.udf is not None:
            request = replace(request, manifest=self._default_manifest(), time_zone=self._time_zone)
        return prepare(self._ref, request, checkpoints=self._checkpoint, define=define)

    def _start_once(self, request: BackfillRequest) -> Job[BackfillJobResult]:
        repeated = find_repeated(self._latest, request, self.name)
        return self._start(self._prepare(request)) if repeated is None else repeated

    def _start(self, prepared: PreparedBackfill) -> Job[BackfillJobResult]:
        request, spark = prepared.request, self._spark()
        if request.admission_check:
            check_resources(spark, prepared.definition.udf, strict=request.admission_strict)
        return self._run(spark, prepared)

    def _run(self, spark: SparkSession, prepared: PreparedBackfill) -> Job[BackfillJobResult]:
        progress = Progress(
            title=f"{self.name}.{', '.join(prepared.columns)}", enabled=self._progress
        )
        environments = JobEnvironments(prepared.spec.snapshot, spark)
        job = BackfillJob(spark, prepared, self.name, progress, environments)
        job_type = prepared.definition.job_type
        return Job(job, prepared.spec.job_id, self.name, prepared.columns, job_type).start()

    def __repr__(self) -> str:
        return describe(self.name, self.to_lance())

    def _repr_html_(self) -> str:
        """Returns the description of the table, its columns and its first rows as HTML."""
        return render_html(self.name, self.to_lance())
