"""`format("lance")`: takes what Spark hands over, and gives it to the reader or writer.

Spark makes an instance in a planning process of its own, calls `schema()`, pickles the instance,
and calls `reader()` on the copy: what `schema()` pins is still pinned in `reader()`. Reader and
writers are plain picklable values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource

from lance_spark.dataset import DatasetRef, normalize_uri
from lance_spark.errors import ColumnNotFoundError, NoLocationError, OptionError, UnsupportedOperationError
from lance_spark.options import (
    METADATA_OPTION,
    SCAN_OPTION,
    STORAGE_PREFIX,
    TABLE_OPTION,
    WRITE_OPTION,
    ReadOptions,
    WriteOptions,
    options_of_create_table,
    refuse_internal,
    statement_options,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
    from pyspark.sql.types import StructType

    from lance_spark.read.spec import ScanSpec
    from lance_spark.sql.metadata_tables import MetadataReader
    from lance_spark.write.append_writer import LanceAppendWriter
    from lance_spark.write.column_writer import LanceBackfillWriter

TABLE_METADATA = "lance.table"
"""Key of the column metadata that tells which table a column is from."""

PIN_MARK = "lancespark.pin="
"""What the planner rule looks for in the pickled data source; the pin follows as JSON."""

_WRITE_SPEC: dict[str, type | UnionType] = {
    "path": str | None,
    "exclusive": bool,
    "input_columns": list | None,
    "snapshots": list,
}
"""What the option `lancespark.write` holds."""


class LanceDataSource(DataSource):
    """Reads and writes Lance tables.

    Options are described by :class:`~lance_spark.options.ReadOptions` and
    :class:`~lance_spark.options.WriteOptions`.

    Attributes:
        pinned: The version that `schema()` has pinned; None before.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Keeps the options.

        Nothing is parsed or opened before Spark says whether it reads or writes.
        """
        self.options = {key.lower(): value for key, value in options.items()}
        self.pinned: DatasetRef | None = None
        self._spec: ScanSpec | None = None

    def __getstate__(self) -> dict[str, object]:
        """Returns the state with the pin as text, last, where the planner rule finds it.

        It reads the text from the pickle's bytes, and unpickles nothing.
        """
        pin = None if self.pinned is None else PIN_MARK + self.pinned.snapshot_json()
        return {**{key: value for key, value in self.__dict__.items() if key != "pin"}, "pin": pin}

    @classmethod
    def name(cls) -> str:
        """Returns `lance`."""
        _end_quietly()
        return "lance"

    def schema(self) -> StructType:
        """Pins the version and returns the columns that it has, as Spark types. Runs on the driver.

        Raises:
            OptionError, ColumnNotFoundError, FilterError: The options do not fit.
            TableNotFoundError, VersionNotFoundError, TableUnreadableError: There is nothing to
                read.
            UnsupportedTypeError: Spark cannot hold a column.
        """
        refuse_internal(self.options)
        if SCAN_OPTION in self.options:
            return self._planned_schema()
        if METADATA_OPTION in self.options:
            return self._metadata_reader().spark_schema
        from lance_spark.read.reader import read_schema
        from lance_spark.read.search.reader import search_schema

        created = options_of_create_table(self.options) if "provider" in self.options else None
        options = ReadOptions.parse(self.options if created is None else {**created, TABLE_OPTION: ",".join(created)})
        self.pinned = DatasetRef.resolve(options)
        schema = (search_schema if options.searches else read_schema)(self.pinned, options)
        return schema if created is None else _for_catalog(schema, self.pinned, created)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of these columns. Runs on the driver.

        It reads the pinned version, and of a catalog table the latest.
        """
        _end_quietly()
        refuse_internal(self.options)
        if METADATA_OPTION in self.options:
            return self._metadata_reader()
        from lance_spark.read.reader import LanceReader
        from lance_spark.read.search.reader import SearchReader

        given = self.options if self.options.get("path") else {**_catalog_options(schema), **self.options}
        options = ReadOptions.parse(given if given is self.options else {**given, TABLE_OPTION: ",".join(given)})
        ref = self.pinned or DatasetRef.resolve(options)
        if options.searches:
            return SearchReader(ref=ref, schema=schema, options=options)
        return LanceReader(ref=ref, schema=schema, options=options, spec=self._spec)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer of a job that begins. Runs on the driver.

        Everything that can be checked without the rows is checked here.

        Raises:
            NoLocationError: Spark did not say where to write.
            OptionError, SchemaMismatchError, UnsupportedTypeError, SnapshotError: The DataFrame or
                an option does not fit the table.
        """
        from lance_spark.statement_options import check_statement_options

        refuse_internal(self.options)
        options = WriteOptions.parse(self.options)
        statement = "BACKFILL" if options.mode == "backfill" else "INSERT OVERWRITE" if overwrite else "INSERT"
        check_statement_options(statement, statement_options(self.options))
        plan = _write_spec(self.options.get(WRITE_OPTION))
        # Never from column metadata: INSERT INTO y SELECT * FROM x hands over the metadata of x.
        path = options.path or (plan or {}).get("path")
        if not path:
            raise NoLocationError(
                "Spark did not say where to write, as it does not for catalog tables and writeTo "
                "- nothing was written - call lance_spark.enable_pushdown(spark) first, "
                "or write df.write.format('lance').mode('append').save(path)"
            )
        ref = DatasetRef.find(path, options.storage, options.branch)
        writer: LanceBackfillWriter | LanceAppendWriter
        if options.mode == "backfill":
            from lance_spark.write.column_writer import LanceBackfillWriter

            writer = LanceBackfillWriter.plan(ref, schema, options, plan, overwrite=overwrite)
        else:
            from lance_spark.write.append_writer import LanceAppendWriter

            writer = LanceAppendWriter.plan(ref, schema, options, overwrite=overwrite)
        # Spark asks for a writer when it runs a job, not when it plans or explains one.
        writer.staging.open_job()
        return writer

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802 - Spark's names
        """Refuses to read a table as a stream.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise _no_streams("spark.read.format('lance') in each run reads what is there, and the option version what was")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - as above
        """Refuses to write a stream by itself.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise _no_streams(
            "in foreachBatch write each micro-batch as a DataFrame: "
            "batch.write.format('lance').mode('append').save(path)"
        )

    def _metadata_reader(self) -> MetadataReader:
        from lance_spark.sql.metadata_tables import MetadataReader

        return MetadataReader.of(self.options)

    def _planned_schema(self) -> StructType:
        """Returns the answer to the planner rule: a scan's columns, and what of it Lance does."""
        from lance_spark.pushdown.filters import is_exact, translate
        from lance_spark.read.border.dense import dense_columns, vectors
        from lance_spark.read.border.leading import leading_elements
        from lance_spark.read.border.unscaled import unscaled_columns
        from lance_spark.read.reader import describe_scan
        from lance_spark.read.spec import ScanSpec, only_of_the_rule

        text = self.options[SCAN_OPTION]
        spec = ScanSpec.from_json(text)
        options = ReadOptions.parse(self.options)
        with only_of_the_rule(text):
            self.pinned = DatasetRef.resolve(options) if spec.pin is None else _pinned_at(spec.pin, options)
            if spec.predicate is not None:
                stored = self.pinned.open().schema
                sql, exact = translate(spec.predicate, stored), is_exact(spec.predicate, stored)
                spec = replace(spec, filter_sql=sql, exact=exact, predicate=None)
        if spec.columns is not None and not spec.aggregate:
            sizes = vectors(self.pinned.open(), spec.columns)
            elements = leading_elements(sizes, spec.elements)
            dense = dense_columns(spec.columns, (name for name in sizes if name not in elements))
            spec = replace(spec, dense=dense, elements=elements, unscaled=unscaled_columns(spec.columns))
        self._spec = spec
        del self.options[SCAN_OPTION]
        try:
            return describe_scan(self, self.pinned, options, self._spec)
        except ColumnNotFoundError as error:
            if spec.pin is not None:
                raise
            # Without a pin the columns are those of a catalog's table or view when it was made.
            hint = "it was dropped since Spark's catalog was told of it: say REFRESH TABLE, or make the view anew"
            raise ColumnNotFoundError(error.column, error.uri, hint=hint) from error


