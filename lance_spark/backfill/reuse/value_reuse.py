"""Values of earlier runs, which need no call of the UDF. Runs on executors.

The sources in their order: records of committed values, finished column files without a commit, and
checkpoints of single batches. The key of the values and the identity of the fragment's input files
find all sources, so another filter, another range or a renamed table uses them, too. For moved rows
with the same inputs, the sources of their earlier fragments serve, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.reuse.round_context import (
    RoundContext,
    done_rows,
    fitting_records,
    source_of,
)
from lance_spark.backfill.reuse.stored_reference import StoredReference
from lance_spark.backfill.task.messages import FragmentRows
from lance_spark.commit.conflicts.identity import OUTPUT_KEY, TOKEN_KEY
from lance_spark.errors import TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import path_of
from lance_spark.rebase.row_origins import Origin, Origins
from lance_spark.rows.merge import Chunk, FilePiece, MissingFileError, Offsets, RowMapping
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.null_marks import read_marks
from lance_spark.storage.objects import open_session
from udf_runtime.checkpoint import CheckpointEntry, CheckpointKey, CheckpointStore

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

_HELD_BYTES = 4 << 20
"""Maximum bytes of values that a range keeps after the selection of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPiece:
    """Rows with values in a checkpoint. `moved` maps their old offsets to the current offsets.

    `held` are the values of a small checkpoint after its read.
    """

    offsets: Offsets
    entry: CheckpointEntry
    key: CheckpointKey
    source: str
    moved: RowMapping | None
    store: CheckpointStore
    held: Chunk | None = None

    def read(self) -> Chunk | None:
        """Returns the values by current offsets; None if the checkpoint is unusable."""
        stored = self.store.read(self.entry, self.key, self.source)
        if stored is None:
            return None
        offsets, values = np.asarray(stored[0].to_numpy(), dtype=np.int64), stored[1]
        return (offsets, values) if self.moved is None else self.moved.chunk(offsets, values)

    def chunks(self, streams: int) -> Iterator[Chunk]:  # noqa: ARG002 - of the protocol
        """Yields the values, as :class:`~lance_spark.rows.merge.ValuePiece` describes."""
        chunk = self.held or self.read()
        if chunk is None:
            raise MissingFileError(self.entry.path, "checkpoint")
        offsets, values = chunk
        selection = np.isin(offsets, self.offsets, assume_unique=True)
        yield offsets[selection], values if selection.all() else values.filter(pa.array(selection))


@dataclass(slots=True)
class ReusedValues:
    """Rows of a fragment without a call, and the pieces with their values."""

    rows: RowSet = field(default_factory=RowSet.empty)
    pieces: list[CheckpointPiece | FilePiece] = field(default_factory=list)
    held_bytes: int = 0

    def hold(self, piece: CheckpointPiece, chunk: Chunk) -> CheckpointPiece:
        """Returns a piece that keeps its values, if the values of all such pieces are few."""
        size = chunk[0].nbytes + chunk[1].nbytes
        if self.held_bytes + size > _HELD_BYTES:
            return piece
        self.held_bytes += size
        return replace(piece, held=chunk)


