"""Values that need no call of the UDF, because an earlier run left them: in checkpoints, or in column files. Runs on executors.

Three kinds of sources are asked in this order: records of committed values, column files that were finished and not committed, and
checkpoints of single batches. All are found by what the values depend on (the key, and the identity of the fragment's input files), so
another filter, another range or a renamed table uses them too; where a compaction moved the rows, its lineage says from where to where.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.pieces import Chunk, EntryPiece, FilePiece, Moved, Offsets, read_entry
from lance_spark.backfill.records import Records, RecordStore
from lance_spark.backfill.rowsets import RowSet
from lance_spark.backfill.spec import BackfillSpec, DoneRows
from lance_spark.catalog.binding import OUTPUT_KEY
from lance_spark.checkpoints import LanceObjects, checkpoint_store
from lance_spark.commit.identity import TOKEN_KEY, files_of
from lance_spark.commit.lineage import Lineage, Piece
from lance_spark.errors import panics_as_errors
from lance_spark.write.staging import open_session
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore, source_digest

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

FOLDER = "_lance_spark"


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
    source, holds = source_of(spec, fragment), files_of(fragment, spec.target_ids)
    done = DoneRows()
    for record in records.of(fragment.id):
        fits = (record.key, record.source, record.physical_rows) == (spec.key.digest, source, fragment.physical_rows)
        if not fits or not any(file.partition(":")[0] == record.target_file for file in holds):
            continue
        skip = RowSet.empty()
        if spec.where is None:
            skip = record.computed if spec.redefined else record.nulls
        elif record.job_id in spec.serving_jobs:
            skip = record.computed
        done |= DoneRows(computed=record.computed, nulls=record.nulls, skip=skip)
    return done


@dataclass(slots=True)
class Served:
    """What was found for a range.

    Attributes:
        offsets: The rows, ascending.
        entries: Rows from checkpoints.
        files: Rows from column files.
    """

    offsets: Offsets
    entries: list[EntryPiece]
    files: list[FilePiece]

    def streams(self, spec: BackfillSpec, store: CheckpointStore) -> list[Iterator[Chunk]]:
        """Returns streams of values. Pieces that come one after the other make one stream, so that one of them is held at a time."""
        session = open_session(spec.snapshot.uri, spec.snapshot.storage_options)

        def read(chain: list[EntryPiece | FilePiece]) -> Iterator[Chunk]:
            for piece in chain:
                yield from piece.chunks(store) if isinstance(piece, EntryPiece) else piece.chunks(session)

        chains: list[list[EntryPiece | FilePiece]] = []
        pieces: list[EntryPiece | FilePiece] = [*self.entries, *self.files]
        for piece in sorted(pieces, key=lambda piece: int(piece.offsets[0])):
            chain = next((c for c in chains if c[-1].offsets[-1] < piece.offsets[0]), None)
            if chain is None:
                chains.append([piece])
            else:
                chain.append(piece)
        return [read(chain) for chain in chains]


class Finder:
    """Finds values for the rows of one fragment."""

    def __init__(self, spec: BackfillSpec, dataset: lance.LanceDataset, store: CheckpointStore) -> None:
        self._spec = spec
        self._dataset = dataset
        self._store = store

    def inherited(self, fragment: FragmentMetadata) -> DoneRows:
        """Returns what records say of the fragments from which a compaction made this one, for its own rows.

        Only where nothing rewrote inputs or values since in place: what the records say would not be of these.
        """
        done = DoneRows()
        for piece in self._origins(fragment, (*self._spec.input_ids, *self._spec.target_ids)):
            old = done_rows(self._spec, piece.fragment, _records(self._spec))
            moved = Moved(old=piece.offsets, start=piece.start)
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
        served = Served(np.empty(0, dtype=np.int64), [], [])
        missing = {True: without_value, False: np.setdiff1d(wanted, without_value, assume_unique=True)}
        self._from(served, fragment, None, missing)
        for piece in self._origins(fragment, self._spec.input_ids):
            self._from(served, piece.fragment, Moved(old=piece.offsets, start=piece.start), missing)
        served.offsets = np.setdiff1d(wanted, np.concatenate(list(missing.values())), assume_unique=True)
        return served

    def find_checkpointed(self, fragment: FragmentMetadata, wanted: Offsets) -> Served:
        """Finds values that tasks of this job have left in checkpoints of the fragment, or have found there.

        Nowhere else, and this job's own first: where it computed rows anew, the column file and other checkpoints have older values.
        """
        source = source_of(self._spec, fragment)
        served = Served(np.empty(0, dtype=np.int64), [], [])
        missing = {True: wanted, False: np.empty(0, dtype=np.int64)}
        entries = self._store.find(self._spec.key, source)
        own_first = sorted(entries, key=lambda entry: entry.job_id != self._spec.job_id)
        self._from_entries(served, own_first, source, None, missing)
        served.offsets = np.setdiff1d(wanted, missing[True], assume_unique=True)
        return served

    def _origins(self, fragment: FragmentMetadata, field_ids: Sequence[int]) -> list[Piece]:
        """Returns where the rows of a compacted fragment were before, as far as fields have not been rewritten in place since."""
        if self._spec.lineage_after is None:
            return []
        pieces = _lineage(self._spec, self._spec.lineage_after).origins(fragment.id) or []
        return [piece for piece in pieces if piece.is_unchanged(fragment, field_ids)]

    def _from(
        self, served: Served, fragment: FragmentMetadata, moved: Moved | None, missing: dict[bool, Offsets]
    ) -> None:
        """Takes what one fragment, now or before a compaction, has; shrinks `missing`."""
        spec, source = self._spec, source_of(self._spec, fragment)
        for record in _records(spec).of(fragment.id):
            if (
                record.key == spec.key.digest
                and record.source == source
                and record.physical_rows == fragment.physical_rows
            ):
                self._take_file(served, record.target_file, record.computed, record.job_id, moved, missing)
        if not any(len(rows) for rows in missing.values()):
            return
        entries = self._store.find(spec.key, source)
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
            usable = self._usable(entry.job_id, missing)
            span: Any = [entry.start, entry.stop]
            if moved is not None:
                span = np.searchsorted(moved.old, span) + moved.start
            usable = usable[slice(*np.searchsorted(usable, span))]
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
            now, inside = moved.new_offsets(at)
            at = at[inside]
        chosen = np.isin(now, usable, assume_unique=True)
        outputs = self._outputs_in(file) if chosen.any() else None
        if outputs is None:
            return
        served.files.append(FilePiece(offsets=now[chosen], at=at[chosen], file=file, outputs=outputs))
        _strike(missing, now[chosen])

    def _usable(self, job_id: str, missing: dict[bool, Offsets]) -> Offsets:
        """Returns the missing rows that a job's values may serve."""
        if job_id in self._spec.serving_jobs:
            return np.union1d(missing[True], missing[False])
        return missing[True]

    def _outputs_in(self, file: str) -> tuple[tuple[str, str], ...] | None:
        """Returns the pairs of output field and column that a column file has, under the names that the columns had then.

        None where it cannot be used: Lance's cleanup deletes files that no version names, a store may damage one, and it may be of another
        column. Names alone do not serve: siblings may have swapped theirs since.
        """
        spec = self._spec
        session = open_session(spec.snapshot.uri, spec.snapshot.storage_options)
        if not session.contains(f"data/{file}"):
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
    for kind in missing:
        missing[kind] = missing[kind][~np.isin(missing[kind], found, assume_unique=True)]


@functools.lru_cache(maxsize=4)
def _lineage(spec: BackfillSpec, after: int) -> Lineage:
    dataset = spec.snapshot.open()
    return Lineage.between(dataset, after, dataset.version)


@functools.lru_cache(maxsize=4)
def _records(spec: BackfillSpec) -> Records:
    """Returns the records of the column; they are read once per process and job."""
    objects = LanceObjects(f"{spec.snapshot.uri}/{FOLDER}", spec.snapshot.storage_options)
    return RecordStore(objects).load(spec.column)
