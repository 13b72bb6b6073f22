"""Values that a task has computed and that are persisted from time to time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.rows.merge import Chunk, Offsets
from udf_runtime.checkpoint import CheckpointStore

FLUSH_BYTES = 32 << 20
"""Bytes of computed values after which they are persisted before the interval is over. A checkpoint
takes about six times its size in memory while it is encoded: its batches, the values as one array,
compressed buffers, the stream, and the payload."""


class CheckpointBuffer:
    """Holds computed values of one range until they are worth a checkpoint. Belongs to one task."""

    def __init__(self, spec: BackfillSpec, store: CheckpointStore, source: str) -> None:
        self.seconds = 0.0  # spent on writing
        self._spec = spec
        self._store = store
        self._source = source
        self._held: list[Chunk] = []
        self._held_bytes = 0
        self._last_flush = time.perf_counter()

    def begin(self) -> None:
        """Lets the interval begin anew."""
        self._last_flush = time.perf_counter()

    def hold(self, offsets: Offsets, values: pa.Array[Any], failed: list[int]) -> None:
        """Keeps the values of a batch but for its rows that failed, by position."""
        if failed:
            kept = np.ones(len(offsets), dtype=np.bool_)
            kept[failed] = False
            offsets, values = offsets[kept], values.filter(pa.array(kept))
        if len(offsets):
            self._held.append((offsets, values))
            self._held_bytes += values.nbytes
        if time.perf_counter() - self._last_flush >= self._spec.flush_s or self._held_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Persists the values that are held."""
        began = time.perf_counter()
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            offsets = pa.array(np.concatenate([part[0] for part in held]))
            values = pa.concat_arrays([part[1] for part in held])
            held.clear()
            self._store.write(self._spec.key, self._source, job_id=self._spec.job_id, offsets=offsets, values=values)
        self._last_flush = time.perf_counter()
        self.seconds += self._last_flush - began
