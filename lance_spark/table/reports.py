"""Reports of a table: a part of its facade."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lance_spark.report.report import Report, ReportedTable, make_report
from lance_spark.table.versions import TableVersions


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
        return make_report(self.uri, [self._reported()], total=None, spark=SparkSession.getActiveSession())

    def _reported(self) -> ReportedTable:
        return ReportedTable(name=self.name, uri=self.uri, ref=self._latest, checkpoints=self._checkpoint)
