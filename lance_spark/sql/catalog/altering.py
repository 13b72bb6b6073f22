"""`ALTER TABLE` of a SQL catalog, on the Lance table itself. On the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.schema_change import change_schema, set_config, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    ColumnExistsError,
    ColumnNotFoundError,
    OptionError,
    UnsupportedOperationError,
)
from lance_spark.lance_compat import without_fields
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.sql.catalog.table_definition import (
    AUTO_BACKFILL_SUFFIX,
    AUTO_REFRESH,
    is_automation,
    refuse_collations,
    refuse_ineffective,
    refuse_reserved,
    with_comment,
)
from lance_spark.table.connections.connection import open_table
from lance_spark.types import check_storable, parse_spark_schema, to_lance_schema
from lance_spark.types.mapping import DECLARED_TYPE
from lance_spark.types.schemas import COMMENT, as_declared
from lance_spark.views.definition import existing_view

if TYPE_CHECKING:
    import lance

_Change = Mapping[str, Any]


def alter_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Applies the clauses of an `ALTER TABLE`, after checks of all clauses.

    Returns the added columns, and the resulting version.

    Added columns are NULL in all rows, and write no data. Clauses of several kinds make a version
    per kind; Spark's statements have a single kind. Schema evolution of a branch adds columns to
    the branch.

    Raises:
        UnsupportedOperationError: Lance has no such change.
        ColumnNotFoundError, ColumnExistsError, RegistrationError: A change does not fit the table.
    """
    ref = _find_branch(arguments)
    changes: Sequence[_Change] = arguments["changes"]
    dataset = ref.open_latest()
    _check_changes(changes, dataset)
    added = [change for change in changes if change["kind"] == "AddColumn"]
    version = _add(ref, added) if added else None
    _drop_and_alter(ref, changes, dataset)
    _set_metadata(ref, changes, dataset)
    return {"added": [change["column"][0] for change in added], "version": version}


def _find_branch(arguments: Mapping[str, Any]) -> DatasetRef:
    """Returns the table of a statement, or its branch."""
    ref = CatalogLocation.of(arguments).existing(arguments["name"])
    return ref if arguments.get("branch") is None else ref.on_branch(arguments["branch"])


