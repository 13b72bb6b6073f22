"""Blob columns of file format 2.2: values in sidecars next to the data file.

`lance.write_dataset` prepares blobs itself, but under file names of its own choice, and a killed
write would leave untraceable files. This module prepares blobs for files with names of ours. Small
values stay in the data file, medium values share a sidecar, and each large value gets a sidecar of
its own. The thresholds are Lance's, and a column's metadata may change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.types.fields import BLOB_ENCODING, BLOB_V2, EXTENSION_NAME

if TYPE_CHECKING:
    from lance.blob import PackedBlobWriter
    from lance.file import LanceFileSession

_INLINE_BYTES = 64 << 10
_PACKED_BYTES = 4 << 20
_SIDECAR_BYTES = 1 << 30
"""Lance's own defaults: the largest inline value, the largest packed value, and the size of a full
packed sidecar."""

_INLINE, _PACKED, _DEDICATED = 0, 1, 2

_PREPARED_SINCE = (2, 2)

_PREPARED = pa.struct(
    [
        ("kind", pa.uint8()),
        ("data", pa.large_binary()),
        ("uri", pa.string()),
        ("blob_id", pa.uint32()),
        ("blob_size", pa.uint64()),
        ("position", pa.uint64()),
    ]
)
"""Input type of Lance's encoder; `lance.BlobDescriptorArrayBuilder` builds the same type value by
value."""


def is_logical_blob(field: pa.Field[Any]) -> bool:
    """Tells whether the metadata of a binary column ask for storage as blobs."""
    return (field.metadata or {}).get(BLOB_ENCODING) == b"true" and not is_stored_as_blob(field)


def is_stored_as_blob(field: pa.Field[Any]) -> bool:
    """Tells whether a column has blob descriptors, which this module must prepare."""
    return isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == BLOB_V2


def row_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the field of a table's column in rows: a blob is `large_binary` with a mark."""
    if not is_stored_as_blob(field):
        return field
    return pa.field(
        field.name,
        pa.large_binary(),
        field.nullable,
        {**(field.metadata or {}), BLOB_ENCODING: b"true"},
    )


def prepares_blobs(version: str) -> bool:
    """Tells whether the file's writer prepares descriptors, a struct, for a blob column."""
    return (
        tuple(int(part) for part in version.split(".")) >= _PREPARED_SINCE
        if version[0].isdigit()
        else True
    )


def file_field(field: pa.Field[Any], version: str) -> pa.Field[Any]:
    """Returns the field of a column of rows for the file's writer: a blob as descriptors."""
    if not is_logical_blob(field) or not prepares_blobs(version):
        return field
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != BLOB_ENCODING}
    return pa.field(
        field.name, _PREPARED, field.nullable, {**metadata, EXTENSION_NAME: BLOB_V2.encode()}
    )


class BlobEncoder:
    """Converts the values of a data file's blob columns to descriptors, and writes the sidecars.

    Memory does not grow with the data: sidecars are streamed.
    """

    def __init__(
        self, session: LanceFileSession, path: str, rows: pa.Schema, stored: pa.Schema
    ) -> None:
        """Takes the data file's path, and its fields as in rows and as in its writer."""
        self._session = session
        self._path = path
        self._fields = list(zip(rows, stored, strict=True))
        self._schema = stored
        self._sidecars = 0
        self._packed: PackedBlobWriter | None = None
        self._packed_id = 0
        self._packed_bytes = 0

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with descriptors, and writes the values of sidecars."""
        columns = [
            column if field.type == stored.type else self._make_descriptors(column, field)
            for column, (field, stored) in zip(batch.columns, self._fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def finish(self) -> None:
        """Finishes the open sidecar; call this method before closing the data file."""
        if self._packed is not None:
            self._packed.finish()
            self._packed = None

    def _make_descriptors(self, values: pa.Array[Any], field: pa.Field[Any]) -> pa.StructArray:
        inline_limit = _read_threshold(field, "inline-size", _INLINE_BYTES)
        packed_limit = _read_threshold(field, "dedicated-size", _PACKED_BYTES)
        values = cast(pa.LargeBinaryArray, values)
        sizes = pc.binary_length(values).fill_null(0).cast(pa.uint64()).to_numpy()
        kinds = np.where(
            sizes > packed_limit, _DEDICATED, np.where(sizes > inline_limit, _PACKED, _INLINE)
        ).astype(np.uint8)
        ids = np.zeros(len(values), np.uint32)
        positions = np.zeros(len(values), np.uint64)
        # One step per value, only for values with a separate write.
        for row in np.flatnonzero(kinds != _INLINE).tolist():
            value = values[row].as_buffer()
            if kinds[row] == _PACKED:
                ids[row], positions[row] = self._pack(
                    value, _read_threshold(field, "pack-file-size", _SIDECAR_BYTES)
                )
            else:
                ids[row] = self._write_dedicated(value)
        null = values.is_null().to_numpy(zero_copy_only=False)
        outside = kinds != _INLINE
        return pa.StructArray.from_arrays(
            [
                pa.array(kinds, mask=null),
                pc.if_else(pa.array(outside), pa.scalar(None, pa.large_binary()), values),
                pa.nulls(len(values), pa.string()),
                pa.array(ids, mask=~outside),
                pa.array(sizes, mask=~outside),
                pa.array(positions, mask=kinds != _PACKED),
            ],
            fields=list(_PREPARED),
            mask=pa.array(null),
        )

    def _pack(self, value: pa.Buffer, sidecar_limit: int) -> tuple[int, int]:
        if self._packed is not None and self._packed_bytes + value.size > sidecar_limit:
            self.finish()
        if self._packed is None:
            self._sidecars += 1
            self._packed_id, self._packed_bytes = self._sidecars, 0
            self._packed = self._session.open_packed_blob_writer(self._path, self._packed_id)
        position = self._packed_bytes
        self._packed.write_blob(value.to_pybytes())
        self._packed_bytes += value.size
        return self._packed_id, position

    def _write_dedicated(self, value: pa.Buffer) -> int:
        self._sidecars += 1
        writer = self._session.open_dedicated_blob_writer(self._path, self._sidecars)
        writer.write(value.to_pybytes())
        writer.finish()
        return self._sidecars


def _read_threshold(field: pa.Field[Any], name: str, default: int) -> int:
    text = (field.metadata or {}).get(f"lance-encoding:blob-{name}-threshold".encode())
    return default if text is None else int(text)
