"""Rows between two checkpoints: the user's bounds, and a size adapted to the speed."""

from __future__ import annotations

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
    *, call: HasCheckpointSizes, udf: HasCheckpointSizes, default: int = DEFAULT_CHECKPOINT_ROWS
) -> tuple[int, int, int]:
    """Returns the minimum, maximum and initial number of rows between two checkpoints.

    Sizes of the call take precedence over sizes of the UDF. The maximum defaults to the checkpoint
    size and never exceeds the checkpoint size. The minimum defaults to 1. The initial size is an
    explicit checkpoint size, else the minimum, because small checkpoints show early that the
    function works.

    Raises:
        UdfDefinitionError: The minimum is above the maximum, and the user set both.
    """
    checkpoint = _choose(call.checkpoint_size, udf.checkpoint_size, default)
    maximum = min(checkpoint, _choose(call.max_checkpoint_size, udf.max_checkpoint_size, checkpoint))
    minimum = _choose(call.min_checkpoint_size, udf.min_checkpoint_size, 1)
    if minimum > maximum:
        minimum, maximum = _reconcile(call, minimum, maximum, checkpoint)
    is_explicit = call.checkpoint_size is not None or udf.checkpoint_size is not None
    return minimum, maximum, min(max(checkpoint, minimum), maximum) if is_explicit else minimum


def _choose(of_call: int | None, of_udf: int | None, default: int) -> int:
    if of_call is not None:
        return of_call
    return default if of_udf is None else of_udf


def _reconcile(call: HasCheckpointSizes, minimum: int, maximum: int, checkpoint: int) -> tuple[int, int]:
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
    """

    __slots__ = ("_clock", "_rate", "_rows", "_since", "maximum", "minimum", "target_s")

    def __init__(
        self,
        *,
        minimum: int,
        maximum: int,
        initial: int,
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
        self._rows = min(max(initial, minimum), maximum)
        self._rate: float | None = None
        self._clock = clock
        self._since = clock()

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
        self._rows = int(min(max(min(rate * self.target_s, most), self.minimum), self.maximum))
