"""Column files that an update writes, fragment by fragment: on executors."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lance_spark.dml.answers import Answer
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import ColumnFile, Targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from lance_spark.staging.area import Attempt


class ColumnFiles:
    """The column files of fragments, one after the other. Belongs to one task."""

    def __init__(self, staging: Staging, rows: SnapshotRows, targets: Targets, answer: Answer) -> None:
        self._staging = staging
        self._rows = rows
        self._targets = targets
        self._answer = answer
        self._attempt: Attempt | None = None
        self._file: ColumnFile | None = None
        self._current = -1

    def append(self, fragment: int, offsets: np.ndarray, values: pa.RecordBatch) -> None:
        """Adds rows of a fragment, strictly ascending; another fragment closes the file before."""
        if fragment != self._current:
            self.close()
            self._current = fragment
            self._attempt = self._attempt or self._staging.begin_attempt()
            self._file = ColumnFile(self._attempt, self._rows, self._rows.existing_fragment(fragment), self._targets)
        assert self._file is not None
        self._file.append(offsets, values)

    def close(self) -> None:
        """Finishes the file that is open, and adds it to the answer."""
        if self._file is None:
            return
        written = self._file.close()
        self._file = None
        given = base64.b64encode(written.given.bitmap.serialize()).decode()
        self._answer.columns.append((self._current, written.staged.name, written.staged.size_bytes, given))
        self._answer.changed += written.rows

    def discard(self) -> None:
        """Gives up the file that is open, after an error."""
        if self._file is not None:
            self._file.discard()


def targets_of(dataset: lance.LanceDataset, columns: Sequence[str]) -> Targets:
    """Returns columns of a table as those that files replace."""
    schema = dataset.schema
    fields = [row_field(schema.field(name)) for name in schema.names if name in columns]
    names = tuple(field.name for field in fields)
    return Targets(schema=pa.schema(fields), existing=names, format=dataset.data_storage_version)
