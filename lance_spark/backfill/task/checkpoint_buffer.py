"""A buffer of computed values between a task and its checkpoints."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.rows.merge import Chunk, Offsets
from udf_runtime.checkpoint import CheckpointStore

FLUSH_BYTES = 32 << 20
"""Maximum bytes of computed values without a checkpoint. The encoding takes about six times as much
memory: the batches, the values as an array, compressed buffers, the stream, and the payload."""


class CheckpointBuffer:
    """Buffers computed values of a range until the next checkpoint. Belongs to one task."""

    def __init__(
        self, spec: BackfillSpec, store: CheckpointStore, source: str, *, rows: tuple[int, int | None] = (1, None)
    ) -> None:
        """Takes the minimum rows of a checkpoint at an interval, and the maximum, if any."""
        self.seconds = 0.0  # spent on writing
        self._spec = spec
        self._store = store
        self._source = source
        self._held: list[Chunk] = []
        self._held_bytes = 0
        self._held_rows = 0
        self._least, self._most = rows
        self._last_flush = time.perf_counter()

    def begin(self) -> None:
        """Restarts the interval."""
        self._last_flush = time.perf_counter()

    def hold(self, offsets: Offsets, values: pa.Array[Any], failed: list[int]) -> None:
        """Adds the values of a batch without its failed rows, given by position."""
        if failed:
            is_valid = np.ones(len(offsets), dtype=np.bool_)
            is_valid[failed] = False
            offsets, values = offsets[is_valid], values.filter(pa.array(is_valid))
        while True:
            room = len(offsets) if self._most is None else self._most - self._held_rows
            if len(offsets):
                part = values.slice(0, room)
                self._held.append((offsets[:room], part))
                self._held_bytes += part.nbytes
                self._held_rows += len(part)
            if self._is_full or (self._is_time and self._held_rows >= self._least):
                self.flush()
            if len(offsets) <= room:
                return
            offsets, values = offsets[room:], values.slice(room)

    @property
    def _is_full(self) -> bool:
        has_most = self._most is not None and self._held_rows >= self._most
        return has_most or self._held_bytes >= FLUSH_BYTES

    @property
    def _is_time(self) -> bool:
        return time.perf_counter() - self._last_flush >= self._spec.flush_s

    def flush(self) -> None:
        """Writes the buffered values into a checkpoint."""
        began = time.perf_counter()
        parts, self._held, self._held_bytes, self._held_rows = self._held, [], 0, 0
        if parts:
            offsets = pa.array(np.concatenate([part[0] for part in parts]))
            values = pa.concat_arrays([part[1] for part in parts])
            parts.clear()
            self._store.write(self._spec.key, self._source, job_id=self._spec.job_id, offsets=offsets, values=values)
        self._last_flush = time.perf_counter()
        self.seconds += self._last_flush - began
