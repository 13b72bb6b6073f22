"""The lag of a stream behind its table: :func:`stream_lag`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.arguments import ARGUMENTS
from lance_spark.display import Displayable, join_counts
from lance_spark.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamLag(Displayable):
    """The lag of a stream at the time of a progress report.

    Attributes:
        version: The last version that the stream has read, in part or in whole.
        latest_version: The latest version of the table.
        is_complete: Whether the stream has read all rows of `version`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        stream = db.spark.readStream.format("lance").load("library/books.lance")
        writer = stream.writeStream.format("memory").queryName("copy")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        [lag] = lance_spark.stream_lag(query.lastProgress)
        assert (lag.version, lag.versions, lag.is_complete) == (1, 0, True)
        ```
    """

    version: int
    latest_version: int
    is_complete: bool

    @property
    def versions(self) -> int:
        """Number of versions that the stream has not begun to read."""
        return max(0, self.latest_version - self.version)

    @property
    def text(self) -> str:
        """Summary: `version 3, 2 versions behind version 5`."""
        part = "" if self.is_complete else "in part"
        return join_counts(
            f"version {self.version}",
            (self.versions, f"versions behind version {self.latest_version}"),
            part,
        )


@ARGUMENTS.function
def stream_lag(progress: Mapping[str, Any] | None) -> list[StreamLag]:
    """Returns the lag of each Lance table that a streaming query reads.

    Computed from the offsets of the progress report, without a request to the table.

    Args:
        progress: A progress report, such as `query.lastProgress`.

    Returns:
        The lags, in the order of the sources. Sources of other formats are left out.

    Raises:
        OptionError: The query has no progress report yet.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        stream = db.spark.readStream.format("lance").load("library/books.lance")
        writer = stream.writeStream.format("memory").queryName("copy")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        print(lance_spark.stream_lag(query.lastProgress))  # [version 1]
        ```
    """
    if progress is None:
        raise OptionError(
            "progress", None, "a progress report, which a query has after its first micro-batch"
        )
    return list(_lags(progress))


def _lags(progress: Mapping[str, Any]) -> Iterator[StreamLag]:
    sources = progress.get("sources")
    for source in sources if isinstance(sources, Sequence) else ():
        if not isinstance(source, Mapping):
            continue
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None:
            continue
        yield StreamLag(
            version=int(end["version"]),
            latest_version=int((latest or end)["version"]),
            is_complete=end["fragment"] == -1,
        )


def _offset(value: object) -> dict[str, Any] | None:
    """Returns the offset of a Lance table, else None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    is_ours = (
        isinstance(value, dict)
        and {"version", "fragment", "snapshot", "incarnation"} <= value.keys()
    )
    return value if is_ours and isinstance(value["version"], int) else None  # type: ignore[index,return-value]
