"""Jobs of a table and the errors of its rows: a part of the facade of a table."""

from __future__ import annotations

from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.row_errors import ErrorRecord
from lance_spark.rebase.row_origins import latest_addresses
from lance_spark.table.versions import TableVersions


class TableJobs(TableVersions):
    """The methods of :class:`lance_spark.Table` for the history of its jobs."""

    def list_jobs(self) -> list[JobRecord]:
        """Returns the jobs of the table, newest first. A job without a living driver is DEAD.

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
            assert [job.status for job in books.list_jobs()] == ["DONE"]
            ```
        """
        return JobHistory(self._latest).jobs()

    def get_job(self, job_id: str) -> JobRecord:
        """Returns one job of the table.

        Raises:
            JobNotFoundError: The history has no such job.

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
            assert books.get_job(result.job_id).status == "DONE"
            ```
        """
        return JobHistory(self._latest).job(job_id)

    def get_errors(
        self,
        job_id: str | None = None,
        column_name: str | None = None,
        error_type: str | None = None,
    ) -> list[ErrorRecord]:
        """Returns error records, oldest first.

        Args:
            job_id: Only errors of this job.
            column_name: Only errors of this column.
            error_type: Only errors of this exception type, with or without its module.

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
            assert books.get_errors(column_name="double") == []
            ```
        """
        return JobHistory(self._latest).errors(job_id, column_name, error_type)

    def get_failed_row_addresses(self, job_id: str, column_name: str) -> list[int]:
        """Returns the addresses of the rows that failed in a job: ascending, each address once.

        The addresses belong to the latest version: a row moved by a compaction has its new
        address. So `backfill(column, where=f"_rowaddr IN ({...})")` computes exactly these rows
        again. Rows deleted or updated since are left out.

        Args:
            job_id: The job.
            column_name: The column.

        Raises:
            JobNotFoundError: The history has neither the job nor its errors.

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
            assert books.get_failed_row_addresses(result.job_id, "double") == []
            ```
        """
        errors = self.get_errors(job_id, column_name)
        if not errors:
            self.get_job(job_id)
        addresses = [
            (error.table_version, error.row_address)
            for error in errors
            if error.row_address is not None
        ]
        return latest_addresses(self._latest, addresses)
