"""Runs pieces of upkeep on Spark: a row with a piece's number becomes a row with its answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.backfill.driver.spark_failure import MAX_ATTEMPTS, SparkFailure, failure_of
from lance_spark.session.sessions import active_in_thread, cancel, tagged

_LOG = logging.getLogger(__name__)

_ANSWER = pa.schema([pa.field("answer", pa.binary())])


class Piece(Protocol):
    """One piece of work. Picklable."""

    def run(self) -> bytes:
        """Does it, on an executor, and returns its answer; it does not raise."""


_P = TypeVar("_P", bound=Piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """What Spark runs on executors."""

    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy():
                answer = self.pieces[int(number)].run()
                yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], schema=_ANSWER)


class SparkJobs(Generic[_P]):
    """The Spark jobs of one piece of upkeep; used by several threads."""

    def __init__(self, spark: SparkSession, *, tag: str, description: str) -> None:
        self._spark = spark
        self._tag = tag
        self._description = description
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Kills running tasks within seconds, and submits no further ones.

        Call it until all is over: a Spark job may be on its way.
        """
        self._stopped.set()
        cancel(self._spark, self._tag)

    def run(self, pieces: Sequence[_P], at_once: int, lost: Callable[[_P, SparkFailure], bytes]) -> list[bytes]:
        """Runs pieces, and returns their answers, in any order.

        Where a task died with its process, nothing tells which piece it was: each is run again by
        itself, and `lost` answers for one that keeps killing its process.

        Args:
            pieces: The pieces.
            at_once: Most of them that run at the same time.
            lost: Makes the answer of a piece that cannot be run.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._collect(pieces, at_once)
            except Exception as error:
                failure = failure_of(error)
                if self._stopped.is_set():
                    raise
                _LOG.warning("a Spark job of %s failed: %s", self._description, failure.message)
            if not failure.retryable:
                # It comes from what all of them share.
                break
            if len(pieces) > 1:
                return [answer for piece in pieces for answer in self.run([piece], 1, lost)]
            if attempt == MAX_ATTEMPTS:
                break
        return [lost(piece, failure) for piece in pieces]

    def _collect(self, pieces: Sequence[_P], at_once: int) -> list[bytes]:
        runner = _Runner(pieces=tuple(pieces))
        with active_in_thread(self._spark), tagged(self._spark, self._tag, self._description):
            frame = self._spark.range(0, len(pieces), 1, min(len(pieces), at_once))
            return [bytes(row[0]) for row in frame.mapInArrow(runner, "answer binary").collect()]
