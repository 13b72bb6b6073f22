"""Values that need no call of the UDF, because an earlier run left them: in checkpoints, or in column files. Runs on executors.

Three kinds of sources are asked in this order: records of committed values, column files that were finished and not committed, and
checkpoints of single batches. All are found by what the values depend on (the key, and the identity of the fragment's input files), so
another filter, another range or a renamed table uses them too. Where a compaction moved the rows, its lineage says from where to where; where
an update moved them or inputs were rewritten in place, an older version says it, and its inputs are compared with those of today.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.backfill.reuse.checkpoint_source import EntryPiece, read_entry
from lance_spark.backfill.reuse.computed_rows import FragmentRecord, Records, RecordStore
from lance_spark.backfill.shipped import shipped
from lance_spark.backfill.task.messages import BackfillSpec, DoneRows
from lance_spark.catalog.binding import OUTPUT_KEY
from lance_spark.checkpoints import LanceObjects, checkpoint_store
from lance_spark.commit.conflicts.history import events_between
from lance_spark.commit.conflicts.identity import TOKEN_KEY, field_identities, files_of
from lance_spark.commit.conflicts.row_lineage import Lineage, Piece, Step
from lance_spark.errors import SnapshotError, TableUnreadableError, VersionNotFoundError, panics_as_errors
from lance_spark.rebase.changed_inputs import changed_rows, read_rows
from lance_spark.rebase.row_origins import Found, OpenBase, Origin, Origins, not_updated
from lance_spark.rows.merge import Chunk, FilePiece, Moved, Offsets, chained, distinct, merge, no_rows
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import open_session
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore, source_digest

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

FOLDER = "_lance_spark"

_LISTED_ONE_BY_ONE = 16
"""From so many fragments on, all checkpoints of a job are listed at once."""


def store_of(spec: BackfillSpec) -> CheckpointStore:
    """Returns the store of a job's checkpoints."""
    return checkpoint_store(spec.snapshot.uri, spec.snapshot.storage_options, spec.checkpoints)


def source_of(spec: BackfillSpec, fragment: FragmentMetadata) -> str:
    """Returns the identity of a fragment's inputs."""
    return source_of_ids(fragment, spec.input_ids)


def source_of_ids(fragment: FragmentMetadata, input_ids: Sequence[int]) -> str:
    """Returns the identity of a fragment's inputs: its files and overlays that hold these fields.

    Where no file holds an input, because all of it is NULL, nothing but its id tells the fragment.
    """
    files = files_of(fragment, input_ids)
    return source_digest(files or (f"fragment {fragment.id} of {fragment.physical_rows} rows",))


