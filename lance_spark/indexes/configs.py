"""Descriptions of indexes by LanceDB's names: `table.create_index(column, config=BTree())`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from lance_spark.arguments import ARGUMENTS
from lance_spark.indexes.definition import (
    LEAST_MEMORY_BYTES,
    IndexDefinition,
    scalar_index,
    text_indexes,
    vector_index,
)
from lance_spark.options.io_options import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScalarConfig:
    """Base class of the descriptions of indexes for filters."""

    kind: ClassVar[str]

    def define(self, column: str, *, name: str | None, replace: bool) -> IndexDefinition:
        """Returns the definition of the index of a column."""
        return scalar_index(column, self.kind, name=name, replace=replace)


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class BTree(_ScalarConfig):
    """An index for comparisons of columns with many values.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_index("price", config=lance_spark.BTree())
        assert books.list_indices()[0].index_type == "BTree"
        ```
    """

    kind: ClassVar[str] = "BTREE"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class Bitmap(_ScalarConfig):
    """An index for comparisons of columns with few values.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_index("price", config=lance_spark.Bitmap())
        assert books.list_indices()[0].index_type == "Bitmap"
        ```
    """

    kind: ClassVar[str] = "BITMAP"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelList(_ScalarConfig):
    """An index for `array_contains`, `array_has_any` and `array_has_all` of lists.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": 1, "tags": ["old", "thin"]}])
        books.create_index("tags", config=lance_spark.LabelList())
        assert books.count_rows("array_contains(tags, 'old')") == 1
        ```
    """

    kind: ClassVar[str] = "LABEL_LIST"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class FTS:
    """An index for full-text search, with LanceDB's defaults.

    Attributes:
        with_position: Whether to store positions, for phrases; the index is larger.
        base_tokenizer: How to split words: `simple`, `whitespace`, `raw`, `ngram`, `icu`,
            `icu/split`, or `jieba/*` and `lindera/*` with a language model in Lance's folder of
            models.
        language: Language of stems and stop words.
        max_token_length: Longest word; None keeps all.
        lower_case: Whether to ignore case.
        stem: Whether to reduce words to their stems.
        remove_stop_words: Whether to leave out words such as `the`.
        ascii_folding: Whether to ignore accents.
        ngram_min_length: Minimum letters of the parts of `ngram`.
        ngram_max_length: Maximum letters of the parts of `ngram`.
        prefix_only: Whether `ngram` makes parts of the beginning of words only.
        block_size: Rows of a block of the index: 128 or 256.
        custom_stop_words: Words to leave out, in place of the language's.
        memory_limit: Mebibytes of memory for each task; None leaves the size to Lance.
        num_workers: Threads of each task, at most the cores; None is all cores.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        notes = db.create_table("notes", [{"text": "red apples"}, {"text": "a green pear"}])
        notes.create_index("text", config=lance_spark.FTS())
        assert notes.search("apple").to_list()[0]["text"] == "red apples"
        ```
    """

    with_position: bool = False
    base_tokenizer: str = "simple"
    language: str = "English"
    max_token_length: int | None = 40
    lower_case: bool = True
    stem: bool = True
    remove_stop_words: bool = True
    ascii_folding: bool = True
    ngram_min_length: int = 3
    ngram_max_length: int = 3
    prefix_only: bool = False
    block_size: Literal[128, 256] = 128
    custom_stop_words: Sequence[str] | None = None
    memory_limit: int | None = None
    num_workers: int | None = None

    def define(self, column: str, *, name: str | None, replace: bool) -> IndexDefinition:
        """Returns the definition of the index of a column.

        Raises:
            OptionError: A parameter is not valid.
        """
        tokens = asdict(self)
        megabytes, workers = tokens.pop("memory_limit"), tokens.pop("num_workers")
        least = LEAST_MEMORY_BYTES >> 20
        check_number(
            "memory_limit", megabytes, least=least, accepted=f"mebibytes, {least} or more, or None"
        )
        check_number("num_workers", workers, least=1)
        definition = text_indexes(
            column,
            name=name,
            replace=replace,
            memory_bytes=None if megabytes is None else megabytes << 20,
            tokens=tokens,
        )[0]
        if workers is None:
            return definition
        return dataclasses.replace(
            definition, parameters={**definition.parameters, "num_workers": workers}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _VectorConfig:
    """Base class of the descriptions of indexes of vectors.

    Attributes:
        distance_type: The distance: `l2`, `cosine` or `dot`.
        num_partitions: Clusters of vectors; by default from the number of rows.
        max_iterations: Maximum rounds of training.
        sample_rate: Vectors of a partition for training.
        target_partition_size: Rows of a partition, in place of `num_partitions`.
    """

    kind: ClassVar[str]

    distance_type: str = "l2"
    num_partitions: int | None = None
    max_iterations: int = 50
    sample_rate: int = 256
    target_partition_size: int | None = None

    def define(self, column: str, *, name: str | None, replace: bool) -> IndexDefinition:
        """Returns the definition of the index of a column."""
        numbers: Mapping[str, int | None] = {
            ("max_iters" if key == "max_iterations" else key): value
            for key, value in asdict(self).items()
            if key != "distance_type"
        }
        return vector_index(
            column, self.kind, self.distance_type, name=name, replace=replace, numbers=numbers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphConfig(_VectorConfig):
    """Base class of the descriptions of indexes with a graph in each partition.

    Attributes:
        m: Edges of each vector.
        ef_construction: Candidates for each edge while the graph is made.
    """

    m: int = 20
    ef_construction: int = 300


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class IvfFlat(_VectorConfig):
    """An index of unchanged vectors; also with the distance `hamming` for `uint8`.

    The attributes are the parameters of :meth:`lance_spark.Table.create_index`.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.IvfFlat(num_partitions=2))
        assert books.search([3.0, 1.0]).limit(1).to_list()[0]["_distance"] == 0
        ```
    """

    kind: ClassVar[str] = "IVF_FLAT"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class IvfSq(_VectorConfig):
    """An index of vectors with a byte for each element.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.IvfSq(num_partitions=2))
        ```
    """

    kind: ClassVar[str] = "IVF_SQ"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class IvfPq(_VectorConfig):
    """An index of vectors with a byte for each sub-vector.

    Attributes:
        num_sub_vectors: Parts of a vector; by default 1 for 16 elements.
        num_bits: Bits for each part: 8 or 4.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.IvfPq(num_partitions=1, num_sub_vectors=2))
        ```
    """

    kind: ClassVar[str] = "IVF_PQ"

    num_sub_vectors: int | None = None
    num_bits: int = 8


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class IvfRq(_VectorConfig):
    """An index of vectors with a bit for each element. One task builds the index.

    Attributes:
        num_bits: Bits for each element.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i)] * 16 for i in range(300)], pa.list_(pa.float32(), 16))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.IvfRq(num_partitions=2))
        ```
    """

    kind: ClassVar[str] = "IVF_RQ"

    num_bits: int = 1


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class HnswFlat(_GraphConfig):
    """An index of unchanged vectors with graphs.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.HnswFlat())
        ```
    """

    kind: ClassVar[str] = "IVF_HNSW_FLAT"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class HnswSq(_GraphConfig):
    """An index of vectors with a byte for each element, with graphs.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.HnswSq())
        ```
    """

    kind: ClassVar[str] = "IVF_HNSW_SQ"


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True, kw_only=True)
class HnswPq(_GraphConfig):
    """An index of vectors with a byte for each sub-vector, with graphs.

    Attributes:
        num_sub_vectors: Parts of a vector; by default 1 for 16 elements.
        num_bits: Bits for each part: 8 or 4.

    Example:
        ```python
        import lance_spark
        import pyarrow as pa

        db = lance_spark.connect("library")
        vectors = pa.array([[float(i), 1.0] for i in range(300)], pa.list_(pa.float32(), 2))
        books = db.create_table("vectors", pa.table({"vector": vectors}))
        books.create_index("vector", config=lance_spark.HnswPq(num_sub_vectors=2))
        ```
    """

    kind: ClassVar[str] = "IVF_HNSW_PQ"

    num_sub_vectors: int | None = None
    num_bits: int = 8


IndexDescription = (
    BTree | Bitmap | LabelList | FTS | IvfFlat | IvfSq | IvfPq | IvfRq | HnswFlat | HnswSq | HnswPq
)
"""The classes for `config`."""
