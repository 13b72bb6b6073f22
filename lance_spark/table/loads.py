"""Loads of columns: a part of the facade of a table."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.arguments import takes
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.planner import PreparedBackfill
from lance_spark.errors import OptionError
from lance_spark.ingest.rows import Data, to_reader
from lance_spark.ingest.streams import is_spark
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.load.plan import LoadPlan
from lance_spark.load.request import LoadParameters, LoadRequest, SourceParameters
from lance_spark.load.sources import open_source
from lance_spark.load.start import Load
from lance_spark.session.sessions import known_slots
from lance_spark.table.rows import TableRows


class TableLoads(TableRows):
    """The methods of :class:`lance_spark.Table` that load columns."""

    @abstractmethod
    def _run(self, spark: SparkSession, prepared: PreparedBackfill) -> Job[BackfillJobResult]:
        """Starts a job that is ready."""

    @takes(LoadParameters)
    def load_columns(self, parameters: LoadParameters) -> str:  # noqa: D417 - the fields are described
        """Fills columns with values of a source, matched by key, and returns the id of the job.

        The job reads one version of the table, joins its rows with the source on Spark, and commits
        new column files. No other byte of the table is written. Neither side has to fit into
        memory. Checkpoints keep joined values: after a death, the same call resumes the job. The
        source is one of

        * files of Parquet or Arrow IPC: a path, a folder, a pattern (`*`, `?`, `[...]`), or a list
          of these, in any store of PyArrow;
        * a Lance table, by its location, at its latest version;
        * a Spark DataFrame with the same rows at each evaluation;
        * data of this process, as in :meth:`add`. More than 64 MiB of rows are written batch by
          batch to a place next to the table, and deleted at the end of the job. A stream is read
          once, and the same call with the same batches resumes the job.

        Keys of the source are unique and not NULL. A key fills all rows of the table with this key,
        and a NULL key in the table matches nothing. If a concurrent writer changes the key of a
        row, the row gets the value of its new key.

        Args:
            source: The source of the values.
            pk: The key column of both sides; a list for a key of several columns.
            columns: The columns to load, with the same names on both sides. A missing column is
                added with the type of the source.
            source_format: Format of files; None infers it from their names.
            on_missing: What happens to a row without a match: `carry` keeps its value (NULL in a
                new column), `null` sets NULL, and `error` raises without a change.
            concurrency: Maximum number of concurrent tasks that write column files; None uses all
                slots. Spark decides about the tasks of the join.
            task_size: Rows per task; by default half of the rows per slot.
            checkpoint_size: Maximum rows of a checkpoint; by default limited by bytes and time.
            min_checkpoint_size: Minimum rows that `checkpoint_interval_seconds` persists.
            max_checkpoint_size: Another maximum, as `checkpoint_size`.
            checkpoint_interval_seconds: Seconds until joined values are persisted, by default 60.
            _loader_cpus: CPUs of one task, by default 1.
            _loader_memory: Bytes of memory of one task, compared with the cluster's.
            commit_granularity: Finished fragments per commit; None commits all at the end.
            refresh_status_secs: Seconds between looks at running tasks, for finished files and
                other ranges in turn.
            enable_job_tracker_saves: Whether the history of the table has the job.
            job_id: Id of the job. The load of a DataFrame can only be resumed by its id.
            source_storage_options: Options of the source's store; by default those of the table.

        Returns:
            The id of the job.

        Raises:
            OptionError, ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError,
                ColumnExistsError: An argument is wrong. Nothing was changed.
            SourceError, TableNotFoundError, TableUnreadableError: The source cannot be read.
                Nothing was changed.
            ResourcesUnavailableError: A task needs more resources than the cluster has. Nothing was
                changed.
            SourceKeysError: Keys are duplicate, NULL or of another type than the table's, or rows
                have no match with `on_missing="error"`. The message has counts and examples.
                Nothing was changed.
            SourceChangedError: A file of the source was rewritten during the load.
            BackfillIncompleteError: Some fragments are not filled; `.result` has the counts.
            CommitImpossibleError: A column was dropped, or has another type.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.load_columns([{"id": 3, "stock": 7}], pk="id", columns=["stock"])
            assert books.count_rows("stock = 7") == 1
            ```
        """
        return wait(self._start_load(parameters), None).job_id

    @takes(LoadParameters)
    def load_columns_async(self, parameters: LoadParameters) -> Job[BackfillJobResult]:
        """Starts a load, and returns its handle. The parameters are those of :meth:`load_columns`.

        The call reads and checks all keys of the source before it returns.

        Raises:
            LanceSparkError: An argument or a key is wrong, as in :meth:`load_columns`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            job = books.load_columns_async([{"id": 3, "stock": 7}], pk="id", columns=["stock"])
            assert job.result().status == "DONE"
            ```
        """
        return self._start_load(parameters)

    def merge(
        self,
        other_table: TableLoads | Data,
        left_on: str,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        """Adds the columns of other rows, matched by key: LanceDB's form of :meth:`load_columns`.

        Rows without a match have NULL in the new columns.

        Args:
            other_table: The other rows: a table, or data as in :meth:`add`. Keys are unique.
            left_on: The key column of this table.
            right_on: The key column of the other rows; None is `left_on`.
            schema: Types of the other rows; by default their own.

        Raises:
            OptionError: The other rows lack the key, have no other column, or have a column of this
                table. Nothing was changed.
            LanceSparkError: As in :meth:`load_columns`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.merge([{"number": 3, "stock": 7}], "id", "number")
            assert books.count_rows("stock = 7") == 1
            ```
        """
        rows, names = _rename_key(other_table, schema, right_on or left_on, left_on)
        present = [name for name in names if name in self.to_lance().schema.names]
        if present or not names:
            accepted = "rows with a key and new columns. load_columns fills the columns of a table"
            raise OptionError("other_table", ", ".join(present) or "no columns", accepted)
        self.load_columns(rows, pk=left_on, columns=names)

    @takes(SourceParameters)
    def plan_load_columns(self, parameters: SourceParameters) -> LoadPlan:
        """Describes what a load would do. Starts no Spark job, and reads no rows.

        The parameters are those of :meth:`load_columns`.

        Raises:
            LanceSparkError: An argument is wrong, as in :meth:`load_columns`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            print(books.plan_load_columns([{"id": 3, "stock": 7}], pk="id", columns=["stock"]))
            ```
        """
        return self._load(LoadParameters(**vars(parameters)), None).plan()

    def _load(self, parameters: LoadParameters, spark: SparkSession | None) -> Load:
        request = LoadRequest.of(parameters)
        source_options = parameters.source_storage_options
        options = self._ref.storage if source_options is None else dict(source_options)
        source = open_source(
            parameters.source, request.source_format, options, job_id=request.job.job_id
        )
        slots = (None if spark is None else known_slots(spark)) or os.cpu_count() or 1
        return Load(
            ref=self._ref, table_name=self.name, source=source, request=request, slots=slots
        )

    def _start_load(self, parameters: LoadParameters) -> Job[BackfillJobResult]:
        spark = self._spark()
        load = self._load(parameters, spark)
        job = load.request.job
        if job.admission_check:
            check_resources(spark, load.request, strict=job.admission_strict)

        def read(columns: Sequence[str], version: int) -> DataFrame:
            return self.to_spark(columns, version=version)

        prepared = load.prepare(spark, read, checkpoints=self._checkpoint)
        try:
            return self._run(spark, prepared)
        except BaseException:
            prepared.definition.release()
            raise


def _rename_key(
    data: TableLoads | Data, schema: pa.Schema | None, key: str, name: str
) -> tuple[DataFrame | pa.RecordBatchReader, list[str]]:
    """Returns rows with another name of the key, and the names of the other columns.

    Raises:
        OptionError: The rows have no such key, or a column of the other name.
    """
    frame: Any = data if is_spark(data) else None
    reader = None if frame is not None else to_reader(data, schema)
    columns = frame.columns if reader is None else reader.schema.names
    if key not in columns or (name != key and name in columns):
        raise OptionError(
            "right_on",
            key,
            f"one of the columns {', '.join(columns)}, and no column {name!r} beside it",
        )
    names = [column for column in columns if column != key]
    if reader is None:
        return frame.withColumnRenamed(key, name), names
    renamed = [name if column == key else column for column in columns]
    target = pa.schema(
        [field.with_name(new) for field, new in zip(reader.schema, renamed, strict=True)]
    )
    batches = (batch.rename_columns(renamed) for batch in reader)
    return pa.RecordBatchReader.from_batches(target, batches), names
