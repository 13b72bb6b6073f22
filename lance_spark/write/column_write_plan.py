"""Plan of a column write, decided on the driver: its snapshot and its columns."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType

from lance_spark.commit.changes import InputsFrom
from lance_spark.commit.conflicts.identity import UNKNOWN_FIELD, FieldIdentity, field_identities
from lance_spark.dataset import MAIN_BRANCH, DatasetRef
from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaMismatchError,
    SnapshotError,
    UnsupportedTypeError,
    VersionNotFoundError,
)
from lance_spark.locations import is_local
from lance_spark.options.io_options import WriteOptions
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
_SYSTEM_COLUMNS = (
    ROW_ID,
    ROW_ADDRESS,
    "_row_created_at_version",
    "_row_last_updated_at_version",
    "_rowoffset",
    "_distance",
    "_score",
)


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
    ref: DatasetRef,
    schema: StructType,
    options: WriteOptions,
    write_spec: Mapping[str, Any] | None,
    *,
    overwrite: bool,
) -> ColumnWritePlan:
    """Plans a write; see :meth:`lance_spark.write.column_writer.LanceBackfillWriter.plan`.

    `write_spec` holds the planner rule's facts about the write, None without the rule.
    """
    spec = write_spec or {}
    if overwrite:
        raise OptionError(
            "mode",
            "backfill",
            "mode('append') with it; no row is replaced",
            problem="contradicts mode('overwrite')",
        )
    address = _find_address_column(schema, ref.uri)
    snapshot = _resolve_snapshot(
        ref, schema[address].metadata or {}, options.version, spec.get("snapshots") or ()
    )
    dataset = _open_snapshot(snapshot)
    frame_columns = _FrameColumns(
        source=schema,
        address=address,
        verify=options.verify_columns or (),
        stored=dataset.schema,
        uri=ref.uri,
    )
    frame_columns.check()
    new_columns = _build_new_columns(frame_columns.added, options)
    targets = frame_columns.merge(new_columns)
    _check_storable(targets, new_columns, dataset.data_storage_version)
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    inputs, inputs_from = _choose_inputs(
        options.input_columns, spec.get("input_columns"), targets.names, identities, ref.uri
    )
    by_row_id = address == ROW_ID and dataset.has_stable_row_ids
    return ColumnWritePlan(
        snapshot=snapshot,
        source=schema,
        columns=pa.schema(
            [
                pa.field(address, pa.int64()),
                *targets,
                *map(frame_columns.stored.field, frame_columns.verify),
            ]
        ),
        address=address,
        by_row_id=by_row_id,
        targets=Targets(
            schema=targets, existing=frame_columns.existing, format=dataset.data_storage_version
        ),
        target_identities=_identify(targets, identities),
        new_columns=new_columns,
        verify_columns=frame_columns.verify,
        inputs=inputs,
        inputs_from=inputs_from,
        # After an update has moved rows, row ids and addresses have different orders.
        exclusive=bool(spec.get("exclusive")) and not by_row_id,
        options=options,
    )


@dataclass(frozen=True, kw_only=True)
class _FrameColumns:
    """Columns of the DataFrame: the row addresses, the targets, and table columns to verify."""

    source: StructType
    address: str
    verify: tuple[str, ...]
    stored: pa.Schema
    uri: str

    @functools.cached_property
    def targets(self) -> list[str]:
        key_columns = {self.address, *self.verify}
        return [name for name in self.source.names if name not in key_columns]

    @functools.cached_property
    def existing(self) -> tuple[str, ...]:
        """Targets that the table has."""
        return tuple(name for name in self.targets if name in self._stored_names)

    @property
    def added(self) -> StructType:
        """Targets that the table lacks."""
        return StructType(
            [self._fields[name] for name in self.targets if name not in self._stored_names]
        )

    @functools.cached_property
    def _fields(self) -> dict[str, StructField]:
        return {field.name: field for field in self.source.fields}

    @functools.cached_property
    def _stored_names(self) -> frozenset[str]:
        return frozenset(self.stored.names)

    @functools.cached_property
    def _stored_by_lower_name(self) -> dict[str, str]:
        return {name.lower(): name for name in reversed(self.stored.names)}

    def merge(self, new_columns: pa.Schema) -> pa.Schema:
        """Returns the targets in the types of the table and of its new columns."""
        existing = self._stored_names
        return pa.schema(
            [
                (self.stored if name in existing else new_columns).field(name)
                for name in self.targets
            ]
        )

    def check(self) -> None:
        """Checks names and types against the table.

        Raises:
            ColumnNotFoundError: A column to verify is missing.
            SchemaMismatchError, UnsupportedTypeError: A column does not fit.
        """
        for name in self.verify:
            if name not in self._fields or name not in self._stored_names:
                place = "the DataFrame" if name not in self._fields else "the table"
                raise ColumnNotFoundError(
                    name,
                    place,
                    hint="verify_columns are columns of the table that are written along unchanged",
                )
        problems = [*self._find_problems(), *filter(None, map(self._explain_name, self.targets))]
        if problems:
            raise SchemaMismatchError(
                f"The DataFrame is not a backfill: {'; '.join(problems)}. Table: {self.uri}. Nothing was written."
            )
        self._check_types()

    def _find_problems(self) -> Iterator[str]:
        if len(set(self.source.names)) != len(self.source.names):
            yield "a column name is there twice"
        if not self.targets:
            yield f"there is no column with values beside {self.address!r}"

    def _explain_name(self, name: str) -> str | None:
        """Returns the problem with the name of a target, or None."""
        if name in _SYSTEM_COLUMNS:
            return f"column {name!r} is kept by Lance and cannot be written"
        if name in self._stored_names:
            return None
        if "." in name:
            return f"column {name!r}: a field inside a struct cannot be written by itself; write the whole struct"
        similar = self._stored_by_lower_name.get(name.lower())
        if similar is None:
            return None
        return f"column {name!r} differs from the table's {similar!r} only in case; write it under that name"

    def _check_types(self) -> None:
        names = (*self.existing, *self.verify)
        if names:
            source = StructType([self._fields[name] for name in names])
            check_writable(source, pa.schema([*map(self.stored.field, names)]), uri=self.uri)
        for name in self.existing:
            _refuse_lacking_fields(self._fields[name].dataType, self.stored.field(name).type, name)


def _identify(
    targets: pa.Schema, identities: Mapping[str, FieldIdentity]
) -> tuple[FieldIdentity, ...]:
    return tuple(
        identities.get(field.name)
        or FieldIdentity(name=field.name, id=UNKNOWN_FIELD, ids=(), type=str(field.type))
        for field in targets
    )


def _check_storable(targets: pa.Schema, new_columns: pa.Schema, file_format: str) -> None:
    """Raises if a target is a blob, or if the table's file format cannot hold a new column."""
    for field in filter(is_blob, targets):
        hint = "write binary, or rewrite the table with mode('overwrite')"
        raise UnsupportedTypeError(
            field.name, "blob", reason="a backfill cannot write blobs", hint=hint
        )
    if new_columns.names:
        FileLayout.of_new_table(new_columns, file_format)


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
    pairs = _pair_nested_types(source, stored)
    lost = [name for name, kind, _ in pairs if kind is None]
    if lost:
        raise SchemaMismatchError(
            f"Column {path!r} lacks the fields {', '.join(map(repr, lost))} of the table's column. Nothing was "
            "written. A struct is written whole, so add the other fields: struct(new AS x, s.y AS y)."
        )
    for name, kind, stored_kind in pairs:
        if kind is not None:
            _refuse_lacking_fields(kind, stored_kind, f"{path}.{name}")


