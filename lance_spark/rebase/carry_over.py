"""Carries values of a DataFrame write over to where their rows are now: :class:`CarryOver`.

A concurrent writer compacted fragments, moved rows by an update, or rewrote inputs or the target in
place, between the read and the commit. Here the staged values are streamed into column files of the
latest version's fragments. A row whose inputs are not those any more that its value was computed
from gets none: there is no UDF here to compute it again.

Runs where the write commits. Memory: a few batches of rows, and 50 bytes a row of one fragment.
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
from lance_spark.objects import open_session
from lance_spark.rebase.row_origins import Origin, Origins
from lance_spark.rebase.snapshot import cleaned_up, open_snapshot
from lance_spark.rebase.stale import judge_stale, values_in
from lance_spark.rows.merge import FilePiece, FileRows, MissingFileError, NullPiece, columns_of, merge, streams_of
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import ColumnFile, Targets

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession
    from lance.fragment import LanceFragment

    from lance_spark.commit.conflicts.row_lineage import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryPlan:
    """What values are carried, and how.

    Attributes:
        snapshot: The table at the version that the values were computed on.
        inputs: The columns that the values depend on.
        on_stale: What a row whose inputs changed is.
        max_bytes: Most bytes of staged values to carry; None is without a limit.
    """

    snapshot: DatasetRef
    targets: Targets
    inputs: tuple[FieldIdentity, ...]
    on_stale: Literal["null", "error"]
    max_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Versions:
    """The snapshot, the latest version, its rows' origins, and whether an input was cast."""

    base: SnapshotRows
    head: SnapshotRows
    origins: Origins
    recast: bool


