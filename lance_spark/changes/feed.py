"""Values of changed rows as batches for Spark: :class:`ChangeFeed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from lance_spark.changes.errors import ChangeFeedError
from lance_spark.changes.options import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from lance_spark.changes.plan import StepPart
from lance_spark.changes.ready_rows import ReadyColumns
from lance_spark.changes.rows import (
    CHANGE_TYPES,
    ChangedRows,
    ChangeType,
    RowFinder,
    RowQuery,
    VersionRows,
)
from lance_spark.changes.steps import FeedStep
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.options.io_options import ReadOptions
from lance_spark.read.columns import META_COLUMNS, ROW_ID, table_schema
from lance_spark.read.filtering import check_filter
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.row_addresses import row_ids
from lance_spark.types import ReadConverter
from lance_spark.types.fields import scan_field

_CHANGE_FIELDS = (
    StructField(CHANGE_TYPE, StringType(), False),
    StructField(COMMIT_VERSION, LongType(), False),
    StructField(COMMIT_TIMESTAMP, TimestampType(), False),
)
_BATCH_ROWS = 8192
_BLOB_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFeed:
    """The columns and the rows of a feed. A picklable value for tasks.

    Attributes:
        columns: Names of the columns, as Lance reads them at the version of the feed.
        fields: Their fields.
        filter: Filter in Lance SQL, or None.
        with_row_id: Whether the feed has row ids.
        as_updates: Whether changed rows are updates; otherwise deletes and inserts.
        describes: Whether the feed has the columns of the change, its version and its time.
        kinds: The kinds of changes to read.
        ready: Columns that make a new row ready; None reads a row when the row is inserted.
    """

    columns: tuple[str, ...]
    fields: pa.Schema
    filter: str | None = None
    with_row_id: bool = False
    as_updates: bool = True
    describes: bool = True
    kinds: tuple[ChangeType, ...] = CHANGE_TYPES
    ready: ReadyColumns | None = None

    @property
    def compared(self) -> tuple[str, ...] | None:
        """Columns whose files tell whether a fragment is read; None for all columns.

        The filter may use any column. A new row is new regardless of its values.
        """
        if not self.describes:
            return () if self.ready is None else self.ready.names
        return self.columns if self.filter is None else None

    @property
    def query(self) -> RowQuery:
        """The changes to find."""
        return RowQuery(
            columns=self.columns, filter=self.filter, kinds=self.kinds, ready=self.ready
        )

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every version of a stream must have."""
        return self.columns if self.ready is None else (*self.columns, *self.ready.names)

    def batches(self, parts: Sequence[StepPart], schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yields the changed rows of parts, in the Arrow types of Spark. Runs on an executor.

        Raises:
            TableUnreadableError: A file of a version is missing or damaged.
            FilterError: The filter fails on a value, or a version lacks a column of the filter.
            ChangeFeedError: An old value does not fit the type of its column.
            ValueConversionError: A value does not fit Spark's type.
        """
        converter: ReadConverter | None = None
        finder: RowFinder | None = None
        last: FeedStep | None = None
        for part in parts:
            if finder is None or part.step != last:
                finder, last = RowFinder(part.step, self.query, part.lineage), part.step
            for change in finder.find(part):
                version = finder.after if change.is_new else finder.before
                for batch in self._values(version or finder.after, change, part.step):
                    converter = converter or ReadConverter(batch.schema, schema)
                    yield from converter.convert_split(batch)

    def _values(
        self, version: VersionRows, change: ChangedRows, step: FeedStep
    ) -> Iterator[pa.RecordBatch]:
        fragment = version.rows.existing_fragment(change.fragment_id)
        offsets = change.rows.to_numpy()
        ids = row_ids(fragment, offsets) if self.with_row_id else None
        names = tuple(name for name in self.columns if name in version.dataset.schema.names)
        reader = InputReader(
            version.rows, fragment, names, blob_strategy="auto", blob_buffer_bytes=_BLOB_BYTES
        )
        first = 0
        for batch in reader.batches(offsets, _BATCH_ROWS):
            arrays = self._arrays(batch, version)
            fields = list(self.fields)
            if ids is not None:
                arrays.append(pa.array(ids[first : first + batch.num_rows].astype(np.int64)))
                fields.append(pa.field(ROW_ID, pa.int64()))
            if self.describes:
                arrays += self._description(change.kind, step, batch.num_rows)
                fields += _DESCRIPTION
            first += batch.num_rows
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _arrays(self, batch: pa.RecordBatch, version: VersionRows) -> list[pa.Array[Any]]:
        arrays = []
        for field in self.fields:
            if field.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            values = batch.column(field.name)
            arrays.append(values if values.type == field.type else _cast(values, field, version))
        return arrays

    def _description(self, kind: ChangeType, step: FeedStep, rows: int) -> list[pa.Array[Any]]:
        if not self.as_updates:
            kind = {"update_preimage": "delete", "update_postimage": "insert"}.get(kind, kind)  # type: ignore[assignment]
        values = (kind, step.after.version, step.moment)
        return [
            pa.repeat(pa.scalar(value, field.type), rows)
            for value, field in zip(values, _DESCRIPTION, strict=True)
        ]


_DESCRIPTION: tuple[pa.Field[Any], ...] = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"), nullable=False),
)


def make_feed(
    ref: DatasetRef,
    *,
    columns: tuple[str, ...] | None,
    filter: str | None,
    with_row_id: bool,
    as_updates: bool,
    describes: bool,
    ready_columns: tuple[str, ...] | None = None,
) -> tuple[ChangeFeed, StructType]:
    """Returns the feed with the columns of a version, and its columns in Spark. Runs on the driver.

    Raises:
        ColumnNotFoundError, FilterError, UnsupportedTypeError: As in a plain load.
        OptionError: A column has the name of a column of the feed, or the ready columns belong to
            several UDFs.
    """
    dataset = ref.open()
    options = ReadOptions(
        path=ref.uri, columns=columns, with_row_id=with_row_id, blob_handling="bytes"
    )
    if filter is not None:
        check_filter(dataset, filter, ref.uri, "bytes")
    fields = table_schema(dataset, ref, options).fields
    names = tuple(field.name for field in fields if field.name not in META_COLUMNS)
    _check_names(columns or (), names if describes else ())
    # A version before a column was added has NULL.
    spark_fields = [StructField(f.name, f.dataType, True, f.metadata) for f in fields]
    feed = ChangeFeed(
        columns=names,
        fields=pa.schema(
            [scan_field(dataset.schema.field(name), "bytes").with_nullable(True) for name in names]
        ),
        filter=filter,
        with_row_id=with_row_id,
        as_updates=as_updates,
        describes=describes,
        kinds=CHANGE_TYPES if describes else ("insert",),
        ready=None if ready_columns is None else ReadyColumns.of(dataset, ready_columns),
    )
    return feed, StructType([*spark_fields, *(_CHANGE_FIELDS if describes else ())])


def _check_names(requested: Sequence[str], names: Sequence[str]) -> None:
    """Checks that no column has the name of a column of Lance or of the feed."""
    if any(name.lower() in META_COLUMNS for name in requested):
        raise OptionError(
            "columns", ", ".join(requested), "columns of the table, and the option with_row_id"
        )
    reserved_names = sorted(
        {field.name for field in _CHANGE_FIELDS} & {name.lower() for name in names}
    )
    if reserved_names:
        raise OptionError(
            "columns",
            ", ".join(names),
            f"columns other than {', '.join(reserved_names)}, names of the feed",
        )


def _cast(values: pa.Array[Any], field: pa.Field[Any], version: VersionRows) -> pa.Array[Any]:
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        number = version.dataset.version
        raise ChangeFeedError(
            f"Values of column {field.name!r} in version {number} of {version.dataset.uri} do not fit its later type "
            f"{field.type}: {error}. Begin the feed after version {number}, or leave the column out with the option "
            "columns.",
            uri=version.dataset.uri,
            version=number,
        ) from error
