"""Origins of compacted rows, and sources of fragments made by updates: :class:`Lineage`.

A compaction writes the live rows of old fragments in order into new fragments and changes no value.
Its transaction names the old and the new fragments, with the applied deletion files. The value of
an old physical row therefore belongs to a known new row, over any number of compactions, and is not
recomputed. Stable row ids are not required.

An update with rewritten rows names their source fragments and their new files. The transaction does
not map single rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from lance_spark.commit.conflicts.history import Change, CompactedFragment, RowSpan, events_between
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    import lance
    import numpy.typing as npt
    from lance.fragment import FragmentMetadata

logger = logging.getLogger(__name__)

_Step = TypeVar("_Step", bound="LineageStep")

_OFFSET_BITS = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineageStep:
    """The first fragment on the path of rows to a compacted fragment.

    Attributes:
        fragment: The fragment at the time of its compaction. Its files and overlays tell whether a
            result for the fragment still fits.
        way: The later fragments on the path: the output of the first compaction, the same fragment
            as input of the second compaction, the output of the second compaction, and so on.
            Commits may have rewritten values in place between an output and the next input.
    """

    fragment: FragmentMetadata
    way: tuple[FragmentMetadata, ...] = ()

    def is_unchanged(self, now: FragmentMetadata, field_ids: Sequence[int]) -> bool:
        """Tells whether the fields of these rows were never rewritten in place since."""
        steps = (*self.way, now)
        pairs = zip(steps[::2], steps[1::2], strict=True)
        return all(
            files_of(output, field_ids) == files_of(source, field_ids) for output, source in pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceSpan(LineageStep):
    """Consecutive rows of a compacted fragment from the same earlier fragment.

    Attributes:
        offsets: Physical offsets of the rows in the earlier fragment, int64, ascending.
        start: First row of the piece in the compacted fragment. The remaining rows follow in order.
    """

    offsets: npt.NDArray[np.int64]
    start: int

    @property
    def stop(self) -> int:
        """Row of the compacted fragment after the last row of the piece."""
        return self.start + len(self.offsets)


_FACTS_OF_TASKS = 10_000
"""Maximum number of files and fragments in the lineage that the driver sends to tasks, at 100 to
1,000 bytes each. A compacted fragment counts with its old fragments. Otherwise tasks read manifests
or the history."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineageFacts:
    """The compactions and moves of rows between two versions. Picklable, so tasks need no history.

    Attributes:
        compacted_fragments: Origins of the fragments made by a known compaction, by fragment id.
            Includes fragments compacted again later.
        sources_by_file: Ids of the source fragments of the rows in a data file of an append or an
            update.
        complete: Whether every transaction on the path is known. Otherwise, the origins of a
            fragment are None if a lost transaction may have made the fragment.
        cleaned_up: Whether a transaction on the path was cleaned up. A restore to before the older
            version is also incomplete, although its transaction is known.
        replaced: Whether the table was overwritten or restored on the path, or may have been. An id
            may then name another fragment.
    """

    compacted_fragments: Mapping[int, CompactedFragment]
    sources_by_file: Mapping[str, npt.NDArray[np.uint32]]
    complete: bool = True
    cleaned_up: bool = False
    replaced: bool = False

    @property
    def for_tasks(self) -> LineageFacts | None:
        """These facts, if they are small enough for the description of a task; else None."""
        spans = sum(
            1 + len(compacted.parts or ()) for compacted in self.compacted_fragments.values()
        )
        return self if spans + len(self.sources_by_file) <= _FACTS_OF_TASKS else None

    @staticmethod
    def of(changes: Iterable[Change], after: int, upto: int) -> LineageFacts:
        """Returns the facts of versions `after + 1` to `upto`. Ignores other versions."""
        steps = {change.version: change for change in changes if after < change.version <= upto}
        path = list(_path_back(steps, after, upto))
        cleaned_up = any(step.operation is None for step in path)
        fragments: dict[int, CompactedFragment] = {}
        sources: dict[str, npt.NDArray[np.uint32]] = {}
        for step in path:
            # Ids on the path are unique, because a compaction reserves new ids.
            fragments.update(step.made)
            if step.touched is not None:
                sources.update(dict.fromkeys(step.moved, step.touched))
        return LineageFacts(
            compacted_fragments=fragments,
            sources_by_file=sources,
            # After a restore to before the older version, current fragments may be fragments of
            # the older version under other ids.
            complete=not cleaned_up and all(_version_before(step) >= after for step in path),
            cleaned_up=cleaned_up,
            replaced=any(step.replaces for step in steps.values()),
        )


