"""Tables of a SQL catalog: commands of the catalog, by their names. On the driver."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.commit.schema_change import change_schema, set_config
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
    UnsupportedTypeError,
)
from lance_spark.jobs.tables import ERRORS, JOBS, refuse_links, table_ref
from lance_spark.options import COLUMN_OPTIONS, METADATA_OPTION, STORAGE_PREFIX, ReadOptions, WriteOptions
from lance_spark.read.columns import ROW_ADDRESS, ROW_ID, ROW_VERSIONS, TABLE_METADATA
from lance_spark.read.reader import read_schema
from lance_spark.sql.catalog_location import CatalogLocation
from lance_spark.sql.metadata_tables import TABLES
from lance_spark.staging.table_folder import check_new_table, delete_leftovers, delete_table_folder, has_leftovers
from lance_spark.statement_options import check_statement_options
from lance_spark.table.connection import open_table
from lance_spark.types import LANCE_FIELD, parse_spark_schema, to_lance_schema, to_spark_schema
from lance_spark.types.fields import encode_field, is_blob
from lance_spark.types.mapping import has_collation, raw_type, spark_type
from lance_spark.types.schemas import COMMENT, RAW_TYPE, as_declared, column_options_of
from lance_spark.write.append_writer import LanceAppendWriter

if TYPE_CHECKING:
    import lance

_COMMENTS = {
    ROW_ID: "id of the row",
    ROW_ADDRESS: "address of the row: its fragment, and its place there",
    "_row_created_at_version": "version that brought the row",
    "_row_last_updated_at_version": "version that last changed the row",
}
_RESERVED = ("current-version", "rows", "fragments", "format", "stable-row-ids", "indexes", "udf-columns")
_PRIVATE = "lance-spark."
_FILE_FORMAT = "file_format_version"
"""Name of `data_storage_version` in other connectors."""

_LONG_OPTIONS = tuple(name for name in WriteOptions.__dataclass_fields__ if "_" in name)
_MOMENT = ("branch", "version", "timestamp")
SHAPE_OPTIONS = ("columns", "with_row_id", "with_row_address", "with_row_versions", "blob_handling")
"""Read options that decide a table's columns and their types."""

_OPTION_PREFIX = "option."
"""Spark's prefix of OPTIONS among TBLPROPERTIES."""

_OF_SPARK = ("provider", "owner", "external", "location", "is_managed_location", "comment", "collation", "table_type")


class SimilarTableError(TableNotFoundError):
    """A table has the name in another case. Spark shows this error unchanged."""


