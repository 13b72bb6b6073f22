"""Indexes of a table, their coverage and their tokenizers. Reads only the manifest."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lance_spark.errors import IndexNotFoundError, OptionError
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    import lance
    from lance import FtsToken, IndexDescription

_PLAIN_NAME = re.compile(r"\w+", re.ASCII)

_NAMES = {
    "BTree": "BTREE",
    "Bitmap": "BITMAP",
    "LabelList": "LABEL_LIST",
    "NGram": "NGRAM",
    "ZoneMap": "ZONEMAP",
    "BloomFilter": "BLOOMFILTER",
    "Inverted": "FTS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """An index of a table.

    Attributes:
        name: Name of the index.
        index_type: Kind of the index by the name of its class for `create_index(config=...)`, such
            as `BTree` or `IvfPq`, with `IvfHnswSq` for :class:`HnswSq`; Lance's name for other
            kinds. `index_stats` has the names of the parameter `index_type`, such as `BTREE`.
        columns: Paths of its columns, with quoted names where they are no plain words.
        index_uuid: Id of the first part of the index.
        num_indexed_rows: Live rows in covered fragments.
        num_unindexed_rows: Rows in other fragments, which Lance scans.
        num_segments: Number of parts of the index. A search reads each part.
        size_bytes: Bytes of its files; None if unknown.
        created_at: Time of the first part, in UTC; None if unknown.
        index_version: Version of the format of the index.
        index_details: Parameters of the index by Lance's names.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_scalar_index("price")
        for index in books.list_indices():
            print(index.name, index.index_type, index.columns)
        ```
    """

    name: str
    index_type: str
    columns: list[str] = dataclasses.field(hash=False)
    index_uuid: str
    num_indexed_rows: int
    num_unindexed_rows: int
    num_segments: int
    size_bytes: int | None
    created_at: datetime | None
    index_version: int
    index_details: dict[str, Any] = dataclasses.field(hash=False)

    def __getitem__(self, name: str) -> object:
        """Returns an attribute by its name: `index["columns"]`."""
        return get_attribute(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatistics:
    """Coverage and size of an index.

    Attributes:
        num_indexed_rows: Live rows in covered fragments.
        num_unindexed_rows: Rows in other fragments, which Lance scans.
        index_type: Kind of the index by the names of `create_index`, `create_scalar_index` and
            `create_fts_index`, such as `BTREE`; Lance's name for other kinds.
        distance_type: Metric of a vector index: `l2`, `cosine`, `dot` or `hamming`; None for other
            indexes.
        num_indices: Number of parts of the index. A search reads each part.
        size_bytes: Bytes of its files; None if unknown.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_scalar_index("price", name="by_price")
        statistics = books.index_stats("by_price")
        print(statistics.num_indexed_rows, statistics.num_unindexed_rows)  # 10 0
        ```
    """

    num_indexed_rows: int
    num_unindexed_rows: int
    index_type: str
    distance_type: str | None
    num_indices: int
    size_bytes: int | None

    def __getitem__(self, name: str) -> object:
        """Returns an attribute by its name: `statistics["num_indexed_rows"]`."""
        return get_attribute(self, name)


def get_attribute(value: IndexConfig | IndexStatistics, name: str) -> object:
    """Returns an attribute by its name.

    Raises:
        KeyError: No attribute has this name.
    """
    names = [attribute.name for attribute in dataclasses.fields(value)]
    if name not in names:
        raise KeyError(f"{name!r} is none of {', '.join(names)}")
    return getattr(value, name)


def kind_of(index_type: str) -> str:
    """Returns the kind of an index by the name in lance-spark."""
    return _NAMES.get(index_type, index_type)


def class_name_of(index_type: str) -> str:
    """Returns LanceDB's name of the kind of an index, that of a class but for graphs."""
    if index_type == "Inverted":
        return "FTS"
    return index_type.title().replace("_", "") if index_type.startswith("IVF_") else index_type


def column_paths(dataset: lance.LanceDataset, index: IndexDescription) -> list[str]:
    """Returns the paths of the columns of an index; names that are no plain words are quoted."""
    paths = dict(_field_paths(dataset.lance_schema.fields(), ""))
    return [
        paths.get(number, name)
        for number, name in zip(index.fields, index.field_names, strict=True)
    ]


def _field_paths(fields: Iterable[Any], parent: str) -> Iterator[tuple[int, str]]:
    """Yields the id and the path of each field, at any depth."""
    for field in fields:
        name = field.name()
        path = parent + (name if _PLAIN_NAME.fullmatch(name) else quote_identifier(name))
        yield field.id(), path
        yield from _field_paths(field.children(), f"{path}.")


