"""Arrow data with buffers at chosen addresses, like data of other writers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lance_spark.types import layout


def shifted(array: Any, by: int) -> Any:
    """Returns an array with all buffers `by` bytes after a multiple of 64."""

    def move(buffer: pa.Buffer | None) -> pa.Buffer | None:
        if buffer is None:
            return None
        memory = np.zeros(buffer.size + 128, np.uint8)
        start = -memory.ctypes.data % 64 + by
        memory[start : start + buffer.size] = np.frombuffer(buffer, np.uint8)
        return pa.py_buffer(memory).slice(start, buffer.size)  # type: ignore[arg-type]

    kind = array.type
    if pa.types.is_map(kind):
        entries = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return layout.relabel_array(shifted(layout.relabel_array(array, entries), by), kind)
    if pa.types.is_struct(kind):
        children = [shifted(array.field(i), by) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(
            kind, len(array), [move(array.buffers()[0])], children=children
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        buffers = [move(b) for b in array.buffers()[:2]]
        return pa.Array.from_buffers(
            kind, len(array), buffers, children=[shifted(array.values, by)]
        )
    if pa.types.is_fixed_size_list(kind):
        buffers = [move(array.buffers()[0])]
        return pa.Array.from_buffers(
            kind, len(array), buffers, children=[shifted(array.values, by)]
        )
    return pa.Array.from_buffers(kind, len(array), [move(b) for b in array.buffers()])
