"""A table's rows: reading them in every form that people want, and adding to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaMismatchError,
    TableExistsError,
    panics_as_errors,
)
from lance_spark.read.filtering import check_filter, plain
from lance_spark.session import is_classic
from lance_spark.table_view import describe, render_html
from lance_spark.tabular import Data, is_spark, to_reader
from lance_spark.types.storable import RESERVED

if TYPE_CHECKING:
    import lance
    import pandas as pd

_HEAD_ROWS = 5


class TableRows:
    """The rows of a Lance table, at its latest version. :class:`lance_spark.Table` is what people have.

    Attributes:
        name: Name of the table.
        uri: Its location.
    """

    def __init__(
        self,
        ref: DatasetRef,
        name: str,
        spark: Callable[[], SparkSession],
        *,
        query_spark: Callable[[], SparkSession],
        checkpoint: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.name = name
        self.uri = ref.uri
        self._ref = ref
        self._spark = spark
        self._query_spark = query_spark
        self._checkpoint = checkpoint
        self._progress = progress

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the latest version."""
        return self.to_lance().schema

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self.to_lance().version

    @property
    def versions(self) -> list[dict[str, object]]:
        """All versions that are kept, oldest first: number, time of the commit, and what Lance keeps with it."""
        return [dict(version) for version in self.to_lance().versions()]

    def to_lance(self) -> lance.LanceDataset:
        """Returns the latest version as a pylance dataset."""
        return self._ref.open_latest()

    def count_rows(self, filter: str | None = None) -> int:
        """Counts rows, by Lance in this process.

        Args:
            filter: Filter in Lance SQL, or None for all rows.

        Raises:
            FilterError: The filter is not valid.
        """
        dataset = self.to_lance()
        if filter is not None:
            check_filter(dataset, filter, self.uri, "descriptor")
        return dataset.count_rows(filter)

    def head(self, n: int = _HEAD_ROWS) -> pa.Table:
        """Returns the first rows in the order of the table; fewer where it has fewer."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise OptionError("n", repr(n), "a number of rows, 0 or more")
        return self.to_lance().scanner(limit=n).to_table()

    def to_spark(
        self, columns: Sequence[str] | None = None, filter: str | None = None, version: int | str | None = None
    ) -> DataFrame:
        """Returns the table as a Spark DataFrame, pinned to one version.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.
            version: Version number, tag, or `branch:number`; None is the latest.
        """
        reader = self._query_spark().read.format("lance")
        options = {f"storage.{key}": value for key, value in self._ref.storage.items()}
        if columns is not None:
            options["columns"] = json.dumps(list(columns))
        if filter is not None:
            options["filter"] = filter
        if version is None and not is_classic(self._query_spark()):
            version = self.version  # over Connect a DataFrame is made where it is first used
        if version is not None:
            options["version"] = str(version)
        return reader.options(**options).load(self.uri)

    def to_arrow(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
        """Returns the table in this process's memory, as Arrow; meant for what fits there.

        Args:
            columns: Columns to read; None reads all.
            filter: Filter in Lance SQL, or None for all rows.

        Raises:
            FilterError: The filter is not valid.
            ColumnNotFoundError: A column is not there.
        """
        dataset = self.to_lance()
        names = None if columns is None else list(columns)
        if filter is not None:
            check_filter(dataset, filter, self.uri, "descriptor")
        try:
            return dataset.to_table(columns=names, filter=filter)
        except (ValueError, OSError):
            for name in names or ():
                if name.partition(".")[0] not in dataset.schema.names and name not in RESERVED:
                    raise ColumnNotFoundError(
                        name, self.uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
                    ) from None
            raise

    def to_pandas(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pd.DataFrame:
        """Returns the table in this process's memory, as pandas; meant for what fits there."""
        frame: pd.DataFrame = self.to_arrow(columns, filter).to_pandas()
        return frame

    def add(self, data: Data, mode: Literal["append", "overwrite"] = "append") -> None:
        """Adds rows. Computed columns that the data lacks are NULL; a backfill fills them.

        Args:
            data: A Spark DataFrame (written by Spark's tasks), Arrow, pandas, or a list of dicts (written by this process).
            mode: `append`, or `overwrite` for a version of only these rows.

        Raises:
            SchemaMismatchError: The data does not fit the table. Nothing was written.
        """
        if mode not in ("append", "overwrite"):
            raise OptionError("mode", str(mode), "append or overwrite")
        self.write(data, schema=None, overwrite=mode == "overwrite")

    def write(
        self,
        data: Data,
        *,
        schema: pa.Schema | None,
        overwrite: bool,
        enable_stable_row_ids: bool = True,
        data_storage_version: str | None = None,
    ) -> None:
        """Writes rows: makes the table, appends, or overwrites. :meth:`add` and `create_table` are its callers."""
        import lance

        if is_spark(data):
            options = {f"storage.{key}": value for key, value in self._ref.storage.items()}
            options["enable_stable_row_ids"] = str(enable_stable_row_ids).lower()
            if data_storage_version is not None:
                options["data_storage_version"] = data_storage_version
            writer = data.write.format("lance").mode("overwrite" if overwrite else "append")  # type: ignore[union-attr]
            writer.options(**options).save(self.uri)
            return
        refuse_unsafe_store(self.uri, self._ref.storage, allow=allowed_by_environment())
        exists = table_exists(self.uri, self._ref.storage)
        appends = schema is None and not overwrite and exists
        reader = to_reader(data, schema, table=self.schema if appends else None)
        try:
            with panics_as_errors():
                lance.write_dataset(
                    reader,
                    self.uri,
                    # A table that somebody else makes at this moment is not appended to.
                    mode="overwrite" if overwrite else "append" if exists else "create",
                    storage_options=self._ref.storage or None,
                    enable_stable_row_ids=enable_stable_row_ids,
                    data_storage_version=data_storage_version,  # type: ignore[arg-type]
                )
        except (ValueError, OSError, RuntimeError) as error:
            if not exists and "already exists" in str(error):
                raise TableExistsError(self.uri, hint="somebody else has made it at this moment") from error
            if "different schema" not in str(error):
                raise
            raise SchemaMismatchError(
                f"the data does not fit: {plain(error)} - nothing was written - give it the columns and types of the table: {self.schema}"
            ) from error

    def __repr__(self) -> str:
        return describe(self.name, self.to_lance())

    def _repr_html_(self) -> str:
        """The notebook's view: what the table is, its columns, and its first rows."""
        return render_html(self.name, self.to_lance())
