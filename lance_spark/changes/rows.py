"""Finds the changed rows of a step: :class:`RowFinder`. Runs in tasks.

Memory: 24 bytes per row of one fragment, and a few batches of the compared columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from lance_spark.changes.plan import StepPart, compared_fields
from lance_spark.changes.ready_rows import ReadyColumns, ready_files, ready_rows
from lance_spark.changes.steps import FeedStep
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.row_origins import FragmentOrigins, Origin
from lance_spark.rebase.source_changes import SourceChanges, live_offsets
from lance_spark.rows.matching_rows import matching_addresses
from lance_spark.rows.row_addresses import SnapshotRows, offsets_of
from lance_spark.rows.row_set import RowSet
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    from lance_spark.commit.conflicts.row_lineage import LineageFacts

ChangeType = Literal["insert", "delete", "update_preimage", "update_postimage"]
CHANGE_TYPES: tuple[ChangeType, ...] = ("insert", "delete", "update_preimage", "update_postimage")
_INSERTS = ("insert",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """Rows of a fragment with the same kind of change.

    Attributes:
        kind: The change.
        is_new: Whether the rows are of the new version.
        fragment_id: The fragment.
        rows: Its rows.
    """

    kind: ChangeType
    is_new: bool
    fragment_id: int
    rows: RowSet


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """The changes for a reader.

    Attributes:
        columns: Names of the compared columns. A column is NULL in a version without the column.
        filter: Filter in Lance SQL, or None.
        kinds: The kinds of changes.
        ready: Columns of a ready row; None finds a row when the row is inserted.
    """

    columns: tuple[str, ...]
    filter: str | None = None
    kinds: Collection[ChangeType] = CHANGE_TYPES
    ready: ReadyColumns | None = None


class VersionRows:
    """The rows of a version. Belongs to one thread."""

    def __init__(self, ref: DatasetRef, filter: str | None = None) -> None:
        self.ref = ref
        self.dataset = ref.open()
        self.rows = SnapshotRows(self.dataset)
        self._filter = filter

    def live(self, fragment_id: int) -> RowSet:
        """Returns the live rows of a fragment."""
        return RowSet.of(live_offsets(self.rows, fragment_id))

    def restrict(self, fragment_id: int, rows: RowSet) -> RowSet:
        """Returns the subset of rows matched by the filter."""
        return (
            rows & self.matching(fragment_id, self._filter)
            if rows and self._filter is not None
            else rows
        )

    def present(self, fragment_id: int, column: str) -> RowSet:
        """Returns the rows with a value in a column."""
        return self.matching(fragment_id, f"{quote_identifier(column)} IS NOT NULL")

    def matching(self, fragment_id: int, condition: str | None) -> RowSet:
        """Returns the rows matched by a condition in Lance SQL."""
        fragment = self.rows.existing_fragment(fragment_id)
        # A scalar index may miss rows of another version.
        addresses = matching_addresses(self.dataset, [fragment], condition, use_index=False)
        return RowSet.of(np.concatenate([np.empty(0, np.int64), *map(offsets_of, addresses)]))


class RowFinder:
    """Finds the changed rows between two versions. Belongs to one thread."""

    def __init__(self, step: FeedStep, query: RowQuery, lineage: LineageFacts | None) -> None:
        self.after = VersionRows(step.after, query.filter)
        self.before = None if step.before is None else VersionRows(step.before, query.filter)
        self._step = step
        self._query = query
        self._lineage = lineage
        self._changes: SourceChanges | None = None

    def find(self, part: StepPart) -> Iterator[ChangedRows]:
        """Yields the changed rows of the fragments of a part.

        Raises:
            TableUnreadableError: A file of a version is missing or damaged.
            FilterError: The filter fails on a value.
        """
        for fragment_id in part.new_ids:
            changes = (
                self._appended(fragment_id) if part.only_inserts else self._of_new(fragment_id)
            )
            yield from (
                change for change in changes if change.rows and change.kind in self._query.kinds
            )
        if "delete" in self._query.kinds:
            for fragment_id in part.old_ids:
                rows = self._old.restrict(fragment_id, self._source.deleted(fragment_id))
                if rows:
                    yield ChangedRows(
                        kind="delete", is_new=False, fragment_id=fragment_id, rows=rows
                    )

    def _appended(self, fragment_id: int) -> Iterator[ChangedRows]:
        ready = self._query.ready
        rows = (
            self.after.live(fragment_id)
            if ready is None
            else ready_rows(self.after, fragment_id, ready).rows
        )
        yield self._inserts(fragment_id, rows)

    def _of_new(self, fragment_id: int) -> Iterator[ChangedRows]:
        """Yields the changes of a fragment of the new version, except deletes."""
        origins = self._source.origins(fragment_id)
        if self._query.ready is not None:
            yield self._inserts(
                fragment_id, self._become_ready(fragment_id, origins, self._query.ready)
            )
            return
        if "insert" in self._query.kinds:
            yield self._inserts(fragment_id, self.after.live(fragment_id) - origins.known)
        if tuple(self._query.kinds) != _INSERTS:
            for origin in origins.origins:
                yield from self._of_kept(fragment_id, origin)

    def _become_ready(
        self, fragment_id: int, origins: FragmentOrigins, columns: ReadyColumns
    ) -> RowSet:
        """Returns the rows of a fragment, ready in the new version only."""
        candidates = [
            origin
            for origin in origins.origins
            if not self._has_same_files(fragment_id, origin, columns)
        ]
        inserted_rows = self.after.live(fragment_id) - origins.known
        if not candidates and not inserted_rows:
            return inserted_rows
        ready = ready_rows(self.after, fragment_id, columns)
        rows = ready.rows & inserted_rows
        for origin in candidates:
            new_rows = ready.new & RowSet.of(origin.mapping.new)
            if new_rows:
                old_rows = ready_rows(self._old, origin.fragment.id, columns).rows
                rows |= new_rows - RowSet.of(
                    origin.mapping.new[_mask(old_rows, origin.mapping.old)]
                )
        return rows

    def _has_same_files(self, fragment_id: int, origin: Origin, columns: ReadyColumns) -> bool:
        """Tells whether a new fragment has the rows of an old fragment with their files."""
        fragment = self.after.rows.existing_fragment(fragment_id).metadata
        before, after = (
            ready_files(version, metadata, columns)
            for version, metadata in ((self._old, origin.fragment), (self.after, fragment))
        )
        return origin.fragment.id == fragment_id and before == after

    def _inserts(self, fragment_id: int, rows: RowSet) -> ChangedRows:
        matching = self.after.restrict(fragment_id, rows)
        return ChangedRows(kind="insert", is_new=True, fragment_id=fragment_id, rows=matching)

    def _of_kept(self, fragment_id: int, origin: Origin) -> Iterator[ChangedRows]:
        """Yields the changes of the rows of both versions."""
        new_rows = RowSet.of(origin.mapping.new)
        changed = self._source.changed(fragment_id, origin) | self._changed_presence(
            fragment_id, origin
        )
        if self._query.filter is None:
            yield from self._updates(fragment_id, origin, changed)
            return
        old_rows = self._old.restrict(origin.fragment.id, RowSet.of(origin.mapping.old))
        matched = RowSet.of(origin.mapping.new[_mask(old_rows, origin.mapping.old)])
        matches = self.after.restrict(fragment_id, new_rows)
        yield from self._updates(fragment_id, origin, changed & matched & matches)
        yield ChangedRows(
            kind="insert", is_new=True, fragment_id=fragment_id, rows=matches - matched
        )
        lost = RowSet.of(origin.mapping.restrict_to(matched - matches).old)
        yield ChangedRows(kind="delete", is_new=False, fragment_id=origin.fragment.id, rows=lost)

    def _updates(self, fragment_id: int, origin: Origin, changed: RowSet) -> Iterator[ChangedRows]:
        if changed:
            old = RowSet.of(origin.mapping.restrict_to(changed).old)
            yield ChangedRows(
                kind="update_preimage", is_new=False, fragment_id=origin.fragment.id, rows=old
            )
            yield ChangedRows(
                kind="update_postimage", is_new=True, fragment_id=fragment_id, rows=changed
            )

    def _changed_presence(self, fragment_id: int, origin: Origin) -> RowSet:
        """Returns the rows with a value in a column of a single version."""
        rows = RowSet.empty()
        old_names, new_names = (
            set(self._old.dataset.schema.names),
            set(self.after.dataset.schema.names),
        )
        for name in self._query.columns:
            if name in new_names and name not in old_names:
                rows |= self.after.present(fragment_id, name)
            elif name in old_names and name not in new_names:
                present = self._old.present(origin.fragment.id, name)
                rows |= RowSet.of(origin.mapping.new[_mask(present, origin.mapping.old)])
        return rows & RowSet.of(origin.mapping.new) if rows else rows

    @property
    def _old(self) -> VersionRows:
        if self.before is None:
            raise ValueError(f"Version {self._step.after.version} has no version before.")
        return self.before

    @property
    def _source(self) -> SourceChanges:
        if self._changes is None:
            before = self._step.before
            if before is None:
                raise ValueError(f"Version {self._step.after.version} has no version before.")
            self._changes = SourceChanges(
                self._step.after,
                before,
                _common_fields(self._old, self.after, self._query.columns),
                lineage=self._lineage,
                by_name=True,
                strict=True,
            )
        return self._changes


def _mask(rows: RowSet, offsets: np.ndarray) -> np.ndarray:
    return rows.mask(0, int(offsets.max()) + 1)[offsets] if len(offsets) else np.zeros(0, np.bool_)


def _common_fields(
    before: VersionRows, after: VersionRows, columns: Sequence[str]
) -> tuple[FieldIdentity, ...]:
    """Returns the compared columns of both versions, with the field ids of both."""
    ids: dict[str, list[FieldIdentity]] = {}
    for field in compared_fields(before.dataset, after.dataset, columns):
        ids.setdefault(field.name, []).append(field)
    pairs = (fields for fields in ids.values() if len(fields) > 1)
    return tuple(_merge_ids(*pair) for pair in pairs)


def _merge_ids(old: FieldIdentity, new: FieldIdentity) -> FieldIdentity:
    return replace(new, ids=tuple({*old.ids, *new.ids}))
