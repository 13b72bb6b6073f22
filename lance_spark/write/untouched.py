"""Column files in which no row gets a new value: what a commit stages beside the files of the tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.snapshot import open_snapshot
from lance_spark.dataset import DatasetRef
from lance_spark.write.addresses import SnapshotRows
from lance_spark.write.column_file import ColumnFile, Targets
from lance_spark.write.staging import Staging


class UntouchedFiles:
    """Stages files of old values, or of NULLs, for :func:`~lance_spark.commit.columns.commit_columns`.

    Attributes:
        names: Names of the files that were staged. Versions may name them, also where the job as a whole committed nothing.
    """

    def __init__(self, staging: Staging, snapshot: DatasetRef, targets: Targets) -> None:
        self.names: list[str] = []
        self._staging = staging
        self._snapshot = snapshot
        self._targets = targets

    def restore(self, fragment_id: int) -> StagedColumns:
        """Writes a file with the values that a fragment's target columns had in the snapshot."""
        return self._write(fragment_id, self._targets)

    def blank(self, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Writes a file in which some of the target columns are NULL."""
        schema = pa.schema([self._targets.schema.field(name) for name in columns])
        return self._write(fragment_id, Targets(schema=schema, existing=(), format=self._targets.format))

    def _write(self, fragment_id: int, targets: Targets) -> StagedColumns:
        rows = SnapshotRows(open_snapshot(self._snapshot))
        fragment = rows.fragment(fragment_id)
        if fragment is None:
            raise KeyError(fragment_id)
        staged = ColumnFile(self._staging.begin_attempt(), rows, fragment, targets).close().staged
        self.names.append(staged.name)
        return staged
