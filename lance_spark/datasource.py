"""`format("lance")` without the jar: gives Spark the reader or writer.

Spark makes an instance in a separate planning process, calls `schema()`, pickles the instance, and
calls `reader()` on the copy, which has the pinned version of `schema()`. Reader and writers are
plain picklable values.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from lance_spark.changes.options import reads_changes
from lance_spark.dataset import DatasetRef
from lance_spark.options.statements import refuse_internal

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class LanceDataSource(DataSource):
    """Reads and writes Lance tables.

    :class:`~lance_spark.options.io_options.ReadOptions` and
    :class:`~lance_spark.options.io_options.WriteOptions` describe the options.

    Attributes:
        pinned: The pinned version of `schema()`; None before.
        is_copy: Whether another process made the instance.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Keeps the options.

        Parses and opens nothing before Spark asks for a read or a write.
        """
        self.options = {key.lower(): value for key, value in options.items()}
        self.pinned: DatasetRef | None = None
        self.is_copy = False

    def __setstate__(self, state: dict[str, object]) -> None:
        """Marks the copy of another process: Spark commits a micro-batch with a copy."""
        self.__dict__.update(state, is_copy=True)

    @classmethod
    def name(cls) -> str:
        """Returns `lance`."""
        _end_quietly()
        return "lance"

    def schema(self) -> StructType:
        """Pins the version and returns its columns as Spark types. Runs on the driver.

        Raises:
            OptionError, ColumnNotFoundError, FilterError: The options do not fit.
            TableNotFoundError, VersionNotFoundError, TableUnreadableError: The table or version
                cannot be read.
            UnsupportedTypeError: Spark cannot hold a column.
        """
        refuse_internal(self.options)
        _warn_without_jar()
        if reads_changes(self.options):
            from lance_spark.changes.by_path import open_changes as open_source
        else:
            from lance_spark.read.planning.by_path import open_source
        self.pinned, schema = open_source(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of these columns. Runs on the driver.

        It reads the pinned version, or the latest version of a catalog table.
        """
        _end_quietly()
        refuse_internal(self.options)
        if reads_changes(self.options):
            from lance_spark.changes.by_path import change_reader

            return change_reader(self.options, schema, self.pinned)
        from lance_spark.read.planning.by_path import make_reader

        return make_reader(self.options, schema, self.pinned)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer of a job. Runs on the driver.

        Checks everything except the rows.

        Raises:
            NoLocationError: Spark gave no location.
            OptionError, SchemaMismatchError, UnsupportedTypeError, SnapshotError: The DataFrame or
                an option does not fit the table.
        """
        refuse_internal(self.options)
        from lance_spark.write.by_path import plan_writer

        return plan_writer(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader of a stream of new rows, or of changes. Runs on the driver.

        Raises:
            OptionError: An option does not fit a stream.
            ChangeFeedError: The table lost a column of the stream.
        """
        _end_quietly()
        refuse_internal(self.options)
        from lance_spark.changes.streams import make_stream_reader

        return make_stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - as above
        """Returns the writer of a micro-batch. Runs on the driver.

        Spark calls this method twice for each micro-batch: before the tasks, and for the commit, on
        the copy of another process.

        Raises:
            OptionError, SchemaMismatchError, UnsupportedTypeError: The rows or an option do not fit
                the table.
        """
        refuse_internal(self.options)
        from lance_spark.streaming.writes import LanceStreamWriter, StreamWrite

        stream = StreamWrite.of(self.options, schema, overwrite=overwrite)
        return LanceStreamWriter(stream, None if self.is_copy else stream.plan())


def _end_quietly() -> None:
    # Workers need nothing of it.
    from lance_spark.interpreter import end_quietly

    end_quietly()


def _warn_without_jar() -> None:
    """Warns once per application. With the jar, Spark does not ask this class for columns."""
    from pyspark.core.files import SparkFiles

    root = SparkFiles._root_directory  # noqa: SLF001 - the public method would start a context
    if not SparkFiles._is_running_on_worker or root is None:  # noqa: SLF001 - as above
        return  # no process of Spark
    try:
        os.close(os.open(os.path.join(root, "lance-spark-without-jar"), os.O_CREAT | os.O_EXCL))
    except OSError:
        return  # another process of Spark has warned
    from lance_spark.jvm.jar import EXTENSIONS

    warnings.warn(
        "Spark reads Lance tables without the jar of lance-spark. Queries read whole tables, and SQL has no catalog of "
        "Lance tables. Make the session with lance_spark.configure(builder), or start Spark with the path of "
        f"lance_spark.jar() in spark.jars and with spark.sql.extensions={EXTENSIONS}.",
        stacklevel=2,
    )
