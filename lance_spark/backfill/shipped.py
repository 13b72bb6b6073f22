"""Where rows were in a version that was cleaned up beside the job: told by the driver, which still has its manifest.

Only where row ids are stable. One small object per fragment of today; executors read it where they cannot open the version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.checkpoints import LanceObjects
from lance_spark.rebase.row_origins import OpenBase
from lance_spark.rows.merge import Offsets, distinct
from lance_spark.rows.row_addresses import fragments_of
from udf_runtime.checkpoint.codec import decode, encode
from udf_runtime.errors import CheckpointError

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment

    from lance_spark.rows.row_addresses import Addresses, Mask

_FOLDER = "_lance_spark"


@dataclass(frozen=True, slots=True)
class ShippedBase:
    """What the driver has told of a version, for one fragment of today: a :class:`~lance_spark.rebase.row_origins.Base`."""

    version: int
    fragments: dict[int, FragmentMetadata]
    table: pa.Table

    def fragment(self, fragment_id: int) -> FragmentMetadata | None:
        """Returns one of the fragments that rows were in."""
        return self.fragments.get(fragment_id)

    def addresses(self, handle: LanceFragment, rows: Offsets) -> tuple[Addresses, Mask] | None:
        """Returns where rows were."""
        del handle
        at, found = self.table["row"].to_numpy(), self.table["address"].to_numpy()
        where = np.minimum(np.searchsorted(at, rows), max(len(at) - 1, 0))
        known = at[where] == rows if len(at) else np.zeros(len(rows), dtype=np.bool_)
        return (found[where] if len(at) else np.zeros(len(rows), dtype=np.uint64)), known


def ship(spec: BackfillSpec, base: lance.LanceDataset, head: lance.LanceDataset, fragment_id: int) -> None:
    """Tells executors where the rows of a fragment were. Runs on the driver; holds 24 bytes a row of the fragment."""
    handle = head.get_fragment(fragment_id)
    if handle is None or not base.has_stable_row_ids or not head.has_stable_row_ids:
        return
    rows = np.arange(handle.metadata.physical_rows, dtype=np.int64)
    looked_up = OpenBase(base).addresses(handle, rows)
    if looked_up is None:
        return
    addresses, known = looked_up
    numbers = distinct(fragments_of(addresses[known])).tolist()
    there = [base.get_fragment(number) for number in numbers]
    header: Any = {"kind": "addresses", "fragments": [one.metadata.to_json() for one in there if one is not None]}
    table = pa.table({"row": pa.array(rows[known]), "address": pa.array(addresses[known])})
    _objects(spec).put(_path(spec, base.version, fragment_id), encode(header, table, compression="zstd"))


def shipped(spec: BackfillSpec, version: int, fragment_id: int) -> ShippedBase | None:
    """Returns what the driver has told, if it has."""
    from lance.fragment import FragmentMetadata

    payload = _objects(spec).get(_path(spec, version, fragment_id))
    if payload is None:
        return None
    try:
        header, table = decode(payload)
    except CheckpointError:
        return None
    told: Any = header["fragments"]
    found = [FragmentMetadata.from_json(json.dumps(one)) for one in told]
    return ShippedBase(version, {one.id: one for one in found}, table)


def _path(spec: BackfillSpec, version: int, fragment_id: int) -> str:
    return f"jobs/{spec.staging.job_id}/addresses/{spec.snapshot.version}-{version}-{fragment_id}"


def _objects(spec: BackfillSpec) -> LanceObjects:
    return LanceObjects(f"{spec.snapshot.uri}/{_FOLDER}", spec.snapshot.storage_options)