UNKNOWN_LINEAGE = LineageFacts(
    compacted_fragments={}, sources_by_file={}, complete=False, replaced=True
)
"""Facts without any knowledge of the history."""


class Lineage:
    """The compactions between two versions of a table; `dataset` is at any version of the branch.

    A lineage holds only metadata, and computes row offsets on demand. Only a single thread may use
    a lineage at a time. Without `changes` and `facts`, the first use reads the transactions of
    versions `after + 1` to `upto`. `changes` may include other versions.
    """

    def __init__(
        self,
        dataset: lance.LanceDataset,
        after: int,
        upto: int,
        changes: Iterable[Change] | None = None,
        *,
        facts: LineageFacts | None = None,
    ) -> None:
        if facts is None and changes is not None:
            facts = LineageFacts.of(changes, after, upto)
        self._dataset = dataset
        self._after = after
        self._upto = upto
        self._read_facts = facts
        self._there_before: frozenset[int] | None = None
        self._opened: lance.LanceDataset | None = None

    @property
    def facts(self) -> LineageFacts:
        """The compactions and moves. The first use reads the transactions, if necessary."""
        if self._read_facts is None:
            changes = map(Change.of, events_between(self._dataset, self._after, self._upto))
            self._read_facts = LineageFacts.of(changes, self._after, self._upto)
        return self._read_facts

    @property
    def complete(self) -> bool:
        """Whether every transaction on the path is known."""
        return self.facts.complete

    @property
    def cleaned_up(self) -> bool:
        """Whether a transaction on the path was cleaned up."""
        return self.facts.cleaned_up

    @property
    def replaced(self) -> bool:
        """Whether an id may name another fragment."""
        return self.facts.replaced

    @property
    def compacted(self) -> frozenset[int]:
        """Ids of all fragments made by a known compaction."""
        return frozenset(self.facts.compacted_fragments)

    def moved_from(self, fragment: FragmentMetadata) -> frozenset[int] | None:
        """Returns ids of possible source fragments, if an update moved rows into the fragment.

        Returns None if no append or update made the fragment, and an empty set if all of its rows
        are known to be new.
        """
        sources = [
            self.facts.sources_by_file[path]
            for path in map(path_of, fragment.files)
            if path in self.facts.sources_by_file
        ]
        return frozenset(np.concatenate(sources).tolist()) if sources else None

    def is_added(self, fragment: FragmentMetadata) -> bool:
        """Tells whether a fragment comes from an append, or from a merge without moved rows."""
        return self.moved_from(fragment) == frozenset()

    def leaves(self, fragment_id: int) -> list[LineageStep] | None:
        """Returns a fragment's origins at the older version, without reading deletion files.

        Same as :meth:`origins`, without the row offsets. The list is empty if no compaction made
        the fragment. Returns None if the origins are unknown.
        """

        def back(
            older: list[LineageStep], part: RowSpan, made: CompactedFragment
        ) -> list[LineageStep]:
            steps = [
                LineageStep(fragment=leaf.fragment, way=(*leaf.way, part.old, made.new))
                for leaf in older
            ]
            return steps or [LineageStep(fragment=part.old, way=(made.new,))]

        return self._follow(fragment_id, back)

    def origins(self, fragment_id: int) -> list[SourceSpan] | None:
        """Returns the origins of a fragment's rows at the older version, by its deletion files.

        A path back ends at a fragment not made by a compaction: a fragment of the older version, or
        a fragment appended or made by an update since. The id and the files of the fragment
        distinguish these cases, and tell whether a result for the fragment still fits.

        Returns:
            Pieces with all rows of the fragment, from the first to the last. The list is empty if
            no compaction made the fragment: the fragment is its own origin. None if the origin is
            unknown, because a transaction or a deletion file on the path is gone.
        """

        def back(
            older: list[SourceSpan], part: RowSpan, made: CompactedFragment
        ) -> list[SourceSpan] | None:
            live = self._live_offsets(part.old, made.version)
            return (
                None
                if live is None
                else list(_through(older, part, live[part.first : part.last], made.new))
            )

        return self._follow(fragment_id, back)

    def _follow(
        self,
        fragment_id: int,
        back: Callable[[list[_Step], RowSpan, CompactedFragment], list[_Step] | None],
    ) -> list[_Step] | None:
        """Follows a fragment back; `back` extends the older origins by a compaction."""
        compaction = self.facts.compacted_fragments.get(fragment_id)
        if compaction is None:
            return None if self._may_be_lost(fragment_id) else []
        if compaction.parts is None:
            return None
        leaves: list[_Step] = []
        for part in compaction.parts:
            older = self._follow(part.old.id, back)
            steps = None if older is None else back(older, part, compaction)
            if steps is None:
                return None
            leaves += steps
        return leaves

    def _may_be_lost(self, fragment_id: int) -> bool:
        """Tells whether a fragment may come from a compaction without a kept transaction."""
        if self.complete:
            return False
        if self._there_before is None:
            older = self._at(self._after)
            fragments = [] if older is None else older.get_fragments()
            self._there_before = frozenset(fragment.fragment_id for fragment in fragments)
        return fragment_id not in self._there_before

    def _live_offsets(self, old: FragmentMetadata, version: int) -> npt.NDArray[np.int64] | None:
        """Returns the offsets of an old fragment's live rows at its compaction, ascending."""
        if old.num_deletions == 0:
            return np.arange(old.physical_rows, dtype=np.int64)
        before = self._at(version - 1)
        fragment = None if before is None else before.get_fragment(old.id)
        if fragment is None or _deletions(fragment.metadata) != _deletions(old):
            logger.warning(
                "Version %s of %s is gone, and with it the deleted rows of fragment %s. The rows of this fragment "
                "cannot be followed.",
                version - 1, self._dataset.uri, old.id,
            )  # fmt: skip
            return None
        addresses = (
            fragment.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_numpy()
        )
        offsets: npt.NDArray[np.int64] = (addresses & _OFFSET_BITS).astype(np.int64)
        return offsets

    def _at(self, version: int) -> lance.LanceDataset | None:
        """Opens a version, or returns None if cleaned up. The last opened version stays open."""
        if self._opened is None or self._opened.version != version:
            try:
                self._opened = self._dataset.checkout_version(version)
            except (OSError, ValueError):
                if any(ref["version"] == version for ref in self._dataset.version_refs()):
                    raise
                return None
        return self._opened