def list_tables(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `SHOW TABLES`."""
    return {"names": CatalogLocation.of(arguments).connection().table_names()}


def table_exists_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers whether a table exists."""
    location = CatalogLocation.of(arguments)
    try:
        ref = location.ref(arguments["name"])
    except OptionError:
        return {"exists": False}
    return {"exists": table_exists(ref.uri, ref.storage)}


def locate_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the location of a table, None without a table, and whether the store has options."""
    try:
        ref = CatalogLocation.of(arguments).existing(arguments["name"])
    except (OptionError, TableNotFoundError):
        return {"path": None}
    return {"path": ref.uri, "has_options": bool(ref.storage_options)}


def load_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Opens a table: at its latest version, or at the version named in the statement.

    Raises:
        TableNotFoundError, VersionNotFoundError, TableUnreadableError: No readable table exists.
        UnsupportedTypeError: Spark cannot hold a column.
    """
    ref, metadata_name = _resolve_name(arguments)
    moment = {name: str(arguments[name]) for name in _MOMENT if arguments.get(name) is not None}
    if arguments.get("microseconds") is not None:
        moment["timestamp"] = _to_timestamp(arguments["microseconds"]).isoformat()
    options = ReadOptions.parse({"path": ref.uri, **moment, **_storage(ref)})
    pinned = DatasetRef.resolve(options)
    shape = {name: arguments[name] for name in SHAPE_OPTIONS if arguments.get(name) is not None}
    if metadata_name is None:
        return describe_version(pinned, travelled=bool(moment.keys() - {"branch"}), shape=shape)
    for option, value in shape.items():
        raise OptionError(option, value, "no option: SELECT the columns", problem=f"is no option of .{metadata_name}")
    read = {**_read_options(pinned), METADATA_OPTION: metadata_name}
    return {"metadata": metadata_name, "schema": to_spark_schema(TABLES[metadata_name][0]).json(), "read": read}


def _resolve_name(arguments: Mapping[str, Any]) -> tuple[DatasetRef, str | None]:
    """Returns the named table, or the table that a metadata table describes and the latter's name.

    `t.versions` is a table about a table, unless a table has this name. Statements such as SHOW
    TAGS use `t..tags`, which is the name of no table.
    """
    location, name = CatalogLocation.of(arguments), arguments["name"]
    try:
        return _find_table(location, name), None
    except TableNotFoundError:
        name = name.removeprefix(".")
        if location.namespace and name in TABLES:
            return _find_metadata_table(location, name)
        if not arguments.get("may_create"):
            _refuse_other_case(location, name)
        raise


def _find_metadata_table(location: CatalogLocation, name: str) -> tuple[DatasetRef, str | None]:
    """Returns the described table; for jobs and errors, their Lance table if any exists."""
    ref = replace(location, namespace=location.namespace[:-1]).existing(location.namespace[-1])
    system_table = {"jobs": JOBS, "errors": ERRORS}.get(name)
    if system_table is None:
        return ref, name
    system_ref = table_ref(ref, system_table)
    if not table_exists(system_ref.uri, ref.storage):
        return ref, name
    refuse_links(system_ref)
    return system_ref, None


def _find_table(location: CatalogLocation, name: str) -> DatasetRef:
    """Returns a table of the catalog.

    In a namespace, an invalid name is the name of no table: after `USE lance`, Spark then reads the
    file of ``parquet.`path` ``.
    """
    try:
        return location.existing(name)
    except OptionError as error:
        if not location.namespace:
            raise
        raise TableNotFoundError("/".join((location.root, *location.namespace, name))) from error


def _refuse_other_case(location: CatalogLocation, name: str) -> None:
    """Refuses a name that differs from the name of a table in upper and lower case only.

    Raises:
        SimilarTableError: Such a table exists.
    """
    try:
        names = location.connection().table_names()
    except LanceSparkError:
        return
    for table_name in names:
        if table_name.lower() == name.lower():
            hint = f"a table `{table_name}` exists: names of tables are case-sensitive"
            raise SimilarTableError(location.uri_of(name), hint=hint)


def _to_timestamp(microseconds: int) -> datetime:
    """Returns a time since 1970; Spark's end of time is later than Python's."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if microseconds > 0 else datetime.min.replace(tzinfo=UTC)


def _read_options(ref: DatasetRef) -> dict[str, str]:
    branch = {} if ref.branch is None else {"branch": ref.branch}
    return {"path": ref.table_uri, **branch, "version": str(ref.version), **_storage(ref)}


def describe_version(
    ref: DatasetRef, *, travelled: bool = False, shape: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns the catalog's facts of a pinned version: columns, and options of reads and writes.

    `shape` holds the options of the read that decide the table's columns and their types.
    """
    storage = _storage(ref)
    dataset = ref.open()
    read = {**_read_options(ref), **(shape or {})}
    return {
        "id": ref.uri,
        "version": ref.version,
        "travelled": travelled,
        "schema": read_schema(ref, ReadOptions.parse(read)).json(),
        "read": read,
        "write": {"path": ref.table_uri, **({} if ref.branch is None else {"branch": ref.branch}), **storage},
        "pin": ref.snapshot_json(),
        "metadata_columns": _row_columns(dataset, ref),
        "blobs": [field.name for field in dataset.schema if is_blob(field)],
    }


def create_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes an empty table.

    Raises:
        TableExistsError: The table exists.
        UnsupportedOperationError, OptionError, UnsupportedTypeError: The definition is not valid.
    """
    ref, schema, options, properties = _parse_definition(arguments)
    _refuse_existing(ref)
    _write_nothing(ref, schema, {**options, "create_only": "true"}, overwrite=False)
    if properties:
        change_schema(ref, lambda _: set_config(properties))
    return describe_version(ref.pin(None))


def stage_create(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares a table for a query.

    Raises:
        TableExistsError: The table exists.
        UnsupportedOperationError, OptionError: The definition is not valid.
    """
    ref, schema, options, properties = _parse_definition(arguments)
    _refuse_existing(ref)
    check_new_table(ref)
    return _describe_staged(ref, schema, options, properties, replaces=False)


def stage_replace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares a table's next version, or a new table, for a query.

    Raises:
        UnsupportedOperationError, OptionError: Such a version cannot be made.
    """
    ref, schema, options, properties = _parse_definition(arguments)
    if not table_exists(ref.uri, ref.storage):
        check_new_table(ref)
    return _describe_staged(ref, schema, options, properties, replaces=True)


def replace_empty(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a version without rows: `REPLACE TABLE` without a query."""
    ref = CatalogLocation.of(arguments).ref(arguments["name"])
    options = {key: text for key, text in arguments["write"].items() if key != "path"}
    _write_nothing(ref, parse_spark_schema(arguments["schema"]), options, overwrite=arguments["replaces"])
    return {}


def keep_properties(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Stores the TBLPROPERTIES of a table made by a query."""
    ref = CatalogLocation.of(arguments).ref(arguments["name"])
    change_schema(ref, lambda _: set_config(arguments["user_properties"]))
    return {}


def drop_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes a table with all its versions, and answers whether the table existed.

    A killed drop is completed. Foreign files in the folder stay.

    Raises:
        UnsupportedOperationError: The location belongs to a branch, or is a link.
    """
    return {"dropped": drop_table_at(CatalogLocation.of(arguments).ref(arguments["name"]), arguments["catalog"])}


def drop_table_at(ref: DatasetRef, catalog: str) -> bool:
    """Deletes a table with all its versions, and tells whether the table existed.

    Raises:
        UnsupportedOperationError: The location belongs to a branch, or is a link.
    """
    if not table_exists(ref.uri, ref.storage):
        return delete_leftovers(ref)
    if (branch := DatasetRef.find(ref.uri, ref.storage).branch) is not None:
        raise UnsupportedOperationError(
            f"The location belongs to the branch {branch!r}. Location: {ref.uri}. Nothing was deleted. CALL "
            f"{catalog}.system.drop_branch(table => '...', name => '{branch}')."
        )
    delete_table_folder(ref)
    return True


def is_half_dropped(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers whether a killed drop or first write left files without a table."""
    try:
        ref = CatalogLocation.of(arguments).ref(arguments["name"])
    except OptionError:
        return {"answer": False}
    return {"answer": not table_exists(ref.uri, ref.storage) and has_leftovers(ref)}


def rename_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a table, in its namespace.

    Raises:
        TableNotFoundError, TableExistsError: See their names.
        UnsupportedOperationError: The new name is in another namespace, or an object store holds
            the table.
    """
    location = CatalogLocation.of(arguments)
    old = location.existing(arguments["name"])
    to = [*arguments["to_namespace"], arguments["to_name"]]
    if len(to) > 1 and tuple(to[:-1]) != location.namespace:
        raise UnsupportedOperationError(
            f"A rename cannot move a table to another namespace. Table: {old.uri}. Nothing was changed. Move its "
            "folder with the store's own tools."
        )
    location.connection().rename_table(arguments["name"], to[-1])
    return {}


def truncate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes all rows of a table or branch, as a new version, and returns the number of rows."""
    ref = DatasetRef.of_snapshot_json(arguments["pin"], CatalogLocation.of(arguments).storage)
    return asdict(open_table(ref.uri, storage_options=ref.storage).delete("true"))


def check_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the options of a statement that changes rows of an opened table.

    Raises:
        OptionError: The statement does not take an option, or the release of Spark does not pass
            the branch to the catalog.
    """
    options: Mapping[str, str] = arguments["given"]
    check_statement_options(arguments["statement"], options)
    branch = options.get("branch")
    if branch is not None and branch != arguments["branch"]:
        instead = "Spark 4.3, or the location of the branch as the name of the table"
        raise OptionError("branch", branch, instead, problem="does not reach the catalog in this release of Spark")
    return {}


def properties(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a version for `DESCRIBE EXTENDED` and `SHOW TBLPROPERTIES`."""
    ref = DatasetRef.of_snapshot_json(arguments["pin"], CatalogLocation.of(arguments).storage)
    dataset = ref.open()
    facts = {
        "provider": "lance",
        "location": ref.uri,
        "current-version": str(ref.version),
        "rows": str(dataset.count_rows()),
        "fragments": str(dataset.stats.dataset_stats()["num_fragments"]),
        "format": dataset.data_storage_version,
        "stable-row-ids": str(dataset.has_stable_row_ids).lower(),
        "indexes": ", ".join(sorted({index.name for index in dataset.describe_indices()})),
        "udf-columns": ", ".join(f.name for f in dataset.schema if BINDING_KEY.encode() in (f.metadata or {})),
    }
    return {"properties": {**_user_properties(dataset), **facts}}


def declared_properties(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties for a `CREATE TABLE` of a table like this version.

    These are the user's properties, and write options that differ from their defaults.
    """
    from lance.file import stable_version

    dataset = DatasetRef.of_snapshot_json(arguments["pin"], CatalogLocation.of(arguments).storage).open()
    user_properties = {k: v for k, v in _user_properties(dataset).items() if k == "comment" or _is_free(k)}
    options = {key: text for field in dataset.schema for key, text in column_options_of(field, field.name)}
    if dataset.data_storage_version != stable_version():
        options["data_storage_version"] = dataset.data_storage_version
    if not dataset.has_stable_row_ids:
        options["enable_stable_row_ids"] = "false"
    return {"properties": {**user_properties, **options, "provider": "lance"}}


def _is_free(name: str) -> bool:
    """Tells whether `CREATE TABLE` stores a property unchanged."""
    is_reserved = name in _RESERVED or name in _OF_SPARK or _is_option(name)
    return not (is_reserved or name.startswith((_OPTION_PREFIX, _PRIVATE)))


def refuse_reserved(names: Iterable[str]) -> None:
    """Refuses the names of a table's own facts as properties.

    Raises:
        OptionError: A name is reserved.
    """
    for name in names:
        if name in _RESERVED or name.startswith(_PRIVATE):
            raise OptionError("TBLPROPERTIES", name, "another name: this one says what the table is")


def refuse_ineffective(names: Iterable[str]) -> None:
    """Refuses properties without effect that look like options of `CREATE TABLE`.

    Raises:
        OptionError: A name is an option, a column option that Lance lacks, or nearly an option; or
            a storage option, which would also store a secret in clear text.
    """
    for name in names:
        lowered = name.lower()
        if lowered.removeprefix(_OPTION_PREFIX).startswith(STORAGE_PREFIX):
            accepted = "a storage option of the catalog, which its administrator sets"
            raise OptionError("TBLPROPERTIES", name, accepted, problem="has no effect")
        similar = difflib.get_close_matches(lowered, [*_LONG_OPTIONS, _FILE_FORMAT], 1, 0.85)
        if _is_option(name) or similar or ".arrow." in lowered or ".lance." in lowered:
            columns = ", ".join(f"<column>.{option}" for option in COLUMN_OPTIONS)
            accepted = f"an option of CREATE TABLE: {', '.join(similar) or columns}; or a name that is no option"
            raise OptionError("TBLPROPERTIES", name, accepted, problem="has no effect")


def with_comment(field: pa.Field[Any], comment: str | None) -> pa.Field[Any]:
    """Returns a column with a comment."""
    if comment is None:
        return field
    metadata: dict[bytes | str, bytes | str] = {**(field.metadata or {}), COMMENT: comment}  # type: ignore[dict-item]
    return field.with_metadata(metadata)


def _user_properties(dataset: lance.LanceDataset) -> dict[str, str]:
    return {key: value for key, value in dataset.config().items() if not key.startswith(_PRIVATE)}


def _storage(ref: DatasetRef) -> dict[str, str]:
    return {f"{STORAGE_PREFIX}{key}": value for key, value in ref.storage_options}


def _row_columns(dataset: lance.LanceDataset, ref: DatasetRef) -> list[dict[str, str]]:
    names = [ROW_ID, ROW_ADDRESS, *(ROW_VERSIONS if dataset.has_stable_row_ids else ())]
    table = json.dumps({TABLE_METADATA: ref.snapshot_json()})
    return [
        {"name": name, "comment": _COMMENTS[name], "metadata": table if name in (ROW_ID, ROW_ADDRESS) else "{}"}
        for name in names
    ]


def _parse_definition(arguments: Mapping[str, Any]) -> tuple[DatasetRef, StructType, dict[str, str], dict[str, str]]:
    """Returns the parts of CREATE or REPLACE: table, columns, write options, other properties."""
    location = CatalogLocation.of(arguments)
    location.check_exists()
    ref = location.ref(arguments["name"])
    properties: dict[str, str] = dict(arguments["properties"])
    _refuse_foreign_clauses(location, ref, arguments["partitions"], properties)
    options, user_properties = _split_properties(properties)
    check_statement_options("CREATE TABLE", options)
    columns = WriteOptions.parse(options).column_options
    schema = parse_spark_schema(arguments["schema"])
    refuse_collations(schema)
    refuse_reserved(user_properties)
    refuse_ineffective(user_properties)
    if properties.get("comment"):
        user_properties["comment"] = properties["comment"]
    return ref, _declare_columns(schema, dict(columns)), {**options, **_storage(ref)}, user_properties


def _refuse_foreign_clauses(
    location: CatalogLocation, ref: DatasetRef, partitions: object, properties: Mapping[str, str]
) -> None:
    """Refuses PARTITIONED BY, USING and LOCATION."""
    if partitions:
        raise UnsupportedOperationError(
            f"A Lance table has fragments and no partitions or buckets. Table: {ref.uri}. Nothing was made. Leave "
            "PARTITIONED BY or CLUSTERED BY out, and sort the rows, or make an index, for frequent lookups."
        )
    provider = properties.get("provider", "lance")
    if provider.lower() != "lance":
        raise UnsupportedOperationError(
            f"Tables of the catalog {location.catalog} are Lance tables, not USING {provider}. Nothing was made. Leave "
            "USING out, write df.write.format('lance').saveAsTable(...), or make the table in Spark's own catalog."
        )
    if "location" in properties:
        raise OptionError("LOCATION", properties["location"], f"none: tables of this catalog are in {location.root}")


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
    options = {key: text for key, text in named_options.items() if _is_option(key)} | prefixed_options
    return options, {key: text for key, text in named_options.items() if key not in options}


def _declare_columns(schema: StructType, options: Mapping[str, Sequence[tuple[str, str]]]) -> StructType:
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


def _describe_staged(
    ref: DatasetRef,
    schema: StructType,
    options: Mapping[str, str],
    user_properties: Mapping[str, str],
    *,
    replaces: bool,
) -> dict[str, Any]:
    return {
        "id": ref.uri,
        "version": None,
        "travelled": False,
        "schema": schema.json(),
        "read": {"path": ref.uri},
        "write": {"path": ref.uri, **options, **({} if replaces else {"create_only": "true"})},
        "pin": None,
        "metadata_columns": [],
        "replaces": replaces,
        "user_properties": dict(user_properties),
    }


def _write_nothing(ref: DatasetRef, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
    writer = LanceAppendWriter.plan(ref, schema, WriteOptions.parse(options), overwrite=overwrite)
    writer.staging.open_job()
    writer.commit([])


def _refuse_existing(ref: DatasetRef) -> None:
    if table_exists(ref.uri, ref.storage):
        raise TableExistsError(ref.uri, hint="choose another name, or CREATE OR REPLACE it")
