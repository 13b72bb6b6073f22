"""Positions of streams next to the table: :class:`PositionFile` and :func:`first_needed_version`.

Streams from a table have positions. Streams into a table have the records of
:mod:`lance_spark.commit.app_ledger`.

    _lance_spark/streams/<stream>.json    the first version needed by the stream, and the time

A cleanup of old versions reads the positions. Spark's checkpoint alone decides the continuation of
a stream. A stream renews its position with each micro-batch, and while waiting, once a day, or
some seconds after a failed write. A position expires after a week without renewal.

Spark ends the process of a reader by a signal, so a reader cannot act at the end of its query.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lance_spark.commit.app_ledger import first_unfinished_version
from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError
from lance_spark.storage.objects import LanceObjects, objects_beside
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    from lance_spark.changes.stream_units import StreamPosition

_LOG = logging.getLogger(__name__)

_FOLDER = "streams"
_NAME = re.compile(r"[0-9a-f]{32}\.json")
_RENEWAL = timedelta(days=1)
_RETRY = timedelta(seconds=10)
_LIFETIME = timedelta(days=7)


class PositionFile:
    """The position of a stream of this process. Runs on the driver."""

    def __init__(self, ref: DatasetRef) -> None:
        """Stores the table. Writes nothing."""
        self._objects = objects_beside(ref)
        self._names: set[str] = set()
        self._version = -1
        self._due = datetime.min.replace(tzinfo=UTC)
        self._latest: StreamPosition | None = None

    def add_name(self, position: StreamPosition) -> None:
        """Notes the name of the stream in an earlier process."""
        self._names.add(position.stream)

    def write(self, position: StreamPosition) -> None:
        """Writes the position, unless the file has the position already.

        A stream may have no right to write next to the table, so a failure is a line in the log.
        The same position is written again later.
        """
        self._latest = position
        moment, version = datetime.now(UTC), position.first_needed_version
        if (position.stream in self._names and version == self._version) and moment < self._due:
            return
        values = {"version": version, "time": moment.isoformat()}
        try:
            self._objects.put(_path_of(position.stream), json.dumps(values).encode())
            for name in self._names - {position.stream}:
                self._objects.delete(_path_of(name))
        except (OSError, LanceSparkError) as error:
            _LOG.info(
                "the position of a stream of %s was not written: %s", self._objects.uri, error
            )
            self._names, self._due = {*self._names, position.stream}, moment + _RETRY
        else:
            self._names, self._due = {position.stream}, moment + _RENEWAL
        self._version = version

    def renew(self) -> None:
        """Writes the latest position again, if its file is missing or old."""
        if self._latest is not None:
            self.write(self._latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedPosition:
    """The position of a stream from a table.

    Attributes:
        stream: Digest of the stream's name.
        version: The first version needed by the stream.
        noted_at: Time of the position.
    """

    stream: str
    version: int
    noted_at: datetime


def noted_positions(ref: DatasetRef, most: int) -> list[NotedPosition]:
    """Returns the positions of the first streams from a table or branch. Deletes nothing.

    Raises:
        OSError: The store refused.
    """
    objects, moment = objects_beside(ref), datetime.now(UTC)
    names = sorted(filter(_NAME.fullmatch, objects.list_names(_FOLDER)))[:most]
    return [position for name in names if (position := _read(objects, name, moment)) is not None]


def first_needed_version(ref: DatasetRef) -> int | None:
    """Returns the first version of a table or branch needed by a stream; None without need.

    A stream from the table needs the versions from its position on. After a death in a commit, a
    stream needs the versions since the start of the commit. Deletes expired positions.

    Raises:
        OSError: The store refused.
    """
    objects, moment = objects_beside(ref), datetime.now(UTC)
    names = filter(_NAME.fullmatch, objects.list_names(_FOLDER))
    unfinished = first_unfinished_version(ref, moment - _LIFETIME)
    versions = [
        *_read_versions(objects, names, moment),
        *(() if unfinished is None else (unfinished,)),
    ]
    return min(versions, default=None)


def _read_versions(objects: LanceObjects, names: Iterator[str], moment: datetime) -> Iterator[int]:
    for name in names:
        path = f"{_FOLDER}/{name}"
        position = _read(objects, name, moment)
        if position is not None:
            yield position.version
        else:
            objects.delete(path)


def _read(objects: LanceObjects, name: str, moment: datetime) -> NotedPosition | None:
    """Returns a position; None if the position is damaged or expired."""
    try:
        values = load_object(objects.get(f"{_FOLDER}/{name}") or b"", {"version": int, "time": str})
        noted_at = datetime.fromisoformat(values["time"])
        if not -_LIFETIME < moment - noted_at < _LIFETIME:
            return None
    except (ValueError, TypeError):  # damaged, or a time without a zone
        return None
    return NotedPosition(
        stream=name.removesuffix(".json"), version=values["version"], noted_at=noted_at
    )


def _path_of(stream: str) -> str:
    # The name of a stream comes from an offset, and is no safe path.
    return (
        f"{_FOLDER}/{hashlib.sha256(stream.encode(errors='surrogatepass')).hexdigest()[:32]}.json"
    )