def list_indices(dataset: lance.LanceDataset) -> list[IndexConfig]:
    """Returns the indexes of a version by name, without internal indexes of Lance."""
    rows_by_fragment = _count_rows(dataset)
    indexes = (
        index for index in dataset.describe_indices() if not index.name.startswith("__lance")
    )
    configs = (_config_of(dataset, index, rows_by_fragment) for index in indexes)
    return sorted(configs, key=lambda config: config.name)


def _config_of(
    dataset: lance.LanceDataset, index: IndexDescription, rows_by_fragment: Mapping[int, int]
) -> IndexConfig:
    first = index.segments[0]
    indexed, unindexed = _coverage(index, rows_by_fragment)
    return IndexConfig(
        name=index.name,
        index_type=class_name_of(index.index_type),
        columns=column_paths(dataset, index),
        index_uuid=str(first.uuid),
        num_indexed_rows=indexed,
        num_unindexed_rows=unindexed,
        num_segments=len(index.segments),
        size_bytes=index.total_size_bytes,
        created_at=first.created_at,
        index_version=first.index_version,
        index_details=dict(index.details or {}),
    )


def index_stats(dataset: lance.LanceDataset, name: str) -> IndexStatistics:
    """Returns the coverage of an index of a version.

    Raises:
        IndexNotFoundError: The index does not exist.
    """
    index = find_index(dataset, name)
    indexed, unindexed = _coverage(index, _count_rows(dataset))
    metric = (index.details or {}).get("metric_type")
    return IndexStatistics(
        num_indexed_rows=indexed,
        num_unindexed_rows=unindexed,
        index_type=kind_of(index.index_type),
        distance_type=None if metric is None else str(metric).lower(),
        num_indices=len(index.segments),
        size_bytes=index.total_size_bytes,
    )


def _count_rows(dataset: lance.LanceDataset) -> dict[int, int]:
    """Returns the live rows of each fragment. Reads only the manifest."""
    return {
        fragment.fragment_id: fragment.metadata.num_rows for fragment in dataset.get_fragments()
    }


def _coverage(index: IndexDescription, rows_by_fragment: Mapping[int, int]) -> tuple[int, int]:
    """Returns the live rows of the fragments with and without an index."""
    numbers = {number for segment in index.segments for number in segment.fragment_ids}
    indexed = sum(rows for number, rows in rows_by_fragment.items() if number in numbers)
    return indexed, sum(rows_by_fragment.values()) - indexed


def find_index(dataset: lance.LanceDataset, name: str) -> IndexDescription:
    """Returns an index by its name.

    Raises:
        IndexNotFoundError: The index does not exist.
    """
    indexes = {index.name: index for index in dataset.describe_indices()}
    if name in indexes:
        return indexes[name]
    close = difflib.get_close_matches(str(name), indexes, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = (
        f"Its indexes are {', '.join(sorted(indexes))}" if indexes else "The table has no indexes."
    )
    raise IndexNotFoundError(str(name), dataset.uri, available=f"{hint}{names}")


def tokenize(
    dataset: lance.LanceDataset, text: str, *, column: str | None, index_name: str | None
) -> list[FtsToken]:
    """Splits a text with the tokenizer of an index, given by its column or its name.

    Raises:
        OptionError: Neither or both are given, or the column or index has no words.
        IndexNotFoundError: The index does not exist.
    """
    from lance import tokenize as split

    if (column is None) == (index_name is None):
        raise OptionError(
            "column", column, "either column or index_name: Specify exactly one of them"
        )
    index = _index_of(dataset, column) if index_name is None else find_index(dataset, index_name)
    if index is None or kind_of(index.index_type) != "FTS":
        name, value = ("column", column) if index_name is None else ("index_name", index_name)
        raise OptionError(
            name, value, "a full-text index", problem="does not have a full text search index"
        )
    details: dict[str, Any] = index.details or {}
    return split(
        text,
        **{name: details[name] for name in inspect.signature(split).parameters if name in details},
    )


def _index_of(dataset: lance.LanceDataset, column: str | None) -> IndexDescription | None:
    indexes = [
        index
        for index in dataset.describe_indices()
        if column in column_paths(dataset, index) and kind_of(index.index_type) == "FTS"
    ]
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise OptionError(
            "index_name",
            None,
            names,
            problem=f"is missing, and column {column!r} has several indexes",
        )
    return indexes[0] if indexes else None
