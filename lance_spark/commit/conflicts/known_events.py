"""Events of versions by walk: :class:`KnownEvents` reads each version once per process.

A version never changes, so all walks of a process over a table's history share the events. Versions
of an object store are read in parallel threads.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lance_spark.dataset import incarnation_of
from lance_spark.storage.parallel_calls import blocks, read_all

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.history import Event

MAX_BYTES = 64 << 20
"""Maximum estimated size of the events of all tables in a process."""

FEW_VERSIONS = 4
"""Maximum number of versions read without a listing of the kept versions. A listing takes a request
per 1,000 versions."""

_MIN_SHARED = 2
"""Minimum number of known events for the check of a later version. The check takes two requests,
and the read of an event takes three."""

_TABLES = 256
"""Maximum number of tables with trails. The table with the oldest use is forgotten."""

_TRAILS = 8
"""Trails per table: a table created again has another trail."""

_ANCHORS = 64
"""Anchors per trail."""

_OWN_EVENTS = 32
"""Maximum number of events per trail that this process committed and has not read."""

_OWN_BYTES = 128 << 10
"""Maximum estimated size of such an event: a commit of about 100 fragments. Without the event, the
next round of a job reads the manifest of its own commit, 19 MB for a table of 100,000 fragments."""

_FRAGMENT_LISTS = ("fragments", "new_fragments", "updated_fragments")
"""Attributes of operations with fragments."""

_NO_ROW_VERSIONS: dict[str, Any] = {
    "created_at_version_meta": None,
    "last_updated_at_version_meta": None,
}

_EVENT_BYTES = 2 << 10
_FRAGMENT_BYTES = 1 << 10
"""Estimated sizes in Python of an event with its properties, and of a fragment of its operation."""


@dataclass(slots=True, eq=False)
class _Trail:
    """Events of one line of history.

    Attributes:
        anchors: Incarnations of opened versions on the line. The version number alone is no
            identity, because a table may be deleted and created again.
        events: Known events, all of versions up to the latest anchor.
        own: Versions of the events that this process committed, oldest first.
    """

    anchors: dict[int, str] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    own: list[int] = field(default_factory=list)

    @property
    def top(self) -> int:
        return max(self.anchors)

    def add_anchor(self, version: int, incarnation: str) -> None:
        self.anchors[version] = incarnation
        if len(self.anchors) > _ANCHORS:
            del self.anchors[min(self.anchors)]


class KnownEvents:
    """Reads events of versions, and keeps the events in bounded memory. Safe for threads.

    `read` returns the event of a version, given whether a listing had the version. An event stays
    known after the cleanup of its version.
    """

    def __init__(
        self, read: Callable[[lance.LanceDataset, int, bool], Event], *, max_bytes: int = MAX_BYTES
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._trails: OrderedDict[str, list[_Trail]] = OrderedDict()
        self._sizes: OrderedDict[tuple[_Trail, int], int] = OrderedDict()
        self._bytes = 0

    def walk(
        self, dataset: lance.LanceDataset, versions: Sequence[int], *, first_block: int
    ) -> Iterator[Event]:
        """Yields the events of versions in the given order.

        The first `first_block` versions are read at once, and then more and more versions.
        """
        if not versions:
            return
        trail = self._trail_of(dataset, versions)
        kept_versions: set[int] | None = None
        for block in blocks(versions, first_block):
            events = self._look_up(trail, block)
            missing_versions = [version for version in block if version not in events]
            if len(missing_versions) > FEW_VERSIONS and kept_versions is None:
                kept_versions = {ref["version"] for ref in dataset.version_refs()}
            for event in self._read_all(dataset, missing_versions, kept_versions):
                events[event.version] = event
                if event.version <= dataset.version:
                    self._keep(trail, event)
            yield from (events[version] for version in block)

    def note_commit(
        self, base: lance.LanceDataset, landed: lance.LanceDataset, event: Event
    ) -> None:
        """Notes a commit of this process that directly follows its base version, without a request.

        A later walk knows that both versions are of one history, and knows a small event.
        """
        incarnation, event = incarnation_of(base), _without_row_ids(event)
        with self._lock:
            trails = self._trails_of(landed.uri)
            trail = next(
                (trail for trail in trails if trail.anchors.get(base.version) == incarnation), None
            )
            if trail is None:
                trail = _Trail()
                trail.add_anchor(base.version, incarnation)
                trails[:] = [*trails, trail][-_TRAILS:]
            trail.add_anchor(landed.version, incarnation_of(landed))
            # Events of lost versions, such as after the return to a copy of the table.
            self._forget(trail, [version for version in trail.events if version >= landed.version])
            trail.own = [version for version in trail.own if version < landed.version]
        if _size_of(event) <= _OWN_BYTES:
            self._keep(trail, event)
            self._forget_own(trail, event.version)

    def _forget_own(self, trail: _Trail, newest: int) -> None:
        """Forgets the oldest own event of a trail above the limit."""
        with self._lock:
            trail.own.append(newest)
            if len(trail.own) > _OWN_EVENTS:
                self._forget(trail, [trail.own.pop(0)])

    def _forget(self, trail: _Trail, versions: Sequence[int]) -> None:
        """Forgets events of a trail. The caller holds the lock."""
        for version in versions:
            trail.events.pop(version, None)
            self._bytes -= self._sizes.pop((trail, version), 0)

    def _trails_of(self, uri: str) -> list[_Trail]:
        """Returns the trails of a table, and forgets the tables with the oldest use.

        The caller holds the lock.
        """
        trails = self._trails.setdefault(uri, [])
        self._trails.move_to_end(uri)
        while len(self._trails) > _TABLES:
            _, old_trails = self._trails.popitem(last=False)
            for trail in old_trails:
                self._forget(trail, list(trail.events))
        return trails

    def _read_all(
        self, dataset: lance.LanceDataset, versions: Sequence[int], kept_versions: set[int] | None
    ) -> list[Event]:
        def read(opened: lance.LanceDataset, version: int) -> Event:
            is_kept = kept_versions is None or version in kept_versions
            return _without_row_ids(self._read(opened, version, is_kept))

        return read_all(dataset, read, versions)

    def _trail_of(self, dataset: lance.LanceDataset, versions: Sequence[int]) -> _Trail:
        """Returns the trail of a version's history, perhaps a new trail without events."""
        version, incarnation = dataset.version, incarnation_of(dataset)
        with self._lock:
            trails = list(self._trails_of(dataset.uri))
        for trail in trails:
            if trail.anchors.get(version) == incarnation:
                return trail
        trail = self._earlier_trail(dataset, versions, trails) or _Trail()
        with self._lock:
            trail.add_anchor(version, incarnation)
            kept_trails = [known_trail for known_trail in trails if known_trail is not trail]
            self._trails_of(dataset.uri)[:] = [*kept_trails, trail][-_TRAILS:]
        return trail

    def _earlier_trail(
        self, dataset: lance.LanceDataset, versions: Sequence[int], trails: list[_Trail]
    ) -> _Trail | None:
        """Returns the trail of an earlier version of a table, if the trail saves requests.

        Prefers the trail with the most of the versions: a short walk makes a later trail with few
        events. Removes trails of another history from `trails`.
        """
        shared = {
            trail: len(self._look_up(trail, versions))
            for trail in trails
            if trail.top < dataset.version
        }
        for trail in sorted(shared, key=lambda trail: (shared[trail], trail.top), reverse=True):
            if shared[trail] < _MIN_SHARED:
                break
            if _is_ancestor(dataset, trail.top, trail.anchors[trail.top]):
                return trail
            trails.remove(trail)  # the table was created again, or the version was cleaned up
        return None

    def _look_up(self, trail: _Trail, versions: Sequence[int]) -> dict[int, Event]:
        with self._lock:
            events = {
                version: trail.events[version] for version in versions if version in trail.events
            }
            for version in events:
                self._sizes.move_to_end((trail, version))
        return events

    def _keep(self, trail: _Trail, event: Event) -> None:
        """Keeps an event of a readable version, and forgets the events with the oldest use."""
        size = _size_of(event)
        if event.operation is None or size > self._max_bytes:
            return
        with self._lock:
            self._bytes += size - self._sizes.get((trail, event.version), 0)
            trail.events[event.version] = event
            self._sizes[trail, event.version] = size
            while self._bytes > self._max_bytes:
                (old_trail, version), size = self._sizes.popitem(last=False)
                old_trail.events.pop(version, None)
                self._bytes -= size


