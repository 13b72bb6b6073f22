"""Definitions of tables by CREATE and REPLACE: columns, options and properties. On the driver."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError, UnsupportedTypeError
from lance_spark.options.io_options import COLUMN_OPTIONS, STORAGE_PREFIX, WriteOptions
from lance_spark.options.statements import check_statement_options
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.types import LANCE_FIELD, parse_spark_schema, to_lance_schema
from lance_spark.types.fields import encode_field
from lance_spark.types.mapping import has_collation, raw_type, spark_type
from lance_spark.types.schemas import COMMENT, RAW_TYPE, as_declared

if TYPE_CHECKING:
    import lance

_RESERVED = (
    *("current-version", "rows", "fragments", "format", "stable-row-ids", "indexes", "udf-columns"),
    *("auto-backfill-columns", "auto-refresh"),
)
AUTO_REFRESH = "auto_refresh"
"""Property of a view. An agent refreshes views with the value true."""

AUTO_BACKFILL_SUFFIX = ".auto_backfill"
"""End of the name of a property: `<column>.auto_backfill` marks a column for an agent."""

_PRIVATE = "lance-spark."
_FILE_FORMAT = "file_format_version"
"""Name of `data_storage_version` in other connectors."""

_LONG_OPTIONS = tuple(name for name in WriteOptions.__dataclass_fields__ if "_" in name)

_OPTION_PREFIX = "option."
"""Spark's prefix of OPTIONS among TBLPROPERTIES."""

_OF_SPARK = (
    "provider",
    "owner",
    "external",
    "location",
    "is_managed_location",
    "comment",
    "collation",
    "table_type",
)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table as defined by CREATE or REPLACE.

    Attributes:
        ref: The table, possibly absent.
        columns: The columns, with their declarations in their metadata.
        options: Options of the write of its rows.
        properties: Further properties of the table.
    """

    ref: DatasetRef
    columns: StructType
    options: dict[str, str]
    properties: dict[str, str]

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> TableDefinition:
        """Parses and checks the clauses of a statement.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
            UnsupportedOperationError, OptionError, UnsupportedTypeError: A clause is not valid.
        """
        location = CatalogLocation.of(arguments)
        location.check_exists()
        properties: dict[str, str] = dict(arguments["properties"])
        _refuse_foreign_clauses(
            location, location.uri_of(arguments["name"]), arguments["partitions"], properties
        )
        options, user_properties = _split_properties(properties)
        check_statement_options("CREATE TABLE", options)
        columns = WriteOptions.parse(options).column_options
        schema = parse_spark_schema(arguments["schema"])
        refuse_collations(schema)
        refuse_reserved(user_properties)
        refuse_ineffective(user_properties)
        if properties.get("comment"):
            user_properties["comment"] = properties["comment"]
        declared = _declare_columns(schema, dict(columns))
        ref = location.place(arguments["name"])
        return TableDefinition(ref, declared, options | ref.storage_settings, user_properties)

    def describe(self, *, replaces: bool) -> dict[str, Any]:
        """Returns the catalog's facts of a table with the rows of a query."""
        mode = {} if replaces else {"create_only": "true"}
        return {
            "id": self.ref.uri,
            "version": None,
            "travelled": False,
            "schema": self.columns.json(),
            "read": {"path": self.ref.uri},
            "write": {"path": self.ref.uri, **self.options, **mode},
            "pin": None,
            "metadata_columns": [],
            "replaces": replaces,
            "user_properties": self.properties,
        }


def _refuse_foreign_clauses(
    location: CatalogLocation, table: str, partitions: object, properties: Mapping[str, str]
) -> None:
    """Refuses PARTITIONED BY, USING and LOCATION."""
    if partitions:
        raise UnsupportedOperationError(
            f"A Lance table has fragments and no partitions or buckets. Table: {table}. Nothing was made. Leave "
            "PARTITIONED BY or CLUSTERED BY out, and sort the rows, or make an index, for frequent lookups."
        )
    provider = properties.get("provider", "lance")
    if provider.lower() != "lance":
        raise UnsupportedOperationError(
            f"Tables of the catalog {location.catalog} are Lance tables, not USING {provider}. Nothing was made. Leave "
            "USING out, write df.write.format('lance').saveAsTable(...), or make the table in Spark's own catalog."
        )
    if "location" in properties:
        raise OptionError(
            "LOCATION",
            properties["location"],
            f"none: tables of this catalog are in {location.root}",
        )


