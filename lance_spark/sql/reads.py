"""Reads that the JVM plans: commands of the gateway, by their names. On the driver.

The JVM sends the options of the user and its own request separately, so no option of a user is a
request.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError
from lance_spark.options import METADATA_OPTION, ReadOptions
from lance_spark.read.by_path import make_reader, open_source
from lance_spark.read.planned import encode_read
from lance_spark.read.spec import ScanSpec
from lance_spark.types import parse_spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader


def open_path(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pins the version of a table by its path, and answers with its columns.

    Raises:
        As :func:`~lance_spark.read.by_path.open_source`.
    """
    ref, schema = open_source(_options(arguments))
    return {"schema": schema.json(), "pin": ref.snapshot_json()}


def plan_read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a read of columns without a request of the planner rule.

    Raises:
        As :func:`~lance_spark.read.by_path.make_reader`.
    """
    options, schema = _options(arguments), parse_spark_schema(arguments["schema"])
    reader: DataSourceReader
    if METADATA_OPTION in options:
        from lance_spark.sql.metadata_tables import MetadataReader

        reader = MetadataReader.of(options)
    else:
        storage = ReadOptions.parse(options).storage if options.get("path") else ()
        pinned = None if arguments["pin"] is None else DatasetRef.of_snapshot_json(arguments["pin"], storage)
        reader = make_reader(options, schema, pinned)
    return {"read": encode_read(reader, schema)}


def plan_scan(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a scan of the planner rule: its columns, its partitions, and what of it Lance does.

    Raises:
        ColumnNotFoundError: The table has a column no more.
        LanceSparkError: As :func:`~lance_spark.read.by_path.open_source`.
        ValueError: The request is not a request of this release's rule.
    """
    from lance_spark.pushdown.filters import is_exact, translate
    from lance_spark.read.border.dense import dense_columns, vectors
    from lance_spark.read.border.leading import leading_elements
    from lance_spark.read.border.unscaled import unscaled_columns
    from lance_spark.read.reader import describe_scan

    options, pin = ReadOptions.parse(_options(arguments)), arguments["pin"]
    spec = ScanSpec.parse(arguments["spec"])
    ref = DatasetRef.resolve(options) if pin is None else DatasetRef.of_snapshot_json(pin, options.storage)
    if spec.predicate is not None:
        stored = ref.open().schema
        sql, exact = translate(spec.predicate, stored), is_exact(spec.predicate, stored)
        spec = replace(spec, filter_sql=sql, exact=exact, predicate=None)
    if spec.columns is not None and not spec.aggregate:
        sizes = vectors(ref.open(), spec.columns)
        elements = leading_elements(sizes, spec.elements)
        dense = dense_columns(spec.columns, (name for name in sizes if name not in elements))
        spec = replace(spec, dense=dense, elements=elements, unscaled=unscaled_columns(spec.columns))
    try:
        reader, description = describe_scan(ref, options, spec)
        read = encode_read(reader, reader.schema) if description["serves"] else None
    except ColumnNotFoundError as error:
        if pin is not None:
            raise
        # Without a pin the columns are those of a catalog's table or view when it was made.
        hint = "it was dropped since Spark's catalog was told of it: say REFRESH TABLE, or make the view anew"
        raise ColumnNotFoundError(error.column, error.uri, hint=hint) from error
    return {**description, "schema": reader.schema.json(), "pin": ref.snapshot_json(), "read": read}


def search_function(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers with the pickled handler of a table function of searches, and with its kind."""
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.util import PythonEvalType

    from lance_spark.read.search.functions import HANDLERS

    handler: bytes = CloudPickleSerializer().dumps(HANDLERS[arguments["name"]])  # type: ignore[no-untyped-call]
    return {"handler": base64.b64encode(handler).decode(), "kind": PythonEvalType.SQL_TABLE_UDF}


def _options(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options of a read by their names in lower case."""
    return {key.lower(): value for key, value in arguments["options"].items()}
