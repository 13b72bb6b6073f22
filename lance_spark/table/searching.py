"""Queries and searches of a table: a part of its facade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

from lance_spark.errors import OptionError
from lance_spark.indexes.listing import tokenize
from lance_spark.ingest.streams import is_spark
from lance_spark.queries.text import FullTextQuery
from lance_spark.search.batch import BatchSearch, batch_search_of
from lance_spark.search.query import Query
from lance_spark.search.search import Search, VectorLike, search_of
from lance_spark.search.take import TakeQuery, row_numbers
from lance_spark.table.indexes import RESULT_ORDER, refuse_argument
from lance_spark.table.versions import TableVersions

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import FtsToken
    from pyspark.sql import DataFrame


class TableSearching(TableVersions):
    """The methods of :class:`lance_spark.Table` that begin queries."""

    @overload
    def search(self, query: None = None) -> Query: ...

    @overload
    def search(
        self,
        query: DataFrame,
        vector_column_name: str | None = None,
        query_type: Literal["vector", "auto"] = "auto",
    ) -> BatchSearch: ...

    @overload
    def search(
        self,
        query: VectorLike | Sequence[VectorLike] | str | FullTextQuery | None = None,
        vector_column_name: str | None = None,
        query_type: Literal["vector", "fts", "hybrid", "auto"] = "auto",
        ordering_field_name: str | None = None,
        fts_columns: str | list[str] | None = None,
    ) -> Search: ...

    def search(
        self,
        query: VectorLike | Sequence[VectorLike] | str | FullTextQuery | DataFrame | None = None,
        vector_column_name: str | None = None,
        query_type: Literal["vector", "fts", "hybrid", "auto"] = "auto",
        ordering_field_name: str | None = None,
        fts_columns: str | list[str] | None = None,
    ) -> Query:
        """Starts a query of the table: rows by a condition, nearest vectors, or best texts.

        `to_spark`, `to_arrow`, `to_pandas`, `to_polars`, `to_list` and `to_batches` read the rows.
        Indexes serve the query, and a scan finds the rows outside of an index.

        Args:
            query: A vector, words, or a query object such as :class:`lance_spark.MatchQuery`. A
                list of vectors returns the rows of each vector, with its number in `query_index`;
                for a column of lists of vectors, the list is one query. A Spark DataFrame with a
                column of vectors is for many (:class:`lance_spark.BatchSearch`). None starts a
                hybrid search, or a query of rows by `where`, the source of a materialized view.
            vector_column_name: The column of vectors; by default the only such column of the table.
            query_type: `vector`; `fts` for words; `hybrid` for both, set with `vector` and `text`;
                `auto` is `fts` for a string, else `vector`.
            ordering_field_name: Refused: results are ordered by score.
            fts_columns: Columns of text; by default the columns with a full-text index.

        Raises:
            OptionError: The query, its type or a column is not valid.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.search(None).where("price > 50").select(["id"]).to_arrow().num_rows == 4
            ```
        """
        refuse_argument("search", "ordering_field_name", ordering_field_name, RESULT_ORDER)
        rows = Query(source=self._shown, spark=self._query_spark)
        if is_spark(query):
            if query_type not in ("auto", "vector") or fts_columns is not None:
                raise OptionError(
                    "query_type", query_type, "vector, where the queries are a DataFrame"
                )
            return batch_search_of(cast("DataFrame", query), rows, vector_column_name)
        if query is None and query_type == "auto":
            if vector_column_name is not None or fts_columns is not None:
                raise OptionError(
                    "query", None, "a vector or words, where a column to search is named"
                )
            return rows
        return search_of(
            query,
            rows,
            vector_column_name=vector_column_name,
            query_type=query_type,
            fts_columns=fts_columns,
        )

    def take_offsets(self, offsets: Sequence[int], *, with_row_id: bool = False) -> TakeQuery:
        """Starts a query of the rows at some offsets: their positions in the checked out version.

        The rows come in the order of the offsets, and a repeated offset repeats its row. An offset
        behind the last row has no row.

        Args:
            offsets: The offsets, from 0.
            with_row_id: Whether the result has the column `_rowid`.

        Raises:
            OptionError: An offset is negative, or no integer.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.take_offsets([5, 2]).select(["id"]).to_list() == [{"id": 5}, {"id": 2}]
            ```
        """
        return self._take("offsets", offsets, with_row_id)

    def take_row_ids(self, row_ids: Sequence[int], *, with_row_id: bool = False) -> TakeQuery:
        """Starts a query of the rows with some ids, the values of `_rowid`.

        An id without a row is left out.

        Args:
            row_ids: The ids.
            with_row_id: Whether the result has the column `_rowid`.

        Raises:
            OptionError: An id is negative, or no integer.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.delete("id < 5")
            ids = books.search().where("id = 7").with_row_id().to_arrow()["_rowid"].to_pylist()
            assert books.take_row_ids(ids).to_list() == [{"id": 7, "price": 70}]
            ```
        """
        return self._take("row_ids", row_ids, with_row_id)

    def _take(
        self, kind: Literal["offsets", "row_ids"], numbers: Sequence[int], with_row_id: bool
    ) -> TakeQuery:
        return TakeQuery(
            source=self._shown,
            spark=self._query_spark,
            kind=kind,
            numbers=row_numbers(kind, numbers),
            row_ids=with_row_id,
        )

    def __getitems__(self, offsets: Sequence[int]) -> pa.Table:
        """Returns the rows at some offsets, for a loader of PyTorch."""
        return self.take_offsets(offsets).to_arrow()

    def tokenize(
        self, query: str, *, column: str | None = None, index_name: str | None = None
    ) -> list[FtsToken]:
        """Splits a text into words, as a full-text index does.

        Lance does not describe `custom_stop_words` of an index, and such words stay in the result.

        Args:
            query: The text.
            column: The column with a full-text index.
            index_name: The name of an index, in place of `column`.

        Returns:
            The words in order, with the attributes `text` and `position`.

        Raises:
            OptionError: Neither or both of `column` and `index_name` are given, or the column has
                no full-text index.
            IndexNotFoundError: The index does not exist.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"title": "Running in cafés"}])
            books.create_index("title", config=lance_spark.FTS())
            words = books.tokenize("Running in cafés", column="title")
            assert [word.text for word in words] == ["run", "cafe"]
            ```
        """
        return tokenize(self._shown.open(), query, column=column, index_name=index_name)