def done_rows(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> DoneRows:
    """Returns what records say of a fragment's rows: those whose column file the fragment has.

    Without a filter of the user's, rows that were computed as NULL are skipped, and where the column had another UDF before, all that this
    one has computed. With a filter, rows are skipped that this job has computed before it was interrupted.
    """
    source = source_of(spec, fragment)
    holds = {file.partition(":")[0] for file in files_of(fragment, spec.target_ids)}
    done = DoneRows()
    for record in records.of(fragment.id):
        fits = (record.key, record.source, record.physical_rows) == (spec.key.digest, source, fragment.physical_rows)
        if not fits or record.target_file not in holds:
            continue
        # Somebody may have written one of several siblings in place: then nobody knows of which rows.
        computed = record.computed if len(holds) == 1 else RowSet.empty()
        skip = RowSet.empty()
        if spec.stale:
            skip = computed
        elif spec.where is None:
            skip = computed if spec.redefined else record.nulls
        elif record.job_id in spec.serving_jobs:
            skip = computed
        done |= DoneRows(computed=computed, nulls=record.nulls, skip=skip)
    return done


@dataclass(slots=True)
class Served:
    """What was found for a range.

    Attributes:
        offsets: The rows, ascending.
        entries: Rows from checkpoints.
        files: Rows from column files.
        changed: Rows that were found at an older version, and whose inputs are others now, ascending.
    """

    offsets: Offsets
    entries: list[EntryPiece]
    files: list[FilePiece]
    changed: Offsets = field(default_factory=no_rows)

    def streams(self, spec: BackfillSpec, store: CheckpointStore) -> list[Iterator[Chunk]]:
        """Returns streams of values. Pieces that come one after the other make one stream, so that one of them is held at a time."""
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


class Finder:
    """Finds values for the rows of one fragment.

    Attributes:
        missing_files: Column files that turned out not to be there.
    """

    def __init__(self, spec: BackfillSpec, rows: SnapshotRows, store: CheckpointStore) -> None:
        self._spec = spec
        self._rows = rows
        self._store = store
        self._found: dict[tuple[int, int], Found] = {}
        self._listed: dict[str, list[CheckpointEntry]] = {}
        self._knows_all = False
        self._owned: dict[tuple[int, str], tuple[RowSet, RowSet]] = {}
        self.missing_files: set[str] = set()

    def inherited(self, fragment: FragmentMetadata) -> DoneRows:
        """Returns what records say of the fragments from which a compaction made this one, for its own rows.

        Only where nothing rewrote inputs or values since in place: what the records say would not be of these.
        """
        done = DoneRows()
        for piece, moved in self._pieces(fragment, (*self._spec.input_ids, *self._spec.target_ids)):
            old = done_rows(self._spec, piece.fragment, _records(self._spec))
            done |= DoneRows(**{f.name: moved.new_rows(getattr(old, f.name)) for f in dataclasses.fields(old)})
        return done

    def find(self, fragment: FragmentMetadata, wanted: Offsets, without_value: Offsets) -> Served:
        """Finds values for rows of a fragment.

        Args:
            fragment: The fragment.
            wanted: The rows, ascending.
            without_value: Those of them that have no value in the table; any checkpoint serves these. The others are served only by
                checkpoints of the jobs that the spec names.
        """
        served = Served(no_rows(), [], [])
        missing = {True: without_value, False: np.setdiff1d(wanted, without_value, assume_unique=True)}
        self._from(served, fragment, None, missing)
        for piece, moved in self._pieces(fragment, self._spec.input_ids):
            self._from(served, piece.fragment, moved, missing)
        for version in self._spec.bases:
            for origin in self.found(fragment, version).origins:
                moved = _among(origin.moved, distinct(missing[True], missing[False]))
                if not len(moved.old) or (origin.same and origin.fragment.id == fragment.id):
                    continue
                if origin.same:
                    self._from(served, origin.fragment, moved, missing)
                elif self._knows(origin.fragment):
                    changed = self.changed(version, origin, fragment, moved)
                    served.changed = distinct(served.changed, moved.new[changed])
                    self._from(served, origin.fragment, _where(moved, ~changed), missing)
        served.offsets = np.setdiff1d(wanted, np.concatenate(list(missing.values())), assume_unique=True)
        served.changed = np.setdiff1d(served.changed, served.offsets, assume_unique=True)
        return served

    def found(self, fragment: FragmentMetadata, version: int) -> Found:
        """Returns where the rows of a fragment were at an older version."""
        key = (fragment.id, version)
        if key not in self._found:
            dataset = _base(self._spec, version)
            base = shipped(self._spec, version, fragment.id) if dataset is None else OpenBase(dataset)
            follow = self._spec.follow
            unchanged = follow.unchanged if follow is not None and version == follow.version else ()
            lineage = _lineage(self._spec, version)
            origins = Origins(base, self._rows, lineage, self._spec.input_ids, unchanged=unchanged)
            self._found[key] = origins.of(fragment)
        return self._found[key]

    def changed(self, version: int, origin: Origin, fragment: FragmentMetadata, moved: Moved) -> NDArray[np.bool_]:
        """Tells which rows have other inputs than they had at an older version. Where nothing tells that any more, all count as changed."""
        base = _base(self._spec, version)
        if base is not None:
            columns = [column.id for column in self._spec.inputs]
            try:
                return changed_rows(SnapshotRows(base), origin.fragment.id, self._rows, fragment.id, moved, columns)
            except TableUnreadableError as error:
                _LOG.warning(
                    "inputs of version %s of %s cannot be compared, and count as changed: %s",
                    version,
                    self._spec.snapshot.uri,
                    error,
                )
        if origin.by_row_id:
            own = self._own_commits(origin.fragment)
            return ~not_updated(self._rows, fragment.id, moved.new, version, own)
        return np.ones(len(moved.old), dtype=np.bool_)

    def own(self, fragment: FragmentMetadata) -> tuple[RowSet, RowSet]:
        """Returns the rows of a fragment, now or of an older version, that this job has given a value, and those that failed.

        As far as whole fragments go: what is known of a range that has not ended is in checkpoints alone.
        """
        spec, source = self._spec, source_of(self._spec, fragment)
        if (fragment.id, source) in self._owned:
            return self._owned[fragment.id, source]
        rows, failed = RowSet.empty(), RowSet.empty()
        for record in _records(spec).of(fragment.id):
            if record.job_id == spec.job_id and self._fits(record, fragment, source):
                rows, failed = rows | record.computed, failed | record.failed
        for entry in self._entries(source):
            if entry.kind == "reference" and entry.job_id == spec.job_id:
                body = self._store.read_reference(entry, spec.key, source)
                if body is not None:
                    rows |= RowSet.from_text(str(body["rows"]["own"]))
                    failed |= RowSet.from_text(str(body["rows"]["failed"]))
        found = self._owned[fragment.id, source] = rows, failed - rows
        return found

    def _entries(self, source: str) -> Sequence[CheckpointEntry]:
        """Returns what is in checkpoints of a fragment, listed once; all of the key at once where an update mixed rows of many fragments."""
        if source not in self._listed and not self._knows_all:
            if len(self._listed) < _LISTED_ONE_BY_ONE:
                self._listed[source] = self._store.find(self._spec.key, source)
            else:
                self._listed, self._knows_all = self._store.find_all(self._spec.key), True
        return self._listed.get(source, ())

    def _own_commits(self, fragment: FragmentMetadata) -> list[int]:
        """Returns the versions in which this job committed values of a fragment that were right then."""
        source = source_of(self._spec, fragment)
        records = _records(self._spec).of(fragment.id)
        return [r.table_version for r in records if r.job_id == self._spec.job_id and self._fits(r, fragment, source)]

    def computed_once(self, fragment: FragmentMetadata) -> Offsets:
        """Returns the rows of a fragment that any version of a UDF has computed, from whatever inputs, ascending."""
        holds = {file.partition(":")[0] for file in files_of(fragment, self._spec.target_ids)}
        rows = RowSet.empty()
        for record in _records(self._spec).of(fragment.id):
            if record.physical_rows == fragment.physical_rows and record.target_file in holds:
                rows |= record.computed
        return rows.to_numpy()

    def values_of(self, fragment: FragmentMetadata, moved: Moved) -> Chunk:
        """Returns the values that this job has computed for few rows of a fragment, whatever their inputs are now; some may be missing."""
        order = np.argsort(moved.old)
        ascending = Moved(old=moved.old[order], new=moved.new[order])
        served = Served(no_rows(), [], [])
        missing = {True: no_rows(), False: np.sort(moved.new)}
        self._from(served, fragment, ascending, missing)
        chunks = list(merge(served.streams(self._spec, self._store)))
        if not chunks:
            return no_rows(), pa.nulls(0)
        return np.concatenate([part[0] for part in chunks]), pa.concat_arrays([part[1] for part in chunks])

    def values_before(self, version: int, fragment_id: int, offsets: Offsets) -> list[pa.Array[Any]] | None:
        """Returns what rows of a fragment had in the target columns at an older version; None where that is not known any more."""
        base = _base(self._spec, version)
        if base is None:
            return None
        now = {column.name: column.id for column in field_identities(self._rows.dataset.lance_schema)}
        then = {column.id: column.name for column in field_identities(base.lance_schema)}
        names = [then[now[name]] for _, name in self._spec.outputs]
        try:
            return read_rows(SnapshotRows(base), fragment_id, tuple(names), offsets)
        except TableUnreadableError:
            return None

    def _knows(self, fragment: FragmentMetadata) -> bool:
        """Tells whether anything was computed of a fragment, now or of an older version."""
        source = source_of(self._spec, fragment)
        if any(self._fits(record, fragment, source) for record in _records(self._spec).of(fragment.id)):
            return True
        return bool(self._entries(source))

    def _fits(self, record: FragmentRecord, fragment: FragmentMetadata, source: str) -> bool:
        return (record.key, record.source, record.physical_rows) == (
            self._spec.key.digest,
            source,
            fragment.physical_rows,
        )

    def find_checkpointed(self, fragment: FragmentMetadata, wanted: Offsets) -> Served:
        """Finds values that tasks of this job have left in checkpoints of the fragment, or have found there.

        Nowhere else, and this job's own first: where it computed rows anew, the column file and other checkpoints have older values.
        """
        source = source_of(self._spec, fragment)
        served = Served(no_rows(), [], [])
        missing = {True: wanted, False: no_rows()}
        entries = self._store.find(self._spec.key, source)
        own_first = sorted(entries, key=lambda entry: entry.job_id != self._spec.job_id)
        self._from_entries(served, own_first, source, None, missing)
        served.offsets = np.setdiff1d(wanted, missing[True], assume_unique=True)
        return served

    def _pieces(self, fragment: FragmentMetadata, field_ids: Sequence[int]) -> Iterator[tuple[Piece, Moved]]:
        """Yields where the rows of a compacted fragment were before, as far as fields have not been rewritten in place since."""
        if self._spec.lineage_after is None:
            return
        for piece in _lineage(self._spec, self._spec.lineage_after).origins(fragment.id) or ():
            if piece.is_unchanged(fragment, field_ids):
                yield piece, Moved(old=piece.offsets, new=np.arange(piece.start, piece.stop, dtype=np.int64))

    def _from(
        self, served: Served, fragment: FragmentMetadata, moved: Moved | None, missing: dict[bool, Offsets]
    ) -> None:
        """Takes what one fragment, now or before a compaction, has; shrinks `missing`."""
        spec, source = self._spec, source_of(self._spec, fragment)
        for record in _records(spec).of(fragment.id):
            if self._fits(record, fragment, source):
                self._take_file(served, record.target_file, record.computed, record.job_id, moved, missing)
        if not any(len(rows) for rows in missing.values()):
            return
        entries = self._entries(source)
        for entry in (e for e in entries if e.kind == "reference"):
            body = self._store.read_reference(entry, spec.key, source)
            if body is not None:
                for rows, job_id in (("own", entry.job_id), ("computed", "")):
                    found = RowSet.from_text(str(body["rows"][rows]))
                    self._take_file(served, body["data_file"], found, job_id, moved, missing)
        self._from_entries(served, entries, source, moved, missing)

    def _from_entries(
        self,
        served: Served,
        entries: Sequence[CheckpointEntry],
        source: str,
        moved: Moved | None,
        missing: dict[bool, Offsets],
    ) -> None:
        """Takes what checkpoints of single batches have."""
        key = self._spec.key
        for entry in (e for e in entries if e.kind == "values"):
            if moved is None:
                usable = self._usable(entry.job_id, missing, entry.start, entry.stop)
            else:
                inside = moved.new[slice(*np.searchsorted(moved.old, [entry.start, entry.stop]))]
                span = (int(inside.min()), int(inside.max()) + 1) if len(inside) else (0, 0)
                usable = self._usable(entry.job_id, missing, *span)
                usable = usable[np.isin(usable, inside, assume_unique=True)]
            found = read_entry(self._store, entry, key, source, moved) if len(usable) else None
            if found is None:
                continue
            chosen = np.intersect1d(found[0], usable, assume_unique=True)
            if len(chosen):
                served.entries.append(EntryPiece(offsets=chosen, entry=entry, key=key, source=source, moved=moved))
                _strike(missing, chosen)

    def _take_file(
        self, served: Served, file: str, rows: RowSet, job_id: str, moved: Moved | None, missing: dict[bool, Offsets]
    ) -> None:
        usable = self._usable(job_id, missing)
        # The bytes of blobs cannot be read from a file that no version names; their values are in checkpoints.
        if not len(usable) or not len(rows) or self._spec.targets.blobs:
            return
        at = rows.to_numpy()
        now = at
        if moved is not None:
            now, inside = moved.find(at)
            order = np.argsort(now)
            now, at = now[order], at[inside][order]
        chosen = np.isin(now, usable, assume_unique=True)
        outputs = self._outputs_in(file) if chosen.any() else None
        if outputs is None:
            return
        served.files.append(FilePiece(offsets=now[chosen], at=at[chosen], file=file, outputs=outputs))
        _strike(missing, now[chosen])

    def _usable(self, job_id: str, missing: dict[bool, Offsets], start: int = 0, stop: int = 1 << 62) -> Offsets:
        """Returns the missing rows of a range that a job's values may serve."""
        kinds = (True, False) if job_id in self._spec.serving_jobs else (True,)
        return distinct(*(missing[kind][_span(missing[kind], start, stop)] for kind in kinds))

    def _outputs_in(self, file: str) -> tuple[tuple[str, str], ...] | None:
        """Returns the pairs of output field and column that a column file has, under the names that the columns had then.

        None where it cannot be used: Lance's cleanup deletes files that no version names, a store may damage one, and it may be of another
        column. Names alone do not serve: siblings may have swapped theirs since.
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
        there = {_identity(one): one.name for one in fields}
        pairs = zip(spec.outputs, spec.targets.schema, strict=True)
        outputs = tuple((output, there.get(_identity(target), "")) for (output, _), target in pairs)
        return outputs if all(column for _, column in outputs) else None


def _identity(field: pa.Field[Any]) -> object:
    """Returns what tells a column in a file, whatever it is called: its token and its output field; its name if it is somebody else's."""
    metadata = field.metadata or {}
    return (metadata[TOKEN_KEY], metadata.get(OUTPUT_KEY.encode())) if TOKEN_KEY in metadata else field.name


def _strike(missing: dict[bool, Offsets], found: Offsets) -> None:
    if not len(found):
        return
    for kind, rows in missing.items():
        near = _span(rows, int(found.min()), int(found.max()) + 1)
        left = rows[near][~np.isin(rows[near], found, assume_unique=True)]
        missing[kind] = np.concatenate([rows[: near.start], left, rows[near.stop :]])


def _span(rows: Offsets, start: int, stop: int) -> slice:
    """Returns where the rows of a range are among ascending ones. A fragment has hundreds of checkpoints: each is looked for in its range."""
    first, last = np.searchsorted(rows, [start, stop])
    return slice(int(first), int(last))


def _among(moved: Moved, rows: Offsets) -> Moved:
    """Returns the moves that end in some rows."""
    return _where(moved, np.isin(moved.new, rows, assume_unique=True))


def _where(moved: Moved, chosen: NDArray[np.bool_]) -> Moved:
    return Moved(old=moved.old[chosen], new=moved.new[chosen])


@functools.lru_cache(maxsize=4)
def _steps(spec: BackfillSpec) -> tuple[Step, ...]:
    """Returns what happened since the oldest version that matters; read once per process and round."""
    dataset = spec.snapshot.open()
    return tuple(map(Step.of, events_between(dataset, spec.lineage_after or dataset.version, dataset.version)))


@functools.lru_cache(maxsize=16)
def _lineage(spec: BackfillSpec, after: int) -> Lineage:
    dataset = spec.snapshot.open()
    return Lineage.between(dataset, after, dataset.version, _steps(spec))


@functools.lru_cache(maxsize=16)
def _base(spec: BackfillSpec, version: int) -> lance.LanceDataset | None:
    """Opens an older version of the table; None where it was cleaned up."""
    try:
        return dataclasses.replace(spec.snapshot, version=version, incarnation=None).open()
    except (VersionNotFoundError, SnapshotError):
        _LOG.info("version %s of %s is gone", version, spec.snapshot.uri)
        return None


@functools.lru_cache(maxsize=4)
def _records(spec: BackfillSpec) -> Records:
    """Returns the records of the column; they are read once per process and job."""
    objects = LanceObjects(f"{spec.snapshot.uri}/{FOLDER}", spec.snapshot.storage_options)
    return RecordStore(objects).load(spec.column)
