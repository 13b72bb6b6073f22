"""Reads one partition as the Arrow batches of Lance. Runs on executors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.errors import FilterError, LanceSparkError, TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import is_filter_failure, plain
from lance_spark.read.columns import ROW_ADDRESS, lance_blob_handling
from lance_spark.read.filtering import conjunction
from lance_spark.read.masks import range_mask
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.types.fields import BlobHandling, requested_columns

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

    from lance_spark.dataset import DatasetRef
    from lance_spark.read.planning.pushdown_request import TopN

BATCH_BYTES_LIMIT = 32 << 20
"""Maximum size of a batch. Values of very different sizes, such as blobs, defeat an estimate by
width."""

MERGED_BYTES = 4 << 20
"""Maximum size of merged batches."""

KEY_BATCH_ROWS = 1 << 16
"""Rows per batch while searching for the first rows of a sort."""

MERGE_S = 0.1
"""Maximum delay in seconds for merging rows. A LIMIT above a selective filter must not wait."""


def read_batches(
    ref: DatasetRef, task: ScanTask, *, columns: list[str], blobs: BlobHandling
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition in the order of the table. Runs on an executor.

    Lance decodes ahead of the consumer: at most one batch per core, each of at most
    `task.batch_rows` rows and about BATCH_BYTES_LIMIT bytes (a single row may exceed the limit).
    Lance also holds the file pages of these batches.

    Raises:
        TableUnreadableError: A file of the table is missing or damaged.
        FilterError: The filter failed on a value, for example a division by zero.
    """
    scan = _Scan(ref=ref, dataset=ref.open(), task=task, columns=columns, blobs=blobs)
    if task.nearest is not None:
        nearest_rows = task.nearest.search(scan.dataset, columns, task.filter, blobs)
        if nearest_rows is not None:
            yield from nearest_rows
            return
    if task.top is not None:
        scan = scan.of_first_rows(task.top)
    batches = scan.batches()
    # A batch without columns is only a row count, which merging would lose.
    yield from merged(batches, task.batch_rows, clock=time.monotonic) if columns else batches


def merged(
    batches: Iterable[pa.RecordBatch], rows: int, *, clock: Callable[[], float]
) -> Iterator[pa.RecordBatch]:
    """Merges small batches, because each batch is a separate message to the JVM.

    Small fragments and filters produce many small batches.

    Args:
        batches: The batches. The order is kept.
        rows: Target number of rows per batch. A batch of at least half as many rows is not merged.
        clock: Returns the time in seconds.
    """
    pending = _SmallBatches(rows, clock)
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if 2 * batch.num_rows >= rows or (size := batch.nbytes) >= MERGED_BYTES:
            yield from pending.take()
            yield batch
            continue
        if not pending.has_room(batch.num_rows, size):
            yield from pending.take()
        pending.add(batch, size)
        if pending.is_late():
            yield from pending.take()
    yield from pending.take()