def _end_quietly() -> None:
    # Workers need nothing of it.
    from lance_spark.interpreter import end_quietly

    end_quietly()


def _no_streams(instead: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"a table is no source and no sink of a stream - nothing was changed - {instead}")


def _pinned_at(pin: str, options: ReadOptions) -> DatasetRef:
    """Returns the version that the original source has pinned, for all scans of a DataFrame.

    The storage options are those of the scan itself: the pin carries none.
    """
    pinned = DatasetRef.of_snapshot_json(pin, options.storage)
    if normalize_uri(options.path) not in (pinned.uri, pinned.table_uri):
        raise OptionError(SCAN_OPTION, pin, f"the table that is read, {options.path}", problem="names another table")
    return pinned


def _write_spec(text: str | None) -> dict[str, Any] | None:
    """Returns what the planner rule says about a write; None without the rule."""
    if text is None:
        return None
    try:
        spec = json.loads(text)
        fits = all(isinstance(spec[key], kind) for key, kind in _WRITE_SPEC.items())
        for snapshot in spec["snapshots"]:
            json.loads(snapshot)
    except (ValueError, TypeError, LookupError, RecursionError):
        fits = False
    if not fits:
        raise OptionError(WRITE_OPTION, text[:200], "nothing: only the planner rule sets it")
    return dict(spec)


def _for_catalog(schema: StructType, ref: DatasetRef, options: Mapping[str, str]) -> StructType:
    """Returns the columns with location and options of `CREATE TABLE` in their metadata.

    Spark hands nothing else to the reader later.
    """
    from pyspark.sql.types import StructField, StructType

    kept = {k: v for k, v in options.items() if k != "path" and not k.startswith(STORAGE_PREFIX)}
    table = json.dumps({"uri": ref.uri, "options": kept}, sort_keys=True)
    return StructType(
        [
            StructField(f.name, f.dataType, f.nullable, {**(f.metadata or {}), TABLE_METADATA: table})
            for f in schema.fields
        ]
    )


def _catalog_options(schema: StructType) -> dict[str, str]:
    """Returns location and options of a catalog table, from its columns' metadata."""
    from lance_spark.stored_json import check_fields, load_object  # workers need none of it

    tables = {str(f.metadata[TABLE_METADATA]) for f in schema.fields if TABLE_METADATA in (f.metadata or {})}
    accepted = (
        "a location that the table knows: make it with CREATE TABLE t USING lance OPTIONS (path '...') and without a "
        "column list"
    )
    if len(tables) != 1:
        raise OptionError("path", None, accepted)
    try:
        table = {"options": {}, **load_object(tables.pop(), {"uri": str})}
        check_fields(table, {"options": dict})
    except ValueError as error:  # anybody can write column metadata
        raise OptionError(TABLE_METADATA, str(error), accepted) from error
    return {"path": normalize_uri(table["uri"]), **table["options"]}
