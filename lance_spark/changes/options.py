"""Options of the change feed and of streams, with the names of Spark's `CHANGES` clause."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal

from lance_spark.errors import OptionError
from lance_spark.options.io_options import ReadOptions, parse_options, select_used_options
from lance_spark.options.values import (
    byte_size,
    option_field,
    parse_boolean,
    parse_branch,
    parse_names,
    parse_one_of,
    parse_positive,
    parse_text,
    parse_timestamp,
)

FEED_OPTION = "change_feed"
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
LATEST = "latest"
STREAM_OPTIONS = (
    "startingversion",
    "startingtimestamp",
    "startingboundinclusive",
    "maxversionspertrigger",
    "maxrowspertrigger",
    "maxbytespertrigger",
    "ready_columns",
)
"""Options of a stream without a change feed."""

_BY_PATH = "a read by path, without a schema: .load({!r})"

_BATCH_ONLY = ("endingversion", "endingtimestamp", "endingboundinclusive", "deduplicationmode")


def _parse_starting_version(text: str) -> int | str:
    return LATEST if text.strip().lower() == LATEST else parse_positive(text)


_INSTANT = "an ISO 8601 date and time, such as 2026-01-31T12:00:00Z"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Options of a change feed and of a stream; the metadata documents each field."""

    path: str = option_field(
        parse_text,
        "the URI of a Lance table",
        "Location of the table; usually the argument of `load`.",
        default="",
    )
    branch: str | None = option_field(
        parse_branch, "the name of a branch", "Branch of the changes."
    )
    change_feed: bool = option_field(
        parse_boolean, "true or false", "Read changes instead of rows.", default=False
    )
    startingversion: int | Literal["latest"] | None = option_field(
        _parse_starting_version,
        "a version number, or latest for a stream",
        "`startingVersion`: the first version of the feed. In a stream, `latest` skips all existing rows. "
        "Default of a stream: all rows of the latest version first.",
    )
    endingversion: int | None = option_field(
        parse_positive,
        "a version number",
        "`endingVersion`: the last version of the feed. Default: the latest version.",
    )
    startingtimestamp: datetime | None = option_field(
        parse_timestamp,
        _INSTANT,
        "`startingTimestamp`: read the changes of the versions from this time on.",
    )
    endingtimestamp: datetime | None = option_field(
        parse_timestamp,
        _INSTANT,
        "`endingTimestamp`: read the changes of the versions up to this time.",
    )
    startingboundinclusive: bool = option_field(
        parse_boolean,
        "true or false",
        "`startingBoundInclusive`: whether the starting version belongs to the feed.",
        default=True,
    )
    endingboundinclusive: bool = option_field(
        parse_boolean,
        "true or false",
        "`endingBoundInclusive`: whether the ending version belongs to the feed.",
        default=True,
    )
    deduplicationmode: Literal["none", "dropcarryovers", "netchanges"] = option_field(
        parse_one_of("none", "dropcarryovers", "netchanges"),
        "dropCarryovers, netChanges or none",
        "`deduplicationMode`: `netChanges` compares the ending version with the version before the start. The other "
        "values read the changes of each version. The feed has no carried over rows, so `none` equals "
        "`dropCarryovers`.",
        default="dropcarryovers",
    )
    computeupdates: bool = option_field(
        parse_boolean,
        "true or false",
        "`computeUpdates`: whether a changed row gives `update_preimage` and `update_postimage`. Otherwise a changed "
        "row gives `delete` and `insert`.",
        default=True,
    )
    columns: tuple[str, ...] | None = option_field(
        parse_names,
        "column names, comma-separated or as a JSON array",
        "Columns of the feed. A row is an update only if a value of these columns differs. Default: all columns of the "
        "ending version.",
    )
    filter: str | None = option_field(
        parse_text,
        "a filter in Lance SQL",
        "Read the changes of the matching rows. A row that begins to match is an insert, and a row that ceases to "
        "match is a delete.",
    )
    with_row_id: bool = option_field(
        parse_boolean, "true or false", "Add the column `_rowid` (bigint).", default=False
    )
    blob_handling: Literal["bytes"] = option_field(
        parse_one_of("bytes"), "bytes", "Form of a blob column: the bytes.", default="bytes"
    )
    ready_columns: tuple[str, ...] | None = option_field(
        parse_names,
        "column names, comma-separated or as a JSON array",
        "Columns that a UDF computes. A stream of new rows reads a row in the version in which all of these columns "
        "have a value or are computed as NULL.",
    )
    maxversionspertrigger: int | None = option_field(
        parse_positive,
        "a number of versions, 1 or more",
        "`maxVersionsPerTrigger`: maximum number of versions of a micro-batch of a stream. Needs Spark 4.2.",
    )
    maxrowspertrigger: int | None = option_field(
        parse_positive,
        "a number of rows, 1 or more",
        "`maxRowsPerTrigger`: rows after which a micro-batch takes no further fragment. Needs Spark 4.2.",
    )
    maxbytespertrigger: int | None = option_field(
        byte_size,
        "a size in bytes, such as 1g",
        "`maxBytesPerTrigger`: stored bytes after which a micro-batch takes no further fragment. Needs Spark 4.2.",
    )
    storage: tuple[tuple[str, str], ...] = dataclasses.field(default=(), metadata={}, repr=False)

    @staticmethod
    def parse(options: Mapping[str, str]) -> ChangeOptions:
        """Parses Spark's options.

        Raises:
            OptionError: An option is unknown, malformed, or contradicts another option.
        """
        requested = select_used_options(ReadOptions, options)
        if "version" in requested and FEED_OPTION in requested:
            problem = "is not for a table of a catalog, nor beside option 'version'"
            raise OptionError(
                FEED_OPTION,
                requested[FEED_OPTION],
                _BY_PATH.format(requested.get("path")),
                problem=problem,
            )
        parsed = parse_options(ChangeOptions, requested)
        if parsed.startingversion is not None and parsed.startingtimestamp is not None:
            raise _contradiction("startingTimestamp", parsed.startingtimestamp, "startingVersion")
        if parsed.endingversion is not None and parsed.endingtimestamp is not None:
            raise _contradiction("endingTimestamp", parsed.endingtimestamp, "endingVersion")
        return parsed

    def check_batch(self) -> None:
        """Checks that the options fit a batch read.

        Raises:
            OptionError: An option is for streams, or an option is missing.
        """
        if not self.change_feed:
            raise OptionError(
                FEED_OPTION,
                None,
                "true beside startingVersion, or readStream for a stream of new rows",
            )
        if self.startingversion == LATEST:
            raise OptionError(
                "startingVersion", LATEST, "a version number, or readStream instead of read"
            )
        for name in STREAM_OPTIONS[3:]:
            self._refuse(name, "an option of streams (readStream)")

    def check_stream(self) -> None:
        """Checks that the options fit a stream.

        Raises:
            OptionError: An option is for batch reads.
        """
        for name in _BATCH_ONLY:
            self._refuse(name, "an option of reads that end: a stream continues, change by change")
        if self.change_feed:
            self._refuse("ready_columns", "an option of streams of new rows, without change_feed")

    def check_columns(self, names: Collection[str]) -> None:
        """Checks that a read has the columns of a change feed.

        Raises:
            OptionError: Spark took the columns from a catalog or from the user.
        """
        lacking = [
            name for name in (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP) if name not in names
        ]
        if self.change_feed and lacking:
            problem = (
                f"needs the columns {', '.join(lacking)}, which a table of a catalog does not have"
            )
            raise OptionError(FEED_OPTION, "true", _BY_PATH.format(self.path), problem=problem)

    def _refuse(self, name: str, problem: str) -> None:
        field = next(field for field in dataclasses.fields(self) if field.name == name)
        if getattr(self, name) != field.default:
            raise OptionError(name, str(getattr(self, name)), "no value", problem=f"is {problem}")

    @property
    def needs_stream(self) -> bool:
        """Whether the options are valid for a stream only."""
        has_start = isinstance(self.startingversion, int) or self.startingtimestamp is not None
        return not (self.change_feed and has_start)

    @property
    def is_net(self) -> bool:
        """Whether only the differences of the first and the last version are read."""
        return self.deduplicationmode == "netchanges"


def reads_changes(options: Mapping[str, str]) -> bool:
    """Tells whether options, with lower-case names, are options of a change feed or of a stream."""
    return not options.keys().isdisjoint((FEED_OPTION, *STREAM_OPTIONS))


def _contradiction(name: str, moment: datetime, rival: str) -> OptionError:
    return OptionError(
        name,
        moment.isoformat(),
        f"either {rival} or {name}, not both",
        problem=f"contradicts option {rival!r}",
    )
