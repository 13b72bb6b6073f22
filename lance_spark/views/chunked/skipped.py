"""Rows of a source skipped by the policy of a chunker. The next refresh chunks these rows again.

A file next to the view holds their row ids, and the state of the view names the file
(:class:`~lance_spark.views.state.Refreshed`). Runs on the driver; 8 bytes a row.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.rows.row_addresses import (
    SnapshotRows,
    fragments_of,
    look_up,
    offsets_of,
    row_ids,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.storage.objects import objects_beside

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_SCHEMA = pa.schema([pa.field("id", pa.uint64())])


def keep_skipped(
    view: DatasetRef, source: lance.LanceDataset, skipped: Mapping[int, RowSet]
) -> str | None:
    """Writes the rows, by fragment, to a file, and returns its name; None without rows.

    Raises:
        OSError: The store refused.
    """
    rows = SnapshotRows(source)
    id_arrays = [
        row_ids(rows.existing_fragment(number), some.to_numpy())
        for number, some in sorted(skipped.items())
    ]
    if not id_arrays:
        return None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        ids = pa.array(np.concatenate(id_arrays).astype(np.uint64))
        writer.write_batch(pa.RecordBatch.from_arrays([ids], schema=_SCHEMA))
    name = hashlib.blake2b(sink.getvalue(), digest_size=16).hexdigest()
    objects_beside(view).put(_path(name), sink.getvalue())
    return name


def skipped_rows(
    view: DatasetRef, source: lance.LanceDataset, name: str | None
) -> dict[int, RowSet]:
    """Returns the rows of a file by fragment, without rows absent from this version of the source.

    Raises:
        OSError: The store refused.
    """
    payload = None if name is None else objects_beside(view).get(_path(name))
    if payload is None:
        if name is not None:
            _LOG.warning(
                "the rows that a refresh of %s skipped are not known any more: %s is gone",
                view.uri,
                name,
            )
        return {}
    ids = pa.ipc.open_stream(payload).read_all().column("id").to_numpy()
    addresses, exists = look_up(source, ids)
    addresses = np.sort(addresses[exists])
    runs = runs_of(fragments_of(addresses))
    return {fragment: RowSet.of(offsets_of(addresses[first:end])) for fragment, first, end in runs}


def _path(name: str) -> str:
    return f"views/skipped/{name}"
