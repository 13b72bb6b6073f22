"""Values that need no call of the UDF, because an earlier run left them: in checkpoints, or in column files. Runs on executors.

Three kinds of sources are asked in this order: records of committed values, column files that were
finished and not committed, and checkpoints of single batches. All are found by what the values
depend on (the key, and the identity of the fragment's input files), so another filter, another
range or a renamed table uses them too. Where a compaction moved the rows, its lineage says from
where to where; where an update moved them or inputs were rewritten in place, an older version says
it, and its inputs are compared with the present ones.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.reuse.checkpoint_source import EntryPiece, read_entry
from lance_spark.backfill.reuse.computed_rows import FragmentRecord
from lance_spark.backfill.reuse.round_context import RoundContext, done_rows, source_of, target_files
from lance_spark.backfill.task.messages import BackfillSpec, DoneRows
from lance_spark.catalog.binding import OUTPUT_KEY
from lance_spark.commit.conflicts.identity import TOKEN_KEY
from lance_spark.errors import TableUnreadableError, panics_as_errors
from lance_spark.objects import open_session
from lance_spark.rebase.changed_inputs import changed_rows
from lance_spark.rebase.row_origins import Found, Origin, Origins
from lance_spark.rows.merge import Chunk, FilePiece, Moved, chained
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

_LISTED_ONE_BY_ONE = 16
"""From so many fragments on, all checkpoints of a job are listed at once."""


@dataclass(slots=True)
class Served:
    """Values that were found for rows of a fragment.

    Attributes:
        rows: The rows.
        entries: Those that checkpoints have.
        files: Those that column files have.
    """

    rows: RowSet = field(default_factory=RowSet.empty)
    entries: list[EntryPiece] = field(default_factory=list)
    files: list[FilePiece] = field(default_factory=list)

    def streams(self, spec: BackfillSpec, store: CheckpointStore) -> list[Iterator[Chunk]]:
        """Returns streams of values.

        Pieces that come one after the other make one stream, so that one of them is held at a time.
        """
        session = open_session(spec.snapshot.uri, spec.snapshot.storage_options)
        pieces: list[EntryPiece | FilePiece] = [*self.entries, *self.files]
        chains = chained(pieces)

        def read(chain: list[EntryPiece | FilePiece]) -> Iterator[Chunk]:
            for piece in chain:
                if isinstance(piece, EntryPiece):
                    yield from piece.chunks(store)
                else:
                    yield from piece.chunks(session, beside=len(chains))

        return [read(chain) for chain in chains]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResults:
    """What this job has computed of a fragment of some version, as far as whole fragments go.

    Attributes:
        computed: Rows that have a result of it.
        nulls: Those of them whose result is NULL.
        failed: Rows that failed, or that it left NULL because their inputs had changed.
        files: Names of the column files that have the results.
    """

    computed: RowSet
    nulls: RowSet
    failed: RowSet
    files: frozenset[str]


@dataclass(slots=True)
class _Missing:
    """Rows that still need a value: those that any checkpoint may serve, and those that only the checkpoints of some jobs may."""

    any_job: RowSet
    same_job: RowSet

    @property
    def rows(self) -> RowSet:
        return self.any_job | self.same_job

    def strike(self, found: RowSet) -> None:
        self.any_job -= found
        self.same_job -= found


class ValueFinder:
    """Finds values for the rows of one fragment.

    Attributes:
        missing_files: Column files and checkpoints that turned out not to be usable.
    """

    def __init__(self, context: RoundContext, rows: SnapshotRows) -> None:
        self.missing_files: set[str] = set()
        self._context = context
        self._spec = context.spec
        self._rows = rows
        self._store = context.store
        self._found: dict[tuple[int, int], Found] = {}
        self._compared: dict[tuple[int, int, int], tuple[RowSet, RowSet]] = {}
        self._listed: dict[str, list[CheckpointEntry]] = {}
        self._knows_all = False
        self._own: dict[tuple[int, str], OwnResults] = {}

    def inherited(self, fragment: FragmentMetadata) -> DoneRows:
        """Returns what records say of the fragments from which a compaction made this one, for its own rows.

        Only where nothing rewrote inputs or values since in place: what the records say would not
        be of these.
        """
        done = DoneRows()
        for origin, moved in self._compacted(fragment, (*self._spec.input_ids, *self._spec.target_ids)):
            old = done_rows(self._spec, origin, self._context.records)
            done |= DoneRows(**{f.name: moved.new_rows(getattr(old, f.name)) for f in dataclasses.fields(old)})
        return done

    def find(self, fragment: FragmentMetadata, wanted: RowSet, without_value: RowSet) -> Served:
        """Finds values for rows of a fragment.

        Args:
            fragment: The fragment.
            wanted: The rows.
            without_value: Those of them that have no value in the table; any checkpoint serves
                these. The others are served only by checkpoints of the jobs that the spec names.
        """
        served = Served()
        missing = _Missing(any_job=without_value, same_job=wanted - without_value)
        self._from(served, fragment, None, missing)
        for origin_fragment, moved in self._compacted(fragment, self._spec.input_ids):
            self._from(served, origin_fragment, moved, missing)
        for version in self._spec.bases:
            for origin in self.found(fragment, version).origins:
                moved = origin.moved.into(missing.rows)
                if not len(moved.old) or (origin.same and origin.fragment.id == fragment.id):
                    continue
                if origin.same:
                    self._from(served, origin.fragment, moved, missing)
                elif self._knows(origin.fragment):
                    same = missing.rows - self.changed(version, origin, fragment, moved)
                    self._from(served, origin.fragment, moved.into(same), missing)
        served.rows = wanted - missing.rows
        return served

    def found(self, fragment: FragmentMetadata, version: int) -> Found:
        """Returns where the rows of a fragment were at an older version."""
        key = (fragment.id, version)
        if key not in self._found:
            dataset = self._context.base(version)
            follow_up = self._spec.follow_up
            first = follow_up is not None and version == follow_up.snapshot_version
            origins = Origins(
                dataset,
                self._rows,
                self._context.lineage(version),
                self._spec.input_ids,
                unchanged=follow_up.unchanged if first and follow_up is not None else (),
            )
            self._found[key] = origins.of(fragment)
        return self._found[key]

    def changed(self, version: int, origin: Origin, fragment: FragmentMetadata, moved: Moved) -> RowSet:
        """Returns the rows, as they are numbered now, whose inputs differ from those at an older version, or cannot be compared."""
        key = (version, origin.fragment.id, fragment.id)
        compared, changed = self._compared.get(key, (RowSet.empty(), RowSet.empty()))
        asked = RowSet.of(moved.new)
        todo = moved.into(asked - compared)
        if len(todo.old):
            changed |= self._compare(version, origin, fragment, todo)
            self._compared[key] = compared | asked, changed
        return changed & asked

    def own(self, fragment: FragmentMetadata) -> OwnResults:
        """Returns what this job has computed of a fragment, of this or an older version.

        As far as whole fragments go: what is known of a range that has not ended is in checkpoints
        alone.
        """
        spec, source = self._spec, source_of(self._spec, fragment)
        if (fragment.id, source) in self._own:
            return self._own[fragment.id, source]
        computed, nulls, failed, files = RowSet.empty(), RowSet.empty(), RowSet.empty(), set[str]()
        for record in self._context.records.of(fragment.id):
            if record.job_id == spec.job_id and self._fits(record, fragment, source):
                computed, nulls, failed = computed | record.computed, nulls | record.nulls, failed | record.failed
                files.add(record.target_file)
        for entry in self._entries(source):
            if entry.kind == "reference" and entry.job_id == spec.job_id:
                body = self._store.read_reference(entry, spec.key, source)
                if body is not None:
                    rows = {name: RowSet.from_text(str(body["rows"][name])) for name in ("own", "nulls", "failed")}
                    computed, nulls, failed = computed | rows["own"], nulls | rows["nulls"], failed | rows["failed"]
                    files.add(body["data_file"])
        own = OwnResults(computed=computed, nulls=nulls & computed, failed=failed - computed, files=frozenset(files))
        self._own[fragment.id, source] = own
        return own

    def computed_once(self, fragment: FragmentMetadata) -> RowSet:
        """Returns the rows of a fragment that any version of a UDF has computed, from whatever inputs."""
        holds = target_files(self._spec, fragment)
        rows = RowSet.empty()
        for record in self._context.records.of(fragment.id):
            if record.physical_rows == fragment.physical_rows and record.target_file in holds:
                rows |= record.computed
        return rows

    def _compare(self, version: int, origin: Origin, fragment: FragmentMetadata, moved: Moved) -> RowSet:
        base = self._context.base(version)
        if base is not None:
            columns = [column.id for column in self._spec.inputs]
            try:
                flags = changed_rows(SnapshotRows(base), origin.fragment.id, self._rows, fragment.id, moved, columns)
                return RowSet.of(moved.new[flags])
            except TableUnreadableError as error:
                _LOG.warning(
                    "inputs of version %s of %s cannot be compared, and count as changed: %s",
                    version,
                    self._spec.snapshot.uri,
                    error,
                )
        return RowSet.of(moved.new)

    def _entries(self, source: str) -> Sequence[CheckpointEntry]:
        """Returns the checkpoints of a fragment, listed once.

        All of the key at once where an update mixed rows of many fragments.
        """
        if source not in self._listed and not self._knows_all:
            if len(self._listed) < _LISTED_ONE_BY_ONE:
                self._listed[source] = self._store.find(self._spec.key, source)
            else:
                self._listed, self._knows_all = self._store.find_all(self._spec.key), True
        return self._listed.get(source, ())

    def _knows(self, fragment: FragmentMetadata) -> bool:
        """Tells whether there are results of a fragment, of this or an older version."""
        source = source_of(self._spec, fragment)
        records = self._context.records.of(fragment.id)
        return any(self._fits(record, fragment, source) for record in records) or bool(self._entries(source))

    def _fits(self, record: FragmentRecord, fragment: FragmentMetadata, source: str) -> bool:
        return (record.key, record.source, record.physical_rows) == (
            self._spec.key.digest,
            source,
            fragment.physical_rows,
        )

    def _compacted(
        self, fragment: FragmentMetadata, field_ids: Sequence[int]
    ) -> Iterator[tuple[FragmentMetadata, Moved]]:
        """Yields where the rows of a compacted fragment were before, as far as fields have not been rewritten in place since."""
        if self._spec.lineage_after is None:
            return
        for piece in self._context.lineage(self._spec.lineage_after).origins(fragment.id) or ():
            if piece.is_unchanged(fragment, field_ids):
                new = np.arange(piece.start, piece.stop, dtype=np.int64)
                yield piece.fragment, Moved(old=piece.offsets, new=new)

    def _from(self, served: Served, fragment: FragmentMetadata, moved: Moved | None, missing: _Missing) -> None:
        """Takes what one fragment, of this or an older version, has; shrinks `missing`."""
        spec, source = self._spec, source_of(self._spec, fragment)
        for record in self._context.records.of(fragment.id):
            if self._fits(record, fragment, source):
                self._take_file(
                    served, record.target_file, record.computed, record.nulls, record.job_id, moved, missing
                )
        if not missing.rows:
            return
        entries = self._entries(source)
        for entry in (e for e in entries if e.kind == "reference"):
            body = self._store.read_reference(entry, spec.key, source)
            if body is not None:
                nulls = RowSet.from_text(str(body["rows"]["nulls"]))
                for name, job_id in (("own", entry.job_id), ("computed", "")):
                    rows = RowSet.from_text(str(body["rows"][name]))
                    self._take_file(served, body["data_file"], rows, nulls, job_id, moved, missing)
        # This job's own first: where it computed rows anew, other checkpoints have older values.
        values = (entry for entry in entries if entry.kind == "values")
        for entry in sorted(values, key=lambda entry: entry.job_id != spec.job_id):
            self._take_entry(served, entry, source, moved, missing)

    def _take_entry(
        self, served: Served, entry: CheckpointEntry, source: str, moved: Moved | None, missing: _Missing
    ) -> None:
        """Takes what the checkpoint of a batch has."""
        key = self._spec.key
        usable = self._usable(entry.job_id, missing)
        if moved is None:
            usable &= RowSet.span(entry.start, entry.stop)
        else:
            usable &= RowSet.of(moved.new[slice(*np.searchsorted(moved.old, [entry.start, entry.stop]))])
        if not usable or entry.path in self.missing_files:
            return
        if moved is None and entry.rows == entry.stop - entry.start and self._takes_nulls(entry.job_id):
            chosen = usable  # its name says it all, and it is read once, when its values are
        else:
            chunk = read_entry(self._store, entry, key, source, moved)
            if chunk is None:
                return
            offsets, values = chunk
            if not self._takes_nulls(entry.job_id):
                offsets = offsets[np.asarray(values.is_valid())]
            chosen = usable & RowSet.of(offsets)
        if chosen:
            served.entries.append(
                EntryPiece(offsets=chosen.to_numpy(), entry=entry, key=key, source=source, moved=moved)
            )
            missing.strike(chosen)

    def _take_file(
        self,
        served: Served,
        file: str,
        rows: RowSet,
        nulls: RowSet,
        job_id: str,
        moved: Moved | None,
        missing: _Missing,
    ) -> None:
        usable = self._usable(job_id, missing)
        # The bytes of blobs cannot be read from a file that no version names; their values are in
        # checkpoints.
        if not usable or not rows or self._spec.targets.blobs:
            return
        if not self._takes_nulls(job_id):
            rows -= nulls
        now = at = rows.to_numpy()
        if moved is not None:
            now, inside = moved.find(at)
            order = np.argsort(now)
            now, at = now[order], at[inside][order]
        chosen = usable & RowSet.of(now)
        outputs = self._outputs_in(file) if chosen else None
        if outputs is None:
            return
        mask = usable.mask(0, int(now[-1]) + 1)[now]
        served.files.append(FilePiece(offsets=now[mask], at=at[mask], file=file, outputs=outputs))
        missing.strike(chosen)

    def _usable(self, job_id: str, missing: _Missing) -> RowSet:
        """Returns the missing rows that a job's values may serve."""
        return missing.rows if job_id in self._spec.serving_jobs else missing.any_job

    def _takes_nulls(self, job_id: str) -> bool:
        """Tells whether NULL results of a job serve: with a filter, only those of the jobs that this one goes on with."""
        return self._spec.where is None or self._spec.stale or job_id in self._spec.serving_jobs

    def _outputs_in(self, file: str) -> tuple[tuple[str, str], ...] | None:
        """Returns the pairs of output field and column that a column file has, under the names that the columns had then.

        None where it cannot be used: Lance's cleanup deletes files that no version names, a store
        may damage one, and it may be of another column. Names alone do not serve: siblings may have
        swapped theirs since.
        """
        spec = self._spec
        session = open_session(spec.snapshot.uri, spec.snapshot.storage_options)
        if file in self.missing_files or not session.contains(f"data/{file}"):
            return None
        try:
            with panics_as_errors():
                fields = list(session.open_reader(f"data/{file}").metadata().schema)
        except (OSError, ValueError, RuntimeError) as error:
            _LOG.warning("the column file %s is not used, and its rows are computed again: %s", file, error)
            return None
        names = {_identity(one): one.name for one in fields}
        pairs = zip(spec.outputs, spec.targets.schema, strict=True)
        outputs = tuple((output, names.get(_identity(target), "")) for (output, _), target in pairs)
        return outputs if all(column for _, column in outputs) else None


def _identity(field: pa.Field[Any]) -> object:
    """Returns what identifies a column in a file, whatever its name: its token and its output field; its name where it has no token."""
    metadata = field.metadata or {}
    return (metadata[TOKEN_KEY], metadata.get(OUTPUT_KEY.encode())) if TOKEN_KEY in metadata else field.name
