"""Carries values of a DataFrame write over to the current places of their rows: :class:`CarryOver`.

Between the read and the commit, a concurrent writer compacted fragments, moved rows by an update,
or rewrote inputs or the target in place. The carry-over streams the staged values into column files
of the latest fragments. A row with changed inputs gets no value, because a DataFrame write has no
UDF to recompute it.

Runs in the process of the commit. Memory: a few batches of rows, and 50 bytes per row of one
fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from lance_spark.commit.changes import FragmentColumns, RebasedColumns
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.conflicts.verdicts import Verdict, judge_input
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, TableUnreadableError, counted
from lance_spark.rebase.row_origins import Origin, Origins
from lance_spark.rebase.snapshot import cleaned_up, open_snapshot
from lance_spark.rebase.stale import judge_stale, values_in
from lance_spark.rows.merge import (
    FilePiece,
    FileRows,
    MissingFileError,
    NullPiece,
    columns_of,
    merge,
    streams_of,
)
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import ColumnFile, Targets
from lance_spark.storage.objects import open_session

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession
    from lance.fragment import FragmentMetadata, LanceFragment

    from lance_spark.commit.conflicts.row_lineage import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryPlan:
    """The parameters of a carry-over.

    Attributes:
        snapshot: The table at the version of the computation.
        inputs: The input columns of the values.
        on_stale: Whether a row with changed inputs becomes NULL or an error.
        max_bytes: Maximum bytes of staged values to carry; None means no limit.
    """

    snapshot: DatasetRef
    targets: Targets
    inputs: tuple[FieldIdentity, ...]
    on_stale: Literal["null", "error"]
    max_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Versions:
    """The snapshot, the latest version, the origins of its rows, and whether an input was cast."""

    base: SnapshotRows
    head: SnapshotRows
    origins: Origins
    recast: bool

    def changed(self, fragment: FragmentMetadata, origin: Origin, rows: RowSet) -> RowSet:
        """Returns the rows of an origin with changed inputs; all rows after a cast of an input."""
        return rows if self.recast else self.origins.changed(fragment, origin, rows)


class CarryOver:
    """Stages values again. A :data:`~lance_spark.commit.column_plan.Rebaser`."""

    def __init__(
        self, staging: Staging, plan: CarryPlan, parts: Mapping[int, FragmentColumns]
    ) -> None:
        """Takes the files of the job, and the written columns by fragment of the snapshot."""
        self._staging = staging
        self._plan = plan
        self._parts = parts
        self._outputs = tuple((name, name) for name in plan.targets.schema.names)
        self._carried_bytes = 0

    @property
    def _session(self) -> LanceFileSession:
        return open_session(self._staging.uri, self._staging.storage_options)

    def __call__(
        self, head: lance.LanceDataset, lineage: Lineage, fragments: Sequence[int], /
    ) -> list[RebasedColumns]:
        """Implements :data:`~lance_spark.commit.column_plan.Rebaser`."""
        self._carried_bytes = 0
        if lineage.cleaned_up:
            raise cleaned_up(self._plan.snapshot, "later versions do not exist any more")
        base, rows = open_snapshot(self._plan.snapshot), SnapshotRows(head)
        fields = field_identities(head.lance_schema)
        # Data files keep the field id of a cast column, so file lists do not reveal the cast.
        recast = any(
            judge_input(column, fields, ()).verdict is Verdict.CONFLICT
            for column in self._plan.inputs
        )
        origins = Origins(base, rows, lineage, self._plan.inputs)
        versions = _Versions(base=SnapshotRows(base), head=rows, origins=origins, recast=recast)
        try:
            return [self._carry(number, versions) for number in fragments]
        except MissingFileError as error:
            raise CommitConflictError(
                f"A cleanup of unreferenced files ran between the write and the commit: {error}. The table is "
                f"{head.uri}. Nothing was committed. Read the table again and write again.",
                uri=head.uri,
                fragments=list(fragments),
            ) from error
        except TableUnreadableError as error:
            raise cleaned_up(self._plan.snapshot, error) from error

    def _carry(self, number: int, versions: _Versions) -> RebasedColumns:
        handle = versions.head.existing_fragment(number)
        rows = versions.origins.of(handle.metadata)
        if len(rows.unknown) and versions.head.dataset.has_stable_row_ids:
            text = (
                f"the origin of {counted(len(rows.unknown), 'row')} of fragment {number} is unknown"
            )
            raise cleaned_up(self._plan.snapshot, text)
        pieces: list[FilePiece | NullPiece] = []
        carried, nulled = 0, 0
        for origin in rows.origins:
            part = self._parts.get(origin.fragment.id)
            if part is None:
                continue
            carried_rows = origin.mapping.new_rows(part.given)
            changed = versions.changed(handle.metadata, origin, carried_rows)
            good = origin.mapping.restrict_to(carried_rows - changed)
            if len(good.new):
                self._count_bytes(part, len(good.new), number)
                order = np.argsort(good.new)
                offsets, at = good.new[order], good.old[order]
                file, outputs = part.staged.name, self._outputs
                pieces.append(
                    FilePiece(
                        offsets=offsets, at=at, file=file, outputs=outputs, session=self._session
                    )
                )
                carried += len(offsets)
            if changed:
                piece, without_value = self._judge(origin, changed, part, number, versions)
                nulled += without_value
                if len(piece.offsets):
                    pieces.append(piece)
        return RebasedColumns(
            fragment_id=number,
            columns=self._write(handle, versions.head, pieces) if pieces else None,
            carried=carried,
            nulled=nulled,
            covered=sum(len(origin.mapping.new) for origin in rows.origins),
        )

    def _judge(
        self,
        origin: Origin,
        changed: RowSet,
        part: FragmentColumns,
        number: int,
        versions: _Versions,
    ) -> tuple[NullPiece, int]:
        """Returns the rows that become NULL, and the number of rows without a value.

        Raises:
            CommitConflictError: `on_stale` is "error", or a NULL would fall into a non-nullable
                column.
        """
        schema = self._plan.targets.schema
        copies, without_value = judge_stale(
            origin.mapping.restrict_to(changed),
            current=values_in(versions.head, number, schema),
            before=values_in(versions.base, part.fragment_id, schema),
            staged=lambda rows: FileRows(self._session, part.staged.name, schema.names).take(rows),
        )
        latest = versions.head.dataset.schema
        required = [
            name
            for name in schema.names
            if name in latest.names and not latest.field(name).nullable
        ]
        if without_value and self._plan.on_stale == "error":
            advice = "leave these rows NULL with option('on_stale', 'null')"
            raise self._stale_error(without_value, number, versions, "", advice)
        if len(copies) and required:
            why = f", and {', '.join(map(repr, required))} may not be NULL"
            advice = f"let the column be NULL first: alter_columns({{'path': {required[0]!r}, 'nullable': True}})"
            raise self._stale_error(len(copies), number, versions, why, advice)
        return NullPiece(offsets=copies, type=pa.struct(list(schema))), without_value

    def _stale_error(
        self, count: int, number: int, versions: _Versions, more: str, advice: str
    ) -> CommitConflictError:
        uri, version = versions.head.dataset.uri, versions.head.dataset.version
        return CommitConflictError(
            f"The input columns of {counted(count, 'row')} changed since version {self._plan.snapshot.version}, so "
            f"their values are not valid any more{more}. They are in fragment {number} of {uri}, version {version}. "
            f"Nothing was committed. Read the table again and write again, or {advice}.",
            uri=uri,
            fragments=[number],
        )

    def _count_bytes(self, part: FragmentColumns, rows: int, number: int) -> None:
        size = part.staged.size_bytes or 0
        self._carried_bytes += size * rows // max(part.fragment.physical_rows, 1)
        limit = self._plan.max_bytes
        if limit is not None and self._carried_bytes > limit:
            raise CommitConflictError(
                f"Rows moved while the values were written. At least {self._carried_bytes} bytes of values must be "
                f"carried over to their new places, and option carry_over_max_bytes allows {limit}. The table is "
                f"{self._staging.uri}. Nothing was committed. Read the table again and write again, or raise "
                "the limit.",
                uri=self._staging.uri,
                fragments=[number],
            )

    def _write(
        self, handle: LanceFragment, head: SnapshotRows, pieces: Sequence[FilePiece | NullPiece]
    ) -> FragmentColumns:
        """Streams values into a column file of a fragment, on top of its existing values."""
        schema = self._plan.targets.schema
        table_names = frozenset(head.dataset.schema.names)
        existing = tuple(name for name in schema.names if name in table_names)
        targets = Targets(schema=schema, existing=existing, format=self._plan.targets.format)
        file = ColumnFile(self._staging.begin_attempt(), head, handle, targets)
        try:
            for offsets, values in merge(streams_of(pieces)):
                file.append(offsets, columns_of(values, self._outputs, schema))
            return file.close()
        except BaseException:
            file.discard()
            raise
