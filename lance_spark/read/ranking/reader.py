"""Rows by rank for Spark: the reader of a load with the options `nearest` or `full_text_query`.

A single task runs the search, because an index answers in milliseconds. The planner rule leaves the
scan unchanged: a filter or a limit below a search would change the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import FloatType, StructField, StructType

from lance_spark.errors import OptionError
from lance_spark.read.columns import Projection, table_schema
from lance_spark.read.filtering import check_filter
from lance_spark.read.ranking.ranking import Ranking
from lance_spark.types import ReadConverter

if TYPE_CHECKING:
    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions

_ONE_ANSWER = (
    "no value: a search reads the whole table, and k in nearest or full_text_query limits the rows"
)


def ranking_of(options: ReadOptions) -> Ranking:
    """Returns the ranking for the options of a load."""
    return Ranking(
        vector=options.nearest,
        text=options.full_text_query,
        filter=options.filter,
        blobs=options.blob_handling,
    )


def search_schema(ref: DatasetRef, options: ReadOptions) -> StructType:
    """Returns the columns of a plain load, followed by `_distance`, `_score` or both.

    Runs on the driver and reads no data.

    Raises:
        OptionError: The table does not support the search, or another option excludes a search.
        ColumnNotFoundError, FilterError, UnsupportedTypeError: As in a plain load.
    """
    for name in ("limit", "fragments", "with_row_versions"):
        if getattr(options, name) not in (None, False):
            raise OptionError(
                name, getattr(options, name), _ONE_ANSWER, problem="does not fit a search"
            )
    dataset = ref.open()
    if options.filter is not None:
        check_filter(dataset, options.filter, ref.uri, options.blob_handling)
    ranking = ranking_of(options).checked(dataset)
    schema = table_schema(dataset, ref, options)
    return StructType(
        [*schema.fields, *(StructField(name, FloatType(), True) for name in ranking.scores)]
    )


class SearchReader(DataSourceReader):
    """Searches one version of a table, in one partition.

    Attributes:
        ref: The table and its pinned version.
        schema: The columns that Spark expects, the scores last.
        options: The user's options.
    """

    def __init__(self, *, ref: DatasetRef, schema: StructType, options: ReadOptions) -> None:
        """Stores the values. Opens no table."""
        self.ref = ref
        self.schema = schema
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Returns the only partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one
        """Yields the rows in rank order. Runs on an executor.

        Raises:
            SearchError: Lance does not support the search.
            FilterError: The option `filter` failed on a value.
            TableUnreadableError: A file of the table is missing or damaged.
        """
        dataset = self.ref.open()
        ranking = ranking_of(self.options).checked(dataset)
        count = len(self.schema.fields) - len(ranking.scores)
        target = StructType(self.schema.fields[:count])
        projection = Projection(
            dataset, target, self.options.blob_handling, self.ref.uri, prune=False
        )
        fields = [*projection.source, *(pa.field(name, pa.float32()) for name in ranking.scores)]
        source = pa.schema(fields)
        converter = ReadConverter(source, self.schema)
        for batch in ranking.batches(dataset, projection.paths):
            rows = projection.assemble(batch.select(range(count)))
            arrays = [*rows.columns, *batch.columns[count:]]
            yield from converter.convert_split(pa.RecordBatch.from_arrays(arrays, schema=source))
