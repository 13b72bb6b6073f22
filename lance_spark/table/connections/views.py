"""New materialized views: a part of the facade of a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, RegistrationError
from lance_spark.search.query import Query
from lance_spark.table.connections.folders import FolderTables
from lance_spark.table.connections.namespaces import NamespaceTables
from lance_spark.views.create import create_spark_view, create_view
from lance_spark.views.spark.query import text_query
from udf_runtime import UDF, Manifest, as_udf
from udf_runtime.definition import UdfFactory

if TYPE_CHECKING:
    from lance_spark.table.table import Table


class ConnectionViews(ABC):
    """The methods of :class:`lance_spark.Connection` for new views."""

    _tables: FolderTables | NamespaceTables

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
    def _session(self) -> SparkSession: ...

    @abstractmethod
    def _choose_place(self, name: str, namespace: Sequence[str] | None) -> DatasetRef: ...

    @abstractmethod
    def _table_at(self, ref: DatasetRef, name: str) -> Table: ...

    @abstractmethod
    def _default_manifest(self, ref: DatasetRef) -> Manifest | None: ...

    def create_materialized_view(
        self,
        name: str,
        query: Query | str,
        *,
        auto_refresh: bool = False,
        namespace: Sequence[str] | None = None,
    ) -> Table:
        """Creates a materialized view without rows.

        :meth:`lance_spark.Table.refresh` fills the view.

        The view is a table: it can be read and indexed, have computed columns, and be the source of
        another view. The column `__source_row_id` (int64) holds the row id of the source row. The
        metadata of the schema store the query, without options of the object store.

        Args:
            name: Name of the view.
            query: A query over one table of a connection to the same store: `table.search(None)`
                with `select` and `where`, or a SELECT in Spark SQL, as text, FROM a table of this
                connection. Write a DataFrame as such a SELECT.
            auto_refresh: Whether an agent refreshes the view (:meth:`agent`). `view.alter_view`
                changes it.
            namespace: As in :meth:`table_names`.

        Returns:
            The view.

        Raises:
            TableExistsError: A table has this name.
            RegistrationError: The query cannot be a view, or does not fit its source.
            ColumnNotFoundError: The source has no such column.
            FilterError: The condition is not valid.
            UnsupportedTypeError: Lance cannot store a column.
            OptionError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so a refresh cannot follow its changes.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select({"cents": "price * 100"}).where("price < 50")
            view = db.create_materialized_view("cheap_books", query)
            assert view.refresh().rows_added == 5
            ```
        """
        ref = self._choose_place(name, namespace)
        if isinstance(query, Query):
            create_view(ref, query, auto_refresh=auto_refresh, manifest=self._default_manifest(ref))
        else:
            text = text_query(self._session(), query, self._source_of_view)
            create_spark_view(ref, text, auto_refresh=auto_refresh)
        return self._table_at(ref, name)

    def create_udtf_view(
        self,
        name: str,
        source: Query,
        udtf: UDF | UdfFactory,
        *,
        manifest: Manifest | None = None,
        auto_refresh: bool = False,
        namespace: Sequence[str] | None = None,
    ) -> Table:
        """Creates a view of the rows made by a chunker or a table function from a query.

        The view has no rows until :meth:`lance_spark.Table.refresh` fills it. The view of a chunker
        follows its source row by row. Its columns are `__source_row_id` (int64, the row id of the
        source row), `__child_index` (int64, the number of the chunk in its row, from 0), the
        selected columns, and the columns of the chunks. A table function is called again by each
        refresh, with all rows of the query, and the view has its rows.

        Args:
            name: Name of the view.
            source: A query over one table: `table.search(None)`, with `where` for its rows. For a
                chunker, `select` adds columns of the source, by default none. For a table function,
                `select` lists its input columns, by default all.
            udtf: The function, decorated with `@chunker` or `@udtf`.
            manifest: The environment of a function without a manifest; by default the
                connection's environment.
            auto_refresh: As in :meth:`create_materialized_view`.
            namespace: As in :meth:`table_names`.

        Returns:
            The view.

        Raises:
            TableExistsError: A table has this name.
            RegistrationError: The function is neither decorated nor fits the source.
            ColumnNotFoundError, FilterError, UnsupportedTypeError: As in
                :meth:`create_materialized_view`.
            OptionError, UnsupportedOperationError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so a refresh cannot follow its changes.

        Example:
            ```python
            from collections.abc import Iterator
            from typing import NamedTuple

            import lance_spark
            from lance_spark import chunker


            class Word(NamedTuple):
                word: str


            @chunker
            def split(text: str) -> Iterator[Word]:
                yield from map(Word, text.split())


            db = lance_spark.connect("library")
            notes = db.create_table("notes", [{"id": 1, "text": "so many words"}])
            words = db.create_udtf_view("words", notes.search(None).select(["id"]), split)
            words.refresh()
            assert words.count_rows() == 3
            ```
        """
        if not isinstance(source, Query):
            raise OptionError("source", source, "a query over one table: table.search(None)")
        function = as_udf(udtf)
        if function is None or not function.kind.makes_rows:
            raise RegistrationError(
                f"{udtf!r} makes no rows, as a view of create_udtf_view needs. Decorate a function with @chunker or "
                "@udtf, or select a UDF with one value per row in create_materialized_view."
            )
        ref = self._choose_place(name, namespace)
        default = self._default_manifest(ref) if manifest is None else manifest
        create_view(ref, source, function, auto_refresh=auto_refresh, manifest=default)
        return self._table_at(ref, name)

    def _source_of_view(self, name: tuple[str, ...]) -> tuple[DatasetRef, tuple[str, ...]]:
        """Returns the table of a SELECT, with its full name."""
        *namespace, table_name = name
        is_folder = isinstance(self._tables, FolderTables)
        ref = None if namespace and is_folder else self._tables.lookup(table_name, namespace)
        if ref is not None:
            return ref, name
        raise RegistrationError(
            f"The query of the view selects from {'.'.join(name)!r}, which is no table of this connection. Select from "
            f"one of its tables: {', '.join(self.table_names()) or 'there is none yet'}."
        )
