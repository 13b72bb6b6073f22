"""Checkpoints: durable results of UDF calls, with names derived from the values' dependencies."""

from __future__ import annotations

from udf_runtime.checkpoint.codec import JsonValue, decode, encode
from udf_runtime.checkpoint.key import CheckpointKey, source_digest
from udf_runtime.checkpoint.local import LocalObjects
from udf_runtime.checkpoint.store import (
    CheckpointEntry,
    CheckpointStore,
    ColumnFileReference,
    Objects,
)

__all__ = [
    "CheckpointEntry",
    "CheckpointKey",
    "CheckpointStore",
    "ColumnFileReference",
    "JsonValue",
    "LocalObjects",
    "Objects",
    "decode",
    "encode",
    "source_digest",
]
