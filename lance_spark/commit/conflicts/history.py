"""What happened to a table between two versions, read from its transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.changes import CommitResult
from lance_spark.dataset import DatasetRef
from lance_spark.lance_compat import read_transaction

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance.dataset import Transaction

JOB_KEY = "lance-spark.job"
SUMMARY_KEY = "lance-spark.summary"
UNDONE_KEY = "lance-spark.undone"
MESSAGE_KEY = "__lance_commit_message"
"""Keys of transaction properties: the job, its summary as JSON, the job whose commit this one takes back, and Lance's own key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One version and how it came about.

    Attributes:
        version: The version.
        operation: What its transaction did; None where the version was cleaned up, so that nobody knows any more.
        properties: What was stamped into the transaction.
    """

    version: int
    operation: LanceOperation.BaseOperation | None
    properties: dict[str, str]

    @property
    def name(self) -> str:
        """The name of the operation, for messages."""
        return "unknown" if self.operation is None else type(self.operation).__name__


def events_between(
    dataset: lance.LanceDataset, after: int, upto: int, known: dict[int, Event] | None = None
) -> Iterator[Event]:
    """Yields the events of versions `after + 1` to `upto`, oldest first.

    One read per version but the dataset's own: of its manifest, which of a huge table takes a tenth of a second (measured).

    Args:
        dataset: The table.
        after: The version before the first one.
        upto: The last version.
        known: Events that were read before, by version; is added to.
    """
    if upto <= after:
        return
    kept = {ref["version"] for ref in dataset.version_refs()}
    known = {} if known is None else known
    for version in range(after + 1, upto + 1):
        if version not in known:
            there = version in kept
            known[version] = (
                _event(dataset, version) if there else Event(version=version, operation=None, properties={})
            )
        yield known[version]


def _event(dataset: lance.LanceDataset, version: int) -> Event:
    transaction = _transaction(dataset, version)
    if transaction is None:
        return Event(version=version, operation=None, properties={})
    return Event(version=version, operation=transaction.operation, properties=transaction.transaction_properties or {})


def _transaction(dataset: lance.LanceDataset, version: int) -> Transaction | None:
    """Reads a version's transaction; None where the version was cleaned up meanwhile."""
    try:
        return read_transaction(dataset, version)
    except (OSError, ValueError):
        if any(kept["version"] == version for kept in dataset.version_refs()):
            raise
        return None


def find_job(
    dataset: lance.LanceDataset, job_id: str, *, after: int, known: dict[int, Event] | None = None
) -> CommitResult | None:
    """Returns what a job committed after a version and did not take back, or None if there is nothing of it up to this version."""
    found = None
    for event in events_between(dataset, after, dataset.version, known):
        if event.properties.get(JOB_KEY) == job_id and SUMMARY_KEY in event.properties:
            found = CommitResult.from_json(event.properties[SUMMARY_KEY], uri=dataset.uri, version=event.version)
        elif event.properties.get(UNDONE_KEY) == job_id:
            found = None
    return found


def named_files(dataset: lance.LanceDataset, names: Collection[str], *, after: int) -> frozenset[str]:
    """Returns those of the data files that any kept version after `after` names; reads the manifests of these versions."""
    wanted, found = frozenset(names), set[str]()
    for version in sorted(
        (kept["version"] for kept in dataset.version_refs() if kept["version"] > after), reverse=True
    ):
        at = dataset if version == dataset.version else dataset.checkout_version(version)
        for fragment in at.get_fragments():
            metadata = fragment.metadata
            files = [*metadata.files, *(overlay.data_file for overlay in metadata.overlays)]
            found.update(str(file.path) for file in files if file.path in wanted)
        if found == wanted:
            break
    return frozenset(found)


def last_commit(path: str, storage_options: dict[str, str] | None = None) -> CommitResult | None:
    """Returns what the newest commit of lance-spark did to a table, or None if no kept version is of lance-spark.

    Reads one small transaction per version, from the newest on, so it is fast where the commit is recent.

    Args:
        path: Location of the table.
        storage_options: Options of the object store.

    Raises:
        TableNotFoundError: There is no table.
        TableUnreadableError: It cannot be opened.
    """
    ref = DatasetRef.at(path, storage_options or {})
    dataset = ref.open_latest()
    undone = set()
    for version in sorted((kept["version"] for kept in dataset.version_refs()), reverse=True):
        event = _event(dataset, version)
        undone.add(event.properties.get(UNDONE_KEY))
        if SUMMARY_KEY in event.properties and event.properties[JOB_KEY] not in undone:
            return CommitResult.from_json(event.properties[SUMMARY_KEY], uri=ref.uri, version=version)
    return None
