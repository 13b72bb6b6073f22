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

    def __init__(
        self, spec: BackfillSpec, store: CheckpointStore, source: str, *, rows: tuple[int, int | None] = (1, None)
    ) -> None:
        """Takes the least rows that the interval persists, and the most of a checkpoint, if any."""
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
        """Lets the interval begin anew."""
        self._last_flush = time.perf_counter()

    def hold(self, offsets: Offsets, values: pa.Array[Any], failed: list[int]) -> None:
        """Keeps the values of a batch but for its rows that failed, by position."""
        if failed:
            kept = np.ones(len(offsets), dtype=np.bool_)
            kept[failed] = False
            offsets, values = offsets[kept], values.filter(pa.array(kept))
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
        """Persists the values that are held."""
        began = time.perf_counter()
        held, self._held, self._held_bytes, self._held_rows = self._held, [], 0, 0
        if held:
            offsets = pa.array(np.concatenate([part[0] for part in held]))
            values = pa.concat_arrays([part[1] for part in held])
            held.clear()
            self._store.write(self._spec.key, self._source, job_id=self._spec.job_id, offsets=offsets, values=values)
        self._last_flush = time.perf_counter()
        self.seconds += self._last_flush - began
