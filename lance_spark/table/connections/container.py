"""A connection as a container of its tables, with the habits of LanceDB: a part of the facade."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    TableExistsError,
    UnsupportedOperationError,
    refusals_as_errors,
)
from lance_spark.options.io_options import check_number
from lance_spark.report.report import Report, ReportedTable, make_report
from lance_spark.staging.table_folder import check_new_table

if TYPE_CHECKING:
    from lance_namespace import ListTablesResponse

    from lance_spark.table.table import Table


class TableContainer(ABC):
    """The methods of :class:`lance_spark.Connection` for all of its tables."""

    uri: str
    storage_options: dict[str, str]
    _spark: SparkSession | None

    @abstractmethod
    def table_names(
        self,
        page_token: str | None = None,
        limit: int | None = None,
        *,
        namespace: Sequence[str] | None = None,
    ) -> list[str]:
        """Returns the sorted names of all tables, or of a page of tables."""

    @abstractmethod
    def drop_table(self, name: str) -> None:
        """Deletes a table."""

    @abstractmethod
    def open_table(self, name: str, *, namespace: Sequence[str] | None = None) -> Table:
        """Opens a table."""

    @abstractmethod
    def _ref_of(self, name: str) -> DatasetRef:
        """Returns a table of the folder, which may be absent."""

    def __contains__(self, name: object) -> bool:
        """Tells whether a table has this name: `"books" in db`."""
        return name in self.table_names()

    def __len__(self) -> int:
        """Returns the number of tables."""
        return len(self.table_names())

    def __iter__(self) -> Iterator[str]:
        """Yields the sorted names of the tables."""
        return iter(self.table_names())

    def __getitem__(self, name: str) -> Table:
        """Opens a table: `db["books"]`."""
        return self.open_table(name)

    def list_tables(
        self,
        namespace: Sequence[str] | None = None,
        page_token: str | None = None,
        limit: int | None = None,
    ) -> ListTablesResponse:
        """Returns a page of the sorted names of the tables, as LanceDB does.

        Args:
            namespace: The names from the root of a namespace to the namespace of the tables.
            page_token: The token of the previous page; None begins with the first table.
            limit: Maximum number of names; None is no limit.

        Returns:
            The names as `tables`, and the token of the next page as `page_token`, or None.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.create_table("authors", [{"name": "Goethe"}])
            page = db.list_tables(limit=1)
            assert page.tables == ["authors"]
            assert db.list_tables(page_token=page.page_token).tables == ["books"]
            ```
        """
        from lance_namespace import ListTablesResponse

        check_number("limit", limit, least=1)
        names = self.table_names(page_token, namespace=namespace)
        page = names[:limit]
        return ListTablesResponse(
            tables=page, page_token=page[-1] if len(page) < len(names) else None
        )

    def drop_database(self) -> None:
        """Deletes all tables of the folder: LanceDB's former name of :meth:`drop_all_tables`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.drop_database()
            assert len(db) == 0
            ```
        """
        self.drop_all_tables()

    def drop_all_tables(self) -> None:
        """Deletes all tables of the folder, as :meth:`drop_table` does.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.create_table("authors", [{"name": "Goethe"}])
            db.drop_all_tables()
            assert len(db) == 0
            ```
        """
        for name in self.table_names():
            self.drop_table(name)

    def report(self, *, namespace: Sequence[str] | None = None) -> Report:
        """Returns a page about the jobs and the tables of this connection.

        Reads metadata and the histories of jobs. Starts no Spark session. The page has the first
        100 tables and the latest 200 jobs. With an active session of Spark in this process, the
        page also has its streaming queries.

        Args:
            namespace: As in :meth:`table_names`.

        Raises:
            OptionError: A folder has no namespaces.
            NamespaceError: The namespace does not answer, or refuses.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            report = db.report()
            report.save("report.html")
            assert report.tables == 1
            ```
        """
        names = self.table_names(namespace=namespace)
        place = ".".join((self.uri, *(namespace or ())))
        spark = self._spark or SparkSession.getActiveSession()
        tables = (self._reported_table(name, namespace) for name in names)
        return make_report(place, tables, total=len(names), spark=spark)

    def _reported_table(self, name: str, namespace: Sequence[str] | None) -> ReportedTable:
        try:
            return self.open_table(name, namespace=namespace)._reported()  # noqa: SLF001 - of the same facade
        except LanceSparkError as error:
            return ReportedTable(name=name, uri=name, problem=str(error))

    def clone_table(
        self,
        target_table_name: str,
        source_uri: str,
        *,
        source_version: int | None = None,
        source_tag: str | None = None,
        is_shallow: bool = True,
    ) -> Table:
        """Creates a table from a version of another table, without a copy of its data.

        The clone reads the data files of the source, and writes its own files. Keep the version of
        the source: a cleanup or a drop of the source deletes files that the clone needs. Tag the
        version of the source before the clone.

        Args:
            target_table_name: Name of the new table.
            source_uri: Location of the source, in a store with the same options.
            source_version: Version of the source; by default the latest.
            source_tag: Tag of the source, in place of a version.
            is_shallow: Refused if false: write `to_spark()` of the source to copy its data.

        Returns:
            The clone.

        Raises:
            TableNotFoundError: The source does not exist.
            TableExistsError: A table has the new name.
            VersionNotFoundError: The source has no such version or tag.
            OptionError: Both a version and a tag are given, or the name is not valid.
            UnsupportedOperationError: `is_shallow` is false.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            trial = db.clone_table("trial", books.uri)
            trial.add([{"id": 10, "price": 100}])
            assert (len(trial), len(books)) == (11, 10)
            ```
        """
        if not is_shallow:
            raise UnsupportedOperationError(
                "clone_table makes shallow clones only. Nothing was changed. To copy the data, write the rows of the "
                "source to a new table: db.create_table(name, db.open_table(source).to_spark())."
            )
        if source_version is not None and source_tag is not None:
            raise OptionError("source_tag", source_tag, "a version or a tag, and not both")
        version = source_version if source_tag is None else source_tag
        source = DatasetRef.at(source_uri, self.storage_options).pin(version)
        target = self._ref_of(target_table_name)
        if target.exists():
            raise TableExistsError(target.uri, hint="choose another name, or drop the table first")
        check_new_table(target)
        dataset = source.open()
        with refusals_as_errors(target.uri):
            dataset.shallow_clone(
                target.uri, dataset.version, storage_options=dict(target.storage_options)
            )
        return self.open_table(target_table_name)
