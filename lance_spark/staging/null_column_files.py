"""Column files without new values, staged by a commit next to the tasks' files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.changes import StagedColumns
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.area import Staging, missing_data_files
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import ColumnFile, Targets

if TYPE_CHECKING:
    import lance


class NullColumnFiles:
    """Stages files of old values or NULLs; a :class:`~lance_spark.commit.protocols.Stage`.

    Versions may name these files, even if the job as a whole committed nothing.
    """

    def __init__(self, staging: Staging, file_format: str) -> None:
        self.names: list[str] = []
        self._staging = staging
        self._format = file_format

    def restore(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Writes a file with the columns' values in a version's fragment."""
        return self._write(dataset, fragment_id, columns, tuple(columns))

    def blank(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Writes a file in which columns of a version's fragment are NULL."""
        return self._write(dataset, fragment_id, columns, ())

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns the names of absent data files."""
        return missing_data_files(self._staging.uri, self._staging.storage_options, names)

    def _write(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str], existing: tuple[str, ...]
    ) -> StagedColumns:
        schema = pa.schema([row_field(dataset.schema.field(name)) for name in columns])
        targets = Targets(schema=schema, existing=existing, format=self._format)
        rows = SnapshotRows(dataset)
        fragment = rows.fragment(fragment_id)
        if fragment is None:
            raise KeyError(fragment_id)
        staged = ColumnFile(self._staging.begin_attempt(), rows, fragment, targets).close().staged
        self.names.append(staged.name)
        return staged
