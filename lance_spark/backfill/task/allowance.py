"""The allowance of a task: rows, cost and time that its UDF may use. Runs on executors.

At the end of its allowance a task ends between two batches, and keeps its results in checkpoints.
The driver gives the other rows to further tasks, or ends the job.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, TaskLimits
from lance_spark.rows.row_addresses import Addresses
from lance_spark.storage.objects import objects_beside
from udf_runtime import UDF
from udf_runtime.execute.batches.costs import compute_costs

if TYPE_CHECKING:
    from lance_spark.storage.objects import LanceObjects

SPLIT_AFTER_S = 0.4
"""Minimum time for the measurement of a UDF's speed. The first batch of a task does not count,
because a model may be loaded then."""

SPLIT_REST_S = 5.0
"""A task with less work finishes its rows alone. A further Spark job takes about a second."""

_LOOK_S = 5.0
"""Seconds between looks for a request to stop."""


@dataclass(slots=True)
class StopRequest:
    """An object in the table's store: the tasks of a job end early. Used by one thread."""

    objects: LanceObjects
    path: str
    next_look: float = 0.0
    is_made: bool = False

    @staticmethod
    def of(spec: BackfillSpec) -> StopRequest:
        """Returns the request for the tasks of a job."""
        path = f"jobs/{spec.staging.job_id}/stop"
        return StopRequest(
            objects=objects_beside(spec.home), path=path, next_look=time.monotonic() + _LOOK_S
        )

    def make(self) -> None:
        """Requests the end of the job's tasks. Runs on the driver.

        Raises:
            OSError: The store refused.
        """
        self.objects.put(self.path, b"stop")

    def look(self) -> bool:
        """Tells whether the driver requested the end, at most some seconds ago."""
        if not self.is_made and time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + _LOOK_S
            try:
                self.is_made = self.objects.get(self.path) is not None
            except OSError:
                return False
        return self.is_made


class Allowance:
    """Meters the rows for a task's UDF, and ends the task at its limits. Belongs to one task.

    Attributes:
        is_over: Whether the task gives no further row to the UDF.
    """

    def __init__(
        self,
        limits: TaskLimits,
        udf: UDF,
        rows: int,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes limits, the physical rows of the task's ranges, and a look for a stop request."""
        self.is_over = False
        self._limits = limits
        self._udf = udf
        self._rest = rows
        self._stop = stop
        self._clock = clock
        self._calls, self._cost = 0, 0.0
        self._settled_calls, self._settled_cost = 0, 0.0
        self._settling = threading.Lock()
        self._batches = self._timed_rows = 0
        self._timed_since = 0.0

    def enter(self, work: FragmentWork, *, todo: int, recovered: int) -> None:
        """Begins a range with `todo` rows to compute, and rows `recovered` from a dead attempt."""
        self._rest -= work.stop - work.start - todo
        self._calls += recovered
        if isinstance(self._udf.cost, (int, float)):
            self._cost += recovered * self._udf.cost

    def within(
        self, batches: Iterator[pa.RecordBatch], taken: deque[Addresses]
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches for the UDF until the allowance is over; the last batch may be a part.

        `taken` has the row addresses of each batch after its read.
        """
        while not self._must_end():
            batch = next(batches, None)
            if batch is None:
                return
            rows = self._spend(batch)
            if rows < batch.num_rows:
                self.is_over = True
                addresses = taken.pop()
                if not rows:
                    return
                taken.append(addresses[:rows])
            yield batch if rows == batch.num_rows else batch.slice(0, rows)

    def settle(self) -> dict[str, Any]:
        """Returns the calls and the cost since the last outcome, as fields of an outcome.

        Works from any thread.
        """
        with self._settling:
            calls, cost = self._calls, self._cost
            spent = {
                "spent_calls": calls - self._settled_calls,
                "spent_cost": cost - self._settled_cost,
            }
            self._settled_calls, self._settled_cost = calls, cost
            return spent

    def _must_end(self) -> bool:
        limits = self._limits
        self._batches += 1
        if self._batches == 2:
            self._timed_since = self._clock()
        self.is_over = (
            self.is_over
            or (limits.calls is not None and self._calls >= limits.calls)
            or (limits.cost is not None and self._cost >= limits.cost)
            or (limits.deadline is not None and self._clock() >= limits.deadline)
            or (limits.splits and self._takes_long())
            or self._stop()
        )
        return self.is_over

    def _takes_long(self) -> bool:
        """Tells whether the other rows take long, by the speed since the second batch."""
        passed = self._clock() - self._timed_since if self._timed_rows else 0.0
        return passed >= SPLIT_AFTER_S and passed / self._timed_rows * self._rest >= SPLIT_REST_S

    def _spend(self, batch: pa.RecordBatch) -> int:
        """Meters the rows of a batch within the limits, and returns their number."""
        rows, limits = batch.num_rows, self._limits
        if limits.calls is not None:
            rows = min(rows, limits.calls - self._calls)
        costs = compute_costs(self._udf, batch)
        if costs is not None:
            total = np.cumsum(costs)
            if limits.cost is not None:
                # A share of a budget is a quotient, and a sum of costs has rounding errors.
                rows = min(
                    rows,
                    int(
                        np.searchsorted(
                            total, (limits.cost - self._cost) * (1 + 1e-12), side="right"
                        )
                    ),
                )
            self._cost += float(total[rows - 1]) if rows else 0.0
        self._calls += rows
        self._rest -= rows
        if self._batches > 1:
            self._timed_rows += rows
        return rows
