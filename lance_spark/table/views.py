"""What a table does as the source of a materialized view, and as one: a part of its facade."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from lance_spark.arguments import takes
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.model import RefreshJobResult
from lance_spark.jobs.progress import Progress
from lance_spark.table.history.versions import TableVersions
from lance_spark.views.plan import RefreshPlan, plan_refresh
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.request import RefreshRequest


class TableViews(TableVersions):
    """The methods of :class:`lance_spark.Table` for materialized views."""

    name: str
    _spark: Callable[[], SparkSession]
    _checkpoint: str | None
    _progress: bool | None

    @takes(RefreshRequest)
    def refresh(self, request: RefreshRequest) -> RefreshJobResult:  # noqa: D417 - the fields are described
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
        return wait(self._start_refresh(request), None)

    @takes(RefreshRequest)
    def refresh_async(self, request: RefreshRequest) -> Job[RefreshJobResult]:
        """Starts a refresh, and returns its handle at once.

        Mistakes in what was asked for are raised here. The parameters are those of :meth:`refresh`.

        Raises:
            LanceSparkError: As in :meth:`refresh`, where it is found before the job starts.
        """
        return self._start_refresh(request)

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

    def _start_refresh(self, request: RefreshRequest) -> Job[RefreshJobResult]:
        job = RefreshJob(
            self._spark(),
            self._ref,
            request,
            table_name=self.name,
            checkpoints=self._checkpoint,
            progress=lambda title: Progress(title=title, enabled=self._progress),
        )
        return Job(job, job.job_id, self.name, job.columns, "refresh").start()
