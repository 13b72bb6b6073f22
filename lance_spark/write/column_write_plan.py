"""Plan of a column write, decided on the driver: its snapshot and its columns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType

from lance_spark.commit.changes import InputsFrom
from lance_spark.commit.conflicts.identity import UNKNOWN_FIELD, FieldIdentity, field_identities
from lance_spark.dataset import MAIN_BRANCH, DatasetRef, is_local
from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaMismatchError,
    SnapshotError,
    UnsupportedTypeError,
    VersionNotFoundError,
)
from lance_spark.options import WriteOptions
from lance_spark.rebase.snapshot import check_still_there
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID
from lance_spark.staging.column_file import Targets
from lance_spark.staging.file_layout import FileLayout
from lance_spark.stored_json import parse_json
from lance_spark.types import check_writable, to_lance_schema
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance

_TABLE = "lance.table"
_SYSTEM_COLUMNS = ("_row_created_at_version", "_row_last_updated_at_version", "_rowoffset", "_distance", "_score")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnWritePlan:
    """Plan of a backfill by DataFrame. Picklable: tasks and the commit receive the plan.

    Attributes:
        columns: Columns of `source` after conversion: the address (int64), then targets and columns
            to verify in the table's types.
        address: Name of the address column: `_rowaddr` or `_rowid`.
        by_row_id: Whether the address column holds stable row ids, which need a lookup.
        target_identities: Identities of the targets in the snapshot.
        new_columns: Columns to add.
        inputs: Input columns of the values.
        exclusive: Whether the planner rule promised each fragment's rows in one task and in order.
    """

    snapshot: DatasetRef
    source: StructType
    columns: pa.Schema
    address: str
    by_row_id: bool
    targets: Targets
    target_identities: tuple[FieldIdentity, ...]
    new_columns: pa.Schema
    verify_columns: tuple[str, ...]
    inputs: tuple[FieldIdentity, ...]
    inputs_from: InputsFrom
    exclusive: bool
    options: WriteOptions


def plan_column_write(
    ref: DatasetRef, schema: StructType, options: WriteOptions, write_spec: Mapping[str, Any] | None, *, overwrite: bool
) -> ColumnWritePlan:
    """Plans a write; see :meth:`lance_spark.write.column_writer.LanceBackfillWriter.plan`.

    `write_spec` holds the planner rule's facts about the write, None without the rule.
    """
    spec = write_spec or {}
    if overwrite:
        raise OptionError(
            "mode", "backfill", "mode('append') with it; no row is replaced", problem="contradicts mode('overwrite')"
        )
    address = _find_address_column(schema, ref.uri)
    snapshot = _resolve_snapshot(ref, schema[address].metadata or {}, options.version, spec.get("snapshots") or ())
    dataset = _open_snapshot(snapshot)
    verify = options.verify_columns or ()
    target_names = [f.name for f in schema.fields if f.name not in (address, *verify)]
    existing = tuple(name for name in target_names if name in dataset.schema.names)
    _check_names(schema, address, target_names, verify, dataset, ref.uri)
    if existing or verify:
        stored = pa.schema([dataset.schema.field(name) for name in (*existing, *verify)])
        check_writable(StructType([schema[name] for name in stored.names]), stored, uri=ref.uri)
    for name in existing:
        _refuse_lacking_fields(schema[name].dataType, dataset.schema.field(name).type, name)
    new_fields = StructType([schema[name] for name in target_names if name not in existing])
    new_columns = _build_new_columns(new_fields, options)
    fields = [dataset.schema.field(name) if name in existing else new_columns.field(name) for name in target_names]
    for field in filter(is_blob, fields):
        hint = "write binary, or rewrite the table with mode('overwrite')"
        raise UnsupportedTypeError(field.name, "blob", reason="a backfill cannot write blobs", hint=hint)
    if new_columns.names:
        # Raises if the table's file format cannot hold a new column.
        FileLayout.of_new_table(new_columns, dataset.data_storage_version)
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    inputs, inputs_from = _choose_inputs(
        options.input_columns, spec.get("input_columns"), target_names, identities, ref.uri
    )
    by_row_id = address == ROW_ID and dataset.has_stable_row_ids
    return ColumnWritePlan(
        snapshot=snapshot,
        source=schema,
        columns=pa.schema([pa.field(address, pa.int64()), *fields, *(dataset.schema.field(n) for n in verify)]),
        address=address,
        by_row_id=by_row_id,
        targets=Targets(schema=pa.schema(fields), existing=existing, format=dataset.data_storage_version),
        target_identities=tuple(
            identities.get(arrow.name) or FieldIdentity(name=arrow.name, id=UNKNOWN_FIELD, ids=(), type=str(arrow.type))
            for arrow in fields
        ),
        new_columns=new_columns,
        verify_columns=verify,
        inputs=inputs,
        inputs_from=inputs_from,
        # After an update has moved rows, row ids and addresses have different orders.
        exclusive=bool(spec.get("exclusive")) and not by_row_id,
        options=options,
    )


def _find_address_column(schema: StructType, uri: str) -> str:
    names = [name for name in (ROW_ADDRESS, ROW_ID) if name in schema.names]
    if len(names) != 1:
        presence = "both _rowaddr and _rowid" if names else "neither _rowaddr nor _rowid"
        raise SchemaMismatchError(
            f"A backfill needs exactly one column with row addresses, and the DataFrame has {presence}. Table: {uri}. "
            "Read the table with option('with_row_address', True), and write the column _rowaddr along."
        )
    if not isinstance(schema[names[0]].dataType, LongType):
        raise SchemaMismatchError(
            f"Column {names[0]!r} must be a bigint, as it was read, but is "
            f"{schema[names[0]].dataType.simpleString()}. Table: {uri}. Write the column unchanged."
        )
    return names[0]


def _refuse_lacking_fields(source: DataType, stored: pa.DataType, path: str) -> None:
    """Raises if a struct lacks fields of the column: the fields would become NULL."""
    if isinstance(source, ArrayType) and not pa.types.is_map(stored) and hasattr(stored, "value_type"):
        _refuse_lacking_fields(source.elementType, stored.value_type, f"{path}.element")
    elif isinstance(source, MapType) and pa.types.is_map(stored):
        _refuse_lacking_fields(source.keyType, stored.key_type, f"{path}.key")
        _refuse_lacking_fields(source.valueType, stored.item_type, f"{path}.value")
    elif isinstance(source, StructType) and pa.types.is_struct(stored):
        source_types = {field.name.lower(): field.dataType for field in source.fields}
        lost = [field.name for field in stored if field.name.lower() not in source_types]
        if lost:
            raise SchemaMismatchError(
                f"Column {path!r} lacks the fields {', '.join(map(repr, lost))} of the table's column. Nothing was "
                "written. A struct is written whole, so add the other fields: struct(new AS x, s.y AS y)."
            )
        for field in stored:
            _refuse_lacking_fields(source_types[field.name.lower()], field.type, f"{path}.{field.name}")


def _resolve_snapshot(
    ref: DatasetRef, metadata: Mapping[str, Any], version: int | None, planned: Sequence[str]
) -> DatasetRef:
    """Returns the table at the addresses' version; raises if the version is unknown."""
    reads = sorted(set(planned))
    if len(reads) > 1:
        raise SnapshotError(
            f"Row addresses of {len(reads)} reads come together in one write ({'; '.join(reads)}), and no row tells "
            f"its read. Table: {ref.uri}. Use one load() for all of them, or write once for each."
        )
    metadata_ref = _parse_snapshot(metadata.get(_TABLE, "{}"), ref)
    if metadata_ref is None:
        return _pin_named_version(ref, version, reads)
    if not _is_same_location(metadata_ref.uri, ref.uri) and _is_same_location(metadata_ref.table_uri, ref.table_uri):
        read, write = (MAIN_BRANCH if table.branch is None else table.branch for table in (metadata_ref, ref))
        raise SnapshotError(
            f"The row addresses are of branch {read!r}, and the write goes to branch {write!r}, where they mean other "
            f"rows. Table: {ref.uri}. Write with option('branch', {read!r}), or read branch {write!r}."
        )
    if not _is_same_location(metadata_ref.uri, ref.uri):
        raise SnapshotError(
            f"The row addresses are of another table, {metadata_ref.uri}, and mean other rows here. Table: {ref.uri}. "
            f"Write to {metadata_ref.uri}, or join on a key with a read of this table."
        )
    if version is not None and version != metadata_ref.version:
        raise SnapshotError(
            f"The row addresses were read at version {metadata_ref.version}, but option 'version' says {version}. "
            f"Table: {ref.uri}. Leave the option out: the DataFrame knows its version."
        )
    return replace(ref, version=metadata_ref.version, incarnation=metadata_ref.incarnation)


