"""What becomes of values whose rows have other inputs by now: :func:`judge_stale`.

An update copies the old value into the row that it writes, unless it gives a new one. A copy is out
of date, as is what the write itself has put there; a value that came with the new inputs is right.
A row is judged as a whole, with all target columns.

Runs where values are carried over. Memory: a few batches of rows, and 8 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.rebase.changed_inputs import read_rows
from lance_spark.rows.merge import Moved, Offsets
from lance_spark.rows.row_addresses import SnapshotRows, equal_values

_ROWS = 2048

Values = Callable[[Offsets], "list[pa.Array[Any]]"]
"""Returns the target columns of rows, as one version or one file has them."""


def judge_stale(stale: Moved, *, now: Values, before: Values, staged: Values) -> tuple[Offsets, int]:
    """Finds the values that rows of changed inputs must not keep.

    Takes what the rows have now, by where they are, and, by where they were, what they had in the
    snapshot and what this write has staged for them. Returns the rows whose value is a copy,
    ascending, and how many of all have no value without it.
    """
    order = np.argsort(stale.new)
    copies, empty = np.zeros(len(order), dtype=np.bool_), np.zeros(len(order), dtype=np.bool_)
    for first in range(0, len(order), _ROWS):
        at = slice(first, first + _ROWS)
        old, new = stale.old[order[at]], stale.new[order[at]]
        values = now(new)
        empty[at] = np.logical_and.reduce([np.asarray(array.is_null()) for array in values])
        if not empty[at].all():
            copies[at] = _equal(values, before(old)) | _equal(values, staged(old))
    return stale.new[order][copies & ~empty], int((copies | empty).sum())


def values_in(rows: SnapshotRows, fragment_id: int, targets: pa.Schema) -> Values:
    """Returns the values that a fragment of a version has, NULL in columns that it lacks."""
    names = tuple(name for name in targets.names if name in rows.dataset.schema.names)

    def read(offsets: Offsets) -> list[pa.Array[Any]]:
        columns = dict(zip(names, read_rows(rows, fragment_id, names, offsets) if names else (), strict=True))
        return [columns.get(field.name, pa.nulls(len(offsets), field.type)) for field in targets]

    return read


def _equal(values: Sequence[pa.Array[Any]], others: Sequence[pa.Array[Any]]) -> NDArray[np.bool_]:
    """Tells for each row whether all columns are equal."""
    equal: NDArray[np.bool_] = np.logical_and.reduce(list(map(equal_values, values, others)))
    return equal
