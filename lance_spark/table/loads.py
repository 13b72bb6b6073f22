"""What a table does with values that were computed elsewhere: the part of its facade for loads."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.arguments import takes
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.planner import Prepared
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.model import BackfillJobResult
from lance_spark.load.definition import stand_in
from lance_spark.load.plan import LoadPlan
from lance_spark.load.request import LoadParameters, LoadRequest, SourceParameters
from lance_spark.load.sources import open_source
from lance_spark.load.start import Load
from lance_spark.session.sessions import known_slots
from lance_spark.table.history.versions import TableVersions


class TableLoads(TableVersions):
    """The methods of :class:`lance_spark.Table` that load columns."""

    name: str
    _spark: Callable[[], SparkSession]
    _checkpoint: str | None

    @abstractmethod
    def to_spark(
        self, columns: Sequence[str] | None = None, filter: str | None = None, version: int | str | None = None
    ) -> DataFrame:
        """Returns the table as a Spark DataFrame."""

    @abstractmethod
    def _run(self, spark: SparkSession, prepared: Prepared) -> Job[BackfillJobResult]:
        """Starts a job that is ready."""

    @takes(LoadParameters)
    def load_columns(self, parameters: LoadParameters) -> str:  # noqa: D417 - the fields are described
        """Fills columns with values computed elsewhere, matched by key, and returns the job's id.

        Reads one version of the table, joins it with the source on Spark, and commits new column
        files; no other byte of the table is written. No side has to fit into memory. What was
        joined is checkpointed: after any death the same call goes on. The source is one of

        * files of Parquet or Arrow IPC: a path, a folder, a pattern (`*`, `?`, `[...]`), or a list
          of these, in any store that PyArrow reaches;
        * a Lance table, by its location, at its latest version;
        * a Spark DataFrame, which has to give the same rows each time;
        * Arrow, pandas, or a list of dicts, in this process's memory.

        Keys of the source are unique and not NULL; a key that several rows of the table have fills
        all of them, and a NULL key in the table matches nothing. Where a concurrent writer changes
        a row's key, its new key is looked up.

        Args:
            source: Where the values are.
            pk: The column by which rows are matched, in both; a list for a key of several columns.
            columns: The columns to load, named alike in both. One that the table lacks is added,
                with the source's type.
            source_format: Format of files; None looks at their names.
            on_missing: What becomes of a row without a match: it keeps its value (`carry`; NULL in
                a new column), becomes NULL (`null`), or nothing is changed (`error`).
            concurrency: Most tasks that write column files at once; None uses all slots. How many
                tasks join is Spark's business.
            task_size: Rows per task; by default a half of the rows per slot.
            checkpoint_size: Most rows of a checkpoint; by default only bytes and time bound it.
            min_checkpoint_size: Least rows that `checkpoint_interval_seconds` persists.
            max_checkpoint_size: Another bound on `checkpoint_size`.
            checkpoint_interval_seconds: Seconds after which joined values are persisted, by default
                60.
            _loader_cpus: CPUs of one task, by default 1.
            _loader_memory: Bytes of memory of one task; compared with what the cluster can give.
            commit_granularity: Finished fragments after which they are committed and visible; None
                commits all at the end.
            refresh_status_secs: Seconds between looks at running tasks.
            enable_job_tracker_saves: Whether the job appears in the table's history.
            job_id: Id of the job; a DataFrame's load can be resumed under its id only.
            source_storage_options: Options of the source's store; by default those of the table.

        Raises:
            OptionError, ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError,
                ColumnExistsError: Something that was asked for is wrong. Nothing was changed.
            SourceError, TableNotFoundError, TableUnreadableError: The source cannot be read.
                Nothing was changed.
            ResourcesUnavailableError: A task asks for what the cluster cannot give. Nothing was
                changed.
            SourceKeysError: Its keys are doubled, NULL or of another type than the table's, or rows
                have no match where that is an error. Says how many, with examples. Nothing was
                changed.
            SourceChangedError: A file of the source was written again since the load began.
            BackfillIncompleteError: Some fragments are not filled; `.result` says more.
            CommitImpossibleError: A column is gone, or has got another type.
        """
        return wait(self._start_load(parameters), None).job_id

    @takes(LoadParameters)
    def load_columns_async(self, parameters: LoadParameters) -> Job[BackfillJobResult]:
        """Starts a load, and returns its handle. The parameters are those of :meth:`load_columns`.

        The source's keys are checked before it returns: that reads all of them.

        Raises:
            LanceSparkError: As in :meth:`load_columns`, where it is found before the job starts.
        """
        return self._start_load(parameters)

    @takes(SourceParameters)
    def plan_load_columns(self, parameters: SourceParameters) -> LoadPlan:
        """Says what a load would do. Starts no Spark job, and reads no rows.

        The parameters are those of :meth:`load_columns`.

        Raises:
            LanceSparkError: As in :meth:`load_columns`, where it is found without reading rows.
        """
        return self._load(LoadParameters(**vars(parameters)), None).plan()

    def _load(self, parameters: LoadParameters, spark: SparkSession | None) -> Load:
        request = LoadRequest.of(parameters)
        given = parameters.source_storage_options
        options = self._ref.storage if given is None else dict(given)
        source = open_source(parameters.source, request.source_format, options, job_id=request.job.job_id)
        slots = (None if spark is None else known_slots(spark)) or os.cpu_count() or 1
        return Load(ref=self._ref, table_name=self.name, source=source, request=request, slots=slots)

    def _start_load(self, parameters: LoadParameters) -> Job[BackfillJobResult]:
        spark = self._spark()
        load = self._load(parameters, spark)
        job = load.request.job
        if job.admission_check:
            check_resources(spark, stand_in(load.request, pa.null(), "none"), strict=job.admission_strict)

        def read(columns: Sequence[str], version: int) -> DataFrame:
            return self.to_spark(columns, version=version)

        return self._run(spark, load.prepare(spark, read, checkpoints=self._checkpoint))
