"""The stored form: values with a round trip, and detection of unusable data."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.checkpoint import decode, encode
from udf_runtime.errors import CheckpointError

VECTORS = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 4)
ARRAYS = {
    "numbers": pa.array([1, None, 3], pa.int64()),
    "decimals": pa.array(
        [decimal.Decimal("1.5"), None, decimal.Decimal("-2.5")], pa.decimal128(38, 1)
    ),
    "texts": pa.array(["", None, "é" * 1000]),
    "blobs": pa.array([b"\0\1", b"", None], pa.large_binary()),
    "lists": pa.array([[1, None], None, []], pa.list_(pa.int8())),
    "structs": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "vectors": VECTORS,
    "times": pa.array(
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")
    ),
    "maps": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "nothing": pa.nulls(3),
    "bits": pa.array([True, None, False]),
    "extension": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0" * 16, None, b"1" * 16], pa.binary(16))
    ),
    "sliced": pa.array(["cut", "a", "b", None, "cut"]).slice(1, 3),
}
TABLE = pa.table(ARRAYS)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_every_kind_of_value_survives(compression) -> None:
    header, decoded = decode(encode({"what": "everything"}, TABLE, compression=compression))
    assert header == {"what": "everything"}
    assert decoded.schema == TABLE.schema
    assert decoded.equals(TABLE)
    decoded.validate(full=True)


@pytest.mark.parametrize("name", ARRAYS)
def test_zero_rows_keep_their_type(name: str) -> None:
    empty = pa.table({"value": ARRAYS[name].slice(0, 0)})
    _, decoded = decode(encode({}, empty))
    assert decoded.schema == empty.schema and len(decoded) == 0


def test_a_table_without_columns_survives() -> None:
    header, decoded = decode(encode({"only": "a header"}, pa.table({})))
    assert header == {"only": "a header"} and decoded.num_columns == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_any_header_survives(header) -> None:
    assert decode(encode(header, pa.table({"x": [1]})))[0] == header


def test_values_outside_json_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"x": float("nan")}, TABLE)


def test_a_payload_cut_short_anywhere_is_found() -> None:
    payload = encode({"a": 1}, pa.table({"x": list(range(50))}))
    for length in range(len(payload)):
        with pytest.raises(CheckpointError, match="computed again"):
            decode(payload[:length])
    with pytest.raises(CheckpointError, match="checksum"):
        decode(payload + b"\0")


def test_a_changed_byte_anywhere_is_found() -> None:
    payload = encode({"a": 1}, pa.table({"x": list(range(50))}))
    rng = random.Random(1)
    for position in range(len(payload)):
        changed = bytearray(payload)
        changed[position] ^= rng.randrange(1, 256)
        with pytest.raises(CheckpointError, match="computed again"):
            decode(bytes(changed))


@pytest.mark.parametrize("foreign", [b"", b"PAR1" * 100, b"ARROW1\0\0" * 10, b"{}"])
def test_a_foreign_payload_is_found(foreign: bytes) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        decode(foreign)


def test_another_version_of_the_format_is_told_apart_from_damage() -> None:
    payload = encode({}, TABLE)
    with pytest.raises(CheckpointError, match="format version 3, and this release reads 1 to 2"):
        decode(payload[:7] + b"\x03" + payload[8:])


def test_a_payload_of_the_first_version_is_read() -> None:
    content = b"UDFCKPT\x01" + encode({"a": 1}, TABLE)[8:-16]
    payload = content + hashlib.blake2b(content, digest_size=16).digest()
    header, decoded = decode(payload)
    assert header == {"a": 1} and decoded.equals(TABLE)
    with pytest.raises(CheckpointError, match="checksum"):
        decode(payload[:-1] + bytes([payload[-1] ^ 1]))


def test_compressible_data_is_compressed() -> None:
    assert len(encode({}, pa.table({"x": [7] * 10_000}))) < 2_000


def test_data_that_does_not_become_smaller_is_not_compressed() -> None:
    vectors = np.random.default_rng(0).random(64 * 1024, dtype=np.float32)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 64)})
    payload = encode({}, table)
    assert vectors.tobytes() in payload and decode(payload)[1].equals(table)


def test_equal_contents_have_equal_stored_forms() -> None:
    assert encode({"a": 1}, TABLE) == encode({"a": 1}, TABLE)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.list_(pa.int32()), pa.map_(pa.int32(), pa.int32()), pa.time32("s")]
)
def test_arrays_that_are_not_valid_are_found(kind: pa.DataType) -> None:
    """The checksum is right, but the arrays are invalid: offsets beyond the items, text in a wrong encoding."""
    wrong = pa.py_buffer(np.array([0, 100_000, 1], np.int32))
    if kind == pa.time32("s"):
        broken: pa.Array = pa.Array.from_buffers(
            kind, 1, [None, pa.py_buffer(np.array([-1], np.int32))]
        )
    elif kind == pa.string():
        broken = pa.Array.from_buffers(
            kind, 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
        )
    else:
        items = pa.array([1], pa.int32())
        child = (
            items
            if pa.types.is_list(kind)
            else pa.StructArray.from_arrays([items] * 2, names=["key", "value"])
        )
        broken = pa.Array.from_buffers(kind, 2, [None, wrong], children=[child])
    with pytest.raises(CheckpointError, match="computed again"):
        decode(encode({}, pa.table({"x": broken})))
