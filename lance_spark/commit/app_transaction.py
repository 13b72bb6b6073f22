"""Transactions of applications: writes that a repeated run must not repeat.

A streaming query, or a program with checkpoints of its own, names each write by the id of the
application and by a growing number. Both names are properties of Lance's transaction. The records
of :mod:`lance_spark.commit.app_ledger` keep the latest number of each application.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import (
    JOB_KEY,
    UNDONE_KEY,
    Event,
    events_between,
    fresh_events,
    summary_of,
)
from lance_spark.errors import CommitConflictError, CommitError, OptionError
from lance_spark.options.io_options import WriteOptions

if TYPE_CHECKING:
    import lance

APP_KEY = "lance-spark.app"
APP_VERSION_KEY = "lance-spark.app-version"
"""Keys of transaction properties: the id of an application, and the number of its transaction."""

MOST_VERSIONS = 1 << 63
"""More than any number of a transaction."""


class StreamRewoundError(CommitError):
    """A stream repeats a batch that is older than the latest batch in the table.

    An older checkpoint was restored, or another driver runs the same query. The rows of the batch
    may differ from the rows in the table, so the batch is neither skipped nor written.

    Attributes:
        app_id: Id of the query, or `txn_app_id` of the write.
        batch: Id of the batch, or `txn_version` of the write.
        latest_batch: Latest batch of the query in the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add([{"id": 10, "price": 100}], txn_app_id="nightly", txn_version=2)
        try:
            books.add([{"id": 11, "price": 110}], txn_app_id="nightly", txn_version=1)
        except lance_spark.StreamRewoundError as error:
            print(error.batch, error.latest_batch)  # 1 2
        ```
    """

    def __init__(
        self, message: str, *, uri: str, app_id: str, batch: int, latest_batch: int
    ) -> None:
        super().__init__(message, uri=uri)
        self.app_id = app_id
        self.batch = batch
        self.latest_batch = latest_batch


class RepeatedTransactionError(CommitConflictError):
    """The transaction was committed before. The caller returns the earlier result.

    Attributes:
        prior: The earlier result; None if the transaction changed nothing.
        is_recorded: Whether the earlier result is in the records.
    """

    def __init__(
        self, message: str, *, uri: str, prior: CommitResult | None, is_recorded: bool = False
    ) -> None:
        super().__init__(message, uri=uri)
        self.prior = prior
        self.is_recorded = is_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTransaction:
    """The identity of a write.

    Attributes:
        app_id: Id of the application, such as the id of a streaming query.
        version: Number of the transaction, such as the id of a micro-batch.
    """

    app_id: str
    version: int

    @staticmethod
    def of(app_id: str | None, version: int | None) -> AppTransaction | None:
        """Returns the transaction of two arguments; None without both.

        Raises:
            OptionError: An argument is missing, or is no id or number.
        """
        if app_id is None and version is None:
            return None
        if not isinstance(app_id, str) or not app_id:
            raise OptionError(
                "txn_app_id", app_id, "the id of the application, together with txn_version"
            )
        if (
            isinstance(version, bool)
            or not isinstance(version, int)
            or not 0 <= version < MOST_VERSIONS
        ):
            accepted = "the number of the transaction, 0 or more and less than 2^63, together with txn_app_id"
            raise OptionError("txn_version", version, accepted)
        return AppTransaction(app_id=app_id, version=version)

    @staticmethod
    def of_options(options: Mapping[str, str]) -> AppTransaction | None:
        """Returns the transaction of a statement's options; None without both.

        Raises:
            OptionError: An option is missing, or is no id or number.
        """
        names = ("txn_app_id", "txn_version")
        parsed = WriteOptions.parse(
            {name: text for name, text in options.items() if name.lower() in names}
        )
        return AppTransaction.of(parsed.txn_app_id, parsed.txn_version)

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """Properties of Lance's transaction."""
        return ((APP_KEY, self.app_id), (APP_VERSION_KEY, str(self.version)))

    @property
    def job_id(self) -> str:
        """Id of a job for the transaction, the same in each call."""
        digest = hashlib.sha256(self.app_id.encode(errors="surrogatepass")).hexdigest()
        return f"txn-{digest[:24]}-{self.version}"

    @property
    def text(self) -> str:
        """The transaction, for messages."""
        return f"Transaction {self.version} of the application {self.app_id!r}"

    def names(self, properties: Mapping[str, str]) -> bool:
        """Tells whether properties of a Lance transaction are those of this transaction."""
        return all(properties.get(name) == value for name, value in self.properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransaction:
    """A transaction of an application without a known commit.

    Attributes:
        since: No commit of the transaction is in this version or an earlier version.
        token: Content of the record `begun` of this process; None after the record of another
            process.
    """

    transaction: AppTransaction
    since: int
    token: str | None = None

    def find(self, dataset: lance.LanceDataset, uri: str) -> CommitResult | None:
        """Returns the first commit of the transaction in the versions after `since`, or None."""
        return next(iter(self.find_all(dataset, uri)), None)

    def find_all(self, dataset: lance.LanceDataset, uri: str) -> list[CommitResult]:
        """Returns the commits after `since`, oldest first, except undone commits."""
        return self._commits_of(events_between(dataset, self.since, dataset.version), uri)

    def find_unknown(self, dataset: lance.LanceDataset) -> int | None:
        """Returns the first version after `since` that was cleaned up, or None."""
        events = events_between(dataset, self.since, dataset.version)
        return next((event.version for event in events if event.operation is None), None)

    def refuse_repeated(self, dataset: lance.LanceDataset, uri: str) -> None:
        """Raises if a concurrent writer has committed the transaction, or may have.

        Raises:
            RepeatedTransactionError: The transaction is in a version of the table.
            CommitConflictError: A version since the start of the commit was cleaned up.
        """
        prior = self.find(dataset, uri)
        if prior is not None:
            raise self.repeated(prior, uri)
        unknown = self.find_unknown(dataset)
        if unknown is not None:
            raise CommitConflictError(
                f"{self.transaction.text} may have been committed by another process in version {unknown}, which was "
                f"cleaned up. Table: {uri}. Nothing was committed. Write again.",
                uri=uri,
            )

    def find_between(
        self, landed: lance.LanceDataset, read: int, uri: str
    ) -> tuple[CommitResult | None, int | None]:
        """Returns the commit of the transaction between two versions, without both, or None.

        The second value is the first version between both that was cleaned up, or None.
        """
        events = list(fresh_events(landed, read, landed.version - 1))
        unknown = next((event.version for event in events if event.operation is None), None)
        return next(iter(self._commits_of(iter(events), uri)), None), unknown

    def repeated(
        self, prior: CommitResult | None, uri: str, *, is_recorded: bool = False
    ) -> RepeatedTransactionError:
        """Returns the error for an earlier commit."""
        version = "" if prior is None else f", version {prior.version}"
        text = f"{self.transaction.text} was committed before. Table: {uri}{version}. Nothing was committed again."
        return RepeatedTransactionError(text, uri=uri, prior=prior, is_recorded=is_recorded)

    def _commits_of(self, events: Iterator[Event], uri: str) -> list[CommitResult]:
        results: dict[str, CommitResult] = {}
        for event in events:
            results.pop(event.properties.get(UNDONE_KEY, ""), None)
            if (
                self.transaction.names(event.properties)
                and (summary := summary_of(event, uri)) is not None
            ):
                results[event.properties[JOB_KEY]] = dataclasses.replace(summary, uri=uri)
        return list(results.values())