def _pin_named_version(ref: DatasetRef, version: int | None, planned: Sequence[str]) -> DatasetRef:
    if version is None:
        raise SnapshotError(
            "The row addresses have lost their version, as they do in mapInArrow, cast, union and full outer joins, "
            f"and addresses of one version mean other rows in another. Table: {ref.uri}. Name the version that was "
            "read with option('version', N)."
        )
    reads = {json.loads(text).get("version") for text in planned} - {None}
    if reads and version not in reads:
        raise SnapshotError(
            f"Option 'version' says {version}, but the query reads row addresses at version {reads.pop()}. Table: "
            f"{ref.uri}. Name the version that was read."
        )
    return ref.pin(version)


def _parse_snapshot(text: object, ref: DatasetRef) -> DatasetRef | None:
    """Returns the version in the addresses' metadata; None for metadata of catalog tables."""
    try:
        values = parse_json(str(text))
        if isinstance(values, dict) and "version" not in values:
            return None
        return DatasetRef.of_snapshot_json(str(text), ref.storage_options)
    except (ValueError, TypeError) as error:
        # Any user can write column metadata.
        raise SnapshotError(
            f"The metadata of the row addresses is damaged: {_TABLE} is {str(text)[:200]!r}. Table: {ref.uri}. Select "
            "the column as it was read, or name the version with option('version', N)."
        ) from error


