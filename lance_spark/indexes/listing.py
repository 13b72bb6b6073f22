"""What indexes a table has, and how much of it they serve. Reads the manifest alone."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.errors import IndexNotFoundError

if TYPE_CHECKING:
    import lance
    from lance import IndexDescription

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
        name: Its name.
        index_type: Its kind, as `create_index`, `create_scalar_index` and `create_fts_index` name
            it; another tool's by Lance's name.
        columns: Names of its columns.
    """

    name: str
    index_type: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatistics:
    """How much of a table an index serves.

    Attributes:
        num_indexed_rows: Rows, not deleted, in fragments that it serves.
        num_unindexed_rows: Rows in others, which Lance scans.
        index_type: Its kind, as :class:`IndexConfig` has it.
        distance_type: How it measures distances: `l2`, `cosine`, `dot` or `hamming`; None where it
            is not of vectors.
        num_indices: Parts that it consists of, each searched by itself.
        size_bytes: Bytes of its files; None where that is not known.
    """

    num_indexed_rows: int
    num_unindexed_rows: int
    index_type: str
    distance_type: str | None
    num_indices: int
    size_bytes: int | None


def kind_of(index_type: str) -> str:
    """Returns the kind of an index by our name."""
    return _NAMES.get(index_type, index_type)


def list_indices(dataset: lance.LanceDataset) -> list[IndexConfig]:
    """Returns the indexes of a version, by name; without those that Lance makes for itself."""
    found = (one for one in dataset.describe_indices() if not one.name.startswith("__lance"))
    return sorted(
        (
            IndexConfig(name=one.name, index_type=kind_of(one.index_type), columns=tuple(one.field_names))
            for one in found
        ),
        key=lambda one: one.name,
    )


def index_stats(dataset: lance.LanceDataset, name: str) -> IndexStatistics:
    """Returns how much of a version an index serves.

    Raises:
        IndexNotFoundError: There is no such index.
    """
    found = find_index(dataset, name)
    served = {number for segment in found.segments for number in segment.fragment_ids}
    indexed = unindexed = 0
    for fragment in dataset.get_fragments():
        rows = fragment.metadata.num_rows
        if fragment.fragment_id in served:
            indexed += rows
        else:
            unindexed += rows
    metric = (found.details or {}).get("metric_type")
    return IndexStatistics(
        num_indexed_rows=indexed,
        num_unindexed_rows=unindexed,
        index_type=kind_of(found.index_type),
        distance_type=None if metric is None else str(metric).lower(),
        num_indices=len(found.segments),
        size_bytes=found.total_size_bytes,
    )


def find_index(dataset: lance.LanceDataset, name: str) -> IndexDescription:
    """Returns an index by its name.

    Raises:
        IndexNotFoundError: There is no such index.
    """
    found = {one.name: one for one in dataset.describe_indices()}
    if name in found:
        return found[name]
    close = difflib.get_close_matches(str(name), found, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = f"its indexes are {', '.join(sorted(found))}" if found else "it has no indexes"
    raise IndexNotFoundError(str(name), dataset.uri, available=f"{hint}{names}")
