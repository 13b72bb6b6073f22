"""Versions of a change feed, each with the version before: :func:`steps_of`. Runs on the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from lance_spark.changes.errors import ChangeFeedError
from lance_spark.changes.options import ChangeOptions
from lance_spark.commit.conflicts.history import Event, event_of
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, VersionNotFoundError
from lance_spark.lance_compat import moment_of, version_of
from lance_spark.version_times import version_at

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStep:
    """A version to compare with an older version.

    Attributes:
        before: The older version; None compares with a table without rows.
        after: The version of the changes.
        moment: Time of the commit of `after`.
    """

    before: DatasetRef | None
    after: DatasetRef
    moment: datetime

    @staticmethod
    def of(before: DatasetRef | None, after: DatasetRef) -> FeedStep:
        """Returns the step between two pinned versions."""
        return FeedStep(before=before, after=after, moment=moment_of(version_of(after.open())))


def find_versions(options: ChangeOptions) -> tuple[int, DatasetRef]:
    """Returns the first version of a feed, and its last version, pinned.

    Raises:
        OptionError: The feed has no start, or ends before its start.
        TableNotFoundError, VersionNotFoundError, TableUnreadableError: The versions cannot be read.
    """
    if not options.path:
        raise OptionError("path", None, "the URI of a Lance table, as in load(path)")
    ref = DatasetRef.find(options.path, options.storage, options.branch)
    latest = ref.pin(None)
    dataset = latest.open()
    first, last = _first_version(dataset, options), _last_version(dataset, options)
    if first > last + 1:
        text = f"a version up to {last}, the last version of the feed"
        raise OptionError("startingVersion", str(first), text)
    if last < 1:
        raise OptionError("endingVersion", str(last), "1 or more")
    return first, latest if last == dataset.version else ref.pin(last, option="endingVersion")


def _first_version(dataset: lance.LanceDataset, options: ChangeOptions) -> int:
    if options.startingtimestamp is not None:
        first = version_from(dataset, options.startingtimestamp)
    elif options.startingversion is not None:
        first = options.startingversion  # type: ignore[assignment]
    else:
        raise OptionError(
            "startingVersion", None, "the first version of the feed, or startingTimestamp"
        )
    if not isinstance(first, int):
        raise OptionError("startingVersion", first, "a version number")
    return first if options.startingboundinclusive else first + 1


def _last_version(dataset: lance.LanceDataset, options: ChangeOptions) -> int:
    if options.endingtimestamp is not None:
        found_version = version_at(dataset, options.endingtimestamp)
        if isinstance(found_version, datetime):
            text = f"a time after {found_version.isoformat()}, the time of the oldest version"
            raise OptionError("endingTimestamp", options.endingtimestamp.isoformat(), text)
        last = found_version
    else:
        last = dataset.version if options.endingversion is None else options.endingversion
    return last if options.endingboundinclusive else last - 1


def version_from(dataset: lance.LanceDataset, moment: datetime) -> int:
    """Returns the oldest version whose time is not before a moment; perhaps the next version."""
    newest = version_at(dataset, moment)
    if isinstance(newest, datetime):
        return min(int(ref["version"]) for ref in dataset.version_refs())
    time = moment_of(version_of(dataset.checkout_version(newest)))
    return newest if time == moment else newest + 1


def steps_of(first: int, last: DatasetRef, *, net: bool = False) -> Iterator[FeedStep]:
    """Yields the steps of the versions `first` to `last`, or a single step of their net changes.

    Raises:
        ChangeFeedError: A version was cleaned up.
    """
    if first > (last.version or 0):
        return
    before = version_before(last, first)
    if net:
        yield FeedStep.of(before, last)
        return
    for version in range(first, (last.version or 0) + 1):
        after = pin_version(last, version)
        yield FeedStep.of(before, after)
        before = after


def version_before(ref: DatasetRef, version: int) -> DatasetRef | None:
    """Returns the version before a version; None for the first version of a table.

    Raises:
        ChangeFeedError: The version before was cleaned up.
    """
    if version > 1:
        with contextlib.suppress(VersionNotFoundError):
            return replace(ref, version=None, incarnation=None).pin(version - 1)
    if _is_kept(ref, version) and _begins(event_of(pin_version(ref, version).open(), version)):
        # The first version of a branch has the rows of the version at which the branch began.
        return None if ref.branch is None else pin_version(ref, version)
    raise _cleaned_up(ref, version - 1, version)


def pin_version(ref: DatasetRef, version: int) -> DatasetRef:
    """Returns a version of the feed.

    Raises:
        ChangeFeedError: The version was cleaned up.
        VersionNotFoundError: The table never had the version.
    """
    if version == ref.version:
        return ref
    try:
        return replace(ref, version=None, incarnation=None).pin(version)
    except VersionNotFoundError:
        if version > (ref.version or 0):
            raise
        raise _cleaned_up(ref, version, version) from None


def _is_kept(ref: DatasetRef, version: int) -> bool:
    return any(reference["version"] == version for reference in ref.open().version_refs())


def _begins(event: Event) -> bool:
    """Tells whether an event made the first version of a table or of a branch."""
    return event.name == "Clone" or event.version == 1


def _cleaned_up(ref: DatasetRef, lost: int, version: int) -> ChangeFeedError:
    oldest = min(int(reference["version"]) for reference in ref.open().version_refs())
    return ChangeFeedError(
        f"The changes of version {version} cannot be read: version {lost} was cleaned up. The table is {ref.uri}, and "
        f"its oldest version is {oldest}. Begin with startingVersion {oldest + 1}, or read all rows of version "
        f"{oldest} first. A stream begins anew with another checkpointLocation. Tag the versions that a later feed "
        "needs, because a cleanup keeps tagged versions.",
        uri=ref.uri,
        version=version,
    )