def _path_back(steps: Mapping[int, Change], after: int, upto: int) -> Iterator[Change]:
    """Yields the changes on the path to a version, newest first.

    The path begins after an overwrite, and leaves out the changes undone by a restore.
    """
    version = upto
    while version > after and steps[version].operation != "Overwrite":
        yield steps[version]
        version = _version_before(steps[version])


def _version_before(step: Change) -> int:
    return step.version - 1 if step.restored is None else step.restored


def _through(
    older: list[SourceSpan], part: RowSpan, live: npt.NDArray[np.int64], new: FragmentMetadata
) -> Iterator[SourceSpan]:
    """Yields the origins of an old fragment's live rows, now in `new`.

    `older` holds the origins of all rows of the old fragment.
    """
    if not older:
        yield SourceSpan(fragment=part.old, offsets=live, start=part.start, way=(new,))
    for piece in older:
        first, last = np.searchsorted(live, [piece.start, piece.stop])
        if first < last:
            yield SourceSpan(
                fragment=piece.fragment,
                offsets=piece.offsets[live[first:last] - piece.start],
                start=part.start + int(first),
                way=(*piece.way, part.old, new),
            )


def _deletions(fragment: FragmentMetadata) -> object:
    return None if fragment.deletion_file is None else fragment.deletion_file.asdict()
