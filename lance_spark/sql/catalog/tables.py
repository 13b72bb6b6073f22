"""Tables of a SQL catalog: commands of the catalog, by their names. On the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql.types import StructType

from lance_spark.columns.binding import find_auto_backfilled
from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.commit.schema_change import change_schema, set_config
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.jobs.tables import ERRORS, JOBS, refuse_links, table_ref
from lance_spark.locations import is_local
from lance_spark.options.io_options import METADATA_OPTION, ReadOptions, WriteOptions
from lance_spark.options.statements import check_statement_options
from lance_spark.read.columns import ROW_ADDRESS, ROW_ID, ROW_VERSIONS, TABLE_METADATA
from lance_spark.read.reader import read_schema
from lance_spark.sql.catalog.lance_namespace import NamespaceLocation
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.sql.catalog.metadata_tables import TABLES
from lance_spark.sql.catalog.table_definition import (
    TableDefinition,
    is_free_property,
    read_user_properties,
)
from lance_spark.staging.table_folder import (
    check_new_table,
    delete_leftovers,
    delete_table_folder,
    has_leftovers,
)
from lance_spark.table.connections.connection import open_table
from lance_spark.types import parse_spark_schema, to_spark_schema
from lance_spark.types.fields import is_blob
from lance_spark.types.schemas import column_options_of
from lance_spark.views.definition import is_auto_refreshed
from lance_spark.write.append_writer import LanceAppendWriter

if TYPE_CHECKING:
    import lance

_COMMENTS = {
    ROW_ID: "id of the row",
    ROW_ADDRESS: "address of the row: its fragment, and its place there",
    "_row_created_at_version": "version that brought the row",
    "_row_last_updated_at_version": "version that last changed the row",
}
_MOMENT = ("branch", "version", "timestamp")
SHAPE_OPTIONS = ("columns", "with_row_id", "with_row_address", "with_row_versions", "blob_handling")
"""Read options that decide a table's columns and their types."""

LINEAGE_NAME = "openlineage.dataset.name"
LINEAGE_NAMESPACE = "openlineage.dataset.namespace"
"""Properties of a table with its identity for the Spark listener of OpenLineage."""


class SimilarTableError(TableNotFoundError):
    """A table has the name in another case. Spark shows this error unchanged."""


