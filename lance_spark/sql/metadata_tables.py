"""Tables about a table: `SELECT * FROM lance.t.versions`, `.branches`, `.fragments`, `.tags`, ...

`.jobs` and `.errors` are Lance tables next to the data, and are read as Lance tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_spark.dataset import MAIN_BRANCH, DatasetRef, tags_of
from lance_spark.errors import OptionError
from lance_spark.indexes.listing import index_stats, list_indices
from lance_spark.jobs.tables import ERRORS, JOBS
from lance_spark.options import METADATA_OPTION, ReadOptions
from lance_spark.types import to_spark_schema
from lance_spark.types.mapping import spark_arrow_schema
from lance_spark.versions.branches import list_branches
from lance_spark.versions.versions import TableVersion

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

_BATCH_ROWS = 1 << 14

_VERSIONS: dict[str, pa.DataType] = {
    "version": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "operation": pa.string(),
    "user": pa.string(),
    "rows_added": pa.int64(),
    "rows_removed": pa.int64(),
    "rows": pa.int64(),
    "fragments": pa.int64(),
    "bytes": pa.int64(),
    "message": pa.string(),
}
_FRAGMENTS: dict[str, pa.DataType] = {
    "fragment_id": pa.int64(),
    "rows": pa.int64(),
    "physical_rows": pa.int64(),
    "deleted_rows": pa.int64(),
    "data_files": pa.int64(),
    "bytes": pa.int64(),
}
_INDEXES: dict[str, pa.DataType] = {
    "name": pa.string(),
    "type": pa.string(),
    "columns": pa.list_(pa.string()),
    "rows_indexed": pa.int64(),
    "rows_unindexed": pa.int64(),
}
_TAGS: dict[str, pa.DataType] = {"tag": pa.string(), "branch": pa.string(), "version": pa.int64()}
_BRANCHES: dict[str, pa.DataType] = {
    "name": pa.string(),
    "parent": pa.string(),
    "parent_version": pa.int64(),
    "created_at": pa.timestamp("us", tz="UTC"),
}


def _list_versions(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    for version_ref in dataset.version_refs():
        version = TableVersion.of(dataset.checkout_version(version_ref["version"]))
        yield {name: getattr(version, name) for name in _VERSIONS}


def _list_fragments(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        sizes = [file.file_size_bytes for file in metadata.files]
        yield {
            "fragment_id": metadata.id,
            "rows": metadata.num_rows,
            "physical_rows": metadata.physical_rows,
            "deleted_rows": metadata.num_deletions,
            "data_files": len(metadata.files),
            "bytes": None if None in sizes else sum(size or 0 for size in sizes),
        }


def _list_indexes(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    for index in list_indices(dataset):
        statistics = index_stats(dataset, index.name)
        yield {
            "name": index.name,
            "type": index.index_type,
            "columns": list(index.columns),
            "rows_indexed": statistics.num_indexed_rows,
            "rows_unindexed": statistics.num_unindexed_rows,
        }


def _list_tags(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    for tag, about in sorted(tags_of(dataset).items()):
        yield {"tag": tag, "branch": about["branch"] or MAIN_BRANCH, "version": about["version"]}


def _list_branches_of(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    return (dataclasses.asdict(branch) for branch in list_branches(dataset))


def _list_nothing(dataset: lance.LanceDataset) -> Iterator[dict[str, object]]:
    del dataset
    return iter(())


TABLES: dict[str, tuple[pa.Schema, Callable[[lance.LanceDataset], Iterator[dict[str, object]]]]] = {
    "branches": (pa.schema(_BRANCHES), _list_branches_of),
    "errors": (ERRORS.schema, _list_nothing),
    "fragments": (pa.schema(_FRAGMENTS), _list_fragments),
    "indexes": (pa.schema(_INDEXES), _list_indexes),
    "jobs": (JOBS.schema, _list_nothing),
    "tags": (pa.schema(_TAGS), _list_tags),
    "versions": (pa.schema(_VERSIONS), _list_versions),
}
"""Columns and rows of each metadata table, by its name. Rows of errors and jobs are in Lance
tables, if any exist."""


@dataclass(frozen=True, slots=True)
class MetadataReader(DataSourceReader):
    """Reads a table of :data:`TABLES`, in a single task.

    The rows come from the table's manifest, and for `versions` from a further file per version.

    Attributes:
        ref: The described version.
        name: Name of the metadata table.
    """

    ref: DatasetRef
    name: str

    @staticmethod
    def of(options: Mapping[str, str]) -> MetadataReader:
        """Returns the reader for options.

        Raises:
            OptionError: No such metadata table exists.
        """
        table_options = dict(options)
        name = table_options.pop(METADATA_OPTION)
        if name not in TABLES:
            raise OptionError(METADATA_OPTION, name, "nothing: only the SQL catalog sets it")
        return MetadataReader(DatasetRef.resolve(ReadOptions.parse(table_options)), name)

    @property
    def spark_schema(self) -> StructType:
        """Spark's columns of the metadata table."""
        return to_spark_schema(TABLES[self.name][0])

    def partitions(self) -> list[InputPartition]:
        """Returns a single partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the metadata table."""
        del partition
        rows, schema = TABLES[self.name][1], spark_arrow_schema(self.spark_schema)
        pending: list[dict[str, object]] = []
        for row in rows(self.ref.open()):
            pending.append(row)
            if len(pending) == _BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(pending, schema)
                pending = []
        yield pa.RecordBatch.from_pylist(pending, schema)
