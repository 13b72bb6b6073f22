"""Finds rows whose values differ from an older version.

Streams the compared columns. Memory: a few batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.errors import TableUnreadableError
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.merge import Offsets, RowMapping
from lance_spark.rows.row_addresses import SnapshotRows, equal_values
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance

_ROWS = 2048
_BLOB_ROWS = 16
_BLOB_BYTES = 128 << 20


def changed_rows(
    base: SnapshotRows,
    base_id: int,
    head: SnapshotRows,
    head_id: int,
    mapping: RowMapping,
    columns: Sequence[FieldIdentity],
    *,
    by_name: bool = False,
) -> NDArray[np.bool_]:
    """Returns a mask of the rows with a changed value in any of the columns.

    Rows of the fragment `base_id` of an older version are live rows of `head_id` in a newer
    version. NULL equals NULL, and NaN equals NaN. A row deleted in the older version and restored
    since counts as changed.

    Columns are matched by field id. A column dropped since the older version cannot have changed. A
    column cast, recreated or added since then counts as changed. With `by_name`, both versions have
    the columns under these names, and values of another type are cast to the newer type.

    Raises:
        TableUnreadableError: A file of the older version was deleted, or a file is damaged.
    """
    pairs = (
        [(column.name, column.name) for column in columns]
        if by_name
        else _column_pairs(base.dataset, head.dataset, columns)
    )
    if pairs is None:
        return np.ones(len(mapping.old), dtype=np.bool_)
    if not pairs or not len(mapping.old):
        return np.zeros(len(mapping.old), dtype=np.bool_)
    deleted = base.deleted(base_id)
    changed = (
        np.zeros(len(mapping.old), dtype=np.bool_) if deleted is None else deleted[mapping.old]
    )
    live = RowMapping(old=mapping.old[~changed], new=mapping.new[~changed])
    changed[~changed] = _changed_live(base, base_id, head, head_id, live, pairs)
    return changed


def _changed_live(
    base: SnapshotRows,
    base_id: int,
    head: SnapshotRows,
    head_id: int,
    mapping: RowMapping,
    pairs: Sequence[tuple[str, str]],
) -> NDArray[np.bool_]:
    """Compares rows that are live in both versions. `pairs` are the names in both versions."""
    old_names, new_names = (tuple(names) for names in zip(*pairs, strict=True))
    count = len(mapping.old)
    changed = np.zeros(count, dtype=np.bool_)
    schema = head.dataset.schema
    rows = _BLOB_ROWS if any(is_blob(schema.field(name)) for name in new_names) else _ROWS
    # Each side reads in the order of its own rows. Rows in another order are read in chunks of
    # their new order.
    order = np.argsort(mapping.new, kind="stable")
    ordered = bool((order[1:] > order[:-1]).all())
    after = _Reader(head, head_id, new_names, mapping.new[order], rows)
    before = _Reader(base, base_id, old_names, mapping.old, rows) if ordered else None
    for first in range(0, count, rows):
        part = order[first : first + rows]
        new = after.take(len(part))
        old = (
            before.take(len(part))
            if before is not None
            else read_rows(base, base_id, old_names, mapping.old[part])
        )
        for old_values, new_values in zip(old, new, strict=True):
            changed[part] |= ~_equal(old_values, new_values)
    return changed


def _equal(old: pa.Array[Any], new: pa.Array[Any]) -> NDArray[np.bool_]:
    """Compares values. A value that the newer type cannot hold counts as changed."""
    try:
        return equal_values(old if old.type == new.type else old.cast(new.type), new)
    except pa.ArrowException:
        if len(old) == 1:
            return np.zeros(1, dtype=np.bool_)
    middle = len(old) // 2
    return np.concatenate([_equal(old[:middle], new[:middle]), _equal(old[middle:], new[middle:])])


def _column_pairs(
    base: lance.LanceDataset, head: lance.LanceDataset, columns: Sequence[FieldIdentity]
) -> list[tuple[str, str]] | None:
    """Returns the column names in both versions, or None if a column cannot be compared."""
    old_columns, new_columns = _columns_by_id(base), _columns_by_id(head)
    pairs = []
    for number in dict.fromkeys(column.id for column in columns):
        old, new = old_columns.get(number), new_columns.get(number)
        if new is None:
            if old is not None and any(column.name == old.name for column in new_columns.values()):
                return None  # The column was cast or recreated.
            continue
        if old is None or old.type != new.type:
            return None
        pairs.append((old.name, new.name))
    return pairs


def _columns_by_id(dataset: lance.LanceDataset) -> dict[int, FieldIdentity]:
    return {column.id: column for column in field_identities(dataset.lance_schema)}


def read_rows(
    rows: SnapshotRows, fragment_id: int, columns: tuple[str, ...], offsets: Offsets
) -> list[pa.Array[Any]]:
    """Reads columns of a few live rows of a fragment at once, in any order."""
    ascending = np.sort(offsets)
    arrays = _Reader(rows, fragment_id, columns, ascending, _ROWS).take(len(offsets))
    if (ascending == offsets).all():
        return arrays
    at: Any = np.searchsorted(ascending, offsets)
    return [array.take(at) for array in arrays]


class _Reader:
    """Reads columns of the rows of a fragment, in chunks of requested sizes."""

    def __init__(
        self,
        rows: SnapshotRows,
        fragment_id: int,
        columns: tuple[str, ...],
        offsets: Offsets,
        chunk: int,
    ) -> None:
        self._rows, self._fragment_id, self._count = rows, fragment_id, len(columns)
        fragment = rows.existing_fragment(fragment_id)
        reader = InputReader(
            rows, fragment, columns, blob_strategy="auto", blob_buffer_bytes=_BLOB_BYTES
        )
        self._batches: Iterator[pa.RecordBatch] = reader.batches(offsets, chunk)

    def take(self, rows: int) -> list[pa.Array[Any]]:
        """Returns the next rows, an array per column."""
        parts: list[pa.RecordBatch] = []
        while (missing_rows := rows - sum(part.num_rows for part in parts)) > 0:
            batch = next(self._batches, None)
            if batch is None:
                raise TableUnreadableError(
                    self._rows.dataset.uri,
                    f"{missing_rows} rows of fragment {self._fragment_id} are not in version "
                    f"{self._rows.dataset.version}",
                    hint="open the table again",
                )
            parts.append(batch.slice(0, missing_rows))
            if batch.num_rows > missing_rows:
                self._batches = itertools.chain([batch.slice(missing_rows)], self._batches)
        return [pa.concat_arrays([part.column(i) for part in parts]) for i in range(self._count)]
