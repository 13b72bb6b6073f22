"""Values of a fragment's rows that checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_spark.rows.merge import Chunk, MissingFileError, Moved, Offsets
from udf_runtime.checkpoint import CheckpointEntry, CheckpointKey, CheckpointStore


class MissingCheckpointError(MissingFileError):
    """A checkpoint that was there is not any more: the job that left it has committed its values, or it was deleted."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, f"the checkpoint {path} is not there any more")
        self.file = path


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPiece:
    """Rows that a checkpoint serves.

    Attributes:
        offsets: The rows, as they are numbered now.
        entry: The checkpoint.
        key: Its key.
        source: Its source.
        moved: Where its rows are now, if a compaction moved them.
    """

    offsets: Offsets
    entry: CheckpointEntry
    key: CheckpointKey
    source: str
    moved: Moved | None = None

    def chunks(self, store: CheckpointStore) -> Iterator[Chunk]:
        """Yields the rows.

        Raises:
            MissingCheckpointError: The checkpoint vanished meanwhile.
        """
        found = read_entry(store, self.entry, self.key, self.source, self.moved)
        if found is None:
            raise MissingCheckpointError(self.entry.path)
        offsets, values = found
        wanted = np.isin(offsets, self.offsets, assume_unique=True)
        yield offsets[wanted], values if wanted.all() else values.filter(pa.array(wanted))


def read_entry(
    store: CheckpointStore, entry: CheckpointEntry, key: CheckpointKey, source: str, moved: Moved | None
) -> Chunk | None:
    """Reads a checkpoint, with the offsets that its rows have now; None if it is not usable."""
    found = store.read(entry, key, source)
    if found is None:
        return None
    offsets = np.asarray(found[0].to_numpy(), dtype=np.int64)
    return (offsets, found[1]) if moved is None else moved.chunk(offsets, found[1])
