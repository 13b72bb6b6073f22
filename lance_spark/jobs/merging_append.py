"""Appends to the tables next to the data, in few fragments. Runs in any process.

Each reader of a table makes one or two requests per fragment. An append therefore also rewrites the
last fragments, while they are small in comparison with the new rows, in the same commit. A table of
one-row appends has about log16(n) fragments, and each row is rewritten about 16 log16(n) times.

If a concurrent writer comes first, Lance commits the rewrite behind the rows of that writer, or the
next attempt only appends. So a row may move behind the row of a concurrent append.

The first append creates the table with its rows in one commit. The loser of two concurrent
creations appends.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, TableUnreadableError, refusals_as_errors
from lance_spark.jobs.reader_process import ReaderEndedError, RefusedError, read_in_child
from lance_spark.staging.file_layout import FileLayout
from lance_spark.storage.objects import LanceObjects, open_session
from lance_spark.types.layout import from_start

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata

_ABSORBED_ROWS = 16
"""Rows of small fragments that an append rewrites, at most, for each of its rows."""

_SMALL_BYTES = 1 << 20
"""Maximum size of a fragment that an append rewrites."""

_ABSORBED_BYTES = 4 << 20
"""Maximum size of all fragments that an append rewrites. Their rows are in memory, in a task, too;
many writers at once leave many fragments."""

_WRITTEN_BYTES = 8 << 20
"""Maximum bytes of the rows that this process wrote last. They need no read for the next append,
and the rows that an append rewrote leave."""

_written: OrderedDict[tuple[str, str], tuple[pa.Table, int]] = OrderedDict()
"""The rows of files, with their bytes."""

_lock = threading.Lock()


class MergingAppend:
    """One append to a table. Makes the operation of each attempt.

    Without `merges`, all attempts only append, also to an earlier version.
    """

    def __init__(self, at: DatasetRef, rows: pa.Table, *, merges: bool) -> None:
        self._at = at
        self._rows = rows
        self._discardable: str | None = None
        self._plain: list[FragmentMetadata] = []
        self._merges = merges

    def operation(self, head: lance.LanceDataset) -> LanceOperation.BaseOperation:
        """Returns the operation for the latest version.

        Raises:
            TableUnreadableError: The table has other columns, maybe of a newer release.
        """
        from lance import LanceOperation

        # Without a call of `discard`, the outcome of the last attempt is unknown: its file stays.
        self._discardable = None
        self._rows = fit_columns(self._rows, head, self._at)
        merges, self._merges = self._merges, False
        absorbed = self._absorbed(head) if merges else []
        earlier_rows = self._rows_of(head, absorbed)
        if earlier_rows is None:
            self._plain = self._plain or self._write(head, self._rows)
            return LanceOperation.Append(self._plain)
        fragments = self._write(head, pa.concat_tables([earlier_rows, self._rows]))
        self._discardable = fragments[0].files[0].path
        return LanceOperation.Update(
            removed_fragment_ids=[fragment.id for fragment in absorbed],
            new_fragments=fragments,
            update_mode="rewrite_rows",
        )

    def creation(self) -> LanceOperation.BaseOperation:
        """Returns the operation to create the table, for one attempt."""
        from lance import LanceOperation

        fragment = self._write_first()
        self._discardable = fragment.files[0].path
        return LanceOperation.Overwrite(self._rows.schema, [fragment])

    def discard(self) -> None:
        """Deletes the file of a rewrite or a creation after an attempt that made no version."""
        path, self._discardable = self._discardable, None
        if path is not None:
            with contextlib.suppress(OSError, LanceSparkError):
                LanceObjects(self._at.uri, self._at.storage_options).delete(f"data/{path}")

    def _absorbed(self, head: lance.LanceDataset) -> list[FragmentMetadata]:
        """Returns the last fragments to rewrite, in the order of their ids."""
        absorbed: list[FragmentMetadata] = []
        rows, room = self._rows.num_rows, _ABSORBED_BYTES
        for handle in reversed(head.get_fragments()):
            fragment = handle.metadata
            size = fragment.files[0].file_size_bytes or 0 if len(fragment.files) == 1 else 0
            if (
                not 0 < size <= min(_SMALL_BYTES, room)
                or fragment.physical_rows > _ABSORBED_ROWS * rows
            ):
                break
            absorbed.insert(0, fragment)
            rows, room = rows + fragment.num_rows, room - size
        return absorbed

    def _rows_of(
        self, head: lance.LanceDataset, fragments: list[FragmentMetadata]
    ) -> pa.Table | None:
        """Returns the rows of fragments; None for no fragment, or an unreadable fragment."""
        if not fragments:
            return None
        with _lock:
            parts = [
                _written.pop(self._key_of(fragment), None)
                for fragment in fragments
                if not fragment.num_deletions
            ]
        known_rows = [part[0] for part in parts if part is not None]
        return (
            pa.concat_tables(known_rows)
            if len(known_rows) == len(fragments)
            else self._read(head, fragments)
        )

    def _read(self, head: lance.LanceDataset, fragments: list[FragmentMetadata]) -> pa.Table | None:
        """Reads the rows of fragments; None for an unreadable fragment."""
        try:
            rows, damaged = read_in_child(
                self._at, head.schema, None, [fragment.id for fragment in fragments]
            )
        except (ReaderEndedError, RefusedError, LanceSparkError):
            return None
        # A concurrent writer may have removed a fragment. The commit would then lose, too.
        is_complete = not damaged and rows.num_rows == sum(
            fragment.num_rows for fragment in fragments
        )
        return rows if is_complete else None

    def _write(self, head: lance.LanceDataset, rows: pa.Table) -> list[FragmentMetadata]:
        from lance.fragment import write_fragments

        with refusals_as_errors(self._at.uri):
            fragments = write_fragments(
                rows, head, mode="append", storage_options=self._at.lance_options
            )
        self._keep_if_small(fragments, rows)
        return fragments

    def _write_first(self) -> FragmentMetadata:
        """Writes the rows for a missing table. `write_fragments` would list the versions again."""
        at, rows = self._at, self._rows
        layout, name = FileLayout.of_new_table(rows.schema, "stable"), f"{uuid.uuid4().hex}.lance"
        with refusals_as_errors(at.uri):
            writer = open_session(at.uri, at.storage_options).open_writer(
                f"data/{name}", schema=layout.row_schema, version=layout.version
            )
            for batch in rows.to_batches():
                writer.write_batch(from_start(batch))
            writer.close()
        fragment = layout.fragment(name, rows=rows.num_rows, size_bytes=writer.size_bytes)
        self._keep_if_small([fragment], rows)
        return fragment

    def _keep_if_small(self, fragments: list[FragmentMetadata], rows: pa.Table) -> None:
        if len(fragments) == 1 and rows.nbytes <= _SMALL_BYTES:
            _keep(self._key_of(fragments[0]), rows)

    def _key_of(self, fragment: FragmentMetadata) -> tuple[str, str]:
        """Returns the key of a file. A forged manifest may name a file of another table."""
        # pylance makes a class for each path.
        return self._at.uri, str(fragment.files[0].path)


def fit_columns(rows: pa.Table, dataset: lance.LanceDataset, at: DatasetRef) -> pa.Table:
    """Returns rows without columns that the table of an earlier release lacks.

    Raises:
        TableUnreadableError: The table has other columns, maybe of a newer release.
    """
    rows = rows.select([name for name in rows.column_names if name in dataset.schema.names])
    if not dataset.schema.equals(rows.schema):
        hint = "use the newer release that wrote the table, or move the table away"
        raise TableUnreadableError(at.uri, "it has other columns", hint=hint)
    return rows


def _keep(key: tuple[str, str], rows: pa.Table) -> None:
    rows = rows.combine_chunks()
    with _lock:
        _written[key] = rows, rows.nbytes
        while sum(size for _, size in _written.values()) > _WRITTEN_BYTES:
            _written.popitem(last=False)


def _renew() -> None:
    """Forgets the rows in a forked process. A thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()
    _written.clear()


os.register_at_fork(after_in_child=_renew)
