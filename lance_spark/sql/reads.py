"""Reads planned for the JVM: commands of the gateway, by their names. On the driver.

The JVM sends the options of the user and its own request separately, so no option of a user is a
request.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DoubleType, FloatType

from lance_spark.changes.by_path import change_reader, open_changes
from lance_spark.changes.options import ChangeOptions, reads_changes
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError
from lance_spark.options.io_options import METADATA_OPTION, ReadOptions
from lance_spark.read.planning.by_path import make_reader, open_source
from lance_spark.read.planning.pushdown_request import ScanSpec
from lance_spark.read.planning.spark_read_info import encode_read
from lance_spark.types import parse_spark_schema

if TYPE_CHECKING:
    import lance
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


MIN_ROWS_OF_KEYS = 1 << 16
"""Minimum number of a table's rows for conditions known only while a query runs. A second plan of a
scan takes 20 ms, as long as a scan of 65,536 rows."""

_INDEXES_OF_VALUES = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")
"""Kinds of indexes that find rows by a list of values."""


def open_path(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pins the version of a table by its path, and answers with its columns.

    Raises:
        As :func:`~lance_spark.read.planning.by_path.open_source`, and as
            :func:`~lance_spark.changes.by_path.open_changes`.
    """
    options = _lower_options(arguments)
    ref, schema = (open_changes if reads_changes(options) else open_source)(options)
    return {"schema": schema.json(), "pin": ref.snapshot_json()}


def plan_read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a read of columns without a request of the planner rule.

    Raises:
        As :func:`~lance_spark.read.planning.by_path.make_reader`.
    """
    reader = _make_reader(arguments)
    return {"read": encode_read(reader, parse_spark_schema(arguments["schema"]))}


def _make_reader(arguments: Mapping[str, Any]) -> DataSourceReader:
    options = _lower_options(arguments)
    if METADATA_OPTION in options:
        from lance_spark.sql.catalog.metadata_tables import MetadataReader

        return MetadataReader.of(options, parse_spark_schema(arguments["schema"]).names)
    schema = parse_spark_schema(arguments["schema"])
    if reads_changes(options):
        storage = ChangeOptions.parse(options).storage
        pinned = (
            None
            if arguments["pin"] is None
            else DatasetRef.of_snapshot_json(arguments["pin"], storage)
        )
        return change_reader(options, schema, pinned)
    storage = ReadOptions.parse(options).storage if options.get("path") else ()
    pinned = (
        None if arguments["pin"] is None else DatasetRef.of_snapshot_json(arguments["pin"], storage)
    )
    return make_reader(options, schema, pinned, slots=arguments.get("slots"))


def key_columns(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers with the columns whose values a join may select while the query runs.

    Raises:
        As :func:`~lance_spark.read.planning.by_path.make_reader`.
    """
    from lance_spark.read.reader import LanceReader

    reader = _make_reader(arguments)
    if not isinstance(reader, LanceReader) or reader.options.limit is not None:
        return {"columns": []}
    return {"columns": columns_of_keys(reader.ref.open(), reader.schema)}


def columns_of_keys(dataset: lance.LanceDataset, columns: StructType) -> list[str]:
    """Returns the columns with an index for selecting rows by values while a query runs.

    None for a small table, whose scan takes less time than a second plan. Reads the manifest. Spark
    compares floats of a join in another form, and the scan gives small decimals as integers. The
    values of such keys differ from the values of the stored column.
    """
    from lance_spark.pushdown.filters import is_comparable
    from lance_spark.read.transfer import unscaled_columns

    if dataset.count_rows() < MIN_ROWS_OF_KEYS:
        return []
    indexed = _find_indexed_columns(dataset)
    names = Counter(name.lower() for name in columns.names)
    unscaled = unscaled_columns(columns)
    fields = [
        field
        for field in columns.fields
        if field.name in indexed and names[field.name.lower()] == 1 and field.name not in unscaled
    ]
    return [
        field.name
        for field in fields
        if not isinstance(field.dataType, FloatType | DoubleType)
        and is_comparable(field.name, field.dataType.simpleString(), dataset.schema)
    ]


def _find_indexed_columns(dataset: lance.LanceDataset) -> set[str]:
    """Returns the columns with an index that finds rows by a list of values."""
    from lance_spark.indexes.listing import kind_of

    return {
        index.field_names[0]
        for index in dataset.describe_indices()
        if len(index.field_names) == 1 and kind_of(index.index_type) in _INDEXES_OF_VALUES
    }


def plan_scan(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a scan of the planner rule: its columns, its partitions, and Lance's part of the work.

    Raises:
        ColumnNotFoundError: The table no longer has a column.
        LanceSparkError: As :func:`~lance_spark.read.planning.by_path.open_source`.
        ValueError: The request is not a request of this release's rule.
    """
    from lance_spark.read.reader import describe_scan

    options, pin = ReadOptions.parse(_lower_options(arguments)), arguments["pin"]
    spec = replace(ScanSpec.parse(arguments["spec"]), slots=arguments.get("slots"))
    ref = (
        DatasetRef.resolve(options)
        if pin is None
        else DatasetRef.of_snapshot_json(pin, options.storage)
    )
    spec = _choose_transfer(_translate_predicates(spec, ref), ref)
    try:
        reader, description = describe_scan(ref, options, spec)
        read = encode_read(reader, reader.schema) if description["serves"] else None
    except ColumnNotFoundError as error:
        if pin is not None:
            raise
        # Without a pin, the columns come from the creation of a catalog's table or view.
        hint = "it was dropped since Spark's catalog was told of it: say REFRESH TABLE, or make the view anew"
        raise ColumnNotFoundError(error.column, error.uri, hint=hint) from error
    return {**description, "schema": reader.schema.json(), "pin": ref.snapshot_json(), "read": read}


def _translate_predicates(spec: ScanSpec, ref: DatasetRef) -> ScanSpec:
    """Returns a request with its predicates in Lance SQL."""
    from lance_spark.pushdown.filters import is_exact, translate

    if spec.predicate is not None:
        stored = ref.open().schema
        sql, exact = translate(spec.predicate, stored), is_exact(spec.predicate, stored)
        spec = replace(spec, filter_sql=sql, exact=exact, predicate=None)
    if spec.runtime is not None:
        spec = replace(spec, runtime_sql=translate(spec.runtime.predicate, ref.open().schema))
    return spec


def _choose_transfer(spec: ScanSpec, ref: DatasetRef) -> ScanSpec:
    """Returns a request with the form in which Spark gets vectors and decimals."""
    from lance_spark.read.transfer import (
        dense_columns,
        leading_elements,
        unscaled_columns,
        vector_sizes,
    )

    if spec.columns is None or spec.aggregate:
        return spec
    sizes = vector_sizes(ref.open(), spec.columns)
    elements = leading_elements(sizes, spec.elements)
    dense = dense_columns(spec.columns, (name for name in sizes if name not in elements))
    return replace(spec, dense=dense, elements=elements, unscaled=unscaled_columns(spec.columns))


def search_function(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers with the pickled handler of a table function of searches, and with its kind."""
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.util import PythonEvalType

    from lance_spark.read.ranking.functions import HANDLERS

    handler: bytes = CloudPickleSerializer().dumps(HANDLERS[arguments["name"]])  # type: ignore[no-untyped-call]
    return {"handler": base64.b64encode(handler).decode(), "kind": PythonEvalType.SQL_TABLE_UDF}


def _lower_options(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options of a read by their names in lower case."""
    return {key.lower(): value for key, value in arguments["options"].items()}
