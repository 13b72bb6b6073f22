"""Tables about a table: `SELECT * FROM lance.t.versions`, `.branches`, `.fragments`, `.tags`, ...

`.jobs` and `.errors` are Lance tables next to the data, and are read as Lance tables.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_spark.dataset import MAIN_BRANCH, DatasetRef, tags_of
from lance_spark.errors import OptionError
from lance_spark.indexes.listing import index_stats, list_indices
from lance_spark.jobs.tables import ERRORS, JOBS
from lance_spark.options.io_options import METADATA_OPTION, ReadOptions
from lance_spark.types import to_spark_schema
from lance_spark.types.mapping import spark_arrow_schema
from lance_spark.versions.branches import list_branches
from lance_spark.versions.versions import versions_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """The rows and columns of a metadata table that a query needs.

    Attributes:
        name: Name of the metadata table.
        columns: Names of the columns.
        limit: Maximum number of rows; None for all rows.
        newest_first: Whether the rows are the newest versions, newest first.
    """

    name: str
    columns: tuple[str, ...]
    limit: int | None = None
    newest_first: bool = False

    @staticmethod
    def parse(text: str, columns: Sequence[str]) -> MetadataRequest:
        """Returns the request of the rule: the name, the number of rows, and `newest`.

        Raises:
            OptionError: No such metadata table exists.
        """
        name, *rows = text.split(" ")
        if name not in TABLES:
            raise OptionError(METADATA_OPTION, name, "nothing: only the SQL catalog sets it")
        limit = int(rows[0]) if rows else None
        return MetadataRequest(
            name=name, columns=tuple(columns), limit=limit, newest_first="newest" in rows
        )


def _list_versions(
    dataset: lance.LanceDataset, request: MetadataRequest
) -> Iterator[dict[str, object]]:
    numbers = sorted(
        (ref["version"] for ref in dataset.version_refs()), reverse=request.newest_first
    )[: request.limit]
    if request.columns == ("version",):
        # The listing has the numbers, so no manifest is read.
        for number in numbers:
            yield {"version": number}
        return
    for version in versions_of(dataset, numbers):
        yield {name: getattr(version, name) for name in request.columns}


def _list_fragments(dataset: lance.LanceDataset, _: MetadataRequest) -> Iterator[dict[str, object]]:
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


def _list_indexes(dataset: lance.LanceDataset, _: MetadataRequest) -> Iterator[dict[str, object]]:
    for index in list_indices(dataset):
        statistics = index_stats(dataset, index.name)
        yield {
            "name": index.name,
            "type": statistics.index_type,
            "columns": list(index.columns),
            "rows_indexed": statistics.num_indexed_rows,
            "rows_unindexed": statistics.num_unindexed_rows,
        }


def _list_tags(dataset: lance.LanceDataset, _: MetadataRequest) -> Iterator[dict[str, object]]:
    for tag, about in sorted(tags_of(dataset).items()):
        yield {"tag": tag, "branch": about["branch"] or MAIN_BRANCH, "version": about["version"]}


def _list_branches_of(
    dataset: lance.LanceDataset, _: MetadataRequest
) -> Iterator[dict[str, object]]:
    return (dataclasses.asdict(branch) for branch in list_branches(dataset))


def _list_nothing(_dataset: lance.LanceDataset, _: MetadataRequest) -> Iterator[dict[str, object]]:
    return iter(())


_ListRows = Callable[["lance.LanceDataset", MetadataRequest], Iterator[dict[str, object]]]

TABLES: dict[str, tuple[pa.Schema, _ListRows]] = {
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

    The rows come from the table's manifest, and for `versions` from two further files per version.

    Attributes:
        ref: The described version.
        request: The needed rows and columns.
    """

    ref: DatasetRef
    request: MetadataRequest

    @staticmethod
    def of(options: Mapping[str, str], columns: Sequence[str]) -> MetadataReader:
        """Returns the reader for options and columns.

        Raises:
            OptionError: No such metadata table exists.
        """
        table_options = dict(options)
        request = MetadataRequest.parse(table_options.pop(METADATA_OPTION), columns)
        return MetadataReader(DatasetRef.resolve(ReadOptions.parse(table_options)), request)

    @property
    def spark_schema(self) -> StructType:
        """Spark's columns of the request."""
        schema = TABLES[self.request.name][0]
        return to_spark_schema(pa.schema([schema.field(name) for name in self.request.columns]))

    def partitions(self) -> list[InputPartition]:
        """Returns a single partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the metadata table."""
        del partition
        list_rows, schema = TABLES[self.request.name][1], spark_arrow_schema(self.spark_schema)
        rows = itertools.islice(list_rows(self.ref.open(), self.request), self.request.limit)
        while pending := list(itertools.islice(rows, _BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(pending, schema)
