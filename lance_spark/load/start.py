"""Prepares a load: validates, adds new columns, and returns the job. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.planning.planner import PreparedBackfill, prepare
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.load.columns import add_new_columns, check_keys_of, new_columns_of
from lance_spark.load.definition import define_load
from lance_spark.load.keys import check_all_match, check_source_keys
from lance_spark.load.plan import LoadPlan
from lance_spark.load.request import LoadRequest
from lance_spark.load.source_alignment import SourceAlignment
from lance_spark.load.sources import DataSource, FileSource, Source, release_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load of columns into a table: the request and the source.

    Attributes:
        slots: Known number of running tasks.
    """

    ref: DatasetRef
    table_name: str
    source: Source
    request: LoadRequest
    slots: int

    def plan(self) -> LoadPlan:
        """Returns the plan, after all checks without reads of rows.

        Raises:
            ColumnNotFoundError, SourceKeysError, SchemaMismatchError, UnsupportedTypeError,
                ColumnExistsError: The load is not valid.
        """
        dataset, request, source = self.ref.open_latest(), self.request, self.source
        check_keys_of(dataset, source, request)
        new = new_columns_of(dataset, source, request)
        fragments = [handle.metadata for handle in dataset.get_fragments()]
        return LoadPlan(
            table_name=self.table_name,
            table_uri=self.ref.uri,
            version=dataset.version,
            source=source.name,
            source_format=source.format,
            source_rows=source.rows,
            source_bytes=source.stored_bytes,
            keys=request.keys,
            columns=request.columns,
            new_columns=tuple(new.names),
            on_missing=request.on_missing,
            total_rows=dataset.count_rows(),
            total_fragments=sum(fragment.num_rows > 0 for fragment in fragments),
            shuffles=self._alignment(dataset) is None,
        )

    def prepare(
        self,
        spark: SparkSession,
        read: Callable[[Sequence[str], int], DataFrame],
        *,
        checkpoints: str | None,
    ) -> PreparedBackfill:
        """Validates the load, adds new columns, and returns a job, ready to run.

        `read` reads columns of a version of the table.

        Raises:
            As :meth:`plan`. SourceKeysError for duplicate or NULL keys of the source, or for rows
            without a match if `on_missing` is `error`. Nothing was changed.
        """
        dataset, request, source = self.ref.open_latest(), self.request, self.source
        check_keys_of(dataset, source, request)
        new = new_columns_of(dataset, source, request)
        refuse_unsafe_store(self.ref.uri, self.ref.storage, allow=allowed_by_environment())
        if isinstance(source, DataSource):
            source = source.stage(self.ref, (*request.keys, *request.columns))
        try:
            keys = source.frame(spark, request.keys, along=request.columns)
            check_source_keys(keys, request.keys, source.name)
            if request.on_missing == "error":
                check_all_match(
                    read(request.keys, dataset.version),
                    keys,
                    request.keys,
                    (self.ref.uri, source.name),
                )
            source.refuse_changed()
            alignment = self._alignment(dataset)
            add_new_columns(self.ref, new)
            return prepare(
                self.ref,
                request.job,
                checkpoints=checkpoints,
                define=lambda _, dataset, __: define_load(source, request, dataset, alignment),
            )
        except BaseException:
            release_source(source)
            raise

    def _alignment(self, dataset: lance.LanceDataset) -> SourceAlignment | None:
        if not isinstance(self.source, FileSource):
            return None
        return self.source.alignment(
            dataset, self.request.keys[0], self.request.columns, self.slots
        )
