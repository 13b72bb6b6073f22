"""Carries values of a DataFrame backfill over to where their rows are now: :class:`CarryOver`.

Somebody compacted fragments, moved rows by an update, or rewrote inputs or the target in place, between the read and the commit. Here the
staged values are streamed into column files of the fragments of today. A row whose inputs are not those any more that its value was
computed from gets none: there is no UDF here to compute it again.

Runs where the write commits, or on executors. Memory: a few batches of rows, and 50 bytes a row of one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from lance_spark.commit.changes import FollowedColumns, FragmentColumns
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, files_of
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitImpossibleError,
    SnapshotError,
    TableUnreadableError,
    VersionNotFoundError,
)
from lance_spark.rebase.changed_inputs import changed_rows
from lance_spark.rebase.row_origins import OpenBase, Origin, Origins, not_updated
from lance_spark.rebase.stale import Column, Stale, judge_stale, staged_values, values_before
from lance_spark.rows.merge import Chunk, FilePiece, MissingFileError, Moved, chained, columns_of, merge, no_rows
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging, open_session
from lance_spark.staging.column_file import ColumnFile, Targets

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

    from lance_spark.commit.conflicts.row_lineage import Lineage

_LOG = logging.getLogger(__name__)

OnStale = Literal["null", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryPlan:
    """What values are carried, and how. Picklable but for the parts.

    Attributes:
        snapshot: The table at the version that the values were computed on.
        targets: The columns, as they were written.
        identities: The same columns in the snapshot; of unknown id where they were to be added.
        inputs: The columns that the values depend on.
        on_stale: Whether a row whose inputs changed is NULL, or an error.
        max_bytes: Most bytes of staged values to carry; None is without a limit.
    """

    snapshot: DatasetRef
    targets: Targets
    identities: tuple[FieldIdentity, ...]
    inputs: tuple[FieldIdentity, ...]
    on_stale: OnStale
    max_bytes: int | None


class CarryOver:
    """Stages values anew; a :class:`~lance_spark.commit.protocols.Follow`.

    Attributes:
        names: Names of the files that were staged.
    """

    def __init__(self, staging: Staging, plan: CarryPlan, parts: Mapping[int, FragmentColumns]) -> None:
        self.names: list[str] = []
        self._staging = staging
        self._plan = plan
        self._parts = parts
        self._carried_bytes = 0
        self._input_ids = [number for column in plan.inputs for number in column.ids]

    def __call__(
        self, head: lance.LanceDataset, lineage: Lineage, fragments: Sequence[int], /
    ) -> list[FollowedColumns]:
        """Does what :class:`~lance_spark.commit.protocols.Follow` says."""
        self._carried_bytes = 0
        base = self._open_base()
        rows = SnapshotRows(head)
        origins = Origins(None if base is None else OpenBase(base), rows, lineage, self._input_ids)
        try:
            return [self._follow(number, rows, origins, base, lineage) for number in fragments]
        except MissingFileError as error:
            raise CommitConflictError(
                f"{error}: a cleanup of files that no version names came between writing and committing - at {head.uri} - nothing was "
                "committed; read the table again and write again",
                uri=head.uri,
                fragments=list(fragments),
            ) from error

    def _open_base(self) -> lance.LanceDataset | None:
        try:
            return self._plan.snapshot.open()
        except (SnapshotError, VersionNotFoundError):
            _LOG.warning("version %s of %s is gone", self._plan.snapshot.version, self._plan.snapshot.uri)
            return None

    def _follow(
        self, number: int, head: SnapshotRows, origins: Origins, base: lance.LanceDataset | None, lineage: Lineage
    ) -> FollowedColumns:
        handle = head.fragment(number)
        if handle is None:
            raise KeyError(number)
        found = origins.of(handle.metadata)
        if len(found.unknown) and (base is None or not lineage.complete):
            raise CommitImpossibleError(
                f"where {len(found.unknown)} rows of fragment {number} were before is not known any more: the versions that tell it were cleaned "
                f"up since version {self._plan.snapshot.version} - at {head.dataset.uri} - nothing was committed; read the table again and "
                "write again",
                uri=head.dataset.uri,
            )
        there = {column.id for column in field_identities(head.dataset.lance_schema)}
        inputs = [i for column in self._plan.inputs if column.id in there for i in column.ids]
        outputs = tuple((name, name) for name in self._plan.targets.schema.names)
        columns = self._columns_now(head.dataset)
        pieces: list[FilePiece | Stale] = []
        carried, nulled, covered = 0, 0, 0
        given = [no_rows()]
        for origin in found.origins:
            covered += len(origin.moved.old)
            part = self._parts.get(origin.fragment.id)
            if part is None:
                continue
            mine = np.isin(origin.moved.old, part.given.to_numpy(), assume_unique=True)
            moved = Moved(old=origin.moved.old[mine], new=origin.moved.new[mine])
            # Where the older version is gone, the origin is what a compaction met: inputs may have been rewritten in place before that.
            same = origin.same and files_of(part.fragment, inputs) == files_of(origin.fragment, inputs)
            good, stale = self._sorted_out(origin, moved, same, head, number, base)
            if len(good.old):
                self._count_bytes(part, len(good.old), number)
                order = np.argsort(good.new)
                pieces.append(
                    FilePiece(offsets=good.new[order], at=good.old[order], file=part.staged.name, outputs=outputs)
                )
                carried += len(good.old)
                given.append(good.new)
            if len(stale.old):
                found_stale = self._judge(stale, columns, part, head, number, base, origin.fragment.id)
                if len(found_stale.offsets):
                    pieces.append(found_stale)
                    given.append(found_stale.offsets)
                nulled += found_stale.nulled
        staged = self._write(handle, head, pieces, RowSet.of(np.concatenate(given))) if pieces else None
        return FollowedColumns(fragment_id=number, columns=staged, carried=carried, nulled=nulled, covered=covered)

    def _sorted_out(
        self,
        origin: Origin,
        moved: Moved,
        same: bool,
        head: SnapshotRows,
        number: int,
        base: lance.LanceDataset | None,
    ) -> tuple[Moved, Moved]:
        """Returns the rows whose inputs are the same, and the others."""
        if same or not len(moved.old):
            return moved, Moved(old=moved.old[:0], new=moved.new[:0])
        changed = np.ones(len(moved.old), dtype=np.bool_)
        if base is not None:
            try:
                columns = [column.id for column in self._plan.inputs]
                changed = changed_rows(SnapshotRows(base), origin.fragment.id, head, number, moved, columns)
            except TableUnreadableError as error:
                _LOG.warning("inputs of fragment %s cannot be compared, and count as changed: %s", number, error)
                if origin.by_row_id:
                    changed = ~not_updated(head, number, moved.new, base.version)
        return (
            Moved(old=moved.old[~changed], new=moved.new[~changed]),
            Moved(old=moved.old[changed], new=moved.new[changed]),
        )

    def _judge(
        self,
        stale: Moved,
        columns: Sequence[Column],
        part: FragmentColumns,
        head: SnapshotRows,
        number: int,
        base: lance.LanceDataset | None,
        base_id: int,
    ) -> Stale:
        """Finds the values that rows of changed inputs must not keep.

        Raises:
            CommitConflictError: The user wants to hear of such rows, or a column has to be NULL and may not be.
        """
        session = open_session(self._staging.uri, self._staging.storage_options)
        found = judge_stale(
            head,
            number,
            stale,
            columns,
            staged=staged_values(session, part.staged.name),
            before=values_before(None if base is None else SnapshotRows(base), base_id),
        )
        self._refuse_stale(found.nulled, number, head)
        self._refuse_null(found, number, head)
        return found

    def _columns_now(self, head: lance.LanceDataset) -> list[Column]:
        """Returns the target columns with the names that they have in a version and had in the snapshot."""
        return [
            Column(field=field, now=name, before=column.name if column.id >= 0 else None)
            for field, name, column in zip(
                self._plan.targets.schema, self._names_now(head), self._plan.identities, strict=True
            )
        ]

    def _names_now(self, head: lance.LanceDataset) -> list[str | None]:
        """Returns the names that the target columns have in a version."""
        by_id = {column.id: column.name for column in field_identities(head.lance_schema)}
        present = set(by_id.values())
        return [
            by_id.get(column.id) if column.id >= 0 else (column.name if column.name in present else None)
            for column in self._plan.identities
        ]

    def _refuse_stale(self, count: int, number: int, head: SnapshotRows) -> None:
        if count and self._plan.on_stale == "error":
            raise CommitConflictError(
                f"input columns of {count} rows changed since version {self._plan.snapshot.version}, so their values are not right any more - at "
                f"{head.dataset.uri}, version {head.dataset.version}, fragment {number} - nothing was committed; read the table again and write "
                "again, or leave these rows NULL with option('on_stale', 'null')",
                uri=head.dataset.uri,
                fragments=[number],
            )

    def _refuse_null(self, stale: Stale, number: int, head: SnapshotRows) -> None:
        names = sorted(name for name in stale.emptied if not head.dataset.schema.field(name).nullable)
        if names:
            raise CommitConflictError(
                f"input columns of {len(stale.offsets)} rows changed since version {self._plan.snapshot.version}, so their values are not right any "
                f"more, and {', '.join(map(repr, names))} may not be NULL - at {head.dataset.uri}, version {head.dataset.version}, fragment "
                f"{number} - nothing was committed; read the table again and write again, or let the column be NULL first: "
                f"alter_columns({{'path': {names[0]!r}, 'nullable': True}})",
                uri=head.dataset.uri,
                fragments=[number],
            )

    def _count_bytes(self, part: FragmentColumns, rows: int, number: int) -> None:
        size = part.staged.size_bytes or 0
        self._carried_bytes += size * rows // max(part.fragment.physical_rows, 1)
        limit = self._plan.max_bytes
        if limit is not None and self._carried_bytes > limit:
            raise CommitConflictError(
                f"rows moved while the values were written, and {self._carried_bytes} bytes of values or more are to be carried over to where "
                f"they are now; option carry_over_max_bytes allows {limit} - at {self._staging.uri} - nothing was committed; read the table "
                "again and write again, or raise the limit",
                uri=self._staging.uri,
                fragments=[number],
            )

    def _streams(self, pieces: Sequence[FilePiece | Stale]) -> list[Iterator[Chunk]]:
        """Returns streams of the values of pieces; those that come one after the other make one stream."""
        session = open_session(self._staging.uri, self._staging.storage_options)
        chains = chained(pieces)

        def read(chain: Sequence[FilePiece | Stale]) -> Iterator[Chunk]:
            for piece in chain:
                yield from piece.chunks() if isinstance(piece, Stale) else piece.chunks(session, beside=len(chains))

        return [read(chain) for chain in chains]

    def _write(
        self, handle: LanceFragment, head: SnapshotRows, pieces: Sequence[FilePiece | Stale], given: RowSet
    ) -> FragmentColumns:
        """Streams values into a column file of a fragment of today, over the values that it has."""
        plan = self._plan
        names = self._names_now(head.dataset)
        schema = pa.schema(
            [field.with_name(name or field.name) for field, name in zip(plan.targets.schema, names, strict=True)]
        )
        targets = Targets(
            schema=schema, existing=tuple(name for name in names if name is not None), format=plan.targets.format
        )
        outputs = tuple(zip(plan.targets.schema.names, schema.names, strict=True))
        file = ColumnFile(self._staging.begin_attempt(), head, handle, targets)
        try:
            for offsets, values in merge(self._streams(pieces)):
                file.append(offsets, columns_of(values, outputs, schema))
            written = file.close()
        except BaseException:
            file.discard()
            raise
        self.names.append(written.staged.name)
        return FragmentColumns(fragment=handle.metadata, staged=written.staged, given=given)
