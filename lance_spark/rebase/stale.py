"""Judges the values of rows with changed inputs: :func:`judge_stale`.

An update copies the old value into the new row unless the update sets a value. A copied value is
stale, and so is the staged value of this write. A value written together with the new inputs is
valid. A row is judged as a whole, with all target columns.

Runs in the process of the carry-over. Memory: a few batches of rows, and 8 bytes per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.rebase.changed_inputs import read_rows
from lance_spark.rows.merge import Offsets, RowMapping
from lance_spark.rows.row_addresses import SnapshotRows, equal_values

_ROWS = 2048

Values = Callable[[Offsets], "list[pa.Array[Any]]"]
"""Returns the target columns of rows in one version or file."""


def judge_stale(
    stale: RowMapping, *, current: Values, before: Values, staged: Values
) -> tuple[Offsets, int]:
    """Finds the stale values of rows with changed inputs.

    `current` reads by new offsets. `before` and `staged` read the snapshot and the staged values by
    old offsets. Returns the rows with a copied value, ascending, and the total number of rows
    without a valid value.
    """
    order = np.argsort(stale.new)
    copies, empty = np.zeros(len(order), dtype=np.bool_), np.zeros(len(order), dtype=np.bool_)
    for first in range(0, len(order), _ROWS):
        at = slice(first, first + _ROWS)
        old, new = stale.old[order[at]], stale.new[order[at]]
        values = current(new)
        empty[at] = np.logical_and.reduce([np.asarray(array.is_null()) for array in values])
        if not empty[at].all():
            copies[at] = _equal(values, before(old)) | _equal(values, staged(old))
    return stale.new[order][copies & ~empty], int((copies | empty).sum())


def values_in(rows: SnapshotRows, fragment_id: int, targets: pa.Schema) -> Values:
    """Returns a reader of target columns of a fragment, with NULL for absent columns."""
    table_names = frozenset(rows.dataset.schema.names)
    names = tuple(name for name in targets.names if name in table_names)

    def read(offsets: Offsets) -> list[pa.Array[Any]]:
        columns = dict(
            zip(names, read_rows(rows, fragment_id, names, offsets) if names else (), strict=True)
        )
        return [columns.get(field.name, pa.nulls(len(offsets), field.type)) for field in targets]

    return read


def _equal(values: Sequence[pa.Array[Any]], expected: Sequence[pa.Array[Any]]) -> NDArray[np.bool_]:
    """Returns a mask of the rows with equal values in all columns."""
    equal: NDArray[np.bool_] = np.logical_and.reduce(list(map(equal_values, values, expected)))
    return equal
