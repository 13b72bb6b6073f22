"""Rows of a table: a part of its facade."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.changes import CommitNote
from lance_spark.commit.conflicts.history import find_write
from lance_spark.dml.results import ChangeResult
from lance_spark.errors import ColumnNotFoundError, OptionError
from lance_spark.ingest.rows import Data, write_rows
from lance_spark.ingest.streams import is_spark
from lance_spark.ingest.vectors import OnBadVectors, VectorRepair
from lance_spark.jvm.gateway import is_classic
from lance_spark.read.blob_frames import BlobColumns, BlobMode, check_blob_mode
from lance_spark.read.columns import ROW_ID, lance_blob_handling
from lance_spark.read.filtering import check_filter
from lance_spark.read.polars_frames import scan_frame
from lance_spark.read.ranking.ranking import read_scanner
from lance_spark.read.streams import stream_of
from lance_spark.table.preview import Preview
from lance_spark.table.versions import TableVersions
from lance_spark.types.fields import RESERVED, BlobHandling, refuse_unreadable, requested_columns
from lance_spark.types.pandas_values import to_pandas
from udf_runtime.arguments import is_whole_number

if TYPE_CHECKING:
    import lance
    import pandas as pd
    import polars as pl

_HEAD_ROWS = 5
_PREVIEW_ROWS = 10


class TableRows(TableVersions):
    """The methods of :class:`lance_spark.Table` that read and add rows."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the latest version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.schema.names == ["id", "price"]
            ```
        """
        return self.to_lance().schema

    @property
    def version(self) -> int:
        """The number of the latest version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.version == 1
            ```
        """
        return self.to_lance().version

    def to_lance(self) -> lance.LanceDataset:
        """Returns the checked out version, by default the latest, as a pylance dataset.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.to_lance().count_rows() == 10
            ```
        """
        return self._shown.open()

    def count_rows(self, filter: str | None = None) -> int:
        """Counts rows, by Lance in this process.

        Args:
            filter: Filter in Lance SQL, or None for all rows.

        Raises:
            FilterError: The filter is not valid.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.count_rows("price > 50") == 4
            ```
        """
        dataset = self.to_lance()
        if filter is not None:
            check_filter(dataset, filter, self.uri, "descriptor")
        return dataset.count_rows(filter)

    def __len__(self) -> int:
        """Returns the number of rows, as :meth:`count_rows` does."""
        return self.count_rows()

    def head(self, n: int = _HEAD_ROWS, *, blob_handling: BlobHandling = "descriptor") -> pa.Table:
        """Returns the first rows in the order of the table.

        Blobs are as in :meth:`to_arrow`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.head(2).to_pylist() == [{"id": 0, "price": 0}, {"id": 1, "price": 10}]
            ```
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise OptionError("n", n, "a number of rows, 0 or more")
        return (
            self.to_lance()
            .scanner(limit=n, blob_handling=lance_blob_handling(blob_handling))
            .to_table()
        )

    def to_spark(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        version: int | str | None = None,
    ) -> DataFrame:
        """Returns the table as a Spark DataFrame, pinned to one version.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.
            version: Version number of this branch, tag, `branch:number`, or a branch; None is the
                checked out version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.to_spark(["id"], filter="price > 50").count() == 4
            ```
        """
        reader = self._query_spark().read.format("lance")
        options = self._latest.storage_settings
        if columns is not None:
            options["columns"] = json.dumps(list(columns))
        if filter is not None:
            options["filter"] = filter
        if version is None and (
            self._shown.version is not None or not is_classic(self._query_spark())
        ):
            version = self.version  # over Connect a DataFrame is made where it is first used
        if version is not None:
            options["version"] = str(version)
        return reader.options(**options).load(self._shown.uri)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        blob_handling: BlobHandling = "descriptor",
    ) -> pa.Table:
        """Returns the table as Arrow, in the memory of this process.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.
            blob_handling: How blobs are returned: as their location (`descriptor`), or as `bytes`.

        Raises:
            FilterError: The filter is not valid.
            ColumnNotFoundError: The table has no such column.
            UnsupportedTypeError: Lance cannot read a column because of its name.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.to_arrow(["id"], "price > 80").to_pylist() == [{"id": 9}]
            ```
        """
        return self.to_batches(columns, filter, blob_handling=blob_handling).read_all()

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        batch_size: int | None = None,
        blob_handling: BlobHandling = "descriptor",
    ) -> pa.RecordBatchReader:
        """Returns the rows as a stream of Arrow batches. Lance reads them in this process.

        The memory holds a few batches. The stream reads one version of the table. A table is an
        Arrow stream itself, for all libraries with the Arrow PyCapsule interface.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.
            batch_size: Maximum number of rows per batch; None is Lance's default.
            blob_handling: As in :meth:`to_arrow`.

        Raises:
            OptionError: `batch_size` is not a positive integer.
            LanceSparkError: As in :meth:`to_arrow`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert sum(batch.num_rows for batch in books.to_batches(["id"], batch_size=4)) == 10
            ```
        """
        if batch_size is not None and (
            isinstance(batch_size, bool) or not is_whole_number(batch_size)
        ):
            raise OptionError("batch_size", batch_size, "a number of rows, 1 or more")
        return self._read(
            self.to_lance(), columns, filter, batch_size=batch_size, blob_handling=blob_handling
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def _read(
        self,
        dataset: lance.LanceDataset,
        columns: Sequence[str] | None,
        filter: str | None,
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        blob_handling: BlobHandling = "descriptor",
        with_row_id: bool = False,
    ) -> pa.RecordBatchReader:
        names, blobs = (
            None if columns is None else list(columns),
            lance_blob_handling(blob_handling),
        )
        requested = None if names is None else requested_columns(names)
        if filter is not None:
            check_filter(dataset, filter, self.uri, "descriptor")
        try:
            scanner = dataset.scanner(
                columns=requested,
                filter=filter,
                batch_size=batch_size,
                limit=limit,
                blob_handling=blobs,
                with_row_id=with_row_id,
            )
            schema = scanner.projected_schema
        except (ValueError, OSError):
            refuse_unreadable(dataset.schema.names if names is None else names, dataset.schema)
            self._refuse_missing(names or (), dataset)
            raise
        return stream_of(schema, read_scanner(scanner, dataset, filter), batch_size)

    def _refuse_missing(self, names: Sequence[str], dataset: lance.LanceDataset) -> None:
        table = dataset.schema.names
        for name in names:
            if {*table, *RESERVED}.isdisjoint((name, name.partition(".")[0])):
                raise ColumnNotFoundError(
                    name, self.uri, hint=f"its columns are {', '.join(table)}"
                ) from None

    def to_polars(
        self, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> pl.LazyFrame:
        """Returns the table as a lazy frame of Polars, pinned to one version.

        A query of the frame reads only its columns, batch by batch, in this process. Polars
        evaluates the conditions of the query. A `filter` uses the indexes of the table.

        Args:
            columns: Columns of the frame; None is all.
            filter: Filter in Lance SQL, or None for all rows.

        Raises:
            UnsupportedOperationError: Polars is not installed.
            LanceSparkError: As in :meth:`to_arrow`.

        Example:
            ```python
            import lance_spark
            import polars as pl

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            cheap = books.to_polars().filter(pl.col("price") < 30).select("id").collect()
            assert cheap["id"].to_list() == [0, 1, 2]
            ```
        """
        ref = self._shown if self._shown.version is not None else self._shown.pin(None)
        schema = self._read(ref.open(), columns, filter, limit=0).schema

        def read(
            names: Sequence[str] | None, limit: int | None, batch_size: int | None
        ) -> pa.RecordBatchReader:
            chosen = schema.names if names is None else names
            return self._read(ref.open(), chosen, filter, batch_size=batch_size, limit=limit)

        return scan_frame(schema, read)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        blob_mode: BlobMode | None = None,
        blob_handling: BlobHandling | None = None,
        **arguments: Any,  # noqa: ANN401 - arguments of PyArrow
    ) -> pd.DataFrame:
        """Returns the table as pandas, in the memory of this process.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.
            blob_mode: How blobs are returned: as files that read their bytes on request (`lazy`,
                the default), as `bytes`, or as their locations (`descriptions`). Blobs in structs
                are locations except with `bytes`.
            blob_handling: The names of :meth:`to_arrow`, in place of `blob_mode`.
            arguments: Arguments of `pyarrow.Table.to_pandas`.

        Raises:
            OptionError: A value for blobs is unknown, or both arguments have one.
            ValueConversionError: pandas cannot hold a date, timestamp or duration.
            LanceSparkError: As in :meth:`to_arrow`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.to_pandas()["price"].max() == 90
            ```
        """
        mode, dataset = check_blob_mode(blob_mode, blob_handling), self.to_lance()
        if mode == "bytes":
            return to_pandas(
                self._read(dataset, columns, filter, blob_handling="bytes").read_all(), arguments
            )
        names = None if columns is None else [(name, name) for name in columns]
        blobs = BlobColumns.of(dataset, names, mode)
        is_added = blobs is not None and ROW_ID not in (columns or ())
        rows = self._read(dataset, columns, filter, with_row_id=is_added).read_all()

        def convert(table: pa.Table) -> pd.DataFrame:
            return to_pandas(table.drop_columns([ROW_ID]) if is_added else table, arguments)

        return convert(rows) if blobs is None else blobs.to_pandas(rows, convert)

    def add(
        self,
        data: Data,
        mode: Literal["append", "overwrite"] = "append",
        on_bad_vectors: OnBadVectors = "error",
        fill_value: float = 0.0,
        *,
        commit_message: str | None = None,
        properties: Mapping[str, str] | None = None,
        txn_app_id: str | None = None,
        txn_version: int | None = None,
    ) -> ChangeResult:
        """Adds rows. Computed columns without data are NULL until a backfill fills them.

        Python, pandas and Arrow values are cast exactly to the types of the columns. A value that
        does not fit raises a ValueConversionError with column and row, and nothing is written.

        Args:
            data: A Spark DataFrame, which Spark's tasks write, or data that this process writes:
                Arrow of any library, also a stream, a pandas DataFrame, a list of dicts or pydantic
                models, or a dict of columns.
            mode: `append`, or `overwrite` for a version of only these rows.
            on_bad_vectors: What happens to a vector with NaN or of another length: `error`, `drop`
                leaves out its row, `fill` sets these numbers to `fill_value`, `null` makes the
                vector NULL. `error` ignores NaN in a Spark DataFrame, and Spark's tasks repair
                other vectors.
            fill_value: The number for `fill`.
            commit_message: Message of the version.
            properties: Properties of the version: texts by name.
            txn_app_id: Id of the application that writes each of its transactions once, such as the
                id of a streaming query. Needs `txn_version`.
            txn_version: Number of the transaction, such as the id of a micro-batch. The call
                returns the earlier result if the transaction was committed before.

        Returns:
            The version with the rows, and their number.

        Raises:
            TableNotFoundError: The table was dropped. Nothing was written.
            SchemaMismatchError: The data does not fit the table. Nothing was written.
            StreamRewoundError: The application has committed a later transaction.
            CommitConflictError: A concurrent writer dropped or changed a column of the data.
                Nothing was committed.
            CommitOutcomeUnknownError: The store did not answer.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            result = books.add([{"id": 10, "price": 100}], commit_message="one more")
            assert (result.rows_inserted, len(books)) == (1, 11)
            ```
        """
        if mode not in ("append", "overwrite"):
            raise OptionError("mode", mode, "append or overwrite")
        note = CommitNote.of(commit_message, properties, AppTransaction.of(txn_app_id, txn_version))
        ref = self._ref
        before = ref.open_latest()  # a write by location would create a dropped table again
        table = before.schema if mode == "append" else None
        repair = VectorRepair.of(on_bad_vectors, fill_value, table, is_new=table is None)
        rows = data if repair is None else repair.repair(data)
        if is_spark(data):
            write_id = uuid.uuid4().hex
            write_rows(ref, rows, mode=mode, note=note.with_write_id(write_id))
            commit = find_write(ref.open_latest(), write_id, after=before.version)
            if commit is None and note.transaction is not None:  # a repeated transaction
                commit = AppLedger(ref=ref, transaction=note.transaction).read_done()
        else:
            commit = write_rows(ref, rows, mode=mode, note=note)
        if commit is None:
            return ChangeResult(version=before.version)
        return ChangeResult(version=commit.version, rows_inserted=commit.rows)

    def preview(self, n: int = _PREVIEW_ROWS, columns: Sequence[str] | None = None) -> Preview:
        """Returns the first rows for a notebook, with images and vectors as pictures.

        Bytes and blobs of PNG, JPEG, GIF, WebP or BMP files are thumbnails if Pillow is installed,
        else images up to 64 KiB. At most 4 MiB of a blob are read, and a larger blob is shown by
        its size. Vectors of numbers are curves of at most 128 points. A terminal shows a table of
        text.

        Args:
            n: Rows, at most 100.
            columns: Columns; None shows all.

        Raises:
            OptionError: `n` is not between 1 and 100.
            ColumnNotFoundError: The table has no such column.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            print(books.preview(3))
            ```
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= Preview.MOST_ROWS:
            raise OptionError("n", n, f"a number of rows, from 1 to {Preview.MOST_ROWS}")
        dataset = self.to_lance()
        names = dataset.schema.names
        for name in columns or ():
            if name not in names:
                raise ColumnNotFoundError(
                    name, self.uri, hint=f"its columns are {', '.join(names)}"
                )
        return Preview.of(self.name, dataset, n, list(columns or names))
