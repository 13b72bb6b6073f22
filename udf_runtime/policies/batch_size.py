"""Rows between two checkpoints: the user's bounds, and a size adapted to the speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from udf_runtime.arguments import is_whole_number
from udf_runtime.errors import UdfDefinitionError

DEFAULT_CHECKPOINT_ROWS = 10_240

MOST_GROWTH = 8
"""The size grows at most by this factor per batch, because the speed of a few rows says little
about the speed of thousands."""


class HasCheckpointSizes(Protocol):
    """A UDF or the arguments of a call, with checkpoint sizes."""

    @property
    def checkpoint_size(self) -> int | None:
        """Rows between checkpoints."""

    @property
    def min_checkpoint_size(self) -> int | None:
        """Minimum number of rows between checkpoints."""

    @property
    def max_checkpoint_size(self) -> int | None:
        """Maximum number of rows between checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSizes:
    """The checkpoint sizes of a call, in rows; None: not set."""

    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size"):
            rows = getattr(self, name)
            if rows is not None and not is_whole_number(rows):
                raise UdfDefinitionError(
                    f"The checkpoint size {name}={rows!r} is not possible. Give a whole number of rows from 1."
                )


def checkpoint_bounds(
    *,
    call: HasCheckpointSizes,
    udf: HasCheckpointSizes,
    call_rows: int = 1,
    default: int = DEFAULT_CHECKPOINT_ROWS,
) -> tuple[int, int, int]:
    """Returns the minimum, maximum and initial number of rows between two checkpoints.

    All three are multiples of `call_rows`, the rows of a call of the UDF, so that calls are full.
    If the maximum is below `call_rows`, the calls have as many rows as the maximum.

    Sizes of the call take precedence over sizes of the UDF. The maximum defaults to the checkpoint
    size and never exceeds the checkpoint size. The minimum defaults to 1. The initial size is an
    explicit checkpoint size, else the minimum, because small checkpoints show early that the
    function works.

    Raises:
        UdfDefinitionError: The minimum is above the maximum, and the user set both.
    """
    checkpoint = _choose(call.checkpoint_size, udf.checkpoint_size, default)
    maximum = min(
        checkpoint, _choose(call.max_checkpoint_size, udf.max_checkpoint_size, checkpoint)
    )
    minimum = _choose(call.min_checkpoint_size, udf.min_checkpoint_size, 1)
    if minimum > maximum:
        minimum, maximum = _reconcile(call, minimum, maximum, checkpoint)
    is_explicit = call.checkpoint_size is not None or udf.checkpoint_size is not None
    initial = min(max(checkpoint, minimum), maximum) if is_explicit else minimum
    call_rows = min(call_rows, maximum)
    maximum -= maximum % call_rows
    return (
        min(-(-minimum // call_rows) * call_rows, maximum),
        maximum,
        max(initial - initial % call_rows, call_rows),
    )


def _choose(of_call: int | None, of_udf: int | None, default: int) -> int:
    if of_call is not None:
        return of_call
    return default if of_udf is None else of_udf


def _reconcile(
    call: HasCheckpointSizes, minimum: int, maximum: int, checkpoint: int
) -> tuple[int, int]:
    """Returns bounds for a minimum above the maximum; a size of the call replaces a UDF's."""
    if call.min_checkpoint_size is None:
        if call.max_checkpoint_size is not None or call.checkpoint_size is not None:
            return maximum, maximum
    elif call.max_checkpoint_size is None:
        maximum = min(minimum, checkpoint)
    if minimum > maximum:
        raise UdfDefinitionError(
            f"The checkpoint size min_checkpoint_size={minimum} is above the largest checkpoint of {maximum} rows. "
            "Lower min_checkpoint_size, or raise checkpoint_size and max_checkpoint_size."
        )
    return minimum, maximum


class AdaptiveSize:
    """The number of rows of the next batch, for batches of about `target_s` seconds each.

    The size starts at `initial`. After each batch the size moves towards `rows per second *
    target_s`, clamped to the bounds. The size grows only while the throughput holds. That is, after
    a batch at less than half the speed of the previous batch, the size stays, or falls if the batch
    was too long. Equal bounds give a fixed size. Not thread-safe.

    Attributes:
        minimum: Minimum number of rows.
        maximum: Maximum number of rows.
        target_s: Intended seconds per batch.
        call_rows: Rows of a call of the UDF. Sizes are multiples, as far as the bounds allow.
    """

    __slots__ = (
        "_clock",
        "_grows",
        "_rate",
        "_rows",
        "_since",
        "call_rows",
        "maximum",
        "minimum",
        "target_s",
    )

    def __init__(
        self,
        *,
        minimum: int,
        maximum: int,
        initial: int,
        call_rows: int = 1,
        target_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= minimum <= maximum or target_s <= 0:
            raise UdfDefinitionError(
                f"An AdaptiveSize of {minimum} to {maximum} rows and {target_s} seconds is not possible. "
                "Give 1 <= minimum <= maximum and target_s > 0."
            )
        self.minimum = minimum
        self.maximum = maximum
        self.target_s = target_s
        self.call_rows = call_rows
        self._rows = min(max(initial, minimum), maximum)
        self._grows = True
        self._rate: float | None = None
        self._clock = clock
        self._since = clock()

    @property
    def is_settled(self) -> bool:
        """Whether the next size is probably similar to the present size."""
        return not self._grows or self._rows == self.maximum

    def next_rows(self) -> int:
        """Returns the rows of the next batch, and starts the clock for `record`."""
        self._since = self._clock()
        return self._rows

    def record(self, rows: int, seconds: float | None = None) -> None:
        """Records the size and duration of a batch.

        Args:
            rows: Actual number of rows; a batch that was cut short is ignored.
            seconds: Duration of the batch; None: the time since the last `next_rows`.
        """
        if seconds is None:
            seconds = self._clock() - self._since
        if rows <= 0 or (rows < self._rows / 2 and seconds < self.target_s):
            return  # the short rest of a fragment: mostly the cost of a call, spread over few rows
        # If the clock did not move (a very cheap batch), MOST_GROWTH bounds the step.
        rate = rows / max(seconds, 1e-9)
        stable = self._rate is None or rate >= self._rate / 2
        self._rate = rate
        most = self._rows * MOST_GROWTH if stable else self._rows
        full_calls = int(min(rate * self.target_s, most)) // self.call_rows * self.call_rows
        before, self._rows = self._rows, min(max(full_calls, self.minimum), self.maximum)
        self._grows = self._rows >= 2 * before


class FixedSize:
    """The number of rows of every call; None: all rows of a batch."""

    __slots__ = ("_rows",)

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def next_rows(self) -> int | None:
        """Returns the rows of the next call."""
        return self._rows

    def record(self, rows: int, seconds: float) -> None:
        """Ignores the duration of a call."""


FIRST_AUTO_ROWS = 16
"""Rows of the first calls with an automatic size."""

AUTO_SECONDS = 60.0
"""Seconds until an automatic size is final."""

_GAIN = 1.1
"""Factor of a real gain in throughput. Smaller gains are noise."""

_MEASURED_CALLS = 4
_MEASURED_S = 2.0
"""Calls of one size for a measurement, or seconds of calls, if the calls are slow."""


class ThroughputSize:
    """The number of rows of a call with the highest throughput. Thread-safe.

    The size doubles while the rows per second grow by a tenth or more. Then the best size is final,
    at the latest a minute after the first call. The first call is not measured, because a UDF may
    load something. Calls with fewer rows than the size, such as the last of a batch, do not count.
    """

    __slots__ = (
        "_best_rate",
        "_best_rows",
        "_calls",
        "_clock",
        "_is_final",
        "_lock",
        "_rows",
        "_seconds",
        "_since",
    )

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows = self._best_rows = FIRST_AUTO_ROWS
        self._best_rate = 0.0
        self._calls, self._seconds = -1, 0.0
        self._since: float | None = None
        self._is_final = False

    def next_rows(self) -> int:
        """Returns the rows of the next call."""
        return self._rows

    def record(self, rows: int, seconds: float) -> None:
        """Records the size and duration of a call."""
        with self._lock:
            if self._is_final:
                return
            if self._since is None:
                self._since = self._clock()
            is_late = self._clock() - self._since > AUTO_SECONDS
            if rows == self._rows:
                self._calls += 1
                self._seconds += seconds if self._calls else 0.0
            if self._calls >= _MEASURED_CALLS or (
                self._calls > 0 and (self._seconds >= _MEASURED_S or is_late)
            ):
                self._compare()
            if is_late:
                self._end()

    def _compare(self) -> None:
        """Doubles the size after a gain in throughput, and ends the search otherwise."""
        # If the clock did not move, larger calls are no slower.
        rate = self._rows * self._calls / max(self._seconds, 1e-9)
        if rate < self._best_rate * _GAIN:
            self._end()
            return
        self._best_rate, self._best_rows = rate, self._rows
        self._rows *= 2
        self._calls, self._seconds = 0, 0.0

    def _end(self) -> None:
        self._rows, self._is_final = self._best_rows, True
