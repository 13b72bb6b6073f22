"""Versions of a table: operation, author, and changed rows of each version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from lance_spark.arguments import ARGUMENTS
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts import history
from lance_spark.commit.conflicts.history import (
    JOB_KEY,
    MESSAGE_KEY,
    USER_KEY,
    Event,
    event_of,
    summary_of,
)
from lance_spark.dataset import DatasetRef
from lance_spark.display import Displayable, join_counts
from lance_spark.errors import VersionNotFoundError
from lance_spark.lance_compat import moment_of, plain, version_of
from lance_spark.options.io_options import OWN_PROPERTIES
from lance_spark.storage.parallel_calls import read_ahead, read_all

if TYPE_CHECKING:
    import lance

last_commit = ARGUMENTS.function(history.last_commit)
"""The public form: commits run in processes of Spark, which check no arguments."""

_OPERATIONS = {
    "Append": "append",
    "Overwrite": "overwrite",
    "Delete": "delete",
    "Update": "update",
    "Merge": "columns",
    "Project": "columns",
    "DataReplacement": "backfill",
    "Rewrite": "compaction",
    "CreateIndex": "index",
    "UpdateConfig": "metadata",
    "Clone": "clone",
    "BaseOperation": "internal",
}
_OF_NO_ROWS = (
    "Merge",
    "Project",
    "DataReplacement",
    "Rewrite",
    "CreateIndex",
    "UpdateConfig",
    "Clone",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableVersion(Displayable):
    """A version of a table: its operation, and the state of the table.

    Attributes:
        version: Number of the version.
        timestamp: Time of the commit, in UTC.
        operation: The operation: `create`, `append`, `overwrite`, `backfill`, `refresh`, `update`,
            `delete`, `merge`, `index`, `compaction`, `restore of version 3`, or a change of
            `columns` or `metadata`; `internal` for a step of Lance without rows, such as the first
            of the two commits of a compaction; `unknown` without a transaction.
        user: The user of the commit; None for other engines and for commits of Lance itself (new
            and renamed columns, compactions, updates of indexes).
        message: Message of the commit, or None.
        properties: Properties of the commit.
        job_id: The job of the commit, or None.
        rows_added: Number of added rows; None if unknown.
        rows_removed: Number of removed rows; None if unknown.
        rows: Rows of the table.
        fragments: Fragments of the table.
        bytes: Size of the data files of the version.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add([{"id": 10, "price": 100}], commit_message="one more")
        version = books.versions[-1]
        assert (version.version, version.rows_added, version.message) == (2, 1, "one more")
        ```
    """

    version: int
    timestamp: datetime
    operation: str
    user: str | None
    message: str | None
    properties: dict[str, str]
    job_id: str | None
    rows_added: int | None
    rows_removed: int | None
    rows: int
    fragments: int
    bytes: int

    @property
    def text(self) -> str:
        """Summary of the version: `version 3: append by ann@host, 5 rows added`."""
        by = "" if self.user is None else f" by {self.user}"
        did = f"version {self.version}: {self.operation}{by}"
        return join_counts(
            did,
            (self.rows_added or 0, "rows added"),
            (self.rows_removed or 0, "rows removed"),
            self.message or "",
        )

    @staticmethod
    def of(dataset: lance.LanceDataset) -> TableVersion:
        """Returns the version of an open dataset. Reads its transaction."""
        event = event_of(dataset, dataset.version)
        ours = summary_of(event, dataset.uri)
        numbers = version_of(dataset)["metadata"]
        added, removed = _count_changed_rows(event, ours, int(numbers["total_rows"]))
        return TableVersion(
            version=dataset.version,
            timestamp=moment_of(version_of(dataset)),
            operation=_name_operation(event) if ours is None else ours.operation,
            user=event.properties.get(USER_KEY),
            message=event.properties.get(MESSAGE_KEY),
            properties={
                name: text
                for name, text in event.properties.items()
                if not name.startswith(OWN_PROPERTIES)
            },
            job_id=event.properties.get(JOB_KEY),
            rows_added=added,
            rows_removed=removed,
            rows=int(numbers["total_rows"]),
            fragments=int(numbers["total_fragments"]),
            bytes=int(numbers["total_files_size"]),
        )


class Versions(Sequence[TableVersion]):
    """The versions of a table, oldest first. Made by `Table.versions`.

    One listing of the store returns the numbers. An access reads the manifest of a version, of
    about 200 bytes a fragment, and its transaction. So take the last versions of a table with many
    versions: `table.versions[-20:]`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.delete("price > 50")
        assert [version.rows for version in books.versions[-2:]] == [10, 6]
        ```
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._dataset = ref.open()
        self._numbers: list[int] = sorted(
            version_ref["version"] for version_ref in self._dataset.version_refs()
        )

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> TableVersion: ...
    @overload
    def __getitem__(self, index: slice) -> list[TableVersion]: ...
    def __getitem__(self, index: int | slice) -> TableVersion | list[TableVersion]:
        if isinstance(index, slice):
            return read_all(self._dataset, _read_version, self._numbers[index])
        return _read_version(self._dataset, self._numbers[index])

    def __repr__(self) -> str:
        return f"<Versions: {self._numbers[0]} to {self._numbers[-1]}, {len(self)} kept>"


def versions_of(dataset: lance.LanceDataset, numbers: Sequence[int]) -> Iterator[TableVersion]:
    """Yields versions in the given order."""
    return read_ahead(dataset, _read_version, numbers)


def _read_version(dataset: lance.LanceDataset, number: int) -> TableVersion:
    try:
        return TableVersion.of(dataset.checkout_version(number))
    except (OSError, ValueError) as error:
        available = f"it was there a moment ago ({plain(error)})"
        raise VersionNotFoundError(dataset.uri, str(number), available=available) from error


def _name_operation(event: Event) -> str:
    """Returns the operation of a version without a summary."""
    operation: Any = event.operation
    if event.name == "Restore":
        return f"restore of version {operation.version}"
    return (
        "create"
        if event.name == "Overwrite" and event.version == 1
        else _OPERATIONS.get(event.name, event.name)
    )


def _count_changed_rows(
    event: Event, ours: CommitResult | None, rows: int
) -> tuple[int | None, int | None]:
    """Returns the number of added and of removed rows; None if unknown."""
    operation: Any = event.operation
    if ours is not None and ours.operation in ("update", "delete", "merge"):
        return ours.rows_inserted, ours.rows_deleted
    if event.name in _OF_NO_ROWS:
        return 0, 0
    if event.name == "Append":
        return sum(fragment.physical_rows for fragment in operation.fragments), 0
    if event.name == "Overwrite":
        return rows, 0 if event.version == 1 else None
    return None, None
