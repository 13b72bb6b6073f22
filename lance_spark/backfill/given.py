"""Values that somebody gave some of several siblings while a job ran: they stay, cell by cell. Runs on executors.

A row without a value in one of the columns gets all of them computed, and so does one whose inputs changed. A cell that somebody filled
meanwhile keeps what it has. What it had when the job began, and what the job itself has put there, is none of somebody's: an update copies it
along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.backfill.followed import among, field_of, own_moves
from lance_spark.backfill.planning.selection import has_values, without
from lance_spark.backfill.reuse.value_finder import Finder
from lance_spark.backfill.task.messages import BackfillSpec, FollowSpec
from lance_spark.rebase.changed_inputs import read_rows
from lance_spark.rows.merge import Offsets, no_rows
from lance_spark.rows.row_addresses import SnapshotRows, equal_values
from lance_spark.types.layout import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance.fragment import LanceFragment


def given_to(spec: BackfillSpec, finder: Finder, rows: SnapshotRows, fragment: LanceFragment) -> Given | None:
    """Returns what finds such cells of a fragment; None where there are none to keep: a filter's rows are the job's, and blobs cannot be compared."""
    if spec.follow is None or len(spec.outputs) == 1 or spec.where is not None or spec.recomputes or spec.targets.blobs:
        return None
    return Given(spec, spec.follow, finder, rows, fragment)


class Given:
    """Finds such cells of one fragment. Memory: a chunk of the columns, twice."""

    def __init__(
        self, spec: BackfillSpec, follow: FollowSpec, finder: Finder, rows: SnapshotRows, fragment: LanceFragment
    ) -> None:
        self._spec = spec
        self._follow = follow
        self._finder = finder
        self._rows = rows
        self._fragment = fragment
        self._names = tuple(column for _, column in spec.outputs)

    def keep(self, offsets: Offsets, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns what is to be written of computed values.

        Args:
            offsets: The rows, ascending.
            batch: Their values, a column per sibling.
        """
        now = read_rows(self._rows, self._fragment.fragment_id, self._names, offsets)
        given = np.stack([~np.asarray(array.is_null()) for array in now], axis=1)
        if not given.any():
            return batch
        given &= ~self._is_old(offsets, now)
        columns = []
        for array, there, mask in zip(batch.columns, now, given.T, strict=True):
            chosen: Any = np.arange(len(mask)) + np.where(mask, len(mask), 0)
            columns.append(aligned(pa.concat_arrays([array, there]).take(chosen)) if mask.any() else array)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _is_old(self, offsets: Offsets, now: Sequence[pa.Array[Any]]) -> NDArray[np.bool_]:
        """Tells which cells have what the job has computed, or what they had when it began; and those of which nobody knows that any more."""
        old = np.zeros((len(offsets), len(now)), dtype=np.bool_)
        for _, origin, moved in own_moves(self._spec, self._fragment, self._finder):
            part = among(moved, offsets)
            rows, values = self._finder.values_of(origin.fragment, part) if len(part.old) else (no_rows(), None)
            old[np.searchsorted(offsets, without(np.sort(part.new), rows))] = True
            if values is not None and len(rows):
                computed = [field_of(values, field) for field, _ in self._spec.outputs]
                self._compare(old, np.searchsorted(offsets, rows), computed, now)
        for origin in self._finder.found(self._fragment.metadata, self._follow.version).origins:
            part = among(origin.moved, offsets)
            if len(part.old) and has_values(origin.fragment, self._spec.target_ids):
                at = np.searchsorted(offsets, part.new)
                before = self._finder.values_before(self._follow.version, origin.fragment.id, part.old)
                if before is None:
                    old[at] = True
                else:
                    self._compare(old, at, before, now)
        return old

    @staticmethod
    def _compare(
        old: NDArray[np.bool_], at: Offsets, values: Sequence[pa.Array[Any]], now: Sequence[pa.Array[Any]]
    ) -> None:
        rows: Any = at
        for i, (array, there) in enumerate(zip(values, now, strict=True)):
            old[at, i] |= equal_values(array, there.take(rows))
