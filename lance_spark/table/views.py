"""Materialized views, and the report of a table: parts of its facade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lance_spark.arguments import takes
from lance_spark.backfill.spending import UNLIMITED, Spending
from lance_spark.commit.schema_change import change_schema, set_schema_metadata
from lance_spark.dml.results import ChangeResult
from lance_spark.jobs.handle import Job, wait
from lance_spark.jobs.progress import Progress
from lance_spark.jobs.results import RefreshJobResult
from lance_spark.report.report import Report, ReportedTable, make_report
from lance_spark.table.versions import TableVersions
from lance_spark.views.definition import AUTO_REFRESH_KEY, existing_view, is_auto_refreshed
from lance_spark.views.plan import RefreshPlan, plan_refresh
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.request import RefreshRequest

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation


class TableReports(TableVersions):
    """The methods of :class:`lance_spark.Table` for people who would rather look."""

    def report(self) -> Report:
        """Returns a page about the jobs and the state of the table.

        Shows the latest version of the table or the branch: running and ended jobs with their
        errors, versions, computed columns, the lag of a view, and streams that write. Reads
        metadata, histories and records, and up to 64 MiB of rows per computed column. Starts no
        Spark session. The page has the latest 200 jobs.

        Raises:
            TableNotFoundError: The table was dropped.

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
            books.backfill("double")
            report = books.report()
            report.save("report.html")
            assert (report.jobs, report.running) == (1, 0)
            ```
        """
        return make_report(
            self.uri, [self._reported()], total=None, spark=SparkSession.getActiveSession()
        )

    def _reported(self) -> ReportedTable:
        return ReportedTable(
            name=self.name, uri=self.uri, ref=self._latest, checkpoints=self._checkpoint
        )


class TableViews(TableReports):
    """The methods of :class:`lance_spark.Table` for materialized views."""

    @takes(RefreshRequest)
    def refresh(self, request: RefreshRequest) -> RefreshJobResult:  # noqa: D417 - the fields are described
        """Refreshes this materialized view from its source, and returns when the job has ended.

        One commit adds new rows of the source, rewrites rows with changed values in columns of the
        view, and removes rows deleted in the source or no longer selected.
        Unchanged fragments of the source are not read, and a compaction of the source changes
        nothing. Then columns of UDFs are computed as in :meth:`backfill`, for new rows and rows
        with changed inputs. They are NULL until their fragment is committed.

        Args:
            where: Refused: the query of the view selects its rows.
            src_version: Version of the source to show, also an older version; by default the
                latest.
            max_rows_per_fragment: Maximum rows of a fragment of the view, by default 1,048,576.
            concurrency: Maximum number of concurrent tasks of the job; None uses all slots of the
                cluster.
            intra_applier_concurrency: Threads per task for calls of a UDF.
            _admission_check: As in :meth:`backfill`.
            _admission_strict: As in :meth:`backfill`.

        Returns:
            The result of the job.

        Raises:
            ViewError: The table is no materialized view, or was made from a DataFrame, or a session
                of Spark Connect has other settings than the session of its creation.
            ViewSourceError: The source was dropped, created again or overwritten, or lacks a
                column.
            StableRowIdsError: The source has no stable row ids, and the view shows another version
                of the source. Also a `RuntimeError`.
            VersionNotFoundError: The source has no such version.
            BackfillIncompleteError: Tasks failed, or rows have no value in a column of a UDF.
            CommitConflictError: Concurrent writers of the view won every round.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select(["id"]).where("price > 50")
            view = query.create_materialized_view(db, "expensive")
            assert view.refresh().rows_added == 4
            books.add([{"id": 10, "price": 100}])
            assert view.refresh().rows_added == 1
            ```
        """
        return wait(self._start_refresh(request), None)

    @takes(RefreshRequest)
    def refresh_async(self, request: RefreshRequest) -> Job[RefreshJobResult]:
        """Starts a refresh, and returns its handle at once.

        Wrong arguments raise before the job starts. The parameters are those of :meth:`refresh`.

        Raises:
            LanceSparkError: An argument is wrong, as in :meth:`refresh`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select(["id"]).where("price > 50")
            view = query.create_materialized_view(db, "expensive")
            assert view.refresh_async().result().rows_added == 4
            ```
        """
        return self._start_refresh(request)

    def alter_view(self, *, auto_refresh: bool) -> ChangeResult:
        """Changes whether an agent refreshes this materialized view.

        Args:
            auto_refresh: As in :meth:`lance_spark.Connection.create_materialized_view`.

        Raises:
            ViewError: The table is no materialized view. Nothing was changed.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select(["id"]).where("price > 50")
            view = db.create_materialized_view("expensive", query, auto_refresh=True)
            view.alter_view(auto_refresh=False)
            assert db.agent().plan().steps == ()
            ```
        """

        def alter(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
            existing_view(head)
            if is_auto_refreshed(head) == auto_refresh:
                return None
            return set_schema_metadata(
                {AUTO_REFRESH_KEY.decode(): "true" if auto_refresh else None}
            )

        return ChangeResult(version=change_schema(self._ref, alter).version)

    def plan_refresh(self, src_version: int | None = None) -> RefreshPlan:
        """Describes what a refresh would do. Starts no Spark job.

        Counts rows in this process: the count reads the row ids and the used columns of changed
        fragments of the source.

        Args:
            src_version: As in :meth:`refresh`.

        Raises:
            LanceSparkError: An argument is wrong, as in :meth:`refresh`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select(["id"]).where("price > 50")
            view = query.create_materialized_view(db, "expensive")
            assert view.plan_refresh().rows_added == 4
            ```
        """
        return plan_refresh(
            self._ref, src_version, table_name=self.name, checkpoints=self._checkpoint
        )

    def _start_refresh(
        self, request: RefreshRequest, job_id: str | None = None, budget: Spending = UNLIMITED
    ) -> Job[RefreshJobResult]:
        job = RefreshJob(
            self._spark(),
            self._ref,
            request,
            table_name=self.name,
            checkpoints=self._checkpoint,
            job_id=job_id,
            budget=budget,
            progress=lambda title: Progress(title=title, enabled=self._progress),
        )
        return Job(job, job.job_id, self.name, job.columns, "refresh").start()
