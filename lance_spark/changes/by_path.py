"""Reads by path, of rows or of changes. Runs on the driver.

Spark's Python data source and the JVM gateway use these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_spark.changes.feed import ChangeFeed, make_feed
from lance_spark.changes.options import ChangeOptions
from lance_spark.changes.plan import ChangeTask, pack_parts, plan_parts
from lance_spark.changes.steps import find_versions, steps_of, version_before
from lance_spark.dataset import DatasetRef

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def open_changes(options: Mapping[str, str]) -> tuple[DatasetRef, StructType]:
    """Pins the last version of a feed, and returns the version with the columns of the feed.

    Args:
        options: Options with lower-case names.

    Raises:
        OptionError, ColumnNotFoundError, FilterError: The options are not valid for the table.
        TableNotFoundError, VersionNotFoundError, TableUnreadableError: The table cannot be read.
        ChangeFeedError: The version before the first version was cleaned up.
    """
    parsed = ChangeOptions.parse(options)
    if parsed.needs_stream:
        # Spark asks for the columns before it tells whether a read is a stream.
        last = DatasetRef.find(parsed.path, parsed.storage, parsed.branch).pin(None)
    else:
        first, last = find_versions(parsed)
        if first <= (last.version or 0):
            version_before(last, first)
    return last, feed_of(last, parsed)[1]


def change_reader(
    options: Mapping[str, str], schema: StructType, pinned: DatasetRef | None
) -> ChangeReader:
    """Returns the reader of a feed that ends at a pinned version.

    Raises:
        As :func:`open_changes`.
    """
    parsed = ChangeOptions.parse(options)
    parsed.check_batch()
    parsed.check_columns(schema.names)
    first, last = find_versions(parsed)
    last = pinned or last
    return ChangeReader(
        feed=feed_of(last, parsed)[0], first=first, last=last, is_net=parsed.is_net, schema=schema
    )


def feed_of(last: DatasetRef, options: ChangeOptions) -> tuple[ChangeFeed, StructType]:
    """Returns the feed with the columns of a version, and its columns in Spark.

    Raises:
        As :func:`~lance_spark.changes.feed.make_feed`.
    """
    return make_feed(
        last,
        columns=options.columns,
        filter=options.filter,
        with_row_id=options.with_row_id,
        as_updates=options.computeupdates,
        describes=options.change_feed,
        ready_columns=options.ready_columns,
    )


class ChangeReader(DataSourceReader):
    """Reads the changes of versions. A plain value that Spark sends to executors."""

    def __init__(
        self, *, feed: ChangeFeed, first: int, last: DatasetRef, is_net: bool, schema: StructType
    ) -> None:
        """Stores the values. Opens no table."""
        self.feed = feed
        self.first = first
        self.last = last
        self.is_net = is_net
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plans the feed by manifests and transactions. Runs on the driver.

        Raises:
            ChangeFeedError: A version was cleaned up, or a table without stable row ids has changes
                other than appended rows.
        """
        steps = steps_of(self.first, self.last, net=self.is_net)
        parts = (part for step in steps for part in plan_parts(step, self.feed.compared))
        return list(pack_parts(parts)) or [ChangeTask(parts=())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the changed rows of a partition. Runs on an executor.

        Raises:
            As :meth:`ChangeFeed.batches`.
        """
        if not isinstance(partition, ChangeTask):
            raise TypeError(f"The reader can only read its own partitions, not {partition!r}.")
        return self.feed.batches(partition.parts, self.schema)
