"""The binding of a UDF to its output column, as JSON in the column's field metadata.

The table's folder holds the pickled UDF, once per content digest. Reads of a table or of its
bindings never unpickle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.conflicts.history import events_between
from lance_spark.commit.conflicts.identity import (
    BINDING_KEY,
    OUTPUT_KEY,
    TOKEN_KEY,
    FieldIdentity,
    field_identities,
)
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.environments.stored import upload_archives
from lance_spark.errors import (
    ColumnNotFoundError,
    RegistrationError,
    StoredUdfError,
    UnsupportedTypeError,
)
from lance_spark.locations import is_local
from lance_spark.staging.blobs import is_logical_blob, prepares_blobs, row_field
from lance_spark.storage.objects import LanceObjects, objects_of_table
from lance_spark.stored_json import Kinds, check_fields, load_object
from lance_spark.types.fields import BLOB_ENCODING
from udf_runtime import UDF, Kind, Manifest
from udf_runtime.checkpoint import CheckpointKey
from udf_runtime.errors import UdfRuntimeError, end_sentence

if TYPE_CHECKING:
    import lance

ALLOW_VARIABLE = "LANCE_SPARK_ALLOW_STORED_UDFS"

_UDFS = "udfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A UDF, bound to its output column or sibling columns.

    Attributes:
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        kind: Kind of the UDF.
        inputs: Names of the input columns at registration, in the order of the parameters.
        input_ids: Field ids of the input columns, which survive renames.
        output_type: Arrow type of the UDF's result, as text.
        payload: Digest of the pickled UDF.
        columns: Pairs of output field and column for a UDF of several columns; otherwise a single
            pair with an empty field.
        manifest: The environment of the UDF; None is the executors' own Python.
        task_size: Rows per task requested by the UDF, or None.
        redefined: How often the column's UDF was replaced; values of earlier UDFs are out of date.
        bound_at: Version of the table at registration.
        of_source: Whether the inputs are columns of a view's source rather than of the table.
            `bound_at` is then a version of the source.
        auto_backfill: Whether an agent keeps the columns up to date.
    """

    udf_name: str
    udf_version: str
    kind: str
    inputs: tuple[str, ...]
    input_ids: tuple[int, ...]
    output_type: str
    payload: str
    columns: tuple[tuple[str, str], ...]
    manifest: Manifest | None = None
    task_size: int | None = None
    redefined: int = 0
    bound_at: int = 0
    of_source: bool = False
    auto_backfill: bool = False

    @property
    def environment(self) -> str | None:
        """Checksum of the environment."""
        return None if self.manifest is None else self.manifest.checksum

    @property
    def key(self) -> CheckpointKey:
        """Dependencies of the column's values, apart from the rows."""
        return CheckpointKey(
            udf_name=self.udf_name,
            udf_version=self.udf_version,
            inputs=self.input_ids,
            output_type=self.output_type,
            environment=self.environment,
        )

    def keep_version(self, udf: UDF) -> UDF:
        """Returns a UDF for the column, with the stored version if the code is unchanged."""
        return udf.keep_version(self.udf_name, self.udf_version)

    @staticmethod
    def of(
        udf: UDF, inputs: Sequence[FieldIdentity], columns: Sequence[tuple[str, str]]
    ) -> Binding:
        """Binds a UDF, pickled once, to input columns of a table and to its output columns."""
        return Binding(
            udf_name=udf.name,
            udf_version=udf.version,
            kind=udf.kind.name.lower(),
            inputs=tuple(column.name for column in inputs),
            input_ids=tuple(column.id for column in inputs),
            output_type=str(udf.data_type),
            payload=UDF.payload_digest(udf.dumps()),
            columns=tuple(columns),
            manifest=udf.manifest,
            task_size=udf.task_size,
        )

    def to_json(self) -> str:
        """Returns the text for field metadata."""
        manifest = None if self.manifest is None else self.manifest.to_dict()
        return json.dumps(dataclasses.asdict(self) | {"manifest": manifest}, sort_keys=True)

    @staticmethod
    def from_json(text: str, column: str) -> Binding:
        """Reads field metadata; keys of newer releases are ignored.

        Raises:
            StoredUdfError: The text is damaged.
        """
        try:
            names = {field.name for field in dataclasses.fields(Binding)}
            values = {
                key: value for key, value in load_object(text, _KINDS).items() if key in names
            }
            values["payload"] = _check_digest(values["payload"])
            for key in ("inputs", "input_ids"):
                values[key] = tuple(values[key])
            values["columns"] = tuple((str(field), str(name)) for field, name in values["columns"])
            if values.get("manifest") is not None:
                values["manifest"] = Manifest.from_dict(values["manifest"])
            return _check_consistency(Binding(**values))
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise StoredUdfError(
                f"The stored binding of the UDF is damaged: {end_sentence(str(error))} Column: {column!r}. Give the "
                "column a UDF again with alter_columns."
            ) from error


