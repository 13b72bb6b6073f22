"""Values of a fragment's rows that checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_spark.rows.merge import Chunk, MissingFileError, Moved, Offsets
from udf_runtime.checkpoint import CheckpointEntry, CheckpointKey, CheckpointStore


class MissingCheckpointError(MissingFileError):
    """A checkpoint is not there any more: its job has committed the values, or it was deleted."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, f"the checkpoint {path} is not there any more")
        self.file = path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPiece:
    """Rows that a checkpoint serves.

    Attributes:
        offsets: The rows, as they are numbered now.
        moved: Where the checkpoint's rows are now, if they were elsewhere.
    """

    offsets: Offsets
    entry: CheckpointEntry
    key: CheckpointKey
    source: str
    moved: Moved | None
    store: CheckpointStore

    def read(self) -> Chunk | None:
        """Returns the checkpoint's values by where rows are now; None if it is not usable."""
        found = self.store.read(self.entry, self.key, self.source)
        if found is None:
            return None
        offsets = np.asarray(found[0].to_numpy(), dtype=np.int64)
        return (offsets, found[1]) if self.moved is None else self.moved.chunk(offsets, found[1])

    def chunks(self, beside: int) -> Iterator[Chunk]:  # noqa: ARG002 - of the protocol
        """Does what :class:`~lance_spark.rows.merge.Piece` says."""
        found = self.read()
        if found is None:
            raise MissingCheckpointError(self.entry.path)
        offsets, values = found
        wanted = np.isin(offsets, self.offsets, assume_unique=True)
        yield offsets[wanted], values if wanted.all() else values.filter(pa.array(wanted))
