"""Indexes of a table: a part of its facade."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from lance_spark.display import warn_caller
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.indexes import listing, upkeep
from lance_spark.indexes.build import build_index
from lance_spark.indexes.configs import IndexDescription
from lance_spark.indexes.definition import (
    IndexDefinition,
    VectorKind,
    scalar_index,
    text_indexes,
    vector_index,
)
from lance_spark.indexes.listing import IndexConfig, IndexStatistics
from lance_spark.table.versions import TableVersions

VECTOR_COLUMN = "vector"
"""The column of vectors where none is named."""

RESULT_ORDER = "Results are in the order of their scores"


def refuse_argument(method: str, name: str, value: object, remedy: str) -> None:
    """Refuses an argument that other databases have.

    Raises:
        UnsupportedOperationError: The argument has a value.
    """
    if value is not None:
        raise UnsupportedOperationError(
            f"The argument {name} is not available in {method}. Leave it out. {remedy}."
        )


def ignore_cache_size(method: str, size: int | None) -> None:
    """Warns that a size of the cache of indexes, which other databases have, has no effect."""
    if size is not None:
        warn_caller(
            f"{method} ignores index_cache_size, because Lance sizes its cache by itself. Leave it out.",
            DeprecationWarning,
        )


_METRIC = "L2"


class TableIndexes(TableVersions):
    """The methods of :class:`lance_spark.Table` for indexes."""

    def create_index(  # noqa: PLR0913 - the specification's parameters
        self,
        metric: str = _METRIC,
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
        vector_column_name: str = VECTOR_COLUMN,
        replace: bool = True,
        accelerator: str | None = None,
        index_cache_size: int | None = None,
        *,
        index_type: VectorKind = "IVF_PQ",
        num_bits: int | None = None,
        max_iterations: int = 50,
        sample_rate: int = 256,
        m: int = 20,
        ef_construction: int = 300,
        target_partition_size: int | None = None,
        name: str | None = None,
        config: IndexDescription | None = None,
        wait_timeout: timedelta | None = None,
    ) -> None:
        """Creates an index of a column of vectors, in Spark's tasks, and commits the index.

        With `config`, the first argument is the column, and the index is of any kind:
        `create_index("price", config=BTree())`.

        The index has the rows at its start. A scan finds later rows until :meth:`optimize_indices`.
        NULL vectors are never found.

        Args:
            metric: Distance: `L2`, `cosine`, `dot`, or `hamming` for `uint8`. The column, with
                `config`.
            num_partitions: Clusters of vectors; by default 1 for 4,096 rows, and for HNSW 1 for
                1,048,576.
            num_sub_vectors: Parts of a vector that PQ stores a byte for; by default 1 for 16
                elements.
            vector_column_name: The column: vectors of one length, of floating-point numbers.
            replace: Whether the index replaces an index of its name.
            accelerator: Refused: models are trained on the CPUs of one task.
            index_cache_size: Ignored with a warning: Lance sizes its cache by itself.
            index_type: How vectors are stored: unchanged (`FLAT`) or compressed (`PQ` and `RQ`
                most, `SQ` to a byte an element), and whether each partition has a graph (`HNSW`).
            num_bits: Bits that PQ stores for each part: 8 (default) or 4. Bits that RQ stores for
                each element, by default 1.
            max_iterations: Maximum rounds of training.
            sample_rate: Vectors of a partition for training, in the memory of a task.
            m: Edges of each vector in a graph.
            ef_construction: Candidates for each edge while a graph is made.
            target_partition_size: Rows of a partition, in place of `num_partitions`.
            name: Name of the index; by default the column's and `_idx`.
            config: Kind and parameters, in place of all parameters but `replace`, `name` and
                `wait_timeout`.
            wait_timeout: Maximum time to wait for rows that concurrent writers added during the
                build, as :meth:`wait_for_index` does; by default the call does not wait.

        Raises:
            OptionError: A parameter is not valid, or does not fit the column.
            ColumnNotFoundError, UnsupportedTypeError: The table has no such column, or no vectors
                in it.
            IndexExistsError: An index of this name exists, and `replace` is false or the index is
                of another column or kind.
            IndexBuildError: A task failed, for example because PQ has fewer than 256 vectors to
                train a model. Nothing was changed.
            CommitImpossibleError: The column was dropped or cast concurrently. Nothing was changed.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            db = lance_spark.connect("library")
            vectors = pa.array([[i, 1.0, 0.0, 0.0] for i in range(300)], pa.list_(pa.float32(), 4))
            books = db.create_table("vectors", pa.table({"vector": vectors}))
            books.create_index(index_type="IVF_FLAT", num_partitions=2)
            assert books.search([3.0, 1.0, 0.0, 0.0]).limit(1).to_arrow().num_rows == 1
            ```
        """
        if config is not None:
            is_given = metric != _METRIC or metric in self._ref.open_latest().schema.names
            column = (
                metric if is_given and vector_column_name == VECTOR_COLUMN else vector_column_name
            )
            self._build(config.define(column, name=name, replace=replace), wait_timeout)
            return
        refuse_argument(
            "create_index", "accelerator", accelerator, "Models are trained on the CPUs of one task"
        )
        ignore_cache_size("create_index", index_cache_size)
        numbers = {
            "num_partitions": num_partitions,
            "num_sub_vectors": num_sub_vectors,
            "num_bits": num_bits
            if num_bits is not None
            else 1
            if str(index_type).upper() == "IVF_RQ"
            else 8,
            "target_partition_size": target_partition_size,
            "max_iters": max_iterations,
            "sample_rate": sample_rate,
            "m": m,
            "ef_construction": ef_construction,
        }
        definition = vector_index(
            vector_column_name, index_type, metric, name=name, replace=replace, numbers=numbers
        )
        self._build(definition, wait_timeout)

    def create_scalar_index(
        self,
        column: str,
        *,
        replace: bool = True,
        index_type: Literal[
            "BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER"
        ] = "BTREE",
        name: str | None = None,
        wait_timeout: timedelta | None = None,
    ) -> None:
        """Creates an index for filters, in Spark's tasks, and commits the index.

        `df.filter(...)`, SQL, the option `filter`, and `where` and prefilters of searches use the
        index.

        Args:
            column: The column; a nested field with dots.
            replace: Whether the index replaces an index of its name.
            index_type: `BTREE` for comparisons of columns with many values, `BITMAP` with few,
                `LABEL_LIST` for `array_has_any`, `array_has_all` and `array_contains` of lists,
                `NGRAM` for `contains(text, ...)`, `ZONEMAP` and `BLOOMFILTER` (or `BLOOM`) for
                little space: they exclude parts of a file.
            name: Name of the index; by default the column's and `_idx`.
            wait_timeout: As in :meth:`create_index`.

        Raises:
            OptionError: The kind is unknown.
            ColumnNotFoundError, UnsupportedTypeError: The table has no such column, or the column
                has a type of another kind.
            IndexExistsError, IndexBuildError, CommitImpossibleError: As in :meth:`create_index`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            assert [index.name for index in books.list_indices()] == ["price_idx"]
            ```
        """
        self._build(scalar_index(column, index_type, name=name, replace=replace), wait_timeout)

    def create_fts_index(  # noqa: PLR0913 - the specification's parameters
        self,
        field_names: str | list[str],
        *,
        ordering_field_names: str | list[str] | None = None,
        replace: bool = False,
        writer_heap_size: int | None = 1024 * 1024 * 1024,
        tokenizer_name: str | None = None,
        with_position: bool = True,
        base_tokenizer: str = "simple",
        language: str = "English",
        max_token_length: int | None = 40,
        lower_case: bool = True,
        stem: bool = False,
        remove_stop_words: bool = False,
        ascii_folding: bool = False,
        ngram_min_length: int = 3,
        ngram_max_length: int = 3,
        prefix_only: bool = False,
        block_size: Literal[128, 256] = 128,
        custom_stop_words: Sequence[str] | None = None,
        name: str | None = None,
        wait_timeout: timedelta | None = None,
    ) -> None:
        """Creates an index for full-text search, in Spark's tasks, and commits the index.

        Args:
            field_names: The column of strings, or of lists of strings. A list of columns makes an
                index of each.
            ordering_field_names: Refused: results are ordered by score.
            replace: Whether the index replaces an index of its name.
            writer_heap_size: Approximate bytes of memory for each task.
            tokenizer_name: Refused: `base_tokenizer`, `language` and `stem` describe the tokens.
            with_position: Whether to store positions, for phrases; the index is larger.
            base_tokenizer: How to split words: at white space and punctuation (`simple`), at white
                space (`whitespace`), not at all (`raw`), by the rules of Unicode (`icu`, or
                `icu/split` with punctuation as in `simple`), or into parts of words (`ngram`).
                `jieba/default` and `lindera/ipadic` need a language model below
                `LANCE_LANGUAGE_MODEL_HOME` on each machine.
            language: Language of stems and stop words.
            max_token_length: Longest word; None keeps all.
            lower_case: Whether to ignore case.
            stem: Whether to reduce words to their stems.
            remove_stop_words: Whether to leave out words such as `the`.
            ascii_folding: Whether to ignore accents.
            ngram_min_length: Minimum letters of the parts of `ngram`.
            ngram_max_length: Maximum letters of the parts of `ngram`.
            prefix_only: Whether `ngram` makes parts of the beginning of words only.
            block_size: Rows of a block of the index.
            custom_stop_words: Words to leave out, in place of the language's.
            name: Name of the index; by default the column's and `_idx`.
            wait_timeout: As in :meth:`create_index`.

        Raises:
            OptionError: A parameter is not valid.
            ColumnNotFoundError, UnsupportedTypeError: The table has no such column, or no text in
                it.
            IndexExistsError, IndexBuildError, CommitImpossibleError: As in :meth:`create_index`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            notes = db.create_table("notes", [{"text": "a red apple"}, {"text": "a green pear"}])
            notes.create_fts_index("text")
            assert notes.search("apple").to_list()[0]["text"] == "a red apple"
            ```
        """
        refuse_argument(
            "create_fts_index", "ordering_field_names", ordering_field_names, RESULT_ORDER
        )
        refuse_argument(
            "create_fts_index",
            "tokenizer_name",
            tokenizer_name,
            "Choose the tokens with base_tokenizer, language and stem",
        )
        tokens = {
            "with_position": with_position,
            "base_tokenizer": base_tokenizer,
            "language": language,
            "max_token_length": max_token_length,
            "lower_case": lower_case,
            "stem": stem,
            "remove_stop_words": remove_stop_words,
            "ascii_folding": ascii_folding,
            "ngram_min_length": ngram_min_length,
            "ngram_max_length": ngram_max_length,
            "prefix_only": prefix_only,
            "block_size": block_size,
            "custom_stop_words": custom_stop_words,
        }
        for definition in text_indexes(
            field_names, name=name, replace=replace, memory_bytes=writer_heap_size, tokens=tokens
        ):
            self._build(definition, wait_timeout)

    def _build(self, definition: IndexDefinition, wait_timeout: timedelta | None) -> None:
        build_index(self._spark, self._ref, definition)
        if wait_timeout is not None:
            self.wait_for_index(definition.name, wait_timeout)

    def list_indices(self) -> list[IndexConfig]:
        """Returns the indexes of the checked out version, by name. Starts no Spark job.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            assert [index.name for index in books.list_indices()] == ["price_idx"]
            ```
        """
        return listing.list_indices(self._shown.open())

    def index_stats(self, index_name: str) -> IndexStatistics:
        """Returns the kind of an index and the number of its rows in the checked out version.

        Starts no Spark job, and reads only the manifest of the table.

        Raises:
            IndexNotFoundError: The table has no such index.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            assert books.index_stats("price_idx").num_indexed_rows == 10
            ```
        """
        return listing.index_stats(self._shown.open(), index_name)

    def drop_index(self, name: str) -> None:
        """Drops an index. Its files stay until a cleanup of the versions with the index.

        Raises:
            IndexNotFoundError: The table has no such index.
            CommitConflictError: Concurrent writers changed the table again and again.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            books.drop_index("price_idx")
            assert books.list_indices() == []
            ```
        """
        upkeep.drop_index(self._ref, name)

    def wait_for_index(
        self, index_names: str | Sequence[str], timeout: timedelta = timedelta(seconds=300)
    ) -> None:
        """Waits until indexes exist and serve all rows of the latest version.

        `create_*_index` and :meth:`optimize_indices` of this process return only then. Wait for
        indexes of another process.

        Raises:
            IndexTimeoutError: The indexes are not ready in time. Also a `TimeoutError`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            books.wait_for_index("price_idx")
            ```
        """
        upkeep.wait_for_index(self._latest, _to_list(index_names), timeout.total_seconds())

    def optimize_indices(
        self,
        index_names: str | Sequence[str] | None = None,
        *,
        num_indices_to_merge: int | None = None,
        retrain: bool = False,
    ) -> None:
        """Adds missing rows to indexes, in one Spark task for each index.

        An index of vectors keeps its model: new vectors go to its partitions.

        Args:
            index_names: Names of the indexes; None means all.
            num_indices_to_merge: Number of parts of an index of vectors that are merged with the
                new rows; 0 makes a new part, None leaves the choice to Lance. Other indexes become
                one part.
            retrain: Whether to train the models of indexes of vectors again, over all rows.

        Raises:
            IndexNotFoundError: The table has no such index.
            IndexBuildError: A task failed, and the index is unchanged.
            CommitConflictError: Concurrent writers won every round.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.create_scalar_index("price")
            books.add([{"id": 10, "price": 100}])
            books.optimize_indices()
            assert books.index_stats("price_idx").num_unindexed_rows == 0
            ```
        """
        number = num_indices_to_merge
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or number < 0
        ):
            raise OptionError("num_indices_to_merge", number, "a whole number, 0 or more")
        ref = self._ref
        names = (
            [index.name for index in self.list_indices()]
            if index_names is None
            else _to_list(index_names)
        )
        upkeep.optimize_indices(self._spark, ref, names, merge=number, retrain=retrain)


def _to_list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
