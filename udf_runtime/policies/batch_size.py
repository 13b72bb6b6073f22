"""Rows between two checkpoints: the user's bounds, and a size that follows the speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from udf_runtime.errors import UdfDefinitionError

DEFAULT_CHECKPOINT_ROWS = 10_240

MOST_GROWTH = 8
"""No size is more than this many times the one before: the speed of a few rows says little about
that of thousands."""


class HasCheckpointSizes(Protocol):
    """What carries checkpoint sizes: a UDF, or the arguments of a call."""

    @property
    def checkpoint_size(self) -> int | None:
        """Rows between checkpoints."""

    @property
    def min_checkpoint_size(self) -> int | None:
        """Least rows between checkpoints."""

    @property
    def max_checkpoint_size(self) -> int | None:
        """Most rows between checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSizes:
    """The sizes that one call gives, in rows; None: not given."""

    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size"):
            rows = getattr(self, name)
            if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
                raise UdfDefinitionError(
                    f"{name}={rows!r} is not possible - among the checkpoint sizes - give a whole number of rows from 1"
                )


def checkpoint_bounds(
    *, call: HasCheckpointSizes, udf: HasCheckpointSizes, default: int = DEFAULT_CHECKPOINT_ROWS
) -> tuple[int, int, int]:
    """Returns the least, the most and the first number of rows between two checkpoints.

    What the call gives comes before what the UDF gives. The most defaults to the checkpoint size
    and is never above it; the least defaults to 1. The first size is an explicit checkpoint size,
    else the least: small checkpoints show early that the function works.

    Raises:
        UdfDefinitionError: The least is above the most, and both were asked for.
    """
    given = [size for size in (call.checkpoint_size, udf.checkpoint_size) if size is not None]
    checkpoint = given[0] if given else default
    from_call = call.max_checkpoint_size is not None or call.checkpoint_size is not None
    maximum = min(
        checkpoint, next((m for m in (call.max_checkpoint_size, udf.max_checkpoint_size) if m is not None), checkpoint)
    )
    minimum = next((m for m in (call.min_checkpoint_size, udf.min_checkpoint_size) if m is not None), 1)
    if minimum > maximum and call.min_checkpoint_size is None and from_call:
        minimum = maximum  # the UDF's default gives way to what the call asks for
    elif minimum > maximum and call.min_checkpoint_size is not None and call.max_checkpoint_size is None:
        maximum = min(minimum, checkpoint)
    if minimum > maximum:
        raise UdfDefinitionError(
            f"min_checkpoint_size={minimum} is above the largest checkpoint of {maximum} rows "
            "- among the checkpoint sizes - lower it, or raise checkpoint_size and max_checkpoint_size"
        )
    return minimum, maximum, min(max(checkpoint, minimum), maximum) if given else minimum


class AdaptiveSize:
    """The number of rows of the next batch, so that a batch takes about `target_s` seconds.

    It starts at `initial`, and after each batch goes towards `rows per second * target_s`, clamped
    to the bounds. It grows only while the throughput holds: after a batch that ran at less than
    half of the speed of the one before, the size does not grow, and it falls at once if the batch
    was too long. Equal bounds give a fixed size. Not safe for several threads.

    Attributes:
        minimum: Least rows.
        maximum: Most rows.
        target_s: Seconds that a batch should take.
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
                f"batches of {minimum} to {maximum} rows and {target_s} seconds are not possible - in AdaptiveSize - "
                "give 1 <= minimum <= maximum and target_s > 0"
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
        """Takes note of a batch.

        Args:
            rows: How many rows it really had; a batch that was cut short says nothing about the
                speed.
            seconds: How long it took; None: the time since the last `next_rows`.
        """
        if seconds is None:
            seconds = self._clock() - self._since
        if rows <= 0 or (rows < self._rows / 2 and seconds < self.target_s):
            return  # the short rest of a fragment: mostly the cost of a call, which larger batches do not have per row
        # A clock that did not move (a very cheap batch) is no reason for an endless size:
        # MOST_GROWTH bounds the step.
        rate = rows / max(seconds, 1e-9)
        stable = self._rate is None or rate >= self._rate / 2
        self._rate = rate
        most = self._rows * MOST_GROWTH if stable else self._rows
        self._rows = int(min(max(min(rate * self.target_s, most), self.minimum), self.maximum))
