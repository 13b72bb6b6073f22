"""Reads by path: pins the version, resolves the columns, and makes the reader.

Spark's Python data source and the JVM gateway both use these functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.locations import normalize_uri
from lance_spark.options.io_options import STORAGE_PREFIX, TABLE_OPTION, ReadOptions
from lance_spark.options.statements import options_of_create_table
from lance_spark.read.columns import TABLE_METADATA

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


def open_source(options: Mapping[str, str]) -> tuple[DatasetRef, StructType]:
    """Pins the version of a read, and returns the version with its columns. Runs on the driver.

    Args:
        options: Read options with lower-case names, or the options of CREATE TABLE.

    Raises:
        OptionError, ColumnNotFoundError, FilterError: The options are not valid for the table.
        TableNotFoundError, VersionNotFoundError, TableUnreadableError: The table cannot be read.
        UnsupportedTypeError: Spark cannot hold a column.
    """
    from lance_spark.read.ranking.reader import search_schema
    from lance_spark.read.reader import read_schema

    created = options_of_create_table(options) if "provider" in options else None
    parsed = ReadOptions.parse(
        options if created is None else {**created, TABLE_OPTION: ",".join(created)}
    )
    ref = DatasetRef.resolve(parsed)
    schema = (search_schema if parsed.searches else read_schema)(ref, parsed)
    return ref, schema if created is None else _for_catalog(schema, ref, created)


def make_reader(
    options: Mapping[str, str],
    schema: StructType,
    pinned: DatasetRef | None,
    *,
    slots: int | None = None,
) -> DataSourceReader:
    """Returns the reader of columns at a pinned version. Runs on the driver.

    Args:
        options: Read options with lower-case names. Without `path`, the metadata of the columns
            supplies the path of a catalog table.
        schema: The columns.
        pinned: The version. None resolves the version from the options.
        slots: Number of tasks that the cluster runs at once; None if unknown.

    Raises:
        OptionError: An option is invalid, or neither options nor columns have a path.
        TableNotFoundError, VersionNotFoundError, TableUnreadableError: The table cannot be read.
    """
    from lance_spark.read.planning.pushdown_request import ScanSpec
    from lance_spark.read.ranking.reader import SearchReader
    from lance_spark.read.reader import LanceReader

    if not options.get("path"):
        all_options = {**_catalog_options(schema), **options}
        options = {**all_options, TABLE_OPTION: ",".join(all_options)}
    parsed = ReadOptions.parse(options)
    ref = pinned or DatasetRef.resolve(parsed)
    if parsed.searches:
        return SearchReader(ref=ref, schema=schema, options=parsed)
    return LanceReader(ref=ref, schema=schema, options=parsed, spec=ScanSpec(slots=slots))


def _for_catalog(schema: StructType, ref: DatasetRef, options: Mapping[str, str]) -> StructType:
    """Returns the columns with location and options of `CREATE TABLE` in their metadata.

    Spark passes only the columns to the reader later.
    """
    from pyspark.sql.types import StructField, StructType

    stored_options = {
        k: v for k, v in options.items() if k != "path" and not k.startswith(STORAGE_PREFIX)
    }
    table = json.dumps({"uri": ref.uri, "options": stored_options}, sort_keys=True)
    return StructType(
        [
            StructField(
                f.name, f.dataType, f.nullable, {**(f.metadata or {}), TABLE_METADATA: table}
            )
            for f in schema.fields
        ]
    )


def _catalog_options(schema: StructType) -> dict[str, str]:
    """Returns location and options of a catalog table from the metadata of its columns."""
    # Imported here, because workers do not need the module.
    from lance_spark.stored_json import check_fields, load_object

    tables = {
        str(f.metadata[TABLE_METADATA])
        for f in schema.fields
        if TABLE_METADATA in (f.metadata or {})
    }
    accepted = (
        "the location of a table made with CREATE TABLE t USING lance OPTIONS (path '...'), without "
        "a column list"
    )
    if len(tables) != 1:
        raise OptionError("path", None, accepted)
    try:
        table = {"options": {}, **load_object(tables.pop(), {"uri": str})}
        check_fields(table, {"options": dict})
    except ValueError as error:  # Any user can write column metadata.
        raise OptionError(TABLE_METADATA, str(error), accepted) from error
    return {"path": normalize_uri(table["uri"]), **table["options"]}
