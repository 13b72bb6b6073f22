"""Reads one partition: Arrow batches from Lance, as Lance has them. Runs on executors."""

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
from lance_spark.read.filtering import both
from lance_spark.read.masks import range_mask
from lance_spark.read.plan import ScanTask
from lance_spark.types.fields import BlobHandling
from lance_spark.types.names import requested_columns

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

    from lance_spark.dataset import DatasetRef
    from lance_spark.read.spec import TopN

BATCH_BYTES_LIMIT = 32 << 20
"""Bytes at which a batch ends before it has its rows: values of very different sizes, such as
blobs, defeat an estimate by width."""

MERGED_BYTES = 4 << 20
"""Bytes up to which small batches are put together."""

KEY_BATCH_ROWS = 1 << 16
"""Rows of a batch in which the first rows of a sort are looked for."""

MERGE_S = 0.1
"""Seconds for which rows are held back for others to join them. A LIMIT above a filter that few
rows pass must not wait."""


def read_batches(
    ref: DatasetRef, task: ScanTask, *, columns: list[str], blobs: BlobHandling
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition in the order of the table. Runs on an executor.

    Memory: beside the batch that is taken Lance decodes ahead, at most one batch per core of the
    machine, each of at most `task.batch_rows` rows and about BATCH_BYTES_LIMIT bytes (one row may
    be more), and holds the file pages that these are in.

    Raises:
        TableUnreadableError: A file of the table is missing or damaged.
        FilterError: The filter failed on a value, for example dividing by zero.
    """
    scan = _Scan(ref=ref, dataset=ref.open(), task=task, columns=columns, blobs=blobs)
    if task.nearest is not None:
        found = task.nearest.found(scan.dataset, columns, task.filter, blobs)
        if found is not None:
            yield from found
            return
    if task.top is not None:
        scan = scan.of_first_rows(task.top)
    batches = scan.batches()
    # A batch without columns is a number of rows, which merging would lose.
    yield from merged(batches, task.batch_rows, clock=time.monotonic) if columns else batches


def merged(batches: Iterable[pa.RecordBatch], rows: int, *, clock: Callable[[], float]) -> Iterator[pa.RecordBatch]:
    """Puts batches of few rows together, so that fewer go to the JVM, each a message of its own.

    Small fragments and filters make many of them.

    Args:
        batches: The batches; their order is kept.
        rows: Rows that a batch should have. One of half as many is passed on as it is.
        clock: Tells the time in seconds.
    """
    held: list[pa.RecordBatch] = []
    held_rows, held_bytes, since = 0, 0, 0.0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        size = batch.nbytes
        alone = 2 * batch.num_rows >= rows or size >= MERGED_BYTES
        if held and (alone or held_rows + batch.num_rows > rows or held_bytes + size > MERGED_BYTES):
            yield from _joined(held)
            held, held_rows, held_bytes = [], 0, 0
        if alone:
            yield batch
            continue
        if not held:
            since = clock()
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += size
        if clock() - since > MERGE_S:
            yield from _joined(held)
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Returns the batches as one, or as they are where Arrow cannot.

    Together, dictionaries may have more values than their indices count.
    """
    try:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """The scanner over the fragments of a task; its errors name table and fragment."""

    ref: DatasetRef
    dataset: lance.LanceDataset
    task: ScanTask
    columns: list[str]
    blobs: BlobHandling

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields Lance's batches as they come."""
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
        """Returns the scan of the rows that may be first by a key, or of all, if it cannot tell."""
        # Most workers never need it.
        from lance_spark.read.top_n import first_rows

        if self.task.rows <= 2 * top.n:
            return self
        # Batches of a task have few rows where these are wide, and keys are narrow.
        keys = replace(self, columns=[top.column, ROW_ADDRESS], task=replace(self.task, batch_rows=KEY_BATCH_ROWS))
        addresses = first_rows(keys.batches(), top)
        if addresses is None:
            return self
        chosen: list[int] = addresses.tolist()
        found = {address >> 32 for address in chosen}
        task = ScanTask(
            fragments=tuple(number for number in self.task.fragments if number in found),
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
                hint="load the table again",
            )
        return fragment

    def scanner(self, fragments: list[LanceFragment]) -> lance.LanceScanner:
        """Returns the scanner of the task over these fragments."""
        task = self.task
        offset, limit, mask, selection = None, task.limit, None, task.filter
        if task.start is not None and task.stop is not None:
            if selection is None:
                offset, limit = task.start, task.stop - task.start
            else:
                mask = range_mask(self.dataset, fragments[0], task.start, task.stop)
                if mask is None:
                    first = fragments[0].fragment_id << 32
                    selection = both(selection, f"_rowaddr >= {first + task.start} AND _rowaddr < {first + task.stop}")
        return self.dataset.scanner(
            columns=requested_columns(self.columns),
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
        """Returns one of our errors for Lance's."""
        text = plain(error)
        if self.task.filter is not None and is_filter_failure(error):
            hint = "it fails on a value of the table: exclude that value in the filter"
            return FilterError(self.task.filter, text, uri=self.ref.uri, hint=hint)
        named = [f for f in fragments if any(file.path in text for file in f.metadata.files)] or self._culprit(
            fragments
        )
        ids = [f.fragment_id for f in named or fragments]
        where = f"fragment {ids[0]}" if len(ids) == 1 else f"one of the {len(ids)} fragments from {ids[0]} to {ids[-1]}"
        return TableUnreadableError(
            self.ref.uri,
            f"{text} (version {self.ref.version}, {where})",
            hint="a data file is missing or damaged, or the store refused: check the storage, or read another version",
        )

    def _culprit(self, fragments: list[LanceFragment]) -> list[LanceFragment]:
        """Returns the first fragment that cannot be read by itself.

        Most of Lance's errors about damaged files do not name the file.
        """
        if len(fragments) < 2:
            return fragments
        for fragment in fragments:
            alone = replace(self, task=replace(self.task, fragments=(fragment.fragment_id,)))
            try:
                with panics_as_errors():
                    for _ in alone.scanner([fragment]).to_reader():
                        pass
            except (ValueError, OSError, RuntimeError, NotImplementedError):
                return [fragment]
        return []