def _is_ancestor(dataset: lance.LanceDataset, version: int, incarnation: str) -> bool:
    """Tells whether a version of the dataset's table has an incarnation. Takes two requests."""
    try:
        return incarnation_of(dataset.checkout_version(version)) == incarnation
    except (OSError, ValueError):
        return False  # The version was cleaned up, or cannot be read.


def _size_of(event: Event) -> int:
    """Returns the estimated size of an event in bytes."""
    operation: Any = event.operation
    names = (*_FRAGMENT_LISTS, "replacements")
    fragments = [fragment for name in names for fragment in getattr(operation, name, None) or ()]
    for group in getattr(operation, "groups", None) or ():
        fragments += [*group.old_fragments, *group.new_fragments]
    bitmaps = getattr(operation, "updated_fragment_offsets", None) or {}
    own_bytes = len(getattr(operation, "predicate", None) or "") + sum(map(len, bitmaps.values()))
    return _EVENT_BYTES + own_bytes + _FRAGMENT_BYTES * len(fragments)


def _without_row_ids(event: Event) -> Event:
    """Returns an event without the row ids and row versions of its fragments.

    No reader of events needs them, and their size is in proportion to the rows of the commit.
    """
    if event.operation is None:
        return event
    operation: Any = copy.copy(event.operation)
    for name in _FRAGMENT_LISTS:
        if getattr(operation, name, None):
            setattr(operation, name, _strip_fragments(getattr(operation, name)))
    if getattr(operation, "groups", None):
        operation.groups = [
            replace(
                group,
                old_fragments=_strip_fragments(group.old_fragments),
                new_fragments=_strip_fragments(group.new_fragments),
            )
            for group in operation.groups
        ]
    return replace(event, operation=operation)


def _strip_fragments(fragments: Iterable[FragmentMetadata]) -> list[FragmentMetadata]:
    return [replace(fragment, row_id_meta=None, **_NO_ROW_VERSIONS) for fragment in fragments]
