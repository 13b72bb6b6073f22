"""The first rows of a sort by distance, found by a search: :class:`NearestRows`.

The planner rule asks for it where a session allows it. Spark sorts what is found by the distances
that it computes itself, and takes the first rows of that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.read.columns import lance_blob_handling
from lance_spark.read.search.ranking import DISTANCE, search_errors
from lance_spark.types.fields import BlobHandling
from lance_spark.types.names import requested_columns

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options import ReadOptions
    from lance_spark.read.spec import NearestCall

EFFORT = 0.9
"""How much of an index is searched: of n partitions n to the power of it. Measured with IVF_PQ,
50,000 vectors of 32, 64 and 512 partitions: 97 % of the ten nearest of vectors without clusters,
all of those with. With a filter all partitions are, since rows that pass lie further away: half as
many hits, where one row in a hundred does."""

REFINE = 10
"""Of so many times as many rows distances are computed from the vectors themselves."""

SPARE_ROWS = 10
"""Rows that are found beyond those that are asked for, at least: Spark's distances differ from
Lance's in their last digits."""

FOUND_BYTES = 64 << 20
"""Bytes that the rows of a search may take in memory, estimated by their width."""

CHECKED_BYTES = 128 << 20
"""Bytes of a column in which NULLs are looked for while a query is planned: 0.1 s."""

_ROUNDING = 1e-5
_TINY = {"l2": 0.0, "cosine": 1e-6, "dot": 0.0}
"""How far two distances that are the same lie apart: relatively, and at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestRows:
    """A search for the first rows of a sort by distance. A picklable value.

    Attributes:
        call: What the planner rule asked for.
        index: Name of the index that serves.
        most: Most rows that it holds in memory.
    """

    call: NearestCall
    index: str
    most: int

    def found(
        self, dataset: lance.LanceDataset, columns: Sequence[str], filter: str | None, blobs: BlobHandling
    ) -> list[pa.RecordBatch] | None:
        """Returns the nearest rows, and all that are as near as the last of them.

        Runs on an executor.

        Returns:
            None where they cannot be told from the others: fewer rows have a distance than are
            asked for, too many have the same, or elements of a vector are NULL.

        Raises:
            SearchError: Lance cannot search so.
            FilterError: The filter failed on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        rows = self.call.k + max(SPARE_ROWS, self.call.k // 4)
        while rows <= self.most:
            with search_errors(dataset, filter):
                table = self._search(dataset, columns, filter, blobs, rows)
            vectors: Any = table[self.call.column].combine_chunks()
            if table.num_rows < self.call.k or vectors.null_count or vectors.flatten().null_count:
                return None
            if table.num_rows < rows or self._tells_apart(table[DISTANCE]):
                return table.drop([DISTANCE]).to_batches()
            rows *= 4
        return None

    def _search(
        self, dataset: lance.LanceDataset, columns: Sequence[str], filter: str | None, blobs: BlobHandling, rows: int
    ) -> pa.Table:
        call = self.call
        nearest: dict[str, Any] = {"column": call.column, "q": list(call.q), "k": rows, "metric": call.metric}
        nearest |= {"refine_factor": REFINE, "search_effort": EFFORT if filter is None else 1.0}
        return dataset.scanner(
            columns=requested_columns([*columns, DISTANCE]),
            filter=filter,
            prefilter=None if filter is None else True,
            nearest=nearest,
            blob_handling=lance_blob_handling(blobs),
            disable_scoring_autoprojection=True,
        ).to_table()

    def _tells_apart(self, distances: pa.ChunkedArray[Any]) -> bool:
        """Tells whether the last row that is asked for is nearer than the last one found."""
        first, kth, last = (distances[at].as_py() for at in (0, self.call.k - 1, -1))
        return bool(last - kth > max(_TINY[self.call.metric], _ROUNDING * max(abs(first), abs(kth))))


def plan_nearest(
    ref: DatasetRef, options: ReadOptions, call: NearestCall, *, row_bytes: float, vector_bytes: int
) -> NearestRows | str:
    """Returns the search that serves a sort by distance, or in words why none does.

    Runs on the driver. Reads the manifest, and where rows without a vector come first a column of
    up to CHECKED_BYTES.

    Args:
        ref: The table at a version.
        options: The user's options.
        call: What the planner rule asks for.
        row_bytes: Estimated bytes of a row of the scan.
        vector_bytes: Estimated bytes of the column of vectors.
    """
    dataset = ref.open()
    if options.fragments is not None or options.limit is not None:
        return "the options fragments and limit come first"
    if DISTANCE in dataset.schema.names or call.column not in dataset.schema.names:
        return f"there is a column {DISTANCE}"
    kind = dataset.schema.field(call.column).type
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_float32(kind.value_type):
        return f"{call.column} has no vectors of float32"
    if kind.list_size != len(call.q):
        return f"the vector has {len(call.q)} numbers, and those of {call.column} have {kind.list_size}"
    if call.metric == "cosine" and not any(call.q):
        return "nothing has an angle to a vector of zeros"
    found = [one for one in dataset.describe_indices() if one.field_names == [call.column]]
    vectors = [one for one in found if "VectorIndex" in one.type_url]
    # With several, Lance chooses one by itself.
    if not vectors or {str((one.details or {}).get("metric_type")).lower() for one in vectors} != {call.metric}:
        return f"no index of {call.column} measures by {call.metric}"
    most = int(FOUND_BYTES / max(1.0, row_bytes))
    if call.k + max(SPARE_ROWS, call.k // 4) > most:
        return f"{call.k} rows may take more than {FOUND_BYTES >> 20} MiB"
    may_be_null = call.nulls_first and dataset.schema.field(call.column).nullable
    if may_be_null and (vector_bytes > CHECKED_BYTES or _any_null(ref, call.column)):
        return f"rows without {call.column} may come first: say NULLS LAST, or {call.column} IS NOT NULL"
    return NearestRows(call=call, index=vectors[0].name, most=most)


@functools.lru_cache(maxsize=64)
def _any_null(ref: DatasetRef, column: str) -> bool:
    """Tells whether a column may have NULLs.

    Cached, because a scan is described and planned one after the other in one process.
    """
    if "`" in column:  # there is no way to write it in Lance SQL
        return True
    dataset = ref.open()
    with search_errors(dataset, None):
        return bool(dataset.count_rows(f"`{column}` IS NULL"))
