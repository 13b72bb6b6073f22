"""What the values of a checkpoint depend on, as digests that no process or Python changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

_DIGEST_BYTES = 16
_FORMAT = 1
"""Part of every digest: raise it when the meaning of a field changes, and old checkpoints are not
found any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKey:
    """What decides about a UDF's values beside the rows' own data.

    No job, filter, table name or batch size is part of it.

    Attributes:
        udf_name: Name of the UDF.
        udf_version: Its version, explicit or a digest.
        inputs: Field ids of the input columns, in the order of the UDF's parameters.
        output_type: Arrow type of the result, as text.
        environment: Checksum of the environment that the UDF runs in; None for the executors' own
            Python.
    """

    udf_name: str
    udf_version: str
    inputs: tuple[int, ...]
    output_type: str
    environment: str | None = None

    @property
    def digest(self) -> str:
        """The key as 32 hexadecimal digits."""
        return _digest(
            ["key", self.udf_name, self.udf_version, list(self.inputs), self.output_type, self.environment],
        )


def source_digest(files: Sequence[str]) -> str:
    """Returns what stands for the input data of one fragment, as 32 hexadecimal digits.

    A UDF without inputs depends on no file, so that all fragments have one digest: name the
    fragment itself among the files then.

    Args:
        files: Identities of the data files and overlays that hold the inputs, in manifest order.
            Files never change under their names.
    """
    return _digest(["source", *files])


def _digest(parts: list[object]) -> str:
    # JSON keeps the parts apart, whatever characters are in them.
    text = json.dumps([_FORMAT, *parts], ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
