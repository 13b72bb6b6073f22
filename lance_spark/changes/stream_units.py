"""Units of a stream, and its offsets: :class:`UnitPlanner` and :class:`StreamPosition`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lance_spark.changes.errors import ChangeFeedError
from lance_spark.changes.feed import ChangeFeed
from lance_spark.changes.plan import StepPart, operation_of, plan_parts
from lance_spark.changes.steps import FeedStep, pin_version, version_before
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.fragment_comparison import handles_of

_ALL = -1
_CACHED_VERSIONS = 32

Unit = tuple[StepPart, ...]
"""Parts of a version that a micro-batch takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """A place in a stream. Spark stores places as offsets.

    Attributes:
        version: The version. A stream has read all versions before.
        fragment: Lowest fragment id still to read; -1 means that the stream has read all.
        is_snapshot: Whether the stream reads all rows of the version, and not its changes.
        incarnation: Identity of the version. A table created again has other identities.
        stream: Random name of the stream.
        begin: Version at which the stream began; None in offsets of earlier releases.
        begins_with_snapshot: Whether the stream began with all rows of that version.
    """

    version: int
    fragment: int
    is_snapshot: bool
    incarnation: str
    stream: str
    begin: int | None = None
    begins_with_snapshot: bool = False

    @staticmethod
    def of(offset: Mapping[str, Any]) -> StreamPosition:
        """Returns the position of an offset."""
        return StreamPosition(
            version=int(offset["version"]),
            fragment=int(offset["fragment"]),
            is_snapshot=bool(offset["snapshot"]),
            incarnation=str(offset["incarnation"]),
            stream=str(offset["stream"]),
            begin=None if offset.get("begin") is None else int(offset["begin"]),
            begins_with_snapshot=bool(offset.get("begins_with_snapshot")),
        )

    @property
    def offset(self) -> dict[str, Any]:
        """The offset for Spark."""
        return {
            "version": self.version,
            "fragment": self.fragment,
            "snapshot": self.is_snapshot,
            "incarnation": self.incarnation,
            "stream": self.stream,
            "begin": self.begin,
            "begins_with_snapshot": self.begins_with_snapshot,
        }

    @property
    def is_complete(self) -> bool:
        """Whether the stream has read all of the version."""
        return self.fragment == _ALL

    @property
    def first_needed_version(self) -> int:
        """The oldest version that the stream still reads or compares."""
        is_whole = self.is_complete or self.is_snapshot
        return max(0, self.version - (not is_whole))

    def completed(self) -> StreamPosition:
        """Returns the end of the version."""
        return replace(self, fragment=_ALL)

    def unread(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Returns the units still to read."""
        return [
            unit for unit in units if not self.is_complete and _last_fragment(unit) >= self.fragment
        ]

    def advanced(self, units: Sequence[Unit], count: int) -> StreamPosition:
        """Returns the position after the first of the unread units."""
        if count >= len(units):
            return self.completed()
        return replace(self, fragment=_last_fragment(units[count - 1]) + 1) if count else self

    def at(self, ref: DatasetRef) -> StreamPosition:
        """Returns the begin of a later version."""
        return replace(
            self,
            version=ref.version or 0,
            fragment=0,
            is_snapshot=False,
            incarnation=ref.incarnation or "",
        )


class UnitPlanner:
    """Plans the units of versions, and caches a few versions. Runs on the driver."""

    def __init__(self, ref: DatasetRef, feed: ChangeFeed) -> None:
        self._ref = ref
        self._feed = feed
        self._units: OrderedDict[tuple[int, bool], list[Unit]] = OrderedDict()
        self._pins: OrderedDict[int, DatasetRef] = OrderedDict()

    def check(self, position: StreamPosition) -> DatasetRef:
        """Returns the latest version, after a check that the table is the table of a position.

        Raises:
            ChangeFeedError: The table was created again, or the version was cleaned up.
        """
        head = replace(self._ref, version=None, incarnation=None).pin(None)
        if position.version == 0:
            return head
        version = position.version
        if (
            version <= (head.version or 0)
            and pin_version(head, version).incarnation == position.incarnation
        ):
            return head
        raise ChangeFeedError(
            f"The table {self._ref.uri} was created again since the stream read version {version}. Begin the stream "
            "anew with another checkpointLocation.",
            uri=self._ref.uri,
            version=version,
        )

    def units(self, head: DatasetRef, position: StreamPosition) -> list[Unit]:
        """Returns the units of the version of a position.

        Raises:
            ChangeFeedError: The changes of the version cannot be read.
        """
        key = position.version, position.is_snapshot
        if key not in self._units:
            self._units[key] = self._plan(self.pin(head, position.version), position.is_snapshot)
            while len(self._units) > _CACHED_VERSIONS:
                self._units.popitem(last=False)
        return self._units[key]

    def pin(self, head: DatasetRef, version: int) -> DatasetRef:
        """Returns a version, whose manifest is read once. :meth:`check` detects another table.

        Raises:
            ChangeFeedError: The version was cleaned up.
        """
        if version not in self._pins:
            self._pins[version] = pin_version(head, version)
            while len(self._pins) > _CACHED_VERSIONS:
                self._pins.popitem(last=False)
        return self._pins[version]

    def _before(self, after: DatasetRef) -> DatasetRef | None:
        version = after.version or 0
        return self._pins.get(version - 1) or version_before(after, version)

    def _plan(self, after: DatasetRef, is_snapshot: bool) -> list[Unit]:
        before = None if is_snapshot else self._before(after)
        if before is not None:
            self._refuse_lost_columns(before, after)
            self._refuse_overwrite(after)
            if self._feed.ready is not None and operation_of(after) == "Rewrite":
                return []  # a compaction makes no row ready
        parts = list(plan_parts(FeedStep.of(before, after), self._feed.compared))
        if not self._feed.describes:
            return _by_fragment(part for part in parts if part.new_ids)
        if all(part.only_inserts for part in parts):
            return _by_fragment(parts)
        return [tuple(parts)]

    def _refuse_lost_columns(self, before: DatasetRef, after: DatasetRef) -> None:
        lost = {*before.open().schema.names} - {*after.open().schema.names}
        columns = [name for name in dict.fromkeys(self._feed.needed) if name in lost]
        if columns:
            raise ChangeFeedError(
                f"Version {after.version} of {after.uri} has no column {', '.join(columns)}, a column of the stream. "
                "Start the query again: the stream continues with the columns of the latest version.",
                uri=after.uri,
                version=after.version or 0,
            )

    def _refuse_overwrite(self, after: DatasetRef) -> None:
        version = after.version or 0
        if self._feed.describes or operation_of(after) != "Overwrite":
            return
        raise ChangeFeedError(
            f"Version {version} of {after.uri} replaces all rows, and a stream of new rows cannot report removed rows. "
            "Begin the stream anew with another checkpointLocation: it then reads all rows of the latest version. Or "
            "read deletes too, with option('change_feed', True).",
            uri=after.uri,
            version=version,
        )


def _by_fragment(parts: Iterable[StepPart]) -> list[Unit]:
    return [(part,) for part in sorted(parts, key=lambda part: part.new_ids)]


def _last_fragment(unit: Unit) -> int:
    return max(number for part in unit for number in (*part.new_ids, *part.old_ids))


def stored_bytes(unit: Unit) -> int:
    """Returns the bytes of the data files of a unit's fragments."""
    return sum(
        file.file_size_bytes or 0
        for part in unit
        for handle in handles_of(part.step.after.open(), part.new_ids)
        for file in handle.metadata.files
    )


def rows_of(unit: Unit) -> int:
    """Returns an upper bound of the rows of a unit."""
    return sum(part.rows for part in unit)


def units_between(
    planner: UnitPlanner, head: DatasetRef, start: StreamPosition, end: StreamPosition
) -> Iterator[Unit]:
    """Yields the units from a position to a later position."""
    position = start
    while True:
        is_last = position.version == end.version
        if not position.is_complete:
            units = position.unread(planner.units(head, position))
            is_partial = is_last and not end.is_complete
            yield from (
                unit for unit in units if not is_partial or _last_fragment(unit) < end.fragment
            )
        if is_last:
            return
        position = position.at(planner.pin(head, position.version + 1))