def _is_same_location(first: str, second: str) -> bool:
    return first == second or (
        is_local(first) and is_local(second) and os.path.realpath(first) == os.path.realpath(second)
    )


def _open_snapshot(snapshot: DatasetRef) -> lance.LanceDataset:
    """Opens the version of the rows, after a check of storage."""
    try:
        check_still_there(snapshot)
        dataset = snapshot.open()
    except VersionNotFoundError as error:
        raise SnapshotError(
            f"Version {snapshot.version}, which the rows were read at, no longer exists: it was cleaned up, or the "
            f"table was created again. Table: {snapshot.uri}. Read the table again."
        ) from error
    if dataset.data_storage_version in ("0.1", "legacy"):
        why = "its files cannot be filled column by column"
        raise UnsupportedTypeError("*", "file format 0.1", reason=why, hint="write the table anew with format 2.1")
    return dataset


def _check_names(
    schema: StructType,
    address: str,
    target_names: Sequence[str],
    verify: Sequence[str],
    dataset: lance.LanceDataset,
    uri: str,
) -> None:
    present = dataset.schema.names
    problems = []
    if len(set(schema.names)) != len(schema.names):
        problems.append("a column name is there twice")
    if not target_names:
        problems.append(f"there is no column with values beside {address!r}")
    for name in verify:
        if name not in schema.names or name not in present:
            place = "the DataFrame" if name not in schema.names else "the table"
            raise ColumnNotFoundError(
                name, place, hint="verify_columns are columns of the table that are written along unchanged"
            )
    for name in target_names:
        similar = [column for column in present if column != name and column.lower() == name.lower()]
        if name in _SYSTEM_COLUMNS or name in (ROW_ID, ROW_ADDRESS):
            problems.append(f"column {name!r} is kept by Lance and cannot be written")
        elif name not in present and "." in name:
            problems.append(
                f"column {name!r}: a field inside a struct cannot be written by itself; write the whole struct"
            )
        elif name not in present and similar:
            problems.append(
                f"column {name!r} differs from the table's {similar[0]!r} only in case; write it under that name"
            )
    if problems:
        raise SchemaMismatchError(
            f"The DataFrame is not a backfill: {'; '.join(problems)}. Table: {uri}. Nothing was written."
        )


def _build_new_columns(added: StructType, options: WriteOptions) -> pa.Schema:
    per_column = {column: dict(values) for column, values in options.column_options}
    if added.fields:
        return pa.schema([arrow.with_nullable(True) for arrow in to_lance_schema(added, per_column)])
    for column, values in per_column.items():
        name, value = next(iter(values.items()))
        raise OptionError(
            f"{column}.{name}", value, "options of columns that are added", problem="is for a column that the table has"
        )
    return pa.schema([])


def _choose_inputs(
    option: Sequence[str] | None,
    planned: Sequence[str] | None,
    targets: Sequence[str],
    identities: Mapping[str, FieldIdentity],
    uri: str,
) -> tuple[tuple[FieldIdentity, ...], InputsFrom]:
    """Returns the input columns of the values, and the source of this knowledge.

    The option comes first, then the columns that the plan reads, then all columns except the
    targets.
    """
    source: InputsFrom = "option" if option is not None else "plan" if planned is not None else "all"
    names = option if option is not None else planned if planned is not None else list(identities)
    chosen: dict[str, FieldIdentity] = {}
    for name in names:
        top = name if name in identities else name.split(".")[0]
        if top in identities and top not in targets:
            chosen[top] = identities[top]
        elif top not in identities and option is not None:
            raise ColumnNotFoundError(
                name, uri, hint=f"option 'input_columns' names columns of the table: {', '.join(identities)}"
            )
    return tuple(chosen.values()), source