class _SmallBatches:
    """Small batches that wait for a merge."""

    def __init__(self, most_rows: int, clock: Callable[[], float]) -> None:
        self._most_rows = most_rows
        self._clock = clock
        self._batches: list[pa.RecordBatch] = []
        self._rows, self._bytes, self._since = 0, 0, 0.0

    def has_room(self, rows: int, size: int) -> bool:
        return self._rows + rows <= self._most_rows and self._bytes + size <= MERGED_BYTES

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        if not self._batches:
            self._since = self._clock()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += size

    def is_late(self) -> bool:
        return self._clock() - self._since > MERGE_S

    def take(self) -> list[pa.RecordBatch]:
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        return _joined(batches) if batches else []


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Returns the batches as one batch, or unchanged if Arrow cannot merge them.

    Merged dictionaries may have more values than their index type can count.
    """
    try:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """The scanner over the fragments of a task. Its errors name the table and the fragment."""

    ref: DatasetRef
    dataset: lance.LanceDataset
    task: ScanTask
    columns: list[str]
    blobs: BlobHandling

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the batches of Lance."""
        fragments = [self._fragment(number) for number in self.task.fragments]
        with self._explained(fragments):
            reader = self.scanner(fragments).to_reader()
        while True:
            with self._explained(fragments):
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    def of_first_rows(self, top: TopN) -> _Scan:
        """Returns the scan of the candidate rows of a sort, or this scan if all rows qualify."""
        # Imported here, because most workers do not need the module.
        from lance_spark.read.top_n import first_rows

        if self.task.rows <= 2 * top.n:
            return self
        # Tasks over wide rows have small batches. Keys are narrow.
        keys = replace(
            self,
            columns=[top.column, ROW_ADDRESS],
            task=replace(self.task, batch_rows=KEY_BATCH_ROWS),
        )
        addresses = first_rows(keys.batches(), top)
        if addresses is None:
            return self
        chosen: list[int] = addresses.tolist()
        fragment_ids = {address >> 32 for address in chosen}
        task = ScanTask(
            fragments=tuple(number for number in self.task.fragments if number in fragment_ids),
            filter=f"{ROW_ADDRESS} IN ({', '.join(map(str, chosen))})",
            use_index=False,
            batch_rows=self.task.batch_rows,
        )
        return replace(self, task=task)

    def _fragment(self, number: int) -> LanceFragment:
        fragment = self.dataset.get_fragment(number)
        if fragment is None:
            raise TableUnreadableError(
                self.ref.uri,
                f"fragment {number} is not in version {self.dataset.version}",
                hint="Load the table again.",
            )
        return fragment

    def scanner(self, fragments: list[LanceFragment]) -> lance.LanceScanner:
        """Returns the scanner of the task over these fragments."""
        task = self.task
        offset, limit, mask, selection = None, task.limit, task.mask, task.filter
        if task.start is not None and task.stop is not None:
            if selection is None:
                offset, limit = task.start, task.stop - task.start
            else:
                mask = range_mask(self.dataset, fragments[0], task.start, task.stop)
                if mask is None:
                    first = fragments[0].fragment_id << 32
                    selection = conjunction(
                        selection,
                        f"_rowaddr >= {first + task.start} AND _rowaddr < {first + task.stop}",
                    )
        return self.dataset.scanner(
            columns=self._requested_columns(),
            filter=selection,
            fragments=fragments,
            offset=offset,
            limit=limit,
            batch_size=task.batch_rows,
            batch_size_bytes=BATCH_BYTES_LIMIT,
            scan_in_order=True,
            use_scalar_index=task.use_index,
            late_materialization=None if task.late is None else list(task.late) or False,
            row_addr_allowlist=mask,
            blob_handling=lance_blob_handling(self.blobs),
        )

    def _requested_columns(self) -> dict[str, str] | list[str] | None:
        """Returns the columns for Lance, None for all columns.

        Lance parses each requested column against all columns: 0.5 s for 2,000 columns.
        """
        return (
            None if self.columns == self.dataset.schema.names else requested_columns(self.columns)
        )

    @contextlib.contextmanager
    def _explained(self, fragments: list[LanceFragment]) -> Iterator[None]:
        try:
            with panics_as_errors():
                yield
        except LanceSparkError:
            raise
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise self._explain(error, fragments) from error

    def _explain(self, error: BaseException, fragments: list[LanceFragment]) -> LanceSparkError:
        """Converts an error of Lance to an error of this package."""
        text = plain(error)
        if self.task.filter is not None and is_filter_failure(error):
            hint = "A value of the table makes the filter fail. Exclude this value in the filter."
            return FilterError(self.task.filter, text, uri=self.ref.uri, hint=hint)
        named_fragments = [
            f for f in fragments if any(file.path in text for file in f.metadata.files)
        ] or self._culprit(fragments)
        ids = [f.fragment_id for f in named_fragments or fragments]
        where = (
            f"fragment {ids[0]}"
            if len(ids) == 1
            else f"one of the {len(ids)} fragments from {ids[0]} to {ids[-1]}"
        )
        return TableUnreadableError(
            self.ref.uri,
            f"{text} (version {self.ref.version}, {where})",
            hint="A data file is missing or damaged, or the store refused. Check the storage, or read another version.",
        )

    def _culprit(self, fragments: list[LanceFragment]) -> list[LanceFragment]:
        """Returns the first fragment that fails when read alone.

        Most of Lance's errors about damaged files do not name the file.
        """
        if len(fragments) < 2:
            return fragments
        for fragment in fragments:
            single = replace(self, task=replace(self.task, fragments=(fragment.fragment_id,)))
            try:
                with panics_as_errors():
                    for _ in single.scanner([fragment]).to_reader():
                        pass
            except (ValueError, OSError, RuntimeError, NotImplementedError):
                return [fragment]
        return []
