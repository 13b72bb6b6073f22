"""The latest transactions of applications, recorded next to the table: :class:`AppLedger`.

    _lance_spark/apps/<application>/<number>.begun   exists from before the first try to commit
    _lance_spark/apps/<application>/<number>.done    exists after the commit

The first try of a new transaction keeps the records of the latest transaction before, and deletes
all older records. A try that certainly made no version deletes its own record `begun`. Versions of
the table can be cleaned up, and the records stay.

A record `begun` holds the version before the transaction. The recording process opened this version
before its search for records. A commit of the transaction by another process is therefore later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_spark.commit.app_transaction import (
    AppTransaction,
    PendingTransaction,
    RepeatedTransactionError,
    StreamRewoundError,
)
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.history import UNDONE_KEY, event_of, events_between
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    TableExistsError,
    refusals_as_errors,
)
from lance_spark.storage.objects import LanceObjects, objects_beside
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    import lance

APPS = "apps"
"""Folder of the records in our folder of a table or a branch."""

_NAME = re.compile(r"(\d{20})\.(begun|done)")
_PATH = re.compile(rf"{APPS}/([0-9a-f]{{64}})/(\d{{20}})\.(begun|done)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTransaction:
    """The latest transaction of an application in a table.

    Attributes:
        digest: Digest of the application's id.
        number: Number of the transaction.
        is_committed: Whether the commit has ended.
        version: Version of the commit; None without a version, or if the record is damaged.
    """

    digest: str
    number: int
    is_committed: bool
    version: int | None


def latest_transactions(ref: DatasetRef, most: int) -> list[LatestTransaction]:
    """Returns the latest transaction of each of the first applications in a table or branch.

    Raises:
        OSError: The store refused.
    """
    objects = objects_beside(ref)
    folders = [f"{APPS}/{digest}" for digest in objects.list_folders(APPS)[:most]]
    return [
        transaction
        for folder in folders
        if (transaction := _read_latest(objects, folder)) is not None
    ]


def _read_latest(objects: LanceObjects, folder: str) -> LatestTransaction | None:
    number, kind = max(_read_records(objects, folder), default=(-1, ""))
    if number < 0:
        return None
    version = None
    with contextlib.suppress(ValueError):  # without a version, or damaged
        version = int(
            load_object(objects.get(f"{folder}/{number:020d}.done") or b"", {"version": int})[
                "version"
            ]
        )
    digest = folder.rpartition("/")[2]
    return LatestTransaction(
        digest=digest, number=number, is_committed=kind == "done", version=version
    )


def _read_records(objects: LanceObjects, folder: str) -> list[tuple[int, str]]:
    names = (_NAME.fullmatch(name) for name in objects.list_names(folder))
    return [(int(name[1]), name[2]) for name in names if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLedger:
    """The records of one application in one table or branch. Runs on the driver."""

    ref: DatasetRef
    transaction: AppTransaction

    @contextlib.contextmanager
    def record_commit(
        self, head: lance.LanceDataset | None, job_id: str
    ) -> Iterator[PendingTransaction]:
        """Records the start of a job's commit, and deletes the record if no version was made.

        Raises:
            CommitError: As :meth:`begin`.
        """
        pending = self.begin(head)
        try:
            yield pending
        except (RepeatedTransactionError, CommitOutcomeUnknownError):
            raise
        except (CommitError, TableExistsError):
            self._forget(pending, job_id)
            raise

    def begin(self, head: lance.LanceDataset | None) -> PendingTransaction:
        """Records the start of the transaction's commit, if :meth:`look` finds no earlier start.

        Raises:
            CommitError: As :meth:`look`.
        """
        records = self.refuse_ended()
        if (self.transaction.version, "begun") in records:
            return self._resume(head, 0 if head is None else head.version)
        token = uuid.uuid4().hex
        version = 0 if head is None else head.version
        self._put("begun", {"version": version, "token": token, "time": _present_time()})
        self._delete_before(records)
        return PendingTransaction(transaction=self.transaction, since=version, token=token)

    def begin_job(self, version: int) -> None:
        """Records the start of a job that is safe to run again, unless the job has ended.

        No commit of the job names the transaction. A job that was interrupted runs again.

        Args:
            version: Version of the table before the job.

        Raises:
            CommitError: As :meth:`refuse_ended`.
        """
        records = self.refuse_ended()
        if (self.transaction.version, "begun") not in records:
            self._put("begun", {"version": version})
            self._delete_before(records)

    def refuse_ended(self) -> list[tuple[int, str]]:
        """Returns the records of the application, for a transaction that has not ended.

        Raises:
            RepeatedTransactionError: The transaction was committed before.
            StreamRewoundError: A later transaction of the application was begun.
            TableUnwritableError: The store refused.
        """
        records, number = _read_records(self._objects, self._folder), self.transaction.version
        latest = max((version for version, _ in records), default=-1)
        if number < latest:
            raise self._rewound_error(latest)
        if (number, "done") in records:
            pending = PendingTransaction(transaction=self.transaction, since=0)
            raise pending.repeated(self.read_done(), self.ref.uri, is_recorded=True)
        return records

    def look(self, head: lance.LanceDataset | None) -> PendingTransaction | None:
        """Returns the transaction if its commit was begun before; None for a new transaction.

        Reads the records and, after an interrupted commit, the versions since. Records nothing for
        a new transaction.

        Args:
            head: The latest version, opened before this call; None without a table.

        Raises:
            RepeatedTransactionError: The transaction was committed before.
            StreamRewoundError: A later transaction of the application was begun.
            CommitOutcomeUnknownError: The process of an earlier commit died, and the versions since
                were cleaned up.
            TableUnwritableError: The store refused.
        """
        is_begun = (self.transaction.version, "begun") in self.refuse_ended()
        return self._resume(head, 0 if head is None else head.version) if is_begun else None

    def finish(self, result: CommitResult | None) -> None:
        """Records the commit; None if the transaction changed nothing.

        Raises:
            TableUnwritableError: The store refused. The next run finds the commit by its version.
        """
        version = None if result is None else result.version
        self._put(
            "done", {"version": version, "summary": None if result is None else result.to_json()}
        )

    def finish_repeated(self, error: RepeatedTransactionError) -> None:
        """Records the commit of another process, unless the records have the commit already.

        Raises:
            CommitConflictError: The other process took its commit back.
            TableUnwritableError: The store refused.
        """
        if error.is_recorded:
            return
        prior, head = error.prior, None if error.prior is None else self.ref.open_latest()
        if prior is not None and head is not None:
            events = events_between(head, prior.version, head.version)
            if any(event.properties.get(UNDONE_KEY) == prior.job_id for event in events):
                raise CommitConflictError(
                    f"{self.transaction.text} was committed by another process, which took its version "
                    f"{prior.version} back. Table: {self.ref.uri}. Write again.",
                    uri=self.ref.uri,
                )
        self.finish(prior)

    def has_others(self, pending: PendingTransaction) -> bool:
        """Tells whether another process may have tried to commit the transaction.

        Such a process replaces the record `begun` before its commit.

        Raises:
            RepeatedTransactionError: The transaction, or a later transaction, was committed.
        """
        number, records = self.transaction.version, _read_records(self._objects, self._folder)
        if (number, "done") in records:
            raise pending.repeated(self.read_done(), self.ref.uri, is_recorded=True)
        if any(version > number for version, kind in records if kind == "done"):
            raise pending.repeated(None, self.ref.uri, is_recorded=True)
        return not self._is_own(pending)

    def _forget(self, pending: PendingTransaction, job_id: str) -> None:
        """Deletes the records of a commit without a version, except records of other processes."""
        number = self.transaction.version
        with contextlib.suppress(OSError):  # the error of the commit matters more
            landed_commit = self.read_done()
            if (
                landed_commit is not None and landed_commit.job_id == job_id
            ):  # found before the commit was taken back
                self._delete([(number, "done")])
            if self._is_own(pending):
                self._delete([(number, "begun")])

    def _is_own(self, pending: PendingTransaction) -> bool:
        """Tells whether this process alone has used the record `begun`."""
        try:
            token = load_object(self._get("begun"), {"token": str})["token"]
        except ValueError:
            return False
        return pending.token is not None and bool(token == pending.token)

    def _resume(self, head: lance.LanceDataset | None, version: int) -> PendingTransaction:
        """Returns the transaction of a process that died or still runs."""
        since = min(self._read_begun(), version)
        pending = PendingTransaction(transaction=self.transaction, since=since)
        # Without a token, the other process no longer deletes the record.
        self._put("begun", {"version": since, "time": _present_time()})
        if head is None:
            return pending
        prior = self._find_first(pending, head)
        if prior is not None:
            self.finish(prior)
            raise pending.repeated(prior, self.ref.uri)
        unknown = pending.find_unknown(head)
        if unknown is not None:
            raise CommitOutcomeUnknownError(
                f"{self.transaction.text} may have been committed. Its process died, and version {unknown}, which may "
                f"hold its rows, was cleaned up. Table: {self.ref.uri}. Look for the rows. If they are in the table, "
                f"create the empty file {self._path('done')}, else delete {self._path('begun')}. Then start again.",
                uri=self.ref.uri,
            )
        return pending

    def _find_first(
        self, pending: PendingTransaction, head: lance.LanceDataset
    ) -> CommitResult | None:
        """Returns the first commit of the transaction, and takes later appends back.

        A process may have died between a second commit and its way back.
        """
        from lance import LanceOperation

        commits = pending.find_all(head, self.ref.uri)
        for commit in commits[1:]:
            operation = event_of(head, commit.version).operation
            if isinstance(operation, LanceOperation.Append):
                landed = head.checkout_version(commit.version)
                policy = CommitPolicy.of(None)
                take_back_rows(
                    self.ref, landed, operation.fragments, job_id=commit.job_id, policy=policy
                )
        return commits[0] if commits else None

    def _rewound_error(self, latest: int) -> StreamRewoundError:
        number, app_id = self.transaction.version, self.transaction.app_id
        return StreamRewoundError(
            f"Batch {number} is older than batch {latest}, the latest of the query {app_id!r} in the table. An older "
            "checkpoint was restored, or another driver runs the query. "
            f"Table: {self.ref.uri}. Nothing was committed. Stop the other driver. With an older checkpoint, restore "
            "the table to the version before the repeated batches, and write with another query id (the option "
            "streaming_query_id), or another txn_app_id.",
            uri=self.ref.uri, app_id=app_id, batch=number, latest_batch=latest,
        )  # fmt: skip

    @property
    def _objects(self) -> LanceObjects:
        return objects_beside(self.ref)

    @property
    def _folder(self) -> str:
        return f"{APPS}/{hashlib.sha256(self.transaction.app_id.encode(errors='surrogatepass')).hexdigest()}"

    def _read_begun(self) -> int:
        """Returns the version of the record `begun`, or 0, before all versions, if damaged."""
        try:
            return int(load_object(self._get("begun"), {"version": int})["version"])
        except ValueError:
            return 0

    def read_done(self) -> CommitResult | None:
        """Returns the result of the record `done`; None for an empty or damaged record."""
        try:
            values = load_object(self._get("done"), {"version": int, "summary": str})
            return CommitResult.from_json(
                values["summary"], uri=self.ref.uri, version=values["version"]
            )
        except ValueError:
            return None

    def _delete_before(self, records: Sequence[tuple[int, str]]) -> None:
        """Deletes all records before the latest of the earlier transactions."""
        latest = max((number for number, _ in records), default=-1)
        self._delete([record for record in records if record[0] < latest])

    def _get(self, kind: str) -> bytes:
        return self._objects.get(f"{self._folder}/{self._name(kind)}") or b""

    def _put(self, kind: str, values: dict[str, object]) -> None:
        self._objects.put(f"{self._folder}/{self._name(kind)}", json.dumps(values).encode())

    def _delete(self, records: list[tuple[int, str]]) -> None:
        with refusals_as_errors(self.ref.uri):
            for number, kind in records:
                self._objects.delete(f"{self._folder}/{number:020d}.{kind}")

    def _name(self, kind: str) -> str:
        return f"{self.transaction.version:020d}.{kind}"

    def _path(self, kind: str) -> str:
        return f"{FOLDER}/{self._folder}/{self._name(kind)}"


def first_unfinished_version(ref: DatasetRef, since: datetime) -> int | None:
    """Returns the first version that may hold the commit of a transaction without a known end.

    Returns None without such transactions. Transactions begun before a moment do not count.

    Raises:
        OSError: The store refused.
    """
    objects = objects_beside(ref)
    matches = [match for path in objects.list(APPS) if (match := _PATH.fullmatch(path)) is not None]
    ended = {match.group(1, 2) for match in matches if match[3] == "done"}
    paths = [match[0] for match in matches if match.group(1, 2) not in ended]
    versions = (_read_version(objects.get(path) or b"", since) for path in paths)
    return min((version + 1 for version in versions if version is not None), default=None)


def _read_version(record: bytes, since: datetime) -> int | None:
    """Returns the version of a record `begun`; None for an older or damaged record."""
    try:
        values = load_object(record, {"version": int, "time": str})
        return int(values["version"]) if datetime.fromisoformat(values["time"]) > since else None
    except (ValueError, TypeError):  # damaged, or a time without a zone
        return None


def _present_time() -> str:
    return datetime.now(UTC).isoformat()