def drop_added_columns(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Drops the columns added by schema evolution for a statement that failed afterwards.

    After any later commit the columns stay, because another writer may already use them. A
    concurrent commit conflicts with the drop.

    Returns whether the columns were dropped.
    """
    from lance import LanceOperation

    names, version = arguments["added"], arguments["version"]
    ref = _find_branch(arguments)

    def drop(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        if head.version != version:
            return None
        # Lance commits a Project on top of rows with values in the columns, and refuses a Merge.
        fragments = [fragment.metadata for fragment in head.get_fragments()]
        return LanceOperation.Merge(fragments, without_fields(head.lance_schema, names))

    head = change_schema(ref, drop)
    return {"dropped": not set(names) & set(head.schema.names)}


def _check_changes(changes: Sequence[_Change], dataset: lance.LanceDataset) -> None:
    """Checks all clauses before the first change.

    Raises:
        UnsupportedOperationError: Lance has no such change.
        ColumnNotFoundError, ColumnExistsError, OptionError: A change does not fit the table.
    """
    if {"AddColumn", "DeleteColumn"} <= {change["kind"] for change in changes}:
        raise _unsupported_error(
            "REPLACE COLUMNS",
            dataset,
            "Write ADD, DROP or RENAME COLUMN, or CREATE OR REPLACE TABLE ... AS SELECT",
        )
    for change in changes:
        kind = change["kind"]
        if kind == "AddColumn":
            _check_addition(change, dataset)
        elif kind in (*_ALTERATIONS, "DeleteColumn", "UpdateColumnComment"):
            _check_column(change, dataset)
        elif kind in ("SetProperty", "RemoveProperty"):
            _check_property(change, dataset)
        else:
            clause = f"{_REFUSED_CLAUSES.get(kind, kind)} of {'.'.join(change.get('column', ()))}".removesuffix(
                " of "
            )
            raise _unsupported_error(
                clause, dataset, "Keep the columns in their order, and without defaults"
            )


def _check_addition(change: _Change, dataset: lance.LanceDataset) -> None:
    column: list[str] = change["column"]
    name = ".".join(column)
    if len(column) > 1:
        raise _unsupported_error(
            f"adding the field {name} to a struct", dataset, "Make another column"
        )
    if name.lower() in map(str.lower, dataset.schema.names):
        raise ColumnExistsError([name], dataset.uri, hint="nothing was changed")
    if change.get("position"):
        raise _unsupported_error(
            f"FIRST or AFTER of {name}", dataset, "Leave the position out: the column comes last"
        )
    if change.get("default"):
        raise _unsupported_error(
            f"DEFAULT of {name}",
            dataset,
            f"Add {name} without a default, and set its values by UPDATE",
        )
    if not change["nullable"]:
        raise _unsupported_error(
            f"NOT NULL of {name}",
            dataset,
            "Add the column without NOT NULL: existing rows are NULL",
        )


def _check_column(change: _Change, dataset: lance.LanceDataset) -> None:
    """Checks a change of an existing column."""
    column: list[str] = change["column"]
    name, is_drop = ".".join(column), change["kind"] == "DeleteColumn"
    if column[0] not in dataset.schema.names and not (is_drop and change.get("if_exists")):
        raise ColumnNotFoundError(
            name, dataset.uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
        )
    if len(column) > 1 and is_drop:
        raise _unsupported_error(
            f"dropping the field {name} of a struct",
            dataset,
            "Make another column, and drop this column",
        )


def _check_property(change: _Change, dataset: lance.LanceDataset) -> None:
    refuse_reserved([change["property"]])
    if is_automation(change["property"]):
        _check_automation(change, dataset)
    elif change["kind"] == "SetProperty":
        if change["property"] == "location":
            raise _unsupported_error(
                "SET LOCATION", dataset, "Copy the table into the folder of its catalog"
            )
        refuse_ineffective([change["property"]])


def _check_automation(change: _Change, dataset: lance.LanceDataset) -> None:
    """Checks a property that an agent follows. `alter_columns` checks the columns.

    Raises:
        OptionError: The value is neither true nor false.
        ViewError: The table is no materialized view.
    """
    value = change.get("value")
    if value is not None and value.lower() not in ("true", "false"):
        raise OptionError(change["property"], value, "'true' or 'false'")
    if change["property"] == AUTO_REFRESH:
        existing_view(dataset)


def _unsupported_error(
    clause: str, dataset: lance.LanceDataset, instead: str
) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"Lance does not support {clause}. Table: {dataset.uri}. Nothing was changed. {instead}."
    )


def _add(ref: DatasetRef, changes: Sequence[_Change]) -> int:
    """Adds columns, and returns the resulting version."""
    new_columns = pa.schema(
        [
            with_comment(
                _to_field(change["column"][0], change["type"]), change.get("comment") or None
            )
            for change in changes
        ]
    )

    def add(head: lance.LanceDataset) -> None:
        present = sorted(set(new_columns.names).intersection(head.schema.names))
        if present:
            raise ColumnExistsError(
                present, ref.uri, hint="a concurrent writer added it; nothing was changed"
            )
        check_storable(new_columns, head.data_storage_version)
        head.add_columns(new_columns)

    return change_schema(
        ref, add, has_landed=lambda head: set(new_columns.names) <= set(head.schema.names)
    ).version


def _drop_and_alter(
    ref: DatasetRef, changes: Sequence[_Change], dataset: lance.LanceDataset
) -> None:
    table = open_table(ref.uri, storage_options=ref.storage)
    dropped = [change["column"][0] for change in changes if change["kind"] == "DeleteColumn"]
    names = frozenset(dataset.schema.names)
    present = [name for name in dropped if name in names]
    if present:
        table.drop_columns(present)
    alterations = [
        alteration
        for change in changes
        if (alteration := _to_alteration(change, dataset)) is not None
    ]
    if alterations:
        table.alter_columns(*alterations)
    for change in changes:
        if change.get("property") == AUTO_REFRESH:
            table.alter_view(auto_refresh=_is_true(change))


_REFUSED_CLAUSES = {
    "UpdateColumnDefaultValue": "SET DEFAULT",
    "UpdateColumnPosition": "FIRST or AFTER",
}
_ALTERATIONS = {
    "RenameColumn": "name",
    "UpdateColumnType": "type",
    "UpdateColumnNullability": "nullable",
}


def _to_alteration(change: _Change, dataset: lance.LanceDataset) -> dict[str, object] | None:
    """Returns a change as an argument of `Table.alter_columns`; None for another change."""
    name = change.get("property", "")
    if is_automation(name) and name != AUTO_REFRESH:
        return {"path": name.removesuffix(AUTO_BACKFILL_SUFFIX), "auto_backfill": _is_true(change)}
    key = _ALTERATIONS.get(change["kind"])
    if key is None:
        return None
    path = ".".join(change["column"])
    if key != "type":
        return {"path": path, key: change[key]}
    kind = _to_field(change["column"][-1], change["type"]).type
    is_stored_type = path in dataset.schema.names and dataset.schema.field(path).type == kind
    return None if is_stored_type else {"path": path, "data_type": kind}


def _is_true(change: _Change) -> bool:
    """Tells whether a property is set to true. A removed property is false."""
    return str(change.get("value") or "").lower() == "true"


def _to_field(name: str, kind: str) -> pa.Field[Any]:
    """Returns a nullable column from Spark's JSON of a type, with NOT NULL of its fields."""
    described = {"name": name, "type": json.loads(kind), "nullable": True, "metadata": {}}
    schema = parse_spark_schema(json.dumps({"type": "struct", "fields": [described]}))
    refuse_collations(schema)
    return as_declared(to_lance_schema(schema, {}).field(0), nullable=True, kind=schema[0].dataType)


def _set_metadata(ref: DatasetRef, changes: Sequence[_Change], dataset: lance.LanceDataset) -> None:
    metadata: dict[str, dict[str, str | None]] = {}
    properties: dict[str, str | None] = {}
    for change in changes:
        if change["kind"].endswith("Property"):
            if not is_automation(change["property"]):
                properties[change["property"]] = change.get("value")
            continue
        column = ".".join(change["column"])
        if change["kind"] == "UpdateColumnComment":
            metadata[column] = {COMMENT: change["comment"]}
        elif change["kind"] == "UpdateColumnType":
            declared = _read_declared_type(_to_field(change["column"][-1], change["type"]))
            if declared != _read_declared_type(dataset.schema.field(column)):
                metadata[column] = {DECLARED_TYPE.decode(): declared}
    if metadata:
        change_schema(ref, lambda head: set_field_metadata(head, metadata))
    if properties:
        change_schema(ref, lambda _: set_config(properties))


def _read_declared_type(field: pa.Field[Any]) -> str | None:
    declared = (field.metadata or {}).get(DECLARED_TYPE)
    return None if declared is None else declared.decode()