def _split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the write options and the user's properties among the properties of CREATE TABLE."""
    named_options: dict[str, str] = {}
    prefixed_options: dict[str, str] = {}
    for key, text in properties.items():
        if key.startswith(_OPTION_PREFIX):
            prefixed_options[key.removeprefix(_OPTION_PREFIX)] = text
        elif key not in _OF_SPARK:
            named_options[key] = text
    if _FILE_FORMAT in named_options:
        named_options["data_storage_version"] = named_options.pop(_FILE_FORMAT)
    options = {
        key: text for key, text in named_options.items() if _is_option(key)
    } | prefixed_options
    return options, {key: text for key, text in named_options.items() if key not in options}


def _declare_columns(
    schema: StructType, options: Mapping[str, Sequence[tuple[str, str]]]
) -> StructType:
    """Returns columns with the declarations of `CREATE TABLE`: NOT NULL, comments, options."""
    lance_fields = to_lance_schema(schema, {name: dict(pairs) for name, pairs in options.items()})
    fields = []
    for field, lance_field in zip(schema.fields, lance_fields, strict=True):
        declared = as_declared(lance_field, nullable=field.nullable, kind=field.dataType)
        declared = with_comment(declared, (field.metadata or {}).get(COMMENT))
        metadata = {LANCE_FIELD: encode_field(declared)}
        kind = field.dataType
        if raw := raw_type(declared):
            metadata[RAW_TYPE] = raw
            kind = spark_type(declared, field.name)
        fields.append(StructField(field.name, kind, field.nullable, metadata))
    return StructType(fields)


def refuse_collations(schema: StructType) -> None:
    """Refuses text with a collation in Spark: Lance compares bytes.

    Raises:
        UnsupportedTypeError: A column, or a type inside a column, has a collation.
    """
    for field in schema.fields:
        if has_collation(field.dataType):
            raise UnsupportedTypeError(
                field.name,
                field.dataType.simpleString(),
                reason="Lance compares text by bytes and keeps no collation",
                hint="declare STRING, and write COLLATE in the queries",
            )


def _is_option(key: str) -> bool:
    name = key.lower()
    is_column_option = name.endswith(tuple(f".{option}" for option in COLUMN_OPTIONS))
    return name in WriteOptions.__dataclass_fields__ or is_column_option


def refuse_reserved(names: Iterable[str]) -> None:
    """Refuses the names of a table's own facts as properties.

    Raises:
        OptionError: A name is reserved.
    """
    for name in names:
        if name in _RESERVED or name.startswith(_PRIVATE):
            raise OptionError(
                "TBLPROPERTIES", name, "another name: this one says what the table is"
            )


def refuse_ineffective(names: Iterable[str]) -> None:
    """Refuses properties without effect that look like options of `CREATE TABLE`.

    Raises:
        OptionError: A name is an option, a column option unknown to Lance, or nearly an option; or
            a storage option, whose secret would be stored in clear text.
    """
    for name in names:
        if is_automation(name):
            accepted = "a property of ALTER TABLE: a new table has no UDFs and is no view"
            raise OptionError("TBLPROPERTIES", name, accepted, problem="has no effect")
        lowered = name.lower()
        if lowered.removeprefix(_OPTION_PREFIX).startswith(STORAGE_PREFIX):
            accepted = "a storage option of the catalog, which its administrator sets"
            raise OptionError("TBLPROPERTIES", name, accepted, problem="has no effect")
        similar = difflib.get_close_matches(lowered, [*_LONG_OPTIONS, _FILE_FORMAT], 1, 0.85)
        if _is_option(name) or similar or ".arrow." in lowered or ".lance." in lowered:
            columns = ", ".join(f"<column>.{option}" for option in COLUMN_OPTIONS)
            accepted = f"an option of CREATE TABLE: {', '.join(similar) or columns}; or a name that is no option"
            raise OptionError("TBLPROPERTIES", name, accepted, problem="has no effect")


def is_automation(name: str) -> bool:
    """Tells whether a property marks a view or a column for an agent."""
    return name == AUTO_REFRESH or name.endswith(AUTO_BACKFILL_SUFFIX)


def with_comment(field: pa.Field[Any], comment: str | None) -> pa.Field[Any]:
    """Returns a column with a comment."""
    if comment is None:
        return field
    metadata: dict[bytes | str, bytes | str] = {**(field.metadata or {}), COMMENT: comment}  # type: ignore[dict-item]
    return field.with_metadata(metadata)


def is_free_property(name: str) -> bool:
    """Tells whether `CREATE TABLE` stores a property unchanged."""
    is_reserved = name in _RESERVED or name in _OF_SPARK or _is_option(name)
    return not (is_reserved or name.startswith((_OPTION_PREFIX, _PRIVATE)))


def read_user_properties(dataset: lance.LanceDataset) -> dict[str, str]:
    """Returns the properties of a table that users have set."""
    return {key: value for key, value in dataset.config().items() if not key.startswith(_PRIVATE)}