class ValueFinder:
    """Finds values for rows of the version of a round, except values in `missing_files`."""

    def __init__(
        self, context: RoundContext, rows: SnapshotRows, *, in_checkpoints: bool = True
    ) -> None:
        """With `in_checkpoints`, checkpoints and files without a commit may have values."""
        self.missing_files: set[str] = set()
        self._in_checkpoints = in_checkpoints
        self._context = context
        self._spec = context.spec
        self._rows = rows
        self._store = context.store
        self._session = open_session(self._spec.snapshot.uri, self._spec.snapshot.storage_options)
        self._origins: dict[int, Origins] = {}
        self._own: dict[tuple[int, str], tuple[FragmentRows, frozenset[str]]] = {}

    def inherited(self, fragment: FragmentMetadata) -> FragmentRows:
        """Returns the recorded rows of the fragments that were compacted into this fragment.

        Skips fragments with inputs or values rewritten in place since the compaction, because their
        records are outdated.
        """
        results = FragmentRows()
        for older, mapping in self._compacted(
            fragment, (*self._spec.input_ids, *self._spec.target_ids)
        ):
            results |= done_rows(self._spec, older, self._context.records).mapped(mapping)
        return results

    def find(
        self,
        fragment: FragmentMetadata,
        wanted: RowSet,
        served_by_any_job: Callable[[RowSet], RowSet] = lambda _: RowSet.empty(),
    ) -> ReusedValues:
        """Finds values for the wanted rows of a fragment.

        First the values of the jobs of :meth:`RowSelector.is_served_by`. Then values of any job for
        the subset of the other rows that `served_by_any_job` returns.
        """
        reused = ReusedValues()
        missing_rows = self._reuse(reused, fragment, wanted, any_job=False)
        others = served_by_any_job(missing_rows)
        missing_rows = (missing_rows - others) | self._reuse(reused, fragment, others, any_job=True)
        reused.rows = wanted - missing_rows
        return reused

    def known_nulls(self, fragment: FragmentMetadata, rows: RowSet) -> RowSet:
        """Returns the rows that an earlier version has as computed as NULL from the same inputs.

        Streams that wait for computed rows have read these rows.
        """
        known = self._recorded_nulls(fragment, rows)
        for older, mapping in self._compacted(fragment, self._spec.input_ids):
            known |= self._nulls_of(older, mapping.restrict_to(rows - known))
        for version in self._spec.bases:
            for origin in self.origins(version).of(fragment).origins:
                if origin.same and origin.fragment.id == fragment.id:
                    continue
                nulls = self._nulls_of(origin.fragment, origin.mapping.restrict_to(rows - known))
                known |= nulls - self.changed(version, fragment, origin, nulls)
        return known

    def origins(self, version: int) -> Origins:
        """Returns the origins of rows at an older version."""
        if version not in self._origins:
            base, lineage = self._context.base(version), self._context.lineage(version)
            unchanged = self._spec.prior_rounds.unchanged_at(version)
            self._origins[version] = Origins(
                base, self._rows, lineage, self._spec.inputs, unchanged=unchanged
            )
        return self._origins[version]

    def changed(
        self, version: int, fragment: FragmentMetadata, origin: Origin, rows: RowSet
    ) -> RowSet:
        """Returns the subset of rows whose inputs have changed or could not be compared."""
        try:
            return self.origins(version).changed(fragment, origin, rows)
        except TableUnreadableError as error:
            text = "inputs of version %s of %s cannot be compared, and count as changed: %s"
            _LOG.warning(text, version, self._spec.snapshot.uri, error)
            return rows

    def own(self, fragment: FragmentMetadata) -> tuple[FragmentRows, frozenset[str]]:
        """Returns this job's results for a fragment of any version, and their files.

        Only results of whole fragments. Results of an unfinished range are in checkpoints.
        """
        key = (fragment.id, source_of(self._spec, fragment))
        if key not in self._own:
            own, files = FragmentRows(), set[str]()
            for file, job_id, rows in self._results(fragment):
                if job_id == self._spec.job_id:
                    own |= rows
                    files.add(file)
            self._own[key] = replace(own, failed=own.failed - own.computed), frozenset(files)
        return self._own[key]

    def _reuse(
        self,
        reused: ReusedValues,
        fragment: FragmentMetadata,
        missing_rows: RowSet,
        *,
        any_job: bool,
    ) -> RowSet:
        """Adds values from all fragments of the missing rows, and returns the missing rows."""
        missing_rows = self._reuse_from(reused, fragment, None, missing_rows, any_job=any_job)
        for older, mapping in (
            self._compacted(fragment, self._spec.input_ids) if missing_rows else ()
        ):
            missing_rows = self._reuse_from(reused, older, mapping, missing_rows, any_job=any_job)
        for version in self._spec.bases:
            if not missing_rows:
                break
            for origin in self.origins(version).of(fragment).origins:
                rows = RowSet.of(origin.mapping.restrict_to(missing_rows).new)
                if not rows or not self._may_serve(origin, fragment):
                    continue
                rows -= self.changed(version, fragment, origin, rows)
                unserved = self._reuse_from(
                    reused, origin.fragment, origin.mapping.restrict_to(rows), rows, any_job=any_job
                )
                missing_rows -= rows - unserved
        return missing_rows

    def _reuse_from(
        self,
        reused: ReusedValues,
        fragment: FragmentMetadata,
        moved: RowMapping | None,
        missing_rows: RowSet,
        *,
        any_job: bool,
    ) -> RowSet:
        """Adds values of a fragment of any version, and returns the missing rows."""
        for file, computed in (
            self._serving_files(fragment, any_job=any_job) if missing_rows else ()
        ):
            missing_rows -= self._reuse_file(reused, file, computed, moved, missing_rows)
            if not missing_rows:
                break
        source = source_of(self._spec, fragment)
        for entry in self._serving_checkpoints(source, any_job=any_job) if missing_rows else ():
            if missing_rows:
                missing_rows -= self._reuse_checkpoint(reused, entry, source, moved, missing_rows)
        return missing_rows

    def _nulls_of(self, fragment: FragmentMetadata, mapping: RowMapping) -> RowSet:
        """Returns the mapped rows that a fragment of an older version has as computed as NULL."""
        old_rows = RowSet.of(np.sort(mapping.old))
        if not old_rows:
            return old_rows
        nulls = self._recorded_nulls(fragment, old_rows)
        file = _column_file(fragment, self._spec.target_ids)
        records = fitting_records(self._spec, fragment, self._context.records)
        if file is not None and not any(record.target_file == file for record in records):
            # A driver died before its record, or another UDF made the file.
            nulls |= self._marked(file) & old_rows
        return mapping.new_rows(nulls)

    def _recorded_nulls(self, fragment: FragmentMetadata, rows: RowSet) -> RowSet:
        """Returns the rows of a fragment of any version that a committed version has as NULL."""
        nulls = RowSet.empty()
        for record in fitting_records(self._spec, fragment, self._context.records):
            recorded = rows & record.nulls
            if recorded:
                # Another writer may have moved or deleted rows before the commit.
                nulls |= recorded - self._context.deleted_at(record.table_version, fragment.id)
        return nulls

    def _marked(self, file: str) -> RowSet:
        """Returns the rows that a column file marks as computed as NULL."""
        try:
            with panics_as_errors():
                return read_marks(self._session, file).rows
        except (OSError, ValueError, RuntimeError) as error:
            _LOG.warning(
                "the marks of computed NULLs of the column file %s are not used: %s", file, error
            )
            return RowSet.empty()

    def _serving_files(
        self, fragment: FragmentMetadata, *, any_job: bool
    ) -> Iterator[tuple[str, RowSet]]:
        """Yields the column files of whole fragments that may serve, with their rows."""
        for file, job_id, rows in self._results(fragment):
            if self._spec.row_selector.is_served_by(job_id):
                yield file, rows.computed
            elif any_job:
                yield file, rows.computed - rows.nulls

    def _serving_checkpoints(self, source: str, *, any_job: bool) -> list[CheckpointEntry]:
        """Returns the checkpoints of batches that may serve.

        Own checkpoints are first: other checkpoints of recomputed rows have older values.
        """
        entries = [entry for entry in self._entries(source) if entry.kind == "values"]
        if not any_job:
            entries = [
                entry for entry in entries if self._spec.row_selector.is_served_by(entry.job_id)
            ]
        return sorted(entries, key=lambda entry: entry.job_id != self._spec.job_id)

    def _reuse_checkpoint(
        self,
        reused: ReusedValues,
        entry: CheckpointEntry,
        source: str,
        moved: RowMapping | None,
        missing_rows: RowSet,
    ) -> RowSet:
        """Adds values of a batch's checkpoint, and returns their rows."""
        if moved is None:
            rows = missing_rows & RowSet.span(entry.start, entry.stop)
        else:
            rows = missing_rows & RowSet.of(
                moved.new[slice(*np.searchsorted(moved.old, [entry.start, entry.stop]))]
            )
        if not rows or entry.path in self.missing_files:
            return RowSet.empty()
        piece = CheckpointPiece(
            offsets=rows.to_numpy(),
            entry=entry,
            key=self._spec.key,
            source=source,
            moved=moved,
            store=self._store,
        )
        takes_nulls = self._spec.row_selector.is_served_by(entry.job_id)
        # Otherwise the name is enough, and the checkpoint is read once, with its values.
        if moved is not None or entry.rows < entry.stop - entry.start or not takes_nulls:
            chunk = piece.read()
            if chunk is None:
                return RowSet.empty()
            offsets, values = chunk
            rows &= RowSet.of(offsets if takes_nulls else offsets[np.asarray(values.is_valid())])
            piece = reused.hold(piece, chunk)
        if rows:
            reused.pieces.append(replace(piece, offsets=rows.to_numpy()))
        return rows

    def _reuse_file(
        self,
        reused: ReusedValues,
        file: str,
        computed: RowSet,
        moved: RowMapping | None,
        missing_rows: RowSet,
    ) -> RowSet:
        """Adds values of a column file, and returns their rows."""
        # Blobs of an uncommitted file are unreadable. Their values are in checkpoints.
        if not computed or self._spec.targets.blobs:
            return RowSet.empty()
        if moved is None:
            offsets = at = (computed & missing_rows).to_numpy()
        else:
            old = computed.to_numpy()
            offsets, inside = moved.restrict_to(missing_rows).lookup(old)
            order = np.argsort(offsets)
            offsets, at = offsets[order], old[inside][order]
        outputs = self._outputs_in(file) if len(offsets) else None
        if outputs is None:
            return RowSet.empty()
        reused.pieces.append(
            FilePiece(offsets=offsets, at=at, file=file, outputs=outputs, session=self._session)
        )
        return RowSet.of(offsets)

    def _results(self, fragment: FragmentMetadata) -> Iterator[tuple[str, str, FragmentRows]]:
        """Yields results of whole fragments: file, job, rows. Reused rows of a job have no job."""
        spec, source = self._spec, source_of(self._spec, fragment)
        for record in fitting_records(spec, fragment, self._context.records):
            rows = FragmentRows(computed=record.computed, nulls=record.nulls, failed=record.failed)
            yield record.target_file, record.job_id, rows
        for entry in self._entries(source):
            if entry.kind != "reference":
                continue
            reference = StoredReference.of(self._store.read_reference(entry, spec.key, source))
            if reference is not None:
                rows = reference.rows
                own = FragmentRows(
                    computed=rows.own, nulls=rows.nulls & rows.own, failed=rows.failed
                )
                yield reference.data_file, entry.job_id, own
                yield (
                    reference.data_file,
                    "",
                    FragmentRows(computed=rows.computed, nulls=rows.nulls),
                )

    def _entries(self, source: str) -> Sequence[CheckpointEntry]:
        """Returns the checkpoints of a fragment."""
        return self._context.checkpoints.get(source, ()) if self._in_checkpoints else ()

    def _may_serve(self, origin: Origin, fragment: FragmentMetadata) -> bool:
        """Tells whether an origin of a fragment's rows may have further results."""
        older = origin.fragment
        if origin.same:
            return older.id != fragment.id
        records = fitting_records(self._spec, older, self._context.records)
        return next(records, None) is not None or bool(self._entries(source_of(self._spec, older)))

    def _compacted(
        self, fragment: FragmentMetadata, field_ids: Sequence[int]
    ) -> Iterator[tuple[FragmentMetadata, RowMapping]]:
        """Yields origins of rows before compactions, if no commit rewrote the fields since."""
        if self._spec.lineage_after is None:
            return
        for piece in self._context.lineage(self._spec.lineage_after).origins(fragment.id) or ():
            if piece.is_unchanged(fragment, field_ids):
                new = np.arange(piece.start, piece.stop, dtype=np.int64)
                yield piece.fragment, RowMapping(old=piece.offsets, new=new)

    def _outputs_in(self, file: str) -> tuple[tuple[str, str], ...] | None:
        """Returns the pairs of output field and column in a column file.

        None for an unusable file: Lance's cleanup deletes uncommitted files, a store may damage a
        file, or the file has another column. Names are no identity, because siblings may have
        swapped names.
        """
        spec = self._spec
        # Stored text is no path: a name with a slash could leave the folder of the table.
        if "/" in file or file in self.missing_files or not self._session.contains(f"data/{file}"):
            return None
        try:
            with panics_as_errors():
                fields = list(self._session.open_reader(f"data/{file}").metadata().schema)
        except (OSError, ValueError, RuntimeError) as error:
            _LOG.warning(
                "the column file %s is not used, and its rows are computed again: %s", file, error
            )
            return None
        names = {_identity(field): field.name for field in fields}
        pairs = zip(spec.outputs, spec.targets.schema, strict=True)
        outputs = tuple((output, names.get(_identity(target), "")) for (output, _), target in pairs)
        return outputs if all(column for _, column in outputs) else None


def _column_file(fragment: FragmentMetadata, field_ids: Sequence[int]) -> str | None:
    """Returns the name of a file with these fields alone; None without such a file."""
    files = [file for file in fragment.files if not set(field_ids).isdisjoint(file.fields)]
    # A newer file has the fields with negative ids. A file with a base belongs to another table.
    is_own = len(files) == 1 and files[0].base_id is None
    return (
        path_of(files[0])
        if is_own and all(field < 0 or field in field_ids for field in files[0].fields)
        else None
    )


def _identity(field: pa.Field[Any]) -> object:
    """Returns the identity of a column in a file: its token and output field, or its name."""
    metadata = field.metadata or {}
    return (
        (metadata[TOKEN_KEY], metadata.get(OUTPUT_KEY.encode()))
        if TOKEN_KEY in metadata
        else field.name
    )
