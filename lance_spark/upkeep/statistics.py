"""The size of a table, from its metadata: :func:`statistics_of`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_spark.indexes.listing import index_stats, list_indices
from lance_spark.upkeep.results import TableStatistics

if TYPE_CHECKING:
    import lance

_SMALL_ROWS = 1 << 20


def statistics_of(dataset: lance.LanceDataset) -> TableStatistics:
    """Returns the size of a version. Reads only the manifest."""
    rows = deleted = small = files = size = count = 0
    for handle in dataset.get_fragments():
        fragment = handle.metadata
        count += 1
        rows += fragment.num_rows
        deleted += fragment.num_deletions
        small += fragment.num_rows < _SMALL_ROWS
        files += len(fragment.files)
        size += sum(file.file_size_bytes or 0 for file in fragment.files)
    indexes = {index.name: index_stats(dataset, index.name).num_unindexed_rows for index in list_indices(dataset)}
    return TableStatistics(
        version=dataset.version,
        rows=rows,
        deleted_rows=deleted,
        fragments=count,
        small_fragments=small,
        data_files=files,
        size_bytes=size,
        versions=len(dataset.version_refs()),
        unindexed_rows=indexes,
    )
