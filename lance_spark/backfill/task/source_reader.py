"""The inputs of a job: columns of its table, or columns of a view's source by row ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import plain, take_known_rows
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, SnapshotRows

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

_ROW = "__row"
"""Internal column of batches: the address of the view's row."""

_FIRST_ROWS = 1024
_MOST_ROWS = 32_768
_TAKE_BYTES = 32 << 20
"""Target bytes of a read, estimated from the reads before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInputs:
    """The inputs of a job as columns of its own table. Picklable."""

    def table(self, spec: BackfillSpec) -> DatasetRef:
        """Returns the version of the table with the inputs."""
        return spec.snapshot

    def names(self, spec: BackfillSpec) -> tuple[str, ...]:
        """Returns the names of the input columns."""
        return tuple(column.name for column in spec.inputs)

    def reader(
        self, spec: BackfillSpec, rows: SnapshotRows, fragment: LanceFragment
    ) -> InputReader:
        """Returns the reader of the inputs of a fragment's rows."""
        columns, strategy = tuple(column.name for column in spec.inputs), spec.blob_strategy
        return InputReader(
            rows,
            fragment,
            columns,
            blob_strategy=strategy,
            blob_buffer_bytes=spec.blob_buffer_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInputs(TableInputs):
    """The inputs of a view's rows: columns of its source at a version.

    The inputs of the job's spec are the column with the ids of the source's rows.
    """

    source: DatasetRef
    columns: tuple[str, ...]

    def table(self, spec: BackfillSpec) -> DatasetRef:  # noqa: ARG002 - of the base
        """Returns the version of the source."""
        return self.source

    def names(self, spec: BackfillSpec) -> tuple[str, ...]:  # noqa: ARG002 - of the base
        """Returns the names of the source's columns."""
        return self.columns

    def reader(
        self, spec: BackfillSpec, rows: SnapshotRows, fragment: LanceFragment
    ) -> InputReader:
        """Returns the reader of the source's rows, by the row ids of a fragment of the view."""
        return SourceReader(spec, self, TableInputs().reader(spec, rows, fragment), fragment)


class SourceReader(InputReader):
    """Reads batches of columns of another table. Belongs to one thread. Memory: a few batches.

    Reads of adjacent rows of the source are about as fast as a scan.
    """

    def __init__(
        self,
        spec: BackfillSpec,
        inputs: SourceInputs,
        row_ids: InputReader,
        fragment: LanceFragment,
    ) -> None:
        """Takes the reader of the column of row ids in the view's fragment."""
        super().__init__(
            SnapshotRows(inputs.source.open()),
            fragment,
            inputs.columns,
            blob_strategy=spec.blob_strategy,
            blob_buffer_bytes=spec.blob_buffer_bytes,
        )
        self._row_ids = row_ids

    def _addresses(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        """Returns the addresses of a batch's rows in the view."""
        return batch.column(_ROW)

    def _scan(self, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        most = _FIRST_ROWS
        for batch in self._row_ids.batches(offsets, _MOST_ROWS):
            ids, rows = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
            first = 0
            while first < len(ids):
                table = take_ids(
                    self._dataset,
                    ids[first : first + most],
                    {name: f"`{name}`" for name in self._scanned},
                )
                table = table.append_column(
                    _ROW, pa.array(rows[first : first + most])
                ).combine_chunks()
                yield from table.to_batches()
                first += len(table)
                most = min(_MOST_ROWS, max(1, _TAKE_BYTES * len(table) // max(1, table.nbytes)))


def take_ids(dataset: lance.LanceDataset, ids: np.ndarray, columns: dict[str, str]) -> pa.Table:
    """Returns expressions over the rows of some row ids, in their order, with addresses.

    Raises:
        TableUnreadableError: A row does not exist, or cannot be read.
    """
    try:
        with panics_as_errors():
            table = take_known_rows(
                dataset, ids.tolist(), {**columns, ROW_ID: ROW_ID, ROW_ADDRESS: ROW_ADDRESS}
            )
    except (ValueError, OSError, RuntimeError) as error:
        hint = "a data file is missing or damaged, or the store refused: check the storage"
        raise TableUnreadableError(
            dataset.uri, f"{plain(error)} (version {dataset.version})", hint=hint
        ) from error
    if not np.array_equal(table.column(ROW_ID).to_numpy(), ids.astype(np.uint64)):
        raise TableUnreadableError(
            dataset.uri,
            f"rows that the view has are not in version {dataset.version} of its source",
            hint="refresh the view: rows are added to it by refreshes alone",
        )
    return table.drop_columns([ROW_ID])