_KINDS: Kinds = {
    **dict.fromkeys(("udf_name", "udf_version", "kind", "output_type"), str),
    **dict.fromkeys(("inputs", "input_ids", "columns"), list),
}


def _check_consistency(binding: Binding) -> Binding:
    """Returns a binding with consistent fields.

    Raises:
        ValueError: The fields contradict each other.
    """
    optional: Kinds = {
        "task_size": (int, type(None)),
        **dict.fromkeys(("redefined", "bound_at"), int),
        **dict.fromkeys(("of_source", "auto_backfill"), bool),
    }
    check_fields({name: getattr(binding, name) for name in optional}, optional)
    if binding.kind.upper() not in Kind.__members__:
        raise ValueError(f"{binding.kind!r} is no kind of UDF")
    if len(binding.inputs) != len(binding.input_ids):
        raise ValueError("the names and the ids of the input columns differ in number")
    if not all(isinstance(name, str) for name in binding.inputs):
        raise ValueError("the name of an input column is no text")
    if not all(type(number) is int for number in binding.input_ids):
        raise ValueError("the id of an input column is no integer")
    if not binding.columns:
        raise ValueError("no output column is stored")
    return binding


def _check_digest(text: object) -> str:
    """Returns the digest of a payload, which is the name of a file."""
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"{text!r} is no digest of a UDF")
    return text


def binding_of(dataset: lance.LanceDataset, column: str) -> Binding | None:
    """Returns the binding of a column under its siblings' current names; None without a UDF.

    Raises:
        ColumnNotFoundError: The column does not exist.
        StoredUdfError: The metadata is damaged.
    """
    if column not in dataset.schema.names:
        raise ColumnNotFoundError(
            column,
            dataset.uri,
            hint=f"its columns are {', '.join(dataset.schema.names)}; add_columns adds one",
        )
    field = dataset.schema.field(column)
    text = (field.metadata or {}).get(BINDING_KEY.encode())
    if text is None:
        return None
    binding = Binding.from_json(text.decode(), column)
    return dataclasses.replace(binding, columns=_resolve_columns(dataset, column, binding))


def find_auto_backfilled(dataset: lance.LanceDataset) -> dict[tuple[str, ...], Binding]:
    """Returns the bindings of columns that an agent keeps up to date, by a UDF's columns.

    Columns with a damaged binding are left out.
    """
    groups: dict[bytes, tuple[list[str], Binding]] = {}
    for field in dataset.schema:
        metadata = field.metadata or {}
        text = metadata.get(BINDING_KEY.encode())
        if text is None:
            continue
        with contextlib.suppress(StoredUdfError, UnicodeDecodeError):
            binding = Binding.from_json(text.decode(), field.name)
            if binding.auto_backfill:
                token = metadata.get(TOKEN_KEY, field.name.encode())
                groups.setdefault(token, ([], binding))[0].append(field.name)
    return {tuple(names): binding for names, binding in groups.values()}


def _resolve_columns(
    dataset: lance.LanceDataset, column: str, binding: Binding
) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of field and column, with the columns' present names.

    Siblings share a token and the order of their fields; a renamed sibling keeps its token.

    Raises:
        RegistrationError: A sibling was dropped.
    """
    if len(binding.columns) == 1:
        return ((binding.columns[0][0], column),)
    siblings = _find_siblings(dataset.schema, column)
    dropped = [name for field, name in binding.columns if field not in siblings]
    if dropped:
        raise RegistrationError(
            f"Sibling columns are gone: {', '.join(map(repr, dropped))}. They were computed together with {column!r} "
            f"in {dataset.uri}. Drop the remaining siblings, and add all of them again."
        )
    return tuple((field, siblings[field]) for field, _ in binding.columns)


def _find_siblings(schema: pa.Schema, column: str) -> dict[str, str]:
    """Returns the columns of a column's UDF by output field."""
    token = (schema.field(column).metadata or {}).get(TOKEN_KEY)
    siblings = {}
    for field in schema:
        metadata = field.metadata or {}
        if (
            metadata.get(TOKEN_KEY) == token
            and {BINDING_KEY.encode(), OUTPUT_KEY.encode()} <= metadata.keys()
        ):
            siblings[metadata[OUTPUT_KEY.encode()].decode()] = field.name
    return siblings


