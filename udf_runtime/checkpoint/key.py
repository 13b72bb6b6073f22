"""Dependencies of a checkpoint's values, as digests independent of process and Python version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

_DIGEST_BYTES = 16
_FORMAT = 1
"""Part of every digest. Increase the number when the meaning of a field changes. Old checkpoints
are then ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKey:
    """Dependencies of a UDF's values, in addition to the data of the rows.

    Job, filter, table name and batch size do not count.

    Attributes:
        udf_name: Name of the UDF.
        udf_version: Version of the UDF, explicit or a digest.
        inputs: Field ids of the input columns, in the order of the UDF's parameters.
        output_type: Arrow type of the result, as text.
        environment: Checksum of the UDF's environment; None for the executors' own Python.
    """

    udf_name: str
    udf_version: str
    inputs: tuple[int, ...]
    output_type: str
    environment: str | None = None

    @property
    def digest(self) -> str:
        """The key as 32 hexadecimal digits."""
        return _compute_digest(
            [
                "key",
                self.udf_name,
                self.udf_version,
                list(self.inputs),
                self.output_type,
                self.environment,
            ],
        )


def source_digest(files: Sequence[str]) -> str:
    """Returns the digest of a fragment's input data, as 32 hexadecimal digits.

    A UDF without inputs depends on no file, and all fragments would have the same digest. In this
    case, add the fragment itself to the files.

    Args:
        files: Identities of the data files and overlays with the inputs, in manifest order. Files
            never change under their names.
    """
    return _compute_digest(["source", *files])


def _compute_digest(parts: list[object]) -> str:
    # JSON separates the parts, regardless of their characters.
    text = json.dumps([_FORMAT, *parts], ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
