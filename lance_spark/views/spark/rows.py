"""The rows of a view with a query of Spark: tasks read, Spark selects, and the same tasks write.

New and changed rows of the source are Arrow batches of the used columns, with row ids. Spark
selects and computes. The rest of the same task writes fragments of the view. These fragments belong
to no version yet. Memory: some batches, and 24 bytes a row of a single fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.spark_jobs.tasks import ANSWER, answer, task_numbers
from lance_spark.types import ReadConverter, WriteConverter, to_spark_schema
from lance_spark.types.fields import quote_identifier
from lance_spark.views.definition import SOURCE_ROW_ID, ViewDefinition
from lance_spark.views.placement import PlacementSpec, RefreshTaskResult, SourceRows
from lance_spark.views.spark.form import ROW_ID, SparkForm
from lance_spark.views.spark.query import check_stored_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRows:
    """The query of Spark for the rows of a view. Belongs to the driver.

    Attributes:
        spec: The common data of the tasks of the refresh; its columns are the columns of the query.
        names: Names of all columns of the query, in order.
        used: The used columns of the source.
    """

    spec: PlacementSpec
    form: SparkForm
    names: tuple[str, ...]
    used: tuple[str, ...]

    @staticmethod
    def of(spec: PlacementSpec, definition: ViewDefinition, form: SparkForm) -> SparkRows:
        """Returns the query of a view."""
        used = tuple(field.name for field in definition.used)
        return SparkRows(spec=spec, form=form, names=definition.columns, used=used)

    def answers(self, spark: SparkSession, packs: Sequence[tuple[int, ...]]) -> DataFrame:
        """Returns the answers of tasks that write the view's rows; a task per pack of fragments.

        Raises:
            ViewError: The session has other settings, and cannot have the settings of the view.
        """
        session = self.form.session(spark, self.spec.view.uri)
        reads = ReadRows(spec=self._reading(), packs=tuple(packs), columns=self._columns())
        read = session.range(0, len(packs), 1, len(packs)).mapInArrow(reads, reads.columns)
        rows = self.form.over(read, ROW_ID).toDF(SOURCE_ROW_ID, *self.names)
        columns = [sf.expr(text).alias(name) for name, text in self.spec.columns]
        rows = rows.select(SOURCE_ROW_ID, *columns)
        return rows.mapInArrow(WriteRows(spec=self.spec, columns=rows.schema), ANSWER)

    def check(self, spark: SparkSession) -> None:
        """Checks the query before anything is read.

        Raises:
            ViewError: The query cannot be a view, or needs a session with other settings.
        """
        session = self.form.session(spark, self.spec.view.uri)
        check_stored_query(
            self.form, session.createDataFrame([], self._columns()), self.spec.view.uri
        )

    def _reading(self) -> PlacementSpec:
        return replace(
            self.spec,
            columns=tuple((name, quote_identifier(name)) for name in self.used),
            where=None,
        )

    def _columns(self) -> StructType:
        schema = self.spec.source.open().schema
        fields = to_spark_schema(pa.schema([schema.field(name) for name in self.used])).fields
        return StructType(
            [
                StructField(ROW_ID, LongType(), False),
                *(StructField(field.name, field.dataType, True) for field in fields),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Reads new and changed rows of the source; a callable for `mapInArrow` over task numbers."""

    spec: PlacementSpec
    packs: tuple[tuple[int, ...], ...]
    columns: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the tasks with the given numbers."""
        source = SourceRows(self.spec)
        converter: ReadConverter | None = None
        for number in task_numbers(batches):
            for fragment in self.packs[number]:
                since = source.since_base(fragment)
                rows = since.new | since.changed
                for batch in source.scan(fragment, rows) if rows else ():
                    converter = converter or ReadConverter(batch.schema, self.columns)
                    yield from converter.convert_split(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRows:
    """Writes rows as fragments of the view; a callable for `mapInArrow`."""

    spec: PlacementSpec
    columns: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes all rows, and yields a single result."""
        result = RefreshTaskResult()
        converter = WriteConverter(self.columns, self.spec.placed.row_schema)
        with self.spec.write_fragments(self.spec.placed, result) as sink:
            for batch in batches:
                sink.write(converter.convert(batch))
                result.added += batch.num_rows
        yield answer(result)