def metadata_of(binding: Binding, field: str, token: str) -> dict[str, str]:
    """Returns the field metadata of a computed column."""
    metadata = {BINDING_KEY: binding.to_json(), TOKEN_KEY.decode(): token}
    if field:
        metadata[OUTPUT_KEY] = field
    return metadata


def inputs_now(
    dataset: lance.LanceDataset, binding: Binding, column: str
) -> tuple[FieldIdentity, ...]:
    """Returns the input columns with their present names.

    Raises:
        RegistrationError: An input column was dropped.
    """
    identities = _find_inputs(dataset, binding)
    dropped = [
        name
        for name, number in zip(binding.inputs, binding.input_ids, strict=True)
        if number not in identities
    ]
    if dropped:
        replaced = [name for name in dropped if name in dataset.schema.names]
        cast = f" (cast or created again: {', '.join(map(repr, replaced))})" if replaced else ""
        raise RegistrationError(
            f"Input columns are gone: {', '.join(map(repr, dropped))}{cast}. UDF {binding.udf_name!r} computes "
            f"{column!r} from them in {dataset.uri}. Give the column a UDF of other inputs with alter_columns."
        )
    return tuple(identities[number] for number in binding.input_ids)


def _find_inputs(dataset: lance.LanceDataset, binding: Binding) -> dict[int, FieldIdentity]:
    """Returns the remaining input columns by field id."""
    inputs = dict(zip(binding.input_ids, binding.inputs, strict=True))
    identities = {
        identity.id: identity
        for identity in field_identities(dataset.lance_schema)
        if identity.id in inputs
    }
    if binding.bound_at and any(
        identity.name != inputs[number] for number, identity in identities.items()
    ):
        # Either the column was renamed, or Lance gave the id of a dropped column to a new column.
        for number in _find_dropped_ids(dataset, binding.bound_at, binding.input_ids):
            identities.pop(number, None)
    return identities


def _find_dropped_ids(dataset: lance.LanceDataset, version: int, ids: Sequence[int]) -> set[int]:
    """Returns the field ids dropped by transactions since a version; one read per version."""
    from lance import LanceOperation

    dropped: set[int] = set()
    for event in events_between(dataset, version, dataset.version):
        if isinstance(event.operation, LanceOperation.Project):
            dropped |= set(ids) - {column.id for column in field_identities(event.operation.schema)}
    return dropped


def store_udf(udf: UDF, ref: DatasetRef) -> str:
    """Stores the pickled UDF next to a table unless present, and returns its digest.

    The archives of its manifest are stored too. All branches of a table share this storage, because
    a branch begins with columns of UDFs.

    Raises:
        UdfDefinitionError: The table lacks an archive, and so does this process.
        TableUnwritableError: The store refused.
    """
    upload_archives(udf, ref)
    objects, payload = objects_of_table(ref), udf.dumps()
    digest = UDF.payload_digest(payload)
    path = f"{_UDFS}/{digest}"
    # A missing object takes two requests to read, and one to look for.
    is_missing = objects.get(path) is None if is_local(objects.uri) else not objects.contains(path)
    if is_missing:
        objects.put(path, payload)
    return digest


