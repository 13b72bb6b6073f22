"""Blobs by row id: a part of a table's facade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.errors import ColumnNotFoundError, OptionError
from lance_spark.read.blob_frames import open_blobs, read_blobs
from lance_spark.read.columns import ROW_ID
from lance_spark.search.take import row_numbers
from lance_spark.table.versions import TableVersions
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance


class TableBlobs(TableVersions):
    """The methods of :class:`lance_spark.Table` that read blobs by row id."""

    def fetch_blobs(self, column: str, row_ids: Sequence[int] | pa.Table) -> pa.LargeBinaryArray:
        """Returns the bytes of the blobs of some rows, in the memory of this process.

        Args:
            column: The blob column.
            row_ids: The values of `_rowid`, or the result of a query with this column.

        Returns:
            An array of `large_binary` in the order of the ids.

        Raises:
            OptionError: The column holds no blobs, or a row id is unknown.
            ColumnNotFoundError: The table has no such column.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
            db = lance_spark.connect("library")
            rows = [{"image": b"one"}, {"image": b"two"}]
            scans = db.create_table("scans", rows, schema=pa.schema([blob]))
            hits = scans.search().with_row_id().limit(1).to_arrow()
            assert scans.fetch_blobs("image", hits).to_pylist() == [b"one"]
            ```
        """
        dataset = self._shown.open()
        return pa.array(
            read_blobs(dataset, self._blob_column(dataset, column), _ids_of(row_ids)),
            pa.large_binary(),
        )

    def fetch_blob_files(
        self, column: str, row_ids: Sequence[int] | pa.Table
    ) -> list[lance.BlobFile | None]:
        """Returns the blobs of some rows as files, which read their bytes on request.

        The parameters and errors are those of :meth:`fetch_blobs`. A NULL blob is None.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
            db = lance_spark.connect("library")
            rows = [{"image": b"one"}, {"image": b"two"}]
            scans = db.create_table("scans", rows, schema=pa.schema([blob]))
            hits = scans.search().with_row_id().limit(1).to_arrow()
            (file,) = scans.fetch_blob_files("image", hits)
            file.seek(1)
            assert file.read() == b"ne"
            ```
        """
        dataset = self._shown.open()
        return open_blobs(dataset, self._blob_column(dataset, column), _ids_of(row_ids))

    def _blob_column(self, dataset: lance.LanceDataset, column: str) -> str:
        schema = dataset.schema
        if column not in schema.names:
            raise ColumnNotFoundError(
                column, self.uri, hint=f"its columns are {', '.join(schema.names)}"
            )
        if not is_blob(schema.field(column)):
            raise OptionError(
                "column", column, "a blob column", problem=f"has {schema.field(column).type}"
            )
        return column


def _ids_of(row_ids: Sequence[int] | pa.Table) -> tuple[int, ...]:
    if not isinstance(row_ids, pa.Table):
        return row_numbers("row_ids", row_ids)
    if ROW_ID not in row_ids.schema.names:
        raise OptionError(
            "row_ids", row_ids, f"a result with {ROW_ID}: call with_row_id() of the query"
        )
    return row_numbers("row_ids", row_ids[ROW_ID].to_numpy().tolist())
