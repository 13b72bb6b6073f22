"""Streams with limits of micro-batches, for Spark 4.2 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lance_spark.changes.stream_units import StreamPosition
from lance_spark.changes.streams import ChangeStream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lance_spark.changes.options import ChangeOptions

_ANY_ROWS = (1 << 63) - 1


class LimitedStream(ChangeStream, SupportsTriggerAvailableNow):
    """A stream whose options limit the versions, rows and bytes of a micro-batch."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        """See :class:`ChangeStream`."""
        super().__init__(options, schema)
        self._target: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns a limit that means the limits of the options."""
        limits = (
            self.options.maxversionspertrigger,
            self.options.maxrowspertrigger,
            self.options.maxbytespertrigger,
        )
        return (
            ReadAllAvailable()
            if limits == (None, None, None)
            else ReadMaxRows(limits[1] or _ANY_ROWS)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Ends the stream at the latest version."""
        self._target = self.ref.pin(None).version

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the end of the next micro-batch.

        Raises:
            ChangeFeedError: The changes of a version cannot be read.
        """
        limited = not isinstance(limit, ReadAllAvailable)
        position = StreamPosition.of(start)
        end = self.find_end(position, target=self._target, limited=limited)
        # Spark asks after the end of the micro-batch before.
        self.position_file.write(position)
        return end.offset

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the end of the latest version, for the progress of the query."""
        return self._position(self.ref.pin(None), -1).offset
