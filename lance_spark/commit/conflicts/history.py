"""What happened to a table between two versions, read from its transactions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.dataset import DatasetRef
from lance_spark.lance_compat import path_of, read_transaction

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
"""Keys of transaction properties: the job, its summary as JSON, the job whose commit this one takes
back, who committed, the change of a table outside of jobs, and Lance's own key."""


NO_FRAGMENT = (1 << 32) - 1
"""The id of no fragment. Every statement names it among the fragments that it removes, so that
pylance refuses the second of two statements that read one version, whatever fragments they touch,
and in a table without fragments too (measured with pylance 14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One version and its transaction; the operation is None where the version was cleaned up.

    Attributes:
        read_version: The version for which its writer made the transaction. Lance commits it to
            a later version if the commits in between do not conflict.
    """

    version: int
    operation: LanceOperation.BaseOperation | None
    properties: dict[str, str]
    read_version: int | None = None

    @property
    def name(self) -> str:
        """The name of the operation, for messages."""
        return "unknown" if self.operation is None else type(self.operation).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Live rows `first` to `last - 1` of an old fragment: those from `start` on of a new one."""

    old: FragmentMetadata
    first: int
    last: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a fragment came out of a compaction; no `parts` where numbers contradict each other."""

    version: int
    new: FragmentMetadata
    parts: tuple[Part, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """The part of one event that judgements and lineage need: a job of days keeps thousands.

    Attributes:
        operation: Name of the operation, or None where the version was cleaned up.
        compacted: Fragments whose live rows a compaction moved to new fragments.
        made: What it made of them, by id.
        moved: Data files of the fragments that an append or an update made, which have no ids in
            its transaction.
        touched: Ids of the fragments that it took their rows from; without any, all rows are new.
        undone: What the restore undid, oldest first; None for other operations, and where that is
            not known any more.
        schema: Columns after a Project (drop, rename) or a Merge (add, cast); None for other
            operations.
        inputs_at: The version whose inputs belong to the values of a column commit of lance-spark;
            None for other operations.
    """

    version: int
    operation: str | None
    compacted: frozenset[int] = frozenset()
    made: Mapping[int, Made] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    touched: npt.NDArray[np.uint32] | None = None
    restored: int | None = None
    undone: tuple[Change, ...] | None = None
    schema: tuple[FieldIdentity, ...] | None = None
    inputs_at: int | None = None

    @property
    def text(self) -> str:
        """What happened and when, for a message."""
        name = {"Rewrite": "compaction", None: "unknown operation (its version was cleaned up)"}.get(
            self.operation, self.operation
        )
        return f"{name} at version {self.version}"

    @property
    def replaces(self) -> bool:
        """Whether a fragment's id may mean another fragment after it."""
        return self.operation in (None, "Overwrite", "Restore", "Clone")

    @property
    def moves(self) -> bool:
        """Whether it may have put rows into other fragments."""
        return self.operation in ("Rewrite", "Update") or self.replaces

    def took_from(self, fragment: int) -> bool:
        """Tells whether it moved rows of a fragment elsewhere; a rewrite in place moves none."""
        return fragment in self.compacted or (
            bool(self.moved) and self.touched is not None and fragment in self.touched
        )

    @staticmethod
    def of(event: Event) -> Change:
        """Takes it from a transaction; but for what a restore undid, which is in others."""
        from lance import LanceOperation

        operation: Any = event.operation
        change = Change(version=event.version, operation=None if operation is None else event.name)
        if isinstance(operation, LanceOperation.Rewrite):
            old = frozenset(fragment.id for group in operation.groups for fragment in group.old_fragments)
            made = {one.new.id: one for group in operation.groups for one in _made_by(group, event.version)}
            return replace(change, compacted=old, made=made)
        if isinstance(operation, LanceOperation.Update):
            removed = (number for number in operation.removed_fragment_ids if number != NO_FRAGMENT)
            took = [*removed, *(fragment.id for fragment in operation.updated_fragments)]
            return replace(change, moved=_paths_of(operation.new_fragments), touched=np.array(took, np.uint32))
        if isinstance(operation, LanceOperation.Append):
            return replace(change, moved=_paths_of(operation.fragments), touched=np.zeros(0, np.uint32))
        if isinstance(operation, LanceOperation.Restore):
            return replace(change, restored=operation.version)
        if isinstance(operation, LanceOperation.Project | LanceOperation.Merge):
            schema: Any = operation.schema  # pylance takes a pyarrow schema in a Merge, and gives back its own
            return replace(change, schema=field_identities(schema))
        if isinstance(operation, LanceOperation.DataReplacement) and JOB_KEY in event.properties:
            return replace(change, inputs_at=event.read_version)
        return change


def events_between(
    dataset: lance.LanceDataset, after: int, upto: int, known: dict[int, Event] | None = None
) -> Iterator[Event]:
    """Yields the events of versions `after + 1` to `upto`, oldest first.

    One read per version but the dataset's own: of its manifest, which of a huge table takes a tenth
    of a second (measured). Those that were read before are taken from `known`, which is added to.
    """
    if upto <= after:
        return
    kept = {ref["version"] for ref in dataset.version_refs()}
    known = {} if known is None else known
    for version in range(after + 1, upto + 1):
        if version not in known:
            known[version] = event_of(dataset, version, there=version in kept)
        yield known[version]


def event_of(dataset: lance.LanceDataset, version: int, *, there: bool = True) -> Event:
    """Returns what made a version."""
    transaction = None
    try:
        transaction = read_transaction(dataset, version) if there else None
    except (OSError, ValueError):
        if any(kept["version"] == version for kept in dataset.version_refs()):
            raise
        # It was cleaned up meanwhile.
    if transaction is None:
        return Event(version=version, operation=None, properties={})
    return Event(
        version=version,
        operation=transaction.operation,
        properties=transaction.transaction_properties or {},
        read_version=transaction.read_version,
    )


def find_job(
    dataset: lance.LanceDataset, job_id: str, *, after: int, known: dict[int, Event] | None = None
) -> CommitResult | None:
    """Returns what a job committed after a version and did not take back, or None."""
    found = None
    for event in events_between(dataset, after, dataset.version, known):
        if event.properties.get(JOB_KEY) == job_id:
            found = summary_of(event, dataset.uri) or found
        elif event.properties.get(UNDONE_KEY) == job_id:
            found = None
    return found


def summary_of(event: Event, uri: str) -> CommitResult | None:
    """Returns the result of a commit of lance-spark.

    Returns None for the commits of other writers, forged summaries included.
    """
    text = event.properties.get(SUMMARY_KEY)
    if text is None or JOB_KEY not in event.properties:
        return None
    try:
        return CommitResult.from_json(text, uri=uri, version=event.version)
    except ValueError as error:
        logger.warning("The summary of version %s of %s is damaged and not used: %s", event.version, uri, error)
        return None


def named_files(dataset: lance.LanceDataset, names: Collection[str], *, after: int) -> frozenset[str]:
    """Returns those of the data files that the manifest of a kept version after `after` names."""
    wanted, found = frozenset(names), set[str]()
    for version in reversed(_kept_after(dataset, after)):
        found |= _named_in(dataset, version, wanted)
        if found == wanted:
            break
    return frozenset(found)


def first_naming(dataset: lance.LanceDataset, names: Collection[str], *, after: int) -> int | None:
    """Returns the oldest kept version after `after` whose manifest names all of the data files.

    Returns None if no version does.
    """
    wanted = frozenset(names)
    versions = _kept_after(dataset, after)
    return next((version for version in versions if _named_in(dataset, version, wanted) == wanted), None)


def _kept_after(dataset: lance.LanceDataset, after: int) -> list[int]:
    return sorted(kept["version"] for kept in dataset.version_refs() if kept["version"] > after)


def _named_in(dataset: lance.LanceDataset, version: int, wanted: frozenset[str]) -> frozenset[str]:
    """Returns those of the data files that the manifest of a version names."""
    at = dataset if version == dataset.version else dataset.checkout_version(version)
    found = set[str]()
    for fragment in at.get_fragments():
        metadata = fragment.metadata
        files = [*metadata.files, *(overlay.data_file for overlay in metadata.overlays)]
        found.update(wanted.intersection(map(path_of, files)))
    return frozenset(found)


def last_commit(path: str, storage_options: Mapping[str, str] | None = None) -> CommitResult | None:
    """Returns what the newest commit of lance-spark did to a table, or None without one.

    Reads one small transaction per version, from the newest on, so it is fast where the commit is
    recent.

    Args:
        path: Location of the table.
        storage_options: Options of the object store.

    Raises:
        TableNotFoundError: There is no table.
        TableUnreadableError: It cannot be opened.
    """
    ref = DatasetRef.at(path, {} if storage_options is None else storage_options)
    dataset = ref.open_latest()
    undone = set()
    for version in sorted((kept["version"] for kept in dataset.version_refs()), reverse=True):
        event = event_of(dataset, version)
        undone.add(event.properties.get(UNDONE_KEY))
        summary = summary_of(event, ref.uri)
        if summary is not None and event.properties[JOB_KEY] not in undone:
            return summary
    return None


def _paths_of(fragments: Iterable[FragmentMetadata]) -> tuple[str, ...]:
    return tuple(path_of(file) for fragment in fragments for file in fragment.files)


def _made_by(group: lance.LanceOperation.RewriteGroup, version: int) -> Iterator[Made]:
    """Yields for each new fragment of a compaction which live rows of which old ones are in it."""
    olds, news = list(group.old_fragments), list(group.new_fragments)
    agree = sum(old.num_rows for old in olds) == sum(new.physical_rows for new in news)
    begin = 0
    for new in news:
        end = begin + new.physical_rows
        parts, at = [], 0
        for old in olds:
            first, last = max(begin - at, 0), min(end - at, old.num_rows)
            if first < last:
                parts.append(Part(old=old, first=first, last=last, start=at + first - begin))
            at += old.num_rows
        yield Made(version=version, new=new, parts=tuple(parts) if agree else None)
        begin = end
