"""Carries the UDFs of columns over an overwrite: :func:`carry_bindings`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.conflicts.identity import (
    BINDING_KEY,
    OUTPUT_KEY,
    TOKEN_KEY,
    field_identities,
)
from lance_spark.stored_json import parse_json

if TYPE_CHECKING:
    import lance

_NO_FIELD = -1


def carry_bindings(schema: pa.Schema, head: lance.LanceDataset, job_id: str) -> pa.Schema:
    """Returns the schema of an overwrite with the UDFs of columns of the same name and type.

    A column gets a new token, because results computed for the old rows do not fit the new rows.
    Siblings of a UDF share a token again. Metadata of an absent input names no field, so a backfill
    reports the missing input.

    Args:
        schema: Columns of the new version.
        head: The overwritten version.
        job_id: Id of the write, to make the new tokens unique.
    """
    from lance.schema import LanceSchema

    ids = {column.name: column.id for column in field_identities(LanceSchema.from_pyarrow(schema))}
    new_ids = {
        column.id: ids.get(column.name, _NO_FIELD) for column in field_identities(head.lance_schema)
    }
    before = {field.name: field for field in head.schema}
    fields = []
    for field in schema:
        old = before.get(field.name)
        if old is not None and old.type.equals(field.type):
            carried = _carried_metadata(old.metadata or {}, new_ids, head.version, job_id)
            fields.append(
                field.with_metadata(_copy_metadata(field) | carried) if carried else field
            )
        else:
            fields.append(field)
    return pa.schema(fields, metadata=_copy_metadata(schema) or None)


def _copy_metadata(schema: pa.Schema | pa.Field[Any]) -> dict[bytes | str, bytes | str]:
    return dict((schema.metadata or {}).items())


def _carried_metadata(
    metadata: Mapping[bytes, bytes], new_ids: Mapping[int, int], version: int, job_id: str
) -> dict[bytes | str, bytes | str]:
    if BINDING_KEY.encode() not in metadata:
        return {}
    token = metadata.get(TOKEN_KEY, b"").decode(errors="replace")
    carried: dict[bytes | str, bytes | str] = {
        BINDING_KEY: _renumbered(metadata[BINDING_KEY.encode()], new_ids, version),
        TOKEN_KEY: uuid.uuid5(uuid.NAMESPACE_OID, f"{token}/{job_id}").hex,
    }
    if OUTPUT_KEY.encode() in metadata:
        carried[OUTPUT_KEY] = metadata[OUTPUT_KEY.encode()]
    return carried


def _renumbered(text: bytes, new_ids: Mapping[int, int], version: int) -> bytes:
    """Returns a binding with the field ids of the new version; damaged text is unchanged."""
    try:
        binding: dict[str, Any] = parse_json(text)
        if binding.get("of_source"):
            return text
        binding["input_ids"] = [new_ids.get(number, _NO_FIELD) for number in binding["input_ids"]]
        # The version of the overwrite, or an earlier version if another commit comes in between.
        binding["bound_at"] = version + 1
    except (ValueError, TypeError, KeyError, AttributeError):
        return text
    return json.dumps(binding, sort_keys=True).encode()