def _pair_nested_types(
    source: DataType, stored: pa.DataType
) -> list[tuple[str, DataType | None, pa.DataType]]:
    """Returns the types inside a type of the table, with their names and Spark's types.

    Spark's type of a missing field is None.
    """
    if isinstance(source, ArrayType) and hasattr(stored, "value_type"):
        return [("element", source.elementType, stored.value_type)]
    if isinstance(source, MapType) and pa.types.is_map(stored):
        return [
            ("key", source.keyType, stored.key_type),
            ("value", source.valueType, stored.item_type),
        ]
    if isinstance(source, StructType) and pa.types.is_struct(stored):
        kinds = {field.name.lower(): field.dataType for field in source.fields}
        return [(field.name, kinds.get(field.name.lower()), field.type) for field in stored]
    return []


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
    if not _is_same_location(metadata_ref.uri, ref.uri) and _is_same_location(
        metadata_ref.table_uri, ref.table_uri
    ):
        read, write = (
            MAIN_BRANCH if table.branch is None else table.branch for table in (metadata_ref, ref)
        )
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
            "The row addresses have no version: the column was not read from a Lance table, or lost the version in "
            f"mapInArrow, cast, union or a full outer join. Table: {ref.uri}. Read the addresses from this table with "
            "option('with_row_address', True), or name the version of that read with option('version', N)."
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
        # On an object store, the check is a request. The commit, too, notices another table.
        if is_local(snapshot.uri) or not snapshot.is_just_opened():
            check_still_there(snapshot)
        dataset = snapshot.open()
    except VersionNotFoundError as error:
        raise SnapshotError(
            f"Version {snapshot.version}, which the rows were read at, no longer exists: it was cleaned up, or the "
            f"table was created again. Table: {snapshot.uri}. Read the table again."
        ) from error
    if dataset.data_storage_version in ("0.1", "legacy"):
        why = "its files cannot be filled column by column"
        raise UnsupportedTypeError(
            "*", "file format 0.1", reason=why, hint="write the table anew with format 2.1"
        )
    return dataset


def _build_new_columns(added: StructType, options: WriteOptions) -> pa.Schema:
    per_column = {column: dict(values) for column, values in options.column_options}
    if added.fields:
        return pa.schema(
            [arrow.with_nullable(True) for arrow in to_lance_schema(added, per_column)]
        )
    for column, values in per_column.items():
        name, value = next(iter(values.items()))
        raise OptionError(
            f"{column}.{name}",
            value,
            "options of columns that are added",
            problem="is for a column that the table has",
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
    for name in option or ():
        if _find_top_level(name, identities) not in identities:
            raise ColumnNotFoundError(
                name,
                uri,
                hint=f"option 'input_columns' names columns of the table: {', '.join(identities)}",
            )
    names: Iterable[str] = identities
    source: InputsFrom = "all"
    if option is not None:
        names, source = option, "option"
    elif planned is not None:
        names, source = planned, "plan"
    columns = dict.fromkeys(_find_top_level(name, identities) for name in names)
    return tuple(
        identities[name] for name in columns if name in identities and name not in targets
    ), source


def _find_top_level(path: str, names: Collection[str]) -> str:
    """Returns the column of a path; the name of a column may contain dots."""
    return path if path in names else path.partition(".")[0]
