"""Indexes of a table: a part of its facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import SparkSession

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.indexes import listing, upkeep
from lance_spark.indexes.build import build_index
from lance_spark.indexes.definition import scalar_index, vector_index
from lance_spark.indexes.listing import IndexConfig, IndexStatistics
from lance_spark.indexes.text import text_indexes
from lance_spark.table.history.versions import TableVersions

VECTOR_COLUMN = "vector"
"""The column of vectors where none is named."""


class TableIndexes(TableVersions):
    """The methods of :class:`lance_spark.Table` for indexes."""

    _spark: Callable[[], SparkSession]

    def create_index(  # noqa: PLR0913 - the specification's parameters
        self,
        metric: str = "L2",
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
        vector_column_name: str = VECTOR_COLUMN,
        replace: bool = True,
        accelerator: str | None = None,
        index_cache_size: int | None = None,
        *,
        index_type: Literal["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ", "IVF_HNSW_PQ"] = "IVF_PQ",
        num_bits: int = 8,
        max_iterations: int = 50,
        sample_rate: int = 256,
        m: int = 20,
        ef_construction: int = 300,
        name: str | None = None,
    ) -> None:
        """Makes an index of a column of vectors, in Spark's tasks, and commits it.

        Rows are indexed as they are when it begins; those that come later are found by a scan,
        until :meth:`optimize_indices`. NULL vectors are never found.

        Args:
            metric: How distances are measured: `L2`, `cosine`, `dot`, or `hamming` for `uint8`.
            num_partitions: Clusters of vectors; by default one for 4,096 rows, of which HNSW has
                one for 1,048,576.
            num_sub_vectors: Parts of a vector that PQ stores a byte for; by default one for 16 of
                its elements.
            vector_column_name: The column: vectors of one length, of floating-point numbers.
            replace: Whether it takes the place of an index of its name.
            accelerator: Refused: models are trained on the CPUs of one task.
            index_cache_size: Refused: Lance sizes its cache by itself.
            index_type: Whether vectors are kept as they are (`IVF_FLAT`) or compressed (`PQ` most,
                `SQ` to a byte an element), and whether a graph (`HNSW`) is made of each partition.
            num_bits: Bits that PQ stores for each part: 8 or 4.
            max_iterations: Most rounds of training.
            sample_rate: Vectors for each partition that training looks at, in the memory of a task.
            m: Edges of each vector in a graph.
            ef_construction: Candidates for each edge while a graph is made.
            name: Name of the index; by default the column's and `_idx`.

        Raises:
            OptionError: A parameter is not valid, or does not fit the column.
            ColumnNotFoundError, UnsupportedTypeError: There is no such column, or it has no
                vectors.
            IndexExistsError: There is an index of this name, and it is not to be replaced, or is
                one of another column or kind.
            IndexBuildError: A task failed, for example because there are too few vectors to train a
                model of PQ: 256. Nothing was changed.
            CommitImpossibleError: The column was dropped or cast meanwhile. Nothing was changed.
        """
        for option, value, instead in (
            ("accelerator", accelerator, "models are trained on the CPUs of one task"),
            ("index_cache_size", index_cache_size, "Lance sizes its cache by itself"),
        ):
            if value is not None:
                raise UnsupportedOperationError(
                    f"{option} is not available - in create_index - leave it out: {instead}"
                )
        numbers = {
            "num_partitions": num_partitions,
            "num_sub_vectors": num_sub_vectors,
            "num_bits": num_bits,
            "max_iters": max_iterations,
            "sample_rate": sample_rate,
            "m": m,
            "ef_construction": ef_construction,
        }
        definition = vector_index(vector_column_name, index_type, metric, name=name, replace=replace, numbers=numbers)
        build_index(self._spark, self._ref, definition)

    def create_scalar_index(
        self,
        column: str,
        *,
        replace: bool = True,
        index_type: Literal["BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER"] = "BTREE",
        name: str | None = None,
    ) -> None:
        """Makes an index that answers filters, in Spark's tasks, and commits it.

        `df.filter(...)`, SQL, the option `filter`, and `where` and prefilters of searches use it.

        Args:
            column: The column; a nested field with dots.
            replace: Whether it takes the place of an index of its name.
            index_type: `BTREE` for comparisons of columns with many values, `BITMAP` with few,
                `LABEL_LIST` for `array_has_any`, `array_has_all` and `array_contains` of lists,
                `NGRAM` for `contains(text, ...)`, `ZONEMAP` and `BLOOMFILTER` (or `BLOOM`) for
                little space: which parts of a file may hold a value.
            name: Name of the index; by default the column's and `_idx`.

        Raises:
            OptionError: There is no such kind.
            ColumnNotFoundError, UnsupportedTypeError: There is no such column, or this kind is of
                other types.
            IndexExistsError, IndexBuildError, CommitImpossibleError: As in :meth:`create_index`.
        """
        build_index(self._spark, self._ref, scalar_index(column, index_type, name=name, replace=replace))

    def create_fts_index(  # noqa: PLR0913 - the specification's parameters
        self,
        field_names: str | list[str],
        *,
        ordering_field_names: str | list[str] | None = None,
        replace: bool = False,
        writer_heap_size: int | None = 1024 * 1024 * 1024,
        tokenizer_name: str | None = None,
        with_position: bool = True,
        base_tokenizer: Literal["simple", "raw", "whitespace"] = "simple",
        language: str = "English",
        max_token_length: int | None = 40,
        lower_case: bool = True,
        stem: bool = False,
        remove_stop_words: bool = False,
        ascii_folding: bool = False,
        name: str | None = None,
    ) -> None:
        """Makes an index for full-text search, in Spark's tasks, and commits it.

        Args:
            field_names: The column of strings, or of lists of strings; a list of columns makes an
                index of each.
            ordering_field_names: Refused: results are in the order of their scores.
            replace: Whether it takes the place of an index of its name.
            writer_heap_size: Bytes of memory that building takes, about, in each task.
            tokenizer_name: Refused: `base_tokenizer`, `language` and `stem` say how.
            with_position: Whether positions are kept, which phrases need; the index is larger.
            base_tokenizer: Whether words are what is between white space and punctuation
                (`simple`), between white space (`whitespace`), or the whole text is one (`raw`).
            language: Language of stems and stop words.
            max_token_length: Longest word that is kept; None keeps all.
            lower_case: Whether case makes no difference.
            stem: Whether words are cut to their stems.
            remove_stop_words: Whether words such as `the` are left out.
            ascii_folding: Whether accents make no difference.
            name: Name of the index; by default the column's and `_idx`.

        Raises:
            OptionError: A parameter is not valid.
            ColumnNotFoundError, UnsupportedTypeError: There is no such column, or it has no text.
            IndexExistsError, IndexBuildError, CommitImpossibleError: As in :meth:`create_index`.
        """
        for option, value, instead in (
            ("ordering_field_names", ordering_field_names, "results are in the order of their scores"),
            ("tokenizer_name", tokenizer_name, "base_tokenizer, language and stem say how"),
        ):
            if value is not None:
                raise UnsupportedOperationError(
                    f"{option} is not available - in create_fts_index - leave it out: {instead}"
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
        }
        for definition in text_indexes(
            field_names, name=name, replace=replace, memory_bytes=writer_heap_size, tokens=tokens
        ):
            build_index(self._spark, self._ref, definition)

    def list_indices(self) -> list[IndexConfig]:
        """Returns the indexes of the version that is shown, by name. Starts no Spark job."""
        return listing.list_indices(self._shown.open())

    def index_stats(self, index_name: str) -> IndexStatistics:
        """Returns how many rows of the version that is shown an index serves, and its kind.

        Starts no Spark job, and reads no more than the table's manifest.

        Raises:
            IndexNotFoundError: There is no such index.
        """
        return listing.index_stats(self._shown.open(), index_name)

    def drop_index(self, name: str) -> None:
        """Drops an index. Its files stay until the versions that have it are cleaned up.

        Raises:
            IndexNotFoundError: There is no such index.
            CommitConflictError: Other writers kept changing the table first.
        """
        upkeep.drop_index(self._ref, name)

    def wait_for_index(self, index_names: str | Sequence[str], timeout: timedelta = timedelta(seconds=300)) -> None:
        """Returns when indexes are there and serve all rows of the latest version.

        Those of this process are when `create_*_index` and :meth:`optimize_indices` return; this is
        for those that another one makes.

        Raises:
            IndexTimeoutError: They do not after this time. Also a `TimeoutError`.
        """
        upkeep.wait_for_index(self._latest, _names(index_names), timeout.total_seconds())

    def optimize_indices(
        self,
        index_names: str | Sequence[str] | None = None,
        *,
        num_indices_to_merge: int | None = None,
        retrain: bool = False,
    ) -> None:
        """Takes rows that indexes do not serve yet into them, in one Spark task for each index.

        An index of vectors keeps its model: new vectors go to the partitions that are there.

        Args:
            index_names: Which indexes; None means all.
            num_indices_to_merge: How many parts of an index of vectors the new rows are merged
                with; 0 makes a part of them, None leaves it to Lance. Others become one part.
            retrain: Whether the models of indexes of vectors are trained anew, over all rows.

        Raises:
            IndexNotFoundError: There is no such index.
            IndexBuildError: It failed, and the index is as it was.
            CommitConflictError: Other writers kept coming first.
        """
        number = num_indices_to_merge
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise OptionError("num_indices_to_merge", number, "a whole number, 0 or more")
        ref = self._ref
        names = [one.name for one in self.list_indices()] if index_names is None else _names(index_names)
        upkeep.optimize_indices(self._spark, ref, names, merge=number, retrain=retrain)


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