class CarryOver:
    """Stages values anew; a :data:`~lance_spark.commit.protocols.Rebaser`."""

    def __init__(self, staging: Staging, plan: CarryPlan, parts: Mapping[int, FragmentColumns]) -> None:
        """Takes the job's files, and what it has written, by fragment of the snapshot."""
        self._staging = staging
        self._plan = plan
        self._parts = parts
        self._outputs = tuple((name, name) for name in plan.targets.schema.names)
        self._carried_bytes = 0

    @property
    def _session(self) -> LanceFileSession:
        return open_session(self._staging.uri, self._staging.storage_options)

    def __call__(self, head: lance.LanceDataset, lineage: Lineage, fragments: Sequence[int], /) -> list[RebasedColumns]:
        """Does what :data:`~lance_spark.commit.protocols.Rebaser` says."""
        self._carried_bytes = 0
        if lineage.cleaned_up:
            raise cleaned_up(self._plan.snapshot, "versions after it are not there any more")
        base, rows = open_snapshot(self._plan.snapshot), SnapshotRows(head)
        fields = field_identities(head.lance_schema)
        # Data files keep naming the field that was cast, so that they do not tell.
        recast = any(judge_input(column, fields, ()).verdict is Verdict.CONFLICT for column in self._plan.inputs)
        origins = Origins(base, rows, lineage, self._plan.inputs)
        versions = _Versions(base=SnapshotRows(base), head=rows, origins=origins, recast=recast)
        try:
            return [self._carry(number, versions) for number in fragments]
        except MissingFileError as error:
            raise CommitConflictError(
                f"{error}: a cleanup of files that no version names came between writing and committing - at "
                f"{head.uri} - nothing was committed; read the table again and write again",
                uri=head.uri,
                fragments=list(fragments),
            ) from error
        except TableUnreadableError as error:
            raise cleaned_up(self._plan.snapshot, error) from error

    def _carry(self, number: int, versions: _Versions) -> RebasedColumns:
        handle = versions.head.existing_fragment(number)
        found = versions.origins.of(handle.metadata)
        if len(found.unknown) and versions.head.dataset.has_stable_row_ids:
            text = f"where {len(found.unknown)} rows of fragment {number} were is not known"
            raise cleaned_up(self._plan.snapshot, text)
        pieces: list[FilePiece | NullPiece] = []
        carried, nulled = 0, 0
        for origin in found.origins:
            part = self._parts.get(origin.fragment.id)
            if part is None:
                continue
            written = origin.moved.new_rows(part.given)
            changed = written if versions.recast else versions.origins.changed(handle.metadata, origin, written)
            good = origin.moved.into(written - changed)
            if len(good.new):
                self._count_bytes(part, len(good.new), number)
                order = np.argsort(good.new)
                now, at = good.new[order], good.old[order]
                file, outputs = part.staged.name, self._outputs
                pieces.append(FilePiece(offsets=now, at=at, file=file, outputs=outputs, session=self._session))
                carried += len(now)
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
            covered=sum(len(origin.moved.new) for origin in found.origins),
        )

    def _judge(
        self, origin: Origin, changed: RowSet, part: FragmentColumns, number: int, versions: _Versions
    ) -> tuple[NullPiece, int]:
        """Returns which rows of changed inputs become NULL, and how many have no value then.

        Raises:
            CommitConflictError: The user wants to hear of such rows, or a column has to be NULL and
                may not be.
        """
        schema = self._plan.targets.schema
        copies, without_value = judge_stale(
            origin.moved.into(changed),
            now=values_in(versions.head, number, schema),
            before=values_in(versions.base, part.fragment_id, schema),
            staged=lambda rows: FileRows(self._session, part.staged.name, schema.names).take(rows),
        )
        latest = versions.head.dataset.schema
        required = [name for name in schema.names if name in latest.names and not latest.field(name).nullable]
        if without_value and self._plan.on_stale == "error":
            advice = "leave these rows NULL with option('on_stale', 'null')"
            raise self._stale_error(without_value, number, versions, "", advice)
        if len(copies) and required:
            why = f", and {', '.join(map(repr, required))} may not be NULL"
            advice = f"let the column be NULL first: alter_columns({{'path': {required[0]!r}, 'nullable': True}})"
            raise self._stale_error(len(copies), number, versions, why, advice)
        return NullPiece(offsets=copies, type=pa.struct(list(schema))), without_value

    def _stale_error(self, count: int, number: int, versions: _Versions, more: str, advice: str) -> CommitConflictError:
        uri, version = versions.head.dataset.uri, versions.head.dataset.version
        return CommitConflictError(
            f"input columns of {counted(count, 'row')} changed since version {self._plan.snapshot.version}, so their "
            f"values are not right any more{more} - at {uri}, version {version}, fragment {number} - nothing was "
            f"committed; read the table again and write again, or {advice}",
            uri=uri,
            fragments=[number],
        )

    def _count_bytes(self, part: FragmentColumns, rows: int, number: int) -> None:
        size = part.staged.size_bytes or 0
        self._carried_bytes += size * rows // max(part.fragment.physical_rows, 1)
        limit = self._plan.max_bytes
        if limit is not None and self._carried_bytes > limit:
            raise CommitConflictError(
                f"rows moved while the values were written, and {self._carried_bytes} bytes of values or more are to "
                f"be carried over to where they are now; option carry_over_max_bytes allows {limit} - at "
                f"{self._staging.uri} - nothing was committed; read the table again and write again, or raise the "
                "limit",
                uri=self._staging.uri,
                fragments=[number],
            )

    def _write(
        self, handle: LanceFragment, head: SnapshotRows, pieces: Sequence[FilePiece | NullPiece]
    ) -> FragmentColumns:
        """Streams values into a column file of a fragment, over the values that it has."""
        schema = self._plan.targets.schema
        existing = tuple(name for name in schema.names if name in head.dataset.schema.names)
        targets = Targets(schema=schema, existing=existing, format=self._plan.targets.format)
        file = ColumnFile(self._staging.begin_attempt(), head, handle, targets)
        try:
            for offsets, values in merge(streams_of(pieces)):
                file.append(offsets, columns_of(values, self._outputs, schema))
            return file.close()
        except BaseException:
            file.discard()
            raise
