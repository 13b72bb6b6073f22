"""Column files of whole fragments, from joined values in memory.

Runs on executors. A fragment with few rows needs no checkpoint between the join and its file: the
file is the checkpoint, and a task notes its files about once per second.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from lance_spark.backfill.planning.selection import RangeRows
from lance_spark.backfill.reuse.round_context import RoundContext, context_of
from lance_spark.backfill.reuse.value_reuse import CheckpointPiece, ReusedValues
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome
from lance_spark.backfill.task.overlap import WriteBehind, task_lanes
from lance_spark.backfill.task.task_files import TaskFiles
from lance_spark.backfill.task.value_source import JoinRange
from lance_spark.rows.merge import Chunk
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.codec import encode
from udf_runtime.checkpoint import CheckpointEntry

_LOG = logging.getLogger(__name__)


class _JoinedRange(JoinRange):
    """A whole fragment whose joined values are in memory."""

    def __init__(
        self,
        context: RoundContext,
        work: FragmentWork,
        values: Chunk,
        *,
        writer: WriteBehind,
        files: TaskFiles,
    ) -> None:
        super().__init__(context, work, writer=writer, files=files)
        self._values = values

    def _find(self, rows: RangeRows, wanted: RowSet) -> ReusedValues:  # noqa: ARG002 - of the base
        joined_rows = wanted & RowSet.of(self._values[0])
        piece = CheckpointPiece(
            offsets=joined_rows.to_numpy(),
            entry=CheckpointEntry(kind="values", job_id=self._spec.job_id, path=""),
            key=self._spec.key,
            source=self._source,
            moved=None,
            store=self._context.store,
            held=self._values,
        )
        return ReusedValues(rows=joined_rows, pieces=[piece])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingFile:
    """A fragment whose file is being written.

    Attributes:
        rows: The joined rows.
        store_values: Writes the values into a checkpoint instead.
    """

    number: int
    rows: RowSet
    outcome: Future[RangeOutcome]
    store_values: Callable[[], None]


class JoinedFiles:
    """Writes the column files of whole fragments. Belongs to one task.

    A context manager: its end waits for all files, and notes them.
    """

    def __init__(self, spec: BackfillSpec, whole: Mapping[int, FragmentWork]) -> None:
        """Takes the work on the fragments that the join alone fills."""
        self._spec = spec
        self._whole = whole
        self._files = TaskFiles(spec)
        self._lanes = task_lanes(spec.staging)
        self._pending: deque[_PendingFile] = deque()
        self._saving = self._files.saving()

    def __enter__(self) -> Self:
        self._saving.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._lanes.close()
        finally:
            self._saving.__exit__(kind, error, trace)

    def takes(self, number: int) -> bool:
        """Tells whether the join alone fills a fragment."""
        return number in self._whole

    def write(self, number: int, chunks: list[Chunk], store_values: Callable[[], None]) -> None:
        """Writes the file of a fragment behind the next rows.

        Args:
            number: The fragment.
            chunks: All joined values of the fragment, in order.
            store_values: Writes the values into a checkpoint instead. Called after a failure.
        """
        offsets = np.concatenate([chunk[0] for chunk in chunks])
        rows = RowSet.of(offsets)
        work = replace(self._whole[number], selected=rows)
        try:
            run = _JoinedRange(
                context_of(self._spec),
                work,
                (offsets, pa.concat_arrays([chunk[1] for chunk in chunks])),
                writer=self._lanes.next(),
                files=self._files,
            )
            run.finish = self._note
            run.select()
            outcome = run.run()
        except Exception as error:  # noqa: BLE001 - the assembly of the fragment reports the error
            outcome = Future()
            outcome.set_exception(error)
        self._pending.append(
            _PendingFile(number=number, rows=rows, outcome=outcome, store_values=store_values)
        )

    def answers(self, *, wait: bool) -> Iterator[tuple[int, RowSet, str | None]]:
        """Yields the fragments with a written file: their number, their rows, and their outcome.

        A fragment without a file has its values in a checkpoint, and no outcome. `wait` waits for
        all files.
        """
        while self._pending and (wait or self._pending[0].outcome.done()):
            pending, uri = self._pending.popleft(), self._spec.snapshot.uri
            try:
                text = encode([pending.outcome.result()])
            except Exception as error:  # noqa: BLE001 - as in `write`
                _LOG.info(
                    "the values of fragment %d of %s go to a checkpoint: %s",
                    pending.number,
                    uri,
                    error,
                )
                pending.store_values()
                text = None
            yield pending.number, pending.rows, text

    def _note(self, outcome: RangeOutcome) -> RangeOutcome:
        self._files.add(outcome, reports=False)  # the join has the outcome as a row
        return outcome
