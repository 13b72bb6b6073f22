"""Column files of an update, fragment by fragment. Runs on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lance_spark.dml.results import RowEditResult, WrittenColumnFile
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import ColumnFile, Targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from lance_spark.staging.attempt import Attempt


class ColumnFiles:
    """Writes the column files of fragments in sequence. Belongs to a task."""

    def __init__(
        self, staging: Staging, rows: SnapshotRows, targets: Targets, result: RowEditResult
    ) -> None:
        self._staging = staging
        self._rows = rows
        self._targets = targets
        self._result = result
        self._attempt: Attempt | None = None
        self._file: ColumnFile | None = None
        self._current = -1

    def append(self, fragment: int, offsets: np.ndarray, values: pa.RecordBatch) -> None:
        """Adds rows of a fragment, strictly ascending. A new fragment closes the last file."""
        if fragment != self._current:
            self.close()
            self._current = fragment
            self._attempt = self._attempt or self._staging.begin_attempt()
            self._file = ColumnFile(
                self._attempt, self._rows, self._rows.existing_fragment(fragment), self._targets
            )
        assert self._file is not None
        self._file.append(offsets, values)

    def close(self) -> None:
        """Finishes the open file, and adds it to the result."""
        if self._file is None:
            return
        closed_file = self._file.close()
        self._file = None
        rows = closed_file.given.bitmap.serialize()
        file = WrittenColumnFile(fragment_id=self._current, staged=closed_file.staged, rows=rows)
        self._result.columns.append(file)
        self._result.changed += closed_file.rows

    def discard(self) -> None:
        """Discards the open file after an error."""
        if self._file is not None:
            self._file.discard()


def targets_of(dataset: lance.LanceDataset, columns: Sequence[str]) -> Targets:
    """Returns columns of a table as targets of column files."""
    schema = dataset.schema
    chosen = frozenset(columns)
    fields = [row_field(field) for field in schema if field.name in chosen]
    names = tuple(field.name for field in fields)
    return Targets(schema=pa.schema(fields), existing=names, format=dataset.data_storage_version)
