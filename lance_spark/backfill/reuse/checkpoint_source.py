"""Values of a fragment's rows in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_spark.rows.merge import Chunk, MissingFileError, Offsets, RowMapping
from udf_runtime.checkpoint import CheckpointEntry, CheckpointKey, CheckpointStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPiece:
    """Rows with values in a checkpoint. `moved` maps their old offsets to the current offsets."""

    offsets: Offsets
    entry: CheckpointEntry
    key: CheckpointKey
    source: str
    moved: RowMapping | None
    store: CheckpointStore

    def read(self) -> Chunk | None:
        """Returns the values by current offsets; None if the checkpoint is unusable."""
        stored = self.store.read(self.entry, self.key, self.source)
        if stored is None:
            return None
        offsets, values = np.asarray(stored[0].to_numpy(), dtype=np.int64), stored[1]
        return (offsets, values) if self.moved is None else self.moved.chunk(offsets, values)

    def chunks(self, streams: int) -> Iterator[Chunk]:  # noqa: ARG002 - of the protocol
        """Yields the values, as :class:`~lance_spark.rows.merge.ValuePiece` describes."""
        chunk = self.read()
        if chunk is None:
            raise MissingFileError(self.entry.path, "checkpoint")
        offsets, values = chunk
        selection = np.isin(offsets, self.offsets, assume_unique=True)
        yield offsets[selection], values if selection.all() else values.filter(pa.array(selection))
