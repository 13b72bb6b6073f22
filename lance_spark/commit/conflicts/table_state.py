"""State of a table as read by a commit: a version and the changes before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.history import Change, events_between
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, files_of
from lance_spark.commit.conflicts.row_lineage import Lineage

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata


class Fragments(Mapping[int, "FragmentMetadata"]):
    """Fragments of a version by id, read on demand because reading all may take a second."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self._dataset = dataset
        self._known: dict[int, FragmentMetadata | None] = dict.fromkeys(dataset.fragment_ids())

    def __getitem__(self, number: int) -> FragmentMetadata:
        fragment = self._known[number]
        if fragment is None:
            handle = self._dataset.get_fragment(number)
            if handle is None:
                raise KeyError(number)
            fragment = self._known[number] = handle.metadata
        return fragment

    def __contains__(self, number: object) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True, kw_only=True)
class Head:
    """A version read by a commit, with its columns and its fragments by id."""

    dataset: lance.LanceDataset
    fields: tuple[FieldIdentity, ...]
    fragments: Fragments

    @staticmethod
    def of(dataset: lance.LanceDataset) -> Head:
        """Reads the manifest of an open dataset."""
        return Head(
            dataset=dataset,
            fields=field_identities(dataset.lance_schema),
            fragments=Fragments(dataset),
        )

    def is_filled(self, column: FieldIdentity) -> bool:
        """Tells whether any data file holds a column."""
        return any(files_of(fragment, column.ids) for fragment in self.fragments.values())


@dataclass(slots=True)
class SeenHistory:
    """A table's history as read by the commits of a job. No version is read twice.

    Attributes:
        upto: The last version read; 0 before the first call of `look`.
        changes: Every event since the job's snapshot.
        opened: The latest version, if the caller of the next commit has just opened the table.
        attempts: The version before the first attempt to commit a file, by the file's name. The
            caller of the commit removes a file with a known result.
    """

    upto: int = 0
    changes: list[Change] = field(default_factory=list)
    opened: lance.LanceDataset | None = None
    attempts: dict[str, int] = field(default_factory=dict)

    def look(self, dataset: lance.LanceDataset, after: int) -> None:
        """Reads the changes up to the dataset's version; the first call starts after `after`."""
        self.upto = max(self.upto, after)
        for event in events_between(dataset, self.upto, dataset.version):
            change = Change.of(event)
            if change.restored is not None:
                undone = events_between(dataset, change.restored, event.version - 1)
                change = replace(change, undone=tuple(map(Change.of, undone)))
            self.changes.append(change)
        self.upto = max(self.upto, dataset.version)

    def note_merge(self, dataset: lance.LanceDataset, before: int) -> None:
        """Notes a Merge of this process, without a request if the Merge directly follows `before`.

        `dataset` is at the version of the Merge.
        """
        if self.upto == before and dataset.version == before + 1:
            schema = field_identities(dataset.lance_schema)
            self.changes.append(Change(version=dataset.version, operation="Merge", schema=schema))
            self.upto = dataset.version

    def note_attempt(self, dataset: lance.LanceDataset, names: Iterable[str]) -> None:
        """Notes the files of an attempt to commit on top of a version."""
        for name in names:
            self.attempts.setdefault(name, dataset.version)

    def changes_after(self, version: int) -> list[Change]:
        """Returns the changes after a version, oldest first."""
        return [change for change in self.changes if change.version > version]

    def lineage(self, dataset: lance.LanceDataset, after: int) -> Lineage:
        """Returns the origins of a version's rows since an older version, both read before."""
        return Lineage(dataset, after, dataset.version, self.changes)