def load_udf(binding: Binding, objects: LanceObjects, column: str) -> UDF:
    """Unpickles the UDF that is stored with a column.

    Unpickling runs code, which any writer of the table may have stored.

    Raises:
        StoredUdfError: The UDF is missing, altered, not loadable here, or loading is forbidden.
    """
    where = f"UDF {binding.udf_name!r} of column {column!r}, {FOLDER}/{_UDFS}/{binding.payload}"
    allowed = os.environ.get(ALLOW_VARIABLE, "1")
    if not _allows_stored():
        raise StoredUdfError(
            f"Loading stored UDFs is forbidden by {ALLOW_VARIABLE}={allowed!r}. Stored: {where}. Pass the UDF itself: "
            f"backfill({column!r}, udf=...)."
        )
    payload = objects.get(f"{_UDFS}/{binding.payload}")
    if payload is None:
        raise StoredUdfError(
            f"The stored UDF is missing. Stored: {where}. Pass the UDF with udf=, or register it with alter_columns."
        )
    if UDF.payload_digest(payload) != binding.payload:
        raise StoredUdfError(
            f"The stored UDF was altered. Stored: {where}. Register the UDF again with alter_columns."
        )
    try:
        return UDF.loads(payload)
    except UdfRuntimeError as error:
        raise StoredUdfError(
            f"The stored UDF cannot be loaded here: {end_sentence(str(error))} Stored: {where}. Pass the UDF with udf=."
        ) from error


def in_stored_environment(udf: UDF, binding: Binding, column: str) -> UDF:
    """Returns a UDF passed for a column, in the column's environment if the UDF has none.

    Raises:
        StoredUdfError: Stored code is forbidden, and so is a stored environment.
    """
    if udf.manifest is not None or binding.manifest is None:
        return udf
    if not _allows_stored():
        raise StoredUdfError(
            f"Environments that are stored with a table are forbidden by {ALLOW_VARIABLE}. Manifest: "
            f"{binding.manifest.name!r} of column {column!r}. Pass a UDF with a manifest of its own."
        )
    return udf.with_manifest(binding.manifest)


def _allows_stored() -> bool:
    return os.environ.get(ALLOW_VARIABLE, "1").strip().lower() in ("1", "true", "yes")


def record_batch_inputs(
    dataset: lance.LanceDataset, outputs: Sequence[str]
) -> tuple[FieldIdentity, ...]:
    """Returns the inputs of a UDF over record batches: all columns at registration but its own."""
    return tuple(c for c in field_identities(dataset.lance_schema) if c.name not in outputs)


def takes_record_batch(udf: UDF) -> bool:
    """Tells whether a UDF gets whole record batches."""
    return udf.kind in (Kind.RECORD_BATCH, Kind.RECORD_BATCH_ITER)


def output_fields(
    udf: UDF, columns: Sequence[tuple[str, str]], data_storage_version: str
) -> list[pa.Field[Any]]:
    """Returns the Arrow fields of the output columns, nullable, with the UDF's own field metadata.

    Args:
        udf: The UDF.
        columns: Pairs of output field and column name.
        data_storage_version: File format of the table: blobs are another type from 2.2 on.

    Raises:
        UnsupportedTypeError: Lance lacks the type, or the column is a blob in format 2.0, which
            does not record NULL blobs.
    """
    from lance.schema import LanceSchema

    data_type: Any = udf.data_type
    kinds = [data_type.field(field).type if field else data_type for field, _ in columns]
    metadata: dict[bytes | str, bytes | str] = dict(udf.field_metadata.items())
    fields = [
        _to_stored_field(pa.field(name, kind, True, metadata), data_storage_version)
        for (_, name), kind in zip(columns, kinds, strict=True)
    ]
    for field in fields:
        try:
            LanceSchema.from_pyarrow(pa.schema([field]))
        except ValueError as error:
            hint = "let the UDF return another type"
            raise UnsupportedTypeError(
                field.name, str(field.type), reason="Lance has no such type", hint=hint
            ) from error
    return fields


def _to_stored_field(field: pa.Field[Any], version: str) -> pa.Field[Any]:
    """Returns the field in a table of this file format."""
    if not is_logical_blob(field):
        return field
    if not prepares_blobs(version) and version != "2.1":
        raise UnsupportedTypeError(
            field.name,
            "blob",
            reason=f"file format {version} does not tell which blobs are NULL",
            hint="compute plain binary, or write the table anew with format 2.1 or newer",
        )
    if not prepares_blobs(version):
        return field.with_type(pa.large_binary())
    from lance.blob import BlobType

    metadata = {key: value for key, value in (field.metadata or {}).items() if key != BLOB_ENCODING}
    return pa.field(field.name, BlobType(), True, metadata)


def value_type(field: pa.Field[Any]) -> pa.DataType:
    """Returns the type of a column's values: blobs are `large_binary`."""
    kind: pa.DataType = row_field(field).type
    return kind
