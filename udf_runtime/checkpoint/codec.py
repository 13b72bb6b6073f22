"""The stored form of a checkpoint: a checksummed block of a header and an Arrow table.

    8 bytes     magic; its last byte is the version of the format
    4 bytes     length of the header, little-endian
    ...         header, JSON in UTF-8
    0-63 bytes  zeros, up to a multiple of 64
    ...         Arrow IPC stream; its buffers are compressed if a sample becomes smaller
    16 bytes    SHA-256 of all previous bytes, cut; in version 1 BLAKE2b

The block alone reveals a truncated, changed or foreign file, in any place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, Union

import pyarrow as pa

from udf_runtime.errors import CheckpointError, end_sentence

_Scalar: TypeAlias = bool | int | float | str | None
JsonValue: TypeAlias = Union[_Scalar, Sequence["JsonValue"], Mapping[str, "JsonValue"]]  # noqa: UP007
"""Values of JSON."""

_MAGIC = b"UDFCKPT\x02"
_VERSION = _MAGIC[7]
_LENGTH = struct.Struct("<I")
_CHECKSUM_BYTES = 16
_ALIGNMENT = 64

_SAMPLE_BYTES = 1 << 16
_MOST_COMPRESSED = 0.9
"""Compressed size of a sample, as a part of its size, above which a table stays uncompressed."""


def encode(
    header: Mapping[str, JsonValue], table: pa.Table, *, compression: Literal["lz4", "zstd"] = "lz4"
) -> bytes:
    """Returns the stored form. Runs anywhere.

    Args:
        header: Description of the table; JSON values only, no NaN.
        table: Any Arrow table. Extension types keep their names, and the reader restores registered
            types.
        compression: `lz4` is fast; `zstd` makes names and bitmaps smaller. Values that do not
            become smaller, for example vectors and images, stay uncompressed.
    """
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode("utf-8")
    prefix = _MAGIC + _LENGTH.pack(len(text)) + text
    prefix += b"\0" * (-len(prefix) % _ALIGNMENT)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression if _is_compressible(table) else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    return b"".join([prefix, body, _compute_checksum(prefix, body)])


def _is_compressible(table: pa.Table) -> bool:
    """Tells whether a sample from the middle of the largest buffer becomes smaller."""
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    largest = max(buffers, key=lambda buffer: buffer.size, default=None)
    if largest is None or largest.size < _SAMPLE_BYTES:
        return True
    sample = largest.slice((largest.size - _SAMPLE_BYTES) // 2, _SAMPLE_BYTES)
    return pa.compress(sample, codec="lz4").size <= _MOST_COMPRESSED * _SAMPLE_BYTES


def decode(payload: bytes) -> tuple[dict[str, JsonValue], pa.Table]:
    """Returns header and table of a stored form. Runs anywhere.

    Uncompressed buffers are not copied; they keep `payload` alive and may be aligned to 8 bytes
    only.

    Raises:
        CheckpointError: The payload is truncated, changed, of another format version, or no
            checkpoint, or its arrays are invalid (offsets out of bounds, text with invalid UTF-8).
    """
    view = memoryview(payload)
    if len(payload) < len(_MAGIC) + _LENGTH.size + _CHECKSUM_BYTES or view[:7] != _MAGIC[:7]:
        raise _make_error("is no checkpoint, or was cut short")
    if not 1 <= view[7] <= _VERSION:
        raise _make_error(f"has format version {view[7]}, and this release reads 1 to {_VERSION}")
    content = view[:-_CHECKSUM_BYTES]
    if _compute_checksum(content, version=view[7]) != view[-_CHECKSUM_BYTES:]:
        raise _make_error("does not match its checksum")
    begin = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(view[len(_MAGIC) : begin])
    end = begin + length
    try:
        header = json.loads(bytes(content[begin:end]))
        with pa.ipc.open_stream(pa.py_buffer(content[end + -end % _ALIGNMENT :])) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise _make_error(f"cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise _make_error("has no header")
    return header, table


def is_of_newer_release(payload: bytes) -> bool:
    """Tells whether a payload has a later version of the format than this release reads."""
    return payload[:7] == _MAGIC[:7] and payload[7:8] > _MAGIC[7:]


def _compute_checksum(*parts: bytes | memoryview | pa.Buffer, version: int = _VERSION) -> bytes:
    # Processors have instructions for SHA-256.
    state = (
        hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
        if version == 1
        else hashlib.sha256(usedforsecurity=False)
    )
    for part in parts:
        state.update(part)
    return state.digest()[:_CHECKSUM_BYTES]


def _make_error(reason: str) -> CheckpointError:
    return CheckpointError(
        f"The stored payload {end_sentence(reason)} Its rows are computed again."
    )


@contextlib.contextmanager
def explain_failures(what: str, path: str) -> Iterator[None]:
    """Raises CheckpointError with a place for an error of a store.

    Args:
        what: The failed operation, as the beginning of a sentence.
        path: Path in the store.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{what}: {end_sentence(str(error))} Path: {path}. Check access to the folder of the checkpoints."
        ) from error
