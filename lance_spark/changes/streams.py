"""Streams of new rows and of changes: the reader for `spark.readStream.format("lance")`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType

from lance_spark.changes.by_path import feed_of
from lance_spark.changes.errors import ChangeFeedError
from lance_spark.changes.feed import ChangeFeed
from lance_spark.changes.options import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    LATEST,
    ChangeOptions,
)
from lance_spark.changes.plan import ChangeTask, pack_parts
from lance_spark.changes.positions import PositionFile
from lance_spark.changes.steps import pin_version, version_from
from lance_spark.changes.stream_units import (
    StreamPosition,
    Unit,
    UnitPlanner,
    rows_of,
    stored_bytes,
    units_between,
)
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.read.columns import ROW_ID
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def make_stream_reader(options: Mapping[str, str], schema: StructType) -> ChangeStream:
    """Returns the reader of a stream. Runs on the driver.

    Args:
        options: Options with lower-case names.
        schema: The columns from the time of `load`.

    Raises:
        OptionError: An option does not fit a stream.
        UnsupportedOperationError: The Spark release has no limits of micro-batches.
        ChangeFeedError: The table lost a column of the stream.
    """
    parsed = ChangeOptions.parse(options)
    parsed.check_stream()
    parsed.check_columns(schema.names)
    try:
        from lance_spark.changes.limited_streams import LimitedStream
    except ImportError:  # Spark 4.1
        _refuse_limits(parsed)
        return UnlimitedStream(parsed, schema)
    return LimitedStream(parsed, schema)


def _refuse_limits(options: ChangeOptions) -> None:
    for name in ("maxversionspertrigger", "maxrowspertrigger", "maxbytespertrigger"):
        if getattr(options, name) is not None:
            raise UnsupportedOperationError(
                f"The option {name} needs Spark 4.2: Python data sources of Spark 4.1 have no limits of micro-batches. "
                "Leave the option out, or use Spark 4.2 or later."
            )


class ChangeStream(DataSourceStreamReader):
    """The part of a stream that all Spark releases share. Spark sends the reader to executors."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        """Reads the columns of the latest version.

        Raises:
            ChangeFeedError: The table lost a column of the stream.
            OptionError: A blob column is no column of bytes.
        """
        self.options = options
        self.schema = schema
        self.ref = DatasetRef.find(options.path, options.storage, options.branch).pin(None)
        self.feed = _feed_of_schema(self.ref, options, schema)
        self._stream = uuid.uuid4().hex
        self.position_file = PositionFile(self.ref)
        self._first: StreamPosition | None = None
        self._planner: UnitPlanner | None = None
        self._planned: tuple[StreamPosition, StreamPosition, list[Unit]] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Returns the state for executors."""
        return {**self.__dict__, "_planner": None, "_planned": None}

    @property
    def planner(self) -> UnitPlanner:
        """The planner of this process."""
        if self._planner is None:
            self._planner = UnitPlanner(self.ref, self.feed)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the begin of a new stream.

        Raises:
            ChangeFeedError: The first version was cleaned up.
        """
        begin = self._begin()
        begin = replace(begin, begin=begin.version, begins_with_snapshot=begin.is_snapshot)
        self.position_file.write(begin)
        self._first = begin
        return begin.offset

    def _begin(self) -> StreamPosition:
        options, dataset = self.options, self.ref.open()
        if options.startingtimestamp is not None:
            first = version_from(dataset, options.startingtimestamp)
        elif options.startingversion is None:
            return self._position(self.ref, 0, is_snapshot=True)
        elif options.startingversion == LATEST:
            return self._position(self.ref, -1)
        else:
            first = int(options.startingversion)
        first += not options.startingboundinclusive
        if first > dataset.version + 1:
            raise OptionError(
                "startingVersion", str(first), f"a version up to {dataset.version + 1}, or latest"
            )
        if first == 1:
            return StreamPosition(
                version=0, fragment=-1, is_snapshot=False, incarnation="", stream=self._stream
            )
        return self._position(pin_version(self.ref, first - 1), -1)

    def _position(
        self, ref: DatasetRef, fragment: int, *, is_snapshot: bool = False
    ) -> StreamPosition:
        return StreamPosition(
            version=ref.version or 0,
            fragment=fragment,
            is_snapshot=is_snapshot,
            incarnation=ref.incarnation or "",
            stream=self._stream,
        )

    def find_end(
        self, start: StreamPosition, *, target: int | None = None, limited: bool = False
    ) -> StreamPosition:
        """Returns the end of the next micro-batch.

        Args:
            start: Its start.
            target: The last version to read; None reads up to the latest version.
            limited: Whether the limits of the options apply.

        Raises:
            ChangeFeedError: The changes of a version cannot be read.
        """
        head = self.planner.check(start)
        last = (head.version or 0) if target is None else min(target, head.version or 0)
        if limited:
            return self._find_limited_end(start, head, last)
        is_later = last > start.version
        return (start.at(self.planner.pin(head, last)) if is_later else start).completed()

    def _find_limited_end(
        self, start: StreamPosition, head: DatasetRef, last: int
    ) -> StreamPosition:
        budget = _Budget(self.options)
        position = start
        taken_units: list[Unit] = []
        while True:
            if not position.is_complete:
                units = position.unread(self.planner.units(head, position))
                count = budget.take(units)
                taken_units += units[:count]
                position = position.advanced(units, count)
            if not position.is_complete or position.version >= last or not budget.has_version:
                self._planned = start, position, taken_units
                return position
            position = position.at(self.planner.pin(head, position.version + 1))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plans a micro-batch by manifests and transactions. Runs on the driver.

        Raises:
            ChangeFeedError: The changes of a version cannot be read.
        """
        if start == end:
            return []
        last = StreamPosition.of(end)
        units = self._units_between(self._start_of(StreamPosition.of(start), last), last)
        return list(pack_parts(part for unit in units for part in unit))

    def _start_of(self, first: StreamPosition, last: StreamPosition) -> StreamPosition:
        """Returns the start of a micro-batch.

        If a query dies in its first micro-batch, Spark repeats the micro-batch up to the end in its
        checkpoint, and asks for the begin of the stream again. Until then, the table may have later
        versions. The end tells the begin of the dead query.
        """
        if self._first is None or first.stream != self._first.stream or last.stream == first.stream:
            return first
        begin, is_snapshot = last.begin, last.begins_with_snapshot
        if begin is None and last.is_snapshot:
            begin, is_snapshot = last.version, True
        if begin is None:
            return first
        if begin == 0:
            return replace(first, version=0, fragment=-1, is_snapshot=False, incarnation="")
        return self._position(
            pin_version(self.ref, begin), 0 if is_snapshot else -1, is_snapshot=is_snapshot
        )

    def _units_between(self, first: StreamPosition, last: StreamPosition) -> Iterable[Unit]:
        if self._planned is not None and self._planned[:2] == (first, last):
            return self._planned[2]
        self.planner.check(first)  # Spark 4.1 takes a later offset of another table, too
        return units_between(self.planner, self.planner.check(last), first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition. Runs on an executor.

        Raises:
            As :meth:`ChangeFeed.batches`.
        """
        if not isinstance(partition, ChangeTask):
            raise TypeError(f"The reader can only read its own partitions, not {partition!r}.")
        return self.feed.batches(partition.parts, self.schema)


class UnlimitedStream(ChangeStream):
    """A stream for Spark 4.1, whose Python data sources have no limits of micro-batches."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Returns the end of the latest version."""
        self.position_file.renew()
        first = self._first
        end = self._position(self.ref.pin(None), -1)
        if first is not None:
            end = replace(end, begin=first.begin, begins_with_snapshot=first.begins_with_snapshot)
        return end.offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plans a micro-batch, as :meth:`ChangeStream.partitions`."""
        partitions = super().partitions(start, end)
        self.position_file.add_name(StreamPosition.of(start))
        return partitions

    def commit(self, end: dict[str, Any]) -> None:
        """Notes that the stream has read all up to an offset."""
        self.position_file.write(StreamPosition.of(end))


class _Budget:
    """What a micro-batch may still take."""

    def __init__(self, options: ChangeOptions) -> None:
        self._versions = options.maxversionspertrigger
        self._rows = options.maxrowspertrigger
        self._bytes = options.maxbytespertrigger
        self._is_empty = False
        self._has_units = False

    @property
    def has_version(self) -> bool:
        """Whether the micro-batch takes the next version."""
        return not self._is_empty and self._versions != 0

    def take(self, units: Sequence[Unit]) -> int:
        """Returns the number of units that the micro-batch takes from a version: at least one."""
        if self._versions is not None:
            self._versions -= 1
        for number, unit in enumerate(units):
            rows, size = rows_of(unit), 0 if self._bytes is None else stored_bytes(unit)
            if self._has_units and not self._fits(rows, size):
                self._is_empty = True
                return number
            self._has_units = True
            self._rows = None if self._rows is None else self._rows - rows
            self._bytes = None if self._bytes is None else self._bytes - size
        return len(units)

    def _fits(self, rows: int, size: int) -> bool:
        return (self._rows is None or rows <= self._rows) and (
            self._bytes is None or size <= self._bytes
        )


def _feed_of_schema(ref: DatasetRef, options: ChangeOptions, schema: StructType) -> ChangeFeed:
    dataset = ref.open()
    own_names = (ROW_ID,) * options.with_row_id + (
        CHANGE_TYPE,
        COMMIT_VERSION,
        COMMIT_TIMESTAMP,
    ) * options.change_feed
    names = tuple(name for name in schema.names if name not in own_names)
    lost = [
        name
        for name in (*names, *(options.ready_columns or ()))
        if name not in dataset.schema.names
    ]
    if lost:
        raise ChangeFeedError(
            f"The table {ref.uri} has no column {', '.join(lost)} any more, a column of the stream. Load the stream "
            "again: it continues with the columns of the latest version.",
            uri=ref.uri,
            version=ref.version or 0,
        )
    blobs = [name for name in names if is_blob(dataset.schema.field(name))]
    if any(not isinstance(schema[name].dataType, BinaryType) for name in blobs):
        raise OptionError(
            "blob_handling", None, f"bytes, or the option columns without {', '.join(blobs)}"
        )
    return feed_of(ref, replace(options, columns=names))[0]