def list_tables(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `SHOW TABLES`."""
    return {"names": CatalogLocation.of(arguments).table_names()}


def table_exists_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers whether a table exists."""
    location = CatalogLocation.of(arguments)
    try:
        ref = location.ref(arguments["name"])
    except (OptionError, TableNotFoundError):
        return {"exists": False}
    return {"exists": ref.exists()}


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
    options = ReadOptions.parse({"path": ref.uri, **moment, **ref.storage_settings})
    pinned = DatasetRef.resolve(options) if moment or ref.version is None else ref
    shape = {name: arguments[name] for name in SHAPE_OPTIONS if arguments.get(name) is not None}
    if metadata_name is None:
        return describe_version(pinned, travelled=bool(moment.keys() - {"branch"}), shape=shape)
    for option, value in shape.items():
        raise OptionError(
            option,
            value,
            "no option: SELECT the columns",
            problem=f"is no option of .{metadata_name}",
        )
    read = {**_read_options(pinned), METADATA_OPTION: metadata_name}
    return {
        "metadata": metadata_name,
        "schema": to_spark_schema(TABLES[metadata_name][0]).json(),
        "read": read,
    }


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
    if not system_ref.exists():
        return ref, name
    refuse_links(system_ref)
    return system_ref, None


def _find_table(location: CatalogLocation, name: str) -> DatasetRef:
    """Returns a table of the catalog at its latest version.

    In a namespace, an invalid name is the name of no table: after `USE lance`, Spark then reads the
    file of ``parquet.`path` ``.
    """
    try:
        return location.latest(name)
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
        names = location.table_names()
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
        return (
            datetime.max.replace(tzinfo=UTC)
            if microseconds > 0
            else datetime.min.replace(tzinfo=UTC)
        )


def _read_options(ref: DatasetRef) -> dict[str, str]:
    return {**_write_options(ref), "version": str(ref.version)}


def _write_options(ref: DatasetRef) -> dict[str, str]:
    branch = {} if ref.branch is None else {"branch": ref.branch}
    return {"path": ref.table_uri, **branch, **ref.storage_settings}


def describe_version(
    ref: DatasetRef, *, travelled: bool = False, shape: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns the catalog's facts of a pinned version: columns, and options of reads and writes.

    `shape` holds the options of the read that decide the table's columns and their types.
    """
    dataset = ref.open()
    read = {**_read_options(ref), **(shape or {})}
    return {
        "id": ref.uri,
        "version": ref.version,
        "travelled": travelled,
        "schema": read_schema(ref, ReadOptions.parse(read)).json(),
        "read": read,
        "write": _write_options(ref),
        "pin": ref.snapshot_json(),
        "metadata_columns": _describe_row_columns(dataset, ref),
        "blobs": [field.name for field in dataset.schema if is_blob(field)],
    }


def create_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes an empty table.

    Raises:
        TableExistsError: The table exists.
        UnsupportedOperationError, OptionError, UnsupportedTypeError: The definition is not valid.
    """
    location = CatalogLocation.of(arguments)
    if isinstance(location, NamespaceLocation) and "location" in arguments["properties"]:
        return _register(location, arguments)
    definition = TableDefinition.parse(arguments)
    ref = definition.ref
    _refuse_existing(ref)
    _write_nothing(
        ref, definition.columns, {**definition.options, "create_only": "true"}, overwrite=False
    )
    if definition.properties:
        change_schema(ref, lambda _: set_config(definition.properties))
    return describe_version(ref.pin(None))


def _register(location: NamespaceLocation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Registers the table of `CREATE TABLE ... LOCATION`.

    Raises:
        OptionError: The statement has columns, and the table at the location decides these.
    """
    if parse_spark_schema(arguments["schema"]).fields:
        accepted = "a table that exists, whose columns the statement leaves out. Leave LOCATION out for a new table"
        raise OptionError("LOCATION", arguments["properties"]["location"], accepted)
    location.check_exists()
    return describe_version(
        location.register(arguments["name"], arguments["properties"]["location"]).pin(None)
    )


def stage_create(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares a table for a query.

    Raises:
        TableExistsError: The table exists.
        UnsupportedOperationError, OptionError: The definition is not valid.
    """
    definition = TableDefinition.parse(arguments)
    _refuse_existing(definition.ref)
    check_new_table(definition.ref)
    return _describe_staged(definition, replaces=False)


def stage_replace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares a table's next version, or a new table, for a query.

    Raises:
        UnsupportedOperationError, OptionError: Such a version cannot be made.
    """
    definition = TableDefinition.parse(arguments)
    if not definition.ref.exists():
        check_new_table(definition.ref)
    return _describe_staged(definition, replaces=True)


def _describe_staged(definition: TableDefinition, *, replaces: bool) -> dict[str, Any]:
    """Returns the facts of a table for a query, with the properties for listeners."""
    properties = lineage_properties(definition.ref.uri) | definition.properties
    return {**definition.describe(replaces=replaces), "properties": properties}


def replace_empty(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a version without rows: `REPLACE TABLE` without a query."""
    ref = CatalogLocation.of(arguments).place(arguments["name"])
    options = {key: text for key, text in arguments["write"].items() if key != "path"}
    _write_nothing(
        ref, parse_spark_schema(arguments["schema"]), options, overwrite=arguments["replaces"]
    )
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
    location = CatalogLocation.of(arguments)
    if isinstance(location, NamespaceLocation):
        return {"dropped": location.drop(arguments["name"], purge=bool(arguments.get("purge")))}
    return {"dropped": drop_table_at(location.ref(arguments["name"]), arguments["catalog"])}


def drop_table_at(ref: DatasetRef, catalog: str) -> bool:
    """Deletes a table with all its versions, and tells whether the table existed.

    Raises:
        UnsupportedOperationError: The location belongs to a branch, or is a link.
    """
    if not ref.exists():
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
    except (OptionError, TableNotFoundError):
        return {"answer": False}
    return {"answer": not ref.exists() and has_leftovers(ref)}


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
    if isinstance(location, NamespaceLocation):
        location.rename(arguments["name"], tuple(to[:-1]) or location.namespace, to[-1])
        return {}
    if len(to) > 1 and tuple(to[:-1]) != location.namespace:
        raise UnsupportedOperationError(
            f"A rename cannot move a table to another namespace. Table: {old.uri}. Nothing was changed. Move its "
            "folder with the store's own tools."
        )
    location.connection().rename_table(arguments["name"], to[-1])
    return {}


def _open_pinned(arguments: Mapping[str, Any]) -> DatasetRef:
    """Returns the version of a table that Spark has opened."""
    location = CatalogLocation.of(arguments)
    return DatasetRef.of_snapshot_json(arguments["pin"], location.pinned_storage(arguments["name"]))


def truncate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes all rows of a table or branch, as a new version, and returns the number of rows."""
    ref = _open_pinned(arguments)
    transaction = AppTransaction.of_options(arguments["options"])
    return asdict(
        open_table(ref.uri, storage_options=ref.storage).delete(
            "true",
            txn_app_id=None if transaction is None else transaction.app_id,
            txn_version=None if transaction is None else transaction.version,
        )
    )


def check_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the options of a statement that changes rows of an opened table.

    Raises:
        OptionError: The statement does not take an option, or the release of Spark does not pass
            the branch to the catalog.
    """
    options: Mapping[str, str] = arguments["given"]
    check_statement_options(arguments["statement"], options)
    AppTransaction.of_options(options)
    branch = options.get("branch")
    if branch is not None and branch != arguments["branch"]:
        instead = "Spark 4.3, or the location of the branch as the name of the table"
        raise OptionError(
            "branch", branch, instead, problem="does not reach the catalog in this release of Spark"
        )
    return {}


def properties(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a version for `DESCRIBE EXTENDED` and `SHOW TBLPROPERTIES`.

    Properties of the user replace the identity of the table for OpenLineage.
    """
    ref = _open_pinned(arguments)
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
        "udf-columns": ", ".join(
            f.name for f in dataset.schema if BINDING_KEY.encode() in (f.metadata or {})
        ),
        "auto-backfill-columns": ", ".join(
            name for names in find_auto_backfilled(dataset) for name in names
        ),
        "auto-refresh": str(is_auto_refreshed(dataset)).lower(),
    }
    return {"properties": {**lineage_properties(ref.uri), **read_user_properties(dataset), **facts}}


def declared_properties(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties for a `CREATE TABLE` of a table like this version.

    These are the user's properties, and write options that differ from their defaults.
    """
    from lance.file import stable_version

    dataset = _open_pinned(arguments).open()
    user_properties = {
        k: v
        for k, v in read_user_properties(dataset).items()
        if k == "comment" or is_free_property(k)
    }
    options = {
        key: text for field in dataset.schema for key, text in column_options_of(field, field.name)
    }
    if dataset.data_storage_version != stable_version():
        options["data_storage_version"] = dataset.data_storage_version
    if not dataset.has_stable_row_ids:
        options["enable_stable_row_ids"] = "false"
    return {"properties": {**user_properties, **options, "provider": "lance"}}


def _describe_row_columns(dataset: lance.LanceDataset, ref: DatasetRef) -> list[dict[str, str]]:
    names = [ROW_ID, ROW_ADDRESS, *(ROW_VERSIONS if dataset.has_stable_row_ids else ())]
    table = json.dumps({TABLE_METADATA: ref.snapshot_json()})
    return [
        {
            "name": name,
            "comment": _COMMENTS[name],
            "metadata": table if name in (ROW_ID, ROW_ADDRESS) else "{}",
        }
        for name in names
    ]


def _write_nothing(
    ref: DatasetRef, schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> None:
    writer = LanceAppendWriter.plan(ref, schema, WriteOptions.parse(options), overwrite=overwrite)
    writer.staging.open_job()
    writer.commit([])


def _refuse_existing(ref: DatasetRef) -> None:
    if ref.exists():
        raise TableExistsError(ref.uri, hint="choose another name, or CREATE OR REPLACE it")


def lineage_properties(uri: str) -> dict[str, str]:
    """Returns the identity of the table at a location, by OpenLineage's rules for stores.

    The namespace of a local file is `file`, and the namespace of an object is its bucket.
    """
    if is_local(uri):
        return {LINEAGE_NAMESPACE: "file", LINEAGE_NAME: uri}
    parts = urlsplit(uri)
    return {
        LINEAGE_NAMESPACE: f"{parts.scheme}://{parts.netloc}",
        LINEAGE_NAME: parts.path.strip("/"),
    }
