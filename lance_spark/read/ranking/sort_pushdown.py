"""Vector search for a sort by distance: :class:`IndexedSort`.

The planner rule requests the search if the session allows it. Spark then sorts the returned rows by
its own distances and takes the first rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.read.columns import lance_blob_handling
from lance_spark.read.ranking.ranking import DISTANCE, search_errors
from lance_spark.types.fields import BlobHandling, requested_columns

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions
    from lance_spark.read.planning.pushdown_request import NearestCall

EFFORT = 0.9
"""Exponent for the share of an index to search: n ** EFFORT of n partitions. Measured with IVF_PQ
and 50,000 vectors in 32, 64 and 512 partitions: the search found 97 % of the ten nearest vectors in
data without clusters, and all of them in data with clusters. A filtered search reads all
partitions, because passing rows are farther away: with one passing row in a hundred, it found half
as many."""

REFINE = 10
"""Factor of extra rows whose exact distances Lance computes."""

SPARE_ROWS = 10
"""Minimum number of extra rows to search. Spark's distances differ from Lance's in the last digits.
"""

FOUND_BYTES = 64 << 20
"""Maximum memory for the rows of a search, estimated from their width."""

CHECKED_BYTES = 128 << 20
"""Maximum size of a column that is checked for NULLs during planning. The check takes 0.1 s."""

_ROUNDING = 1e-5
_TINY = {"l2": 0.0, "cosine": 1e-6, "dot": 0.0}
"""Tolerance for equal distances: relative, and absolute by metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSort:
    """A vector search for the first rows of a sort by distance. A picklable value.

    Attributes:
        call: The request of the planner rule.
        index: Name of the vector index.
        most: Maximum number of rows in memory.
    """

    call: NearestCall
    index: str
    most: int

    def __str__(self) -> str:
        return f"{self.call.k} by {self.call.metric} of {self.call.column}, index: {self.index}"

    def search(
        self,
        dataset: lance.LanceDataset,
        columns: Sequence[str],
        filter: str | None,
        blobs: BlobHandling,
    ) -> list[pa.RecordBatch] | None:
        """Returns the nearest rows, including all rows as near as the last one.

        Runs on an executor.

        Returns:
            None if the scan needs all rows: fewer rows than requested have a distance, too many
            rows have the same distance, or a vector has NULL elements.

        Raises:
            SearchError: Lance does not support the search.
            FilterError: The filter failed on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        rows = _first_search_rows(self.call)
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
        self,
        dataset: lance.LanceDataset,
        columns: Sequence[str],
        filter: str | None,
        blobs: BlobHandling,
        rows: int,
    ) -> pa.Table:
        call = self.call
        nearest: dict[str, Any] = {
            "column": call.column,
            "q": list(call.q),
            "k": rows,
            "metric": call.metric,
        }
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
        """Tells whether the k-th row is clearly nearer than the last row of the search."""
        first, kth, last = (distances[at].as_py() for at in (0, self.call.k - 1, -1))
        return bool(
            last - kth > max(_TINY[self.call.metric], _ROUNDING * max(abs(first), abs(kth)))
        )


def plan_nearest(
    ref: DatasetRef, options: ReadOptions, call: NearestCall, *, row_bytes: float, vector_bytes: int
) -> IndexedSort | str:
    """Returns the search for a sort by distance, or the reason for its absence.

    Runs on the driver. Reads the manifest. If rows without a vector come first, also reads a column
    of up to CHECKED_BYTES.

    Args:
        ref: The table at a version.
        options: The user's options.
        call: The request of the planner rule.
        row_bytes: Estimated bytes per row of the scan.
        vector_bytes: Estimated bytes of the vector column.
    """
    dataset = ref.open()
    reason = _refusal(dataset, options, call)
    if reason is not None:
        return reason
    index = _index_with_metric(dataset, call)
    if index is None:
        return f"no index of {call.column} measures by {call.metric}"
    most = int(FOUND_BYTES / max(1.0, row_bytes))
    if _first_search_rows(call) > most:
        return f"{call.k} rows may take more than {FOUND_BYTES >> 20} MiB"
    may_be_null = call.nulls_first and dataset.schema.field(call.column).nullable
    if may_be_null and (vector_bytes > CHECKED_BYTES or _any_null(ref, call.column)):
        return f"rows without {call.column} may come first: say NULLS LAST, or {call.column} IS NOT NULL"
    return IndexedSort(call=call, index=index, most=most)


def _refusal(dataset: lance.LanceDataset, options: ReadOptions, call: NearestCall) -> str | None:
    """Returns the reason why no search of the column replaces the sort, or None."""
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
    return None


def _index_with_metric(dataset: lance.LanceDataset, call: NearestCall) -> str | None:
    """Returns the name of a vector index, if all vector indexes of the column have the metric."""
    column_indexes = [
        index for index in dataset.describe_indices() if index.field_names == [call.column]
    ]
    vector_indexes = [index for index in column_indexes if "VectorIndex" in index.type_url]
    metrics = {str((index.details or {}).get("metric_type")).lower() for index in vector_indexes}
    # With several indexes, Lance chooses one.
    return vector_indexes[0].name if metrics == {call.metric} else None


def _first_search_rows(call: NearestCall) -> int:
    """Returns the number of rows of the first search."""
    return call.k + max(SPARE_ROWS, call.k // 4)


@functools.lru_cache(maxsize=64)
def _any_null(ref: DatasetRef, column: str) -> bool:
    """Tells whether a column may have NULLs.

    The result is cached, because a process describes a scan and then plans it.
    """
    if "`" in column:  # Lance SQL cannot express this name.
        return True
    dataset = ref.open()
    with search_errors(dataset, None):
        return bool(dataset.count_rows(f"`{column}` IS NULL"))
