"""The latest transactions of applications, recorded beside the table: :class:`AppLedger`.

    _lance_spark/apps/<application>/<number>.begun   exists from before the first try to commit
    _lance_spark/apps/<application>/<number>.done    exists after the commit

A new transaction deletes the records of the earlier transactions. Versions of the table can be
cleaned up, and the records stay.

A record `begun` holds the version before the transaction. The recording process opened this version
before its search for records. A commit of the transaction by another process is therefore later.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.app_transaction import AppTransaction, PendingTransaction, StreamRewoundError
from lance_spark.commit.changes import CommitResult
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import CommitOutcomeUnknownError, refusals_as_errors
from lance_spark.objects import LanceObjects, objects_beside
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    import lance

APPS = "apps"
"""Folder of the records in our folder of a table or a branch."""

_NAME = re.compile(r"(\d{20})\.(begun|done)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLedger:
    """The records of one application in one table or branch. Runs on the driver."""

    ref: DatasetRef
    transaction: AppTransaction

    def begin(self, head: lance.LanceDataset | None) -> PendingTransaction:
        """Records the start of the transaction's commit.

        Reads the records and, after an interrupted commit, the versions since.

        Args:
            head: The latest version, opened before this call; None without a table.

        Raises:
            RepeatedTransactionError: The transaction was committed before.
            StreamRewoundError: A later transaction of the application was begun.
            CommitOutcomeUnknownError: The process of an earlier commit died, and the versions since
                were cleaned up.
            TableUnwritableError: The store refused.
        """
        records = self._read_records()
        number = self.transaction.version
        latest = max((version for version, _ in records), default=-1)
        if number < latest:
            raise self._rewound_error(latest)
        version = 0 if head is None else head.version
        if number > latest:
            pending = PendingTransaction(transaction=self.transaction, since=version)
            self._put("begun", {"version": version})
            self._delete(records)
            return pending
        if (number, "done") in records:
            pending = PendingTransaction(transaction=self.transaction, since=version)
            raise pending.repeated(self._read_done(), self.ref.uri)
        return self._resume(head, version)

    def finish(self, result: CommitResult | None) -> None:
        """Records the commit; None if the transaction changed nothing.

        Raises:
            TableUnwritableError: The store refused. The next run finds the commit by its version.
        """
        version = None if result is None else result.version
        self._put("done", {"version": version, "summary": None if result is None else result.to_json()})

    def _resume(self, head: lance.LanceDataset | None, version: int) -> PendingTransaction:
        """Returns the transaction of a process that died or still runs."""
        since = min(self._read_begun(), version)
        pending = PendingTransaction(transaction=self.transaction, since=since)
        if head is None:
            return pending
        prior = pending.find(head, self.ref.uri)
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

    def _read_records(self) -> list[tuple[int, str]]:
        names = (_NAME.fullmatch(name) for name in self._objects.list_names(self._folder))
        return [(int(name[1]), name[2]) for name in names if name is not None]

    def _read_begun(self) -> int:
        """Returns the version of the record `begun`, or 0, before all versions, if damaged."""
        try:
            return int(load_object(self._get("begun"), {"version": int})["version"])
        except ValueError:
            return 0

    def _read_done(self) -> CommitResult | None:
        """Returns the result of the record `done`; None for an empty or damaged record."""
        try:
            values = load_object(self._get("done"), {"version": int, "summary": str})
            return CommitResult.from_json(values["summary"], uri=self.ref.uri, version=values["version"])
        except ValueError:
            return None

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
