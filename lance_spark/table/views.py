"""What a table does as the source of a materialized view, and as one: a part of its facade."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from lance_spark.backfill.request import (
    ADMISSION_CHECK,
    ADMISSION_STRICT,
    DEFAULT_CONCURRENCY,
    blob_buffer_of,
    flag_of,
)
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.model import RefreshJobResult
from lance_spark.jobs.progress import Progress
from lance_spark.table.history.versions import TableVersions
from lance_spark.views.plan import RefreshPlan, plan_refresh
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.request import DEFAULT_FRAGMENT_ROWS, RefreshRequest


class TableViews(TableVersions):
    """The methods of :class:`lance_spark.Table` for materialized views."""

    name: str
    _spark: Callable[[], SparkSession]
    _checkpoint: str | None
    _progress: bool | None

    def refresh(
        self,
        *,
        where: str | None = None,
        src_version: int | None = None,
        max_rows_per_fragment: int | None = None,
        concurrency: int | None = DEFAULT_CONCURRENCY,
        intra_applier_concurrency: int = 1,
        _admission_check: bool | None = None,
        _admission_strict: bool | None = None,
    ) -> RefreshJobResult:
        """Brings this materialized view up to date with its source, and returns when that is done.

        Rows that the source has got since the last refresh are added, rows with other values in
        columns that the view uses are written anew, and rows that are gone, or that the view does
        not select any more, are taken out, all in one commit. Fragments of the source in which
        nothing changed are not read, and a compaction of it changes nothing. Columns of UDFs are
        computed then, for new rows and for those whose own inputs changed, as :meth:`backfill`
        computes them: they are NULL until their fragment is committed.

        Args:
            where: Refused: a view has the rows that its query selects.
            src_version: Version of the source that the view is to show, also an older one than it
                shows; by default the latest.
            max_rows_per_fragment: Most rows of a fragment of the view, by default 1,048,576.
            concurrency: Most tasks of the job that run at once; None uses all slots of the cluster.
            intra_applier_concurrency: Threads per task that call a UDF.
            _admission_check: As in :meth:`backfill`.
            _admission_strict: As there.

        Raises:
            ViewError: The table is no materialized view; or it is a query of Spark, and a session
                of Spark Connect has other settings than the one that made it.
            ViewSourceError: Its source is gone, was made anew or overwritten, or lacks a column.
            StableRowIdsError: Rows of the source have no stable ids, and the view shows another
                version of it. Also a `RuntimeError`.
            VersionNotFoundError: The source has no such version.
            BackfillIncompleteError: Tasks failed, or rows got no value in a column of a UDF.
            CommitConflictError: Other writers of the view kept coming first.
        """
        return wait(self._start_refresh(locals()), None)

    def refresh_async(
        self,
        *,
        where: str | None = None,
        src_version: int | None = None,
        max_rows_per_fragment: int | None = None,
        concurrency: int | None = DEFAULT_CONCURRENCY,
        intra_applier_concurrency: int = 1,
        _admission_check: bool | None = None,
        _admission_strict: bool | None = None,
    ) -> Job[RefreshJobResult]:
        """Starts a refresh, and returns its handle at once.

        Mistakes in what was asked for are raised here. The parameters are those of :meth:`refresh`.

        Raises:
            LanceSparkError: As in :meth:`refresh`, where it is found before the job starts.
        """
        return self._start_refresh(locals())

    def plan_refresh(self, src_version: int | None = None) -> RefreshPlan:
        """Says what a refresh would do. Starts no Spark job.

        Counts rows in this process: it reads the row ids, and compares the used columns, of
        fragments of the source that changed.

        Args:
            src_version: As in :meth:`refresh`.

        Raises:
            LanceSparkError: As in :meth:`refresh`, where it is found before a job starts.
        """
        return plan_refresh(self._ref, src_version, table_name=self.name, checkpoints=self._checkpoint)

    def _start_refresh(self, parameters: dict[str, object]) -> Job[RefreshJobResult]:
        if parameters["where"] is not None:
            raise UnsupportedOperationError(
                "a view has the rows that its query selects, so a refresh takes no where - in refresh - make a view "
                "with where(...), or backfill one of its columns with where="
            )
        numbers = {
            name: parameters[name]
            for name in ("src_version", "max_rows_per_fragment", "concurrency", "intra_applier_concurrency")
        }
        for name, value in numbers.items():
            optional = value is None and name != "intra_applier_concurrency"
            if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(name, value, "a whole number, 1 or more")
        numbers["max_rows_per_fragment"] = numbers["max_rows_per_fragment"] or DEFAULT_FRAGMENT_ROWS
        request = RefreshRequest(
            **numbers,  # type: ignore[arg-type]
            admission_check=flag_of(parameters["_admission_check"], ADMISSION_CHECK),  # type: ignore[arg-type]
            admission_strict=flag_of(parameters["_admission_strict"], ADMISSION_STRICT),  # type: ignore[arg-type]
            blob_read_buffer_size=blob_buffer_of(None),
        )
        job = RefreshJob(
            self._spark(),
            self._ref,
            request,
            table_name=self.name,
            checkpoints=self._checkpoint,
            progress=lambda title: Progress(title=title, enabled=self._progress),
        )
        return Job(job, job.job_id, self.name, job.columns, "refresh").start()
