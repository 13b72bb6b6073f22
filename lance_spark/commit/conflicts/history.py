"""Reads the changes of a table between two versions from its transactions."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.conflicts.known_events import FEW_VERSIONS, KnownEvents
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.lance_compat import path_of, read_transaction
from lance_spark.options.io_options import WRITE_ID_PROPERTY
from lance_spark.storage.parallel_calls import MOST_AHEAD, read_ahead

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import lance
    import numpy.typing as npt
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata

JOB_KEY = "lance-spark.job"
SUMMARY_KEY = "lance-spark.summary"
UNDONE_KEY = "lance-spark.undone"
USER_KEY = "lance-spark.user"
CHANGE_KEY = "lance-spark.change"
MESSAGE_KEY = "__lance_commit_message"
"""Keys of transaction properties, in order: the job, its summary as JSON, the job whose commit is
taken back, the user, the change of a table outside of jobs, and Lance's own key."""


NO_FRAGMENT = (1 << 32) - 1
"""An id without a fragment. Every statement lists this id among its removed fragments. pylance
therefore refuses the second of two statements with the same read version, regardless of the touched
fragments, and also in a table without fragments (measured with pylance 14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A version and its transaction. The operation is None if the version was cleaned up.

    Attributes:
        read_version: The version for which the writer made the transaction. Lance commits the
            transaction as a later version if the commits in between do not conflict.
    """

    version: int
    operation: LanceOperation.BaseOperation | None
    properties: dict[str, str]
    read_version: int | None = None

    @property
    def name(self) -> str:
        """Name of the operation, for messages."""
        return "unknown" if self.operation is None else type(self.operation).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpan:
    """Live rows `first` to `last - 1` of an old fragment, from row `start` on in a new fragment."""

    old: FragmentMetadata
    first: int
    last: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFragment:
    """Origin of a compacted fragment; `parts` is None if row counts contradict each other."""

    version: int
    new: FragmentMetadata
    parts: tuple[RowSpan, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """The data of an event for judgements and lineage.

    A job of several days keeps thousands of changes, so a change holds only the required part of
    its event.

    Attributes:
        operation: Name of the operation; None if the version was cleaned up.
        compacted: Ids of fragments whose live rows a compaction moved to new fragments.
        made: Origins of the new fragments of a compaction, by fragment id.
        moved: Data files of the fragments made by an append or an update. The transaction has no
            ids for these fragments.
        touched: Ids of the source fragments of their rows. If empty, all rows are new.
        undone: Changes undone by a restore, oldest first; None for other operations, or if no
            longer known.
        schema: Columns after a Project (drop, rename) or a Merge (add, cast); None otherwise.
        inputs_at: Version of the inputs for the values of a lance-spark column commit; None for
            other operations.
    """

    version: int
    operation: str | None
    compacted: frozenset[int] = frozenset()
    made: Mapping[int, CompactedFragment] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    touched: npt.NDArray[np.uint32] | None = None
    restored: int | None = None
    undone: tuple[Change, ...] | None = None
    schema: tuple[FieldIdentity, ...] | None = None
    inputs_at: int | None = None

    @property
    def text(self) -> str:
        """Operation and version, for a message."""
        name = {
            "Rewrite": "compaction",
            None: "unknown operation (its version was cleaned up)",
        }.get(self.operation, self.operation)
        return f"{name} at version {self.version}"

    @property
    def replaces(self) -> bool:
        """Whether an id may name another fragment after the change."""
        return self.operation in (None, "Overwrite", "Restore", "Clone")

    @property
    def moves(self) -> bool:
        """Whether the change may have put rows into other fragments."""
        return self.operation in ("Rewrite", "Update") or self.replaces

    def took_from(self, fragment: int) -> bool:
        """Tells whether the change moved rows out of a fragment.

        A rewrite in place moves no rows.
        """
        return fragment in self.compacted or (
            bool(self.moved) and self.touched is not None and fragment in self.touched
        )

    @staticmethod
    def of(event: Event) -> Change:
        """Returns the change of a transaction.

        `undone` stays None, because the undone changes of a restore are in other transactions.
        """
        from lance import LanceOperation

        operation: Any = event.operation
        change = Change(version=event.version, operation=None if operation is None else event.name)
        if isinstance(operation, LanceOperation.Rewrite):
            return _compaction(change, operation)
        if isinstance(operation, LanceOperation.Update):
            return _update(change, operation)
        if isinstance(operation, LanceOperation.Append):
            return replace(
                change, moved=data_paths(operation.fragments), touched=np.zeros(0, np.uint32)
            )
        if isinstance(operation, LanceOperation.Restore):
            return replace(change, restored=operation.version)
        if isinstance(operation, LanceOperation.Project | LanceOperation.Merge):
            schema: Any = (
                operation.schema
            )  # pylance takes a pyarrow schema in a Merge, and gives back its own
            return replace(change, schema=field_identities(schema))
        if isinstance(operation, LanceOperation.DataReplacement) and JOB_KEY in event.properties:
            return replace(change, inputs_at=event.read_version)
        return change


def events_between(dataset: lance.LanceDataset, after: int, upto: int) -> Iterator[Event]:
    """Yields the events of versions `after + 1` to `upto`, oldest first.

    A process reads each version once, at three requests, and keeps its event. For a huge table, the
    read takes a tenth of a second (measured).
    """
    return _EVENTS.walk(dataset, range(after + 1, upto + 1), first_block=MOST_AHEAD)


def events_back(dataset: lance.LanceDataset, upto: int, after: int) -> Iterator[Event]:
    """Yields the events of versions `upto` to `after + 1`, newest first."""
    return _EVENTS.walk(dataset, range(upto, after, -1), first_block=2)


def path_back(dataset: lance.LanceDataset, after: int) -> Iterator[Event]:
    """Yields the events after a version, newest first, without events undone by a restore."""
    at = dataset.version
    while at > after:
        for event in events_back(dataset, at, after):
            at = version_before(event)
            yield event
            if at != event.version - 1:
                break


def version_before(event: Event) -> int:
    """Returns the version before an event on the path to the current version."""
    from lance import LanceOperation

    operation = event.operation
    return operation.version if isinstance(operation, LanceOperation.Restore) else event.version - 1


def event_of(dataset: lance.LanceDataset, version: int, *, is_kept: bool = True) -> Event:
    """Returns the event of a version."""
    transaction = None
    try:
        transaction = read_transaction(dataset, version) if is_kept else None
    except (OSError, ValueError):
        if any(ref["version"] == version for ref in dataset.version_refs()):
            raise
        # The version was cleaned up concurrently.
    if transaction is None:
        return Event(version=version, operation=None, properties={})
    return Event(
        version=version,
        operation=transaction.operation,
        properties=transaction.transaction_properties or {},
        read_version=transaction.read_version,
    )


def _known_events() -> KnownEvents:
    return KnownEvents(
        lambda dataset, version, is_kept: event_of(dataset, version, is_kept=is_kept)
    )


_EVENTS = _known_events()


def _forget_events() -> None:
    """Forgets the events in a forked process. A thread of the parent may have held the lock."""
    global _EVENTS  # noqa: PLW0603 - one cache per process
    _EVENTS = _known_events()


os.register_at_fork(after_in_child=_forget_events)


_REMEMBERED_OPERATIONS = ("Append", "DataReplacement", "Delete", "Update", "UpdateConfig")
"""Operations whose transactions read back as committed, as far as :class:`Change` needs them."""


def note_commit(
    base: lance.LanceDataset,
    landed: lance.LanceDataset,
    operation: LanceOperation.BaseOperation,
    properties: Mapping[str, str],
) -> None:
    """Notes a commit of this process for later walks, if no other commit came in between."""
    is_next = landed.version == base.version + 1 and landed.uri == base.uri
    if (
        is_next
        and type(operation).__name__ in _REMEMBERED_OPERATIONS
        and f"/{FOLDER}/" not in landed.uri
    ):
        event = Event(
            version=landed.version,
            operation=operation,
            properties=dict(properties),
            read_version=base.version,
        )
        _EVENTS.note_commit(base, landed, event)


def fresh_events(dataset: lance.LanceDataset, after: int, upto: int) -> Iterator[Event]:
    """Yields the events of versions `after + 1` to `upto` as the store has them now.

    For commits that depend on the transactions visible to Lance during the commit.
    """
    versions = range(after + 1, upto + 1)
    kept_versions = set(versions)
    if len(versions) > FEW_VERSIONS:
        kept_versions = {ref["version"] for ref in dataset.version_refs()}
    for version in versions:
        yield event_of(dataset, version, is_kept=version in kept_versions)


def first_unknown(dataset: lance.LanceDataset, after: int) -> int | None:
    """Returns the first version without a transaction between `after` and the dataset's version.

    Returns None if all transactions are known.
    """
    events = fresh_events(dataset, after, dataset.version - 1)
    return next((event.version for event in events if event.operation is None), None)


def find_job(dataset: lance.LanceDataset, job_id: str, *, after: int) -> CommitResult | None:
    """Returns the result of a job's commit after a version, or None if absent or taken back."""
    result = None
    for event in events_between(dataset, after, dataset.version):
        if event.properties.get(JOB_KEY) == job_id:
            result = summary_of(event, dataset.uri) or result
        elif event.properties.get(UNDONE_KEY) == job_id:
            result = None
    return result


def find_write(dataset: lance.LanceDataset, write_id: str, *, after: int) -> CommitResult | None:
    """Returns the result of a write by its :data:`WRITE_ID_PROPERTY`, or None without a commit."""
    events = events_back(dataset, dataset.version, after)
    event = next(
        (event for event in events if event.properties.get(WRITE_ID_PROPERTY) == write_id), None
    )
    return None if event is None else summary_of(event, dataset.uri)


def summary_of(event: Event, uri: str) -> CommitResult | None:
    """Returns the result of a lance-spark commit.

    Returns None for the commits of other writers, forged summaries included.
    """
    text = event.properties.get(SUMMARY_KEY)
    if text is None or JOB_KEY not in event.properties:
        return None
    try:
        return CommitResult.from_json(text, uri=uri, version=event.version)
    except ValueError as error:
        logger.warning(
            "The summary of version %s of %s is damaged and not used: %s", event.version, uri, error
        )
        return None


def named_files(
    dataset: lance.LanceDataset, names: Collection[str], *, after: int
) -> frozenset[str]:
    """Returns the subset of data files named in a manifest of a kept version after `after`."""
    sought_names, named_paths = frozenset(names), set[str]()
    for _, some_names in _names_by_version(
        dataset, sought_names, _kept_after(dataset, after)[::-1]
    ):
        named_paths |= some_names
        if named_paths == sought_names:
            break
    return frozenset(named_paths)


def first_naming(dataset: lance.LanceDataset, names: Collection[str], *, after: int) -> int | None:
    """Returns the oldest kept version after `after` whose manifest names all of the data files.

    Returns None if no version does.
    """
    sought_names = frozenset(names)
    names_by_version = _names_by_version(dataset, sought_names, _kept_after(dataset, after))
    return next(
        (version for version, some_names in names_by_version if some_names == sought_names), None
    )


def _kept_after(dataset: lance.LanceDataset, after: int) -> list[int]:
    return sorted(ref["version"] for ref in dataset.version_refs() if ref["version"] > after)


def _names_by_version(
    dataset: lance.LanceDataset, names: frozenset[str], versions: Sequence[int]
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yields each version with the subset of `names` in its manifest."""

    def read(opened: lance.LanceDataset, version: int) -> tuple[int, frozenset[str]]:
        return version, _named_in(opened, version, names)

    return read_ahead(dataset, read, versions)


def _named_in(dataset: lance.LanceDataset, version: int, names: frozenset[str]) -> frozenset[str]:
    """Returns the subset of `names` named in the manifest of a version."""
    opened_dataset = dataset if version == dataset.version else dataset.checkout_version(version)
    named_paths = set[str]()
    for fragment in opened_dataset.get_fragments():
        metadata = fragment.metadata
        files = [*metadata.files, *(overlay.data_file for overlay in metadata.overlays)]
        named_paths.update(names.intersection(map(path_of, files)))
    return frozenset(named_paths)


def last_commit(path: str, storage_options: Mapping[str, str] | None = None) -> CommitResult | None:
    """Returns the result of the newest lance-spark commit to a table, or None.

    Commits taken back are ignored. Reads a small transaction per version, newest first, so recent
    commits are found fast.

    Args:
        path: Location of the table.
        storage_options: Options of the object store.

    Raises:
        TableNotFoundError: The location has no table.
        TableUnreadableError: The table cannot be opened.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.update(where="id = 3", values={"price": 0})
        commit = lance_spark.last_commit("library/books.lance")
        print(commit.operation, commit.rows_updated)  # update 1
        ```
    """
    ref = DatasetRef.at(path, {} if storage_options is None else storage_options)
    dataset = ref.open_latest()
    undone_jobs = set()
    versions = sorted(
        (version_ref["version"] for version_ref in dataset.version_refs()), reverse=True
    )
    for event in _EVENTS.walk(dataset, versions, first_block=1):
        undone_jobs.add(event.properties.get(UNDONE_KEY))
        summary = summary_of(event, ref.uri)
        if summary is not None and event.properties[JOB_KEY] not in undone_jobs:
            return summary
    return None


def data_paths(fragments: Iterable[FragmentMetadata]) -> tuple[str, ...]:
    """Returns the paths of the data files of fragments."""
    return tuple(path_of(file) for fragment in fragments for file in fragment.files)


def _compaction(change: Change, operation: LanceOperation.Rewrite) -> Change:
    old_ids = frozenset(
        fragment.id for group in operation.groups for fragment in group.old_fragments
    )
    news = [
        new for group in operation.groups for new in _compacted_fragments(group, change.version)
    ]
    return replace(change, compacted=old_ids, made={made.new.id: made for made in news})


def _update(change: Change, operation: LanceOperation.Update) -> Change:
    removed_ids = (number for number in operation.removed_fragment_ids if number != NO_FRAGMENT)
    source_ids = [*removed_ids, *(fragment.id for fragment in operation.updated_fragments)]
    return replace(
        change, moved=data_paths(operation.new_fragments), touched=np.array(source_ids, np.uint32)
    )


def _compacted_fragments(
    group: lance.LanceOperation.RewriteGroup, version: int
) -> Iterator[CompactedFragment]:
    """Yields the origin of each new fragment of a compaction: live rows of the old fragments."""
    olds, news = list(group.old_fragments), list(group.new_fragments)
    counts_agree = sum(old.num_rows for old in olds) == sum(new.physical_rows for new in news)
    begin = 0
    for new in news:
        end = begin + new.physical_rows
        parts, old_start = [], 0
        for old in olds:
            first, last = max(begin - old_start, 0), min(end - old_start, old.num_rows)
            if first < last:
                parts.append(
                    RowSpan(old=old, first=first, last=last, start=old_start + first - begin)
                )
            old_start += old.num_rows
        yield CompactedFragment(
            version=version, new=new, parts=tuple(parts) if counts_agree else None
        )
        begin = end
