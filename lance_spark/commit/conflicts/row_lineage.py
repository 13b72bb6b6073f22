"""Where rows of compacted fragments were, and which fragments updates made: :class:`Lineage`.

Compaction writes the live rows of some fragments, one after the other, into new ones, and changes
no value. Its transaction names both sides, with the deletion files that were applied. So a value
that belongs to an old physical row belongs to a known new one, over any number of compactions, and
need not be computed again. This holds with stable row ids and without.

An update that rewrites rows names the fragments that it took them from and the files that it put
them into, but not which row went where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from lance_spark.commit.conflicts.history import Change, Made, Part, events_between
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    import lance
    import numpy.typing as npt
    from lance.fragment import FragmentMetadata

logger = logging.getLogger(__name__)

_Leaf = TypeVar("_Leaf", bound="Leaf")

_OFFSET_BITS = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A fragment at the beginning of the way of rows to a compacted fragment.

    Attributes:
        fragment: That fragment as it was when it was compacted: its files and overlays tell whether
            a result of it still fits.
        way: The fragments that the rows went through since: what the first compaction made, how the
            second one found it, what that made, and so on. Values may have been rewritten in place
            between one and the next.
    """

    fragment: FragmentMetadata
    way: tuple[FragmentMetadata, ...] = ()

    def is_unchanged(self, now: FragmentMetadata, field_ids: Sequence[int]) -> bool:
        """Tells whether nothing rewrote fields of these rows in place since."""
        steps = (*self.way, now)
        pairs = zip(steps[::2], steps[1::2], strict=True)
        return all(files_of(made, field_ids) == files_of(found, field_ids) for made, found in pairs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece(Leaf):
    """Consecutive rows of a compacted fragment that were in one fragment before.

    Attributes:
        offsets: Physical offsets of the rows in it, int64, ascending.
        start: Row of the compacted fragment that the first of them became; the others follow it.
    """

    offsets: npt.NDArray[np.int64]
    start: int

    @property
    def stop(self) -> int:
        """Row of the compacted fragment after the last one of this piece."""
        return self.start + len(self.offsets)


class Lineage:
    """The compactions between two versions of a table, at any version of its branch.

    Holds metadata only; offsets are read and made when they are asked for. Not for several threads
    at once. Without `changes` the transactions of the versions `after + 1` to `upto` are read; they
    may be of others, too.

    Attributes:
        complete: Whether every transaction on the way is known. Where not, the origins of fragments
            that may have come out of a lost one are None.
        cleaned_up: Whether a transaction on the way was cleaned up. A restore to before the older
            version is incomplete too, and known.
        replaced: Whether the table was overwritten or restored on the way, or may have been: an id
            may mean another fragment then.
        compacted: Ids of all fragments that came out of a known compaction, also of later compacted
            ones.
    """

    def __init__(
        self, dataset: lance.LanceDataset, after: int, upto: int, changes: Iterable[Change] | None = None
    ) -> None:
        if changes is None:
            changes = map(Change.of, events_between(dataset, after, upto))
        steps = {change.version: change for change in changes if after < change.version <= upto}
        self._dataset = dataset
        self._after = after
        self._made: dict[int, Made] = {}
        self._moved: dict[str, npt.NDArray[np.uint32]] = {}
        self.complete = True
        self.cleaned_up = False
        self.replaced = any(step.replaces for step in steps.values())
        at = upto
        while at > after:
            step = steps[at]
            at = at - 1 if step.restored is None else step.restored
            if step.operation == "Overwrite":
                break
            self.cleaned_up = self.cleaned_up or step.operation is None
            # Back to before the beginning: what is there now may be what the older version had
            # under other ids.
            self.complete = self.complete and step.operation is not None and at >= after
            # No id is on the way twice: compaction reserves new ones, and the way begins after
            # an overwrite or at the restored version.
            self._made.update(step.made)
            if step.touched is not None:
                self._moved.update(dict.fromkeys(step.moved, step.touched))
        self.compacted = frozenset(self._made)
        self._there_before: frozenset[int] | None = None
        self._opened: lance.LanceDataset | None = None

    def moved_from(self, fragment: FragmentMetadata) -> frozenset[int] | None:
        """Returns where an update may have taken a fragment's rows from.

        None where none made it; nothing where all of its rows are known to be new.
        """
        found = [self._moved[path] for path in map(path_of, fragment.files) if path in self._moved]
        return frozenset(np.concatenate(found).tolist()) if found else None

    def is_added(self, fragment: FragmentMetadata) -> bool:
        """Tells whether an append made a fragment, or a merge that took no rows from anywhere."""
        return self.moved_from(fragment) == frozenset()

    def leaves(self, fragment_id: int) -> list[Leaf] | None:
        """Returns where the rows of a fragment were at the older version, without reading anything.

        As :meth:`origins`, but for the rows: none for a fragment that did not come out of a
        compaction, None where it is not known.
        """

        def back(older: list[Leaf], part: Part, made: Made) -> list[Leaf]:
            steps = [Leaf(fragment=leaf.fragment, way=(*leaf.way, part.old, made.new)) for leaf in older]
            return steps or [Leaf(fragment=part.old, way=(made.new,))]

        return self._follow(fragment_id, back)

    def origins(self, fragment_id: int) -> list[Piece] | None:
        """Returns where the rows of a fragment were at the older version, by its deletion files.

        A way back ends at a fragment that did not come out of a compaction: one of the older
        version, or one that was appended or made by an update since. Which of these it is, and
        whether a result of it still fits, its id and its files tell.

        Returns:
            Pieces that cover the fragment's rows from the first to the last. Without any, the
            fragment did not come out of a compaction: it is its own origin. None where the origin
            is not known, because a transaction or a deletion file of the way is gone.
        """

        def back(older: list[Piece], part: Part, made: Made) -> list[Piece] | None:
            live = self._live_offsets(part.old, made.version)
            return None if live is None else list(_through(older, part, live[part.first : part.last], made.new))

        return self._follow(fragment_id, back)

    def _follow(
        self, fragment_id: int, back: Callable[[list[_Leaf], Part, Made], list[_Leaf] | None]
    ) -> list[_Leaf] | None:
        """Follows a fragment back; `back` takes what was found one compaction further."""
        made = self._made.get(fragment_id)
        if made is None:
            return None if self._may_be_lost(fragment_id) else []
        if made.parts is None:
            return None
        found: list[_Leaf] = []
        for part in made.parts:
            older = self._follow(part.old.id, back)
            steps = None if older is None else back(older, part, made)
            if steps is None:
                return None
            found += steps
        return found

    def _may_be_lost(self, fragment_id: int) -> bool:
        """Tells whether a fragment may have come out of a compaction whose transaction is gone."""
        if self.complete:
            return False
        if self._there_before is None:
            older = self._at(self._after)
            fragments = [] if older is None else older.get_fragments()
            self._there_before = frozenset(fragment.fragment_id for fragment in fragments)
        return fragment_id not in self._there_before

    def _live_offsets(self, old: FragmentMetadata, version: int) -> npt.NDArray[np.int64] | None:
        """Returns the rows of an old fragment that the compaction found live, ascending."""
        if old.num_deletions == 0:
            return np.arange(old.physical_rows, dtype=np.int64)
        before = self._at(version - 1)
        fragment = None if before is None else before.get_fragment(old.id)
        if fragment is None or _deletions(fragment.metadata) != _deletions(old):
            logger.warning(
                "version %s of %s is gone, which knows the deleted rows of fragment %s: rows cannot be followed there",
                version - 1, self._dataset.uri, old.id,
            )  # fmt: skip
            return None
        addresses = fragment.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_numpy()
        offsets: npt.NDArray[np.int64] = (addresses & _OFFSET_BITS).astype(np.int64)
        return offsets

    def _at(self, version: int) -> lance.LanceDataset | None:
        """Opens a version, or returns None where it was cleaned up. The last one stays open."""
        if self._opened is None or self._opened.version != version:
            try:
                self._opened = self._dataset.checkout_version(version)
            except (OSError, ValueError):
                if any(kept["version"] == version for kept in self._dataset.version_refs()):
                    raise
                return None
        return self._opened


def _through(older: list[Piece], part: Part, live: npt.NDArray[np.int64], new: FragmentMetadata) -> Iterator[Piece]:
    """Yields where live rows of an old fragment, now in `new`, were; `older` is where all were."""
    if not older:
        yield Piece(fragment=part.old, offsets=live, start=part.start, way=(new,))
    for piece in older:
        first, last = np.searchsorted(live, [piece.start, piece.stop])
        if first < last:
            yield Piece(
                fragment=piece.fragment,
                offsets=piece.offsets[live[first:last] - piece.start],
                start=part.start + int(first),
                way=(*piece.way, part.old, new),
            )


def _deletions(fragment: FragmentMetadata) -> object:
    return None if fragment.deletion_file is None else fragment.deletion_file.asdict()
