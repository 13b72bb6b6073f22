"""The context of a UDF's calls, and steps shared by all kinds of calls."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udf_runtime.checkpoint.chunks import ChunkFolder, ChunksNotStoredError
from udf_runtime.definition import UDF
from udf_runtime.errors import UdfFailedError, UdfRuntimeError
from udf_runtime.event_loop import CallsStoppedError
from udf_runtime.execute.conversion.outputs import Output
from udf_runtime.execute.limits import CallGate
from udf_runtime.execute.memory import RowLimit
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, raised_for
from udf_runtime.policies import ErrorPolicy


class StageTime:
    """Seconds of a stage since the last look, as a sum over threads. Thread-safe."""

    __slots__ = ("_lock", "_seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Adds seconds."""
        with self._lock:
            self._seconds += seconds

    def take(self) -> float:
        """Returns the seconds, and begins again."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
            return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """A UDF and its injected dependencies.

    Attributes:
        udf: The UDF.
        sleep: Waits a number of seconds between two attempts.
        clock: Returns seconds, for measurements.
        rng: Random numbers for waiting times.
        chunks: Folder of a chunker's chunks.
        row_limit: Maximum rows of a call, shared by the calls of a job in this process.
        gate: The place where calls wait before they begin; None: calls never wait.
        load_time: Time of starting processes, and of loading the UDF.
        call_slots: Slots for the concurrent calls of an async UDF; None: this context has its own.
    """

    udf: UDF
    sleep: Callable[[float], object]
    clock: Callable[[], float]
    rng: random.Random
    chunks: ChunkFolder | None = None
    row_limit: RowLimit = field(default_factory=RowLimit)
    gate: CallGate | None = None
    load_time: StageTime = field(default_factory=StageTime)
    call_slots: asyncio.Semaphore | None = None

    @property
    def policy(self) -> ErrorPolicy:
        """The UDF's error policy."""
        return self.udf.on_error

    def wait(self, delay_s: float) -> None:
        """Waits between two attempts.

        Raises:
            ServiceUnavailableError: The service of the UDF was given up.
        """
        if self.gate is None:
            self.sleep(delay_s)
        else:
            self.gate.wait(delay_s)

    def output(self) -> Output:
        """Returns the converter of the UDF's results."""
        udf = self.udf
        return Output(
            udf.name, udf.data_type, is_columns=udf.is_columns, nan_is_null=udf.kind.takes_series
        )

    def result(
        self, values: pa.Array[Any], failures: Sequence[RowFailure], *, retries: int, start_s: float
    ) -> BatchResult:
        """Returns the result of a batch whose calls began at a time of the clock."""
        seconds = self.clock() - start_s
        return BatchResult(
            values=values,
            failures=tuple(sorted(failures, key=lambda failure: failure.row)),
            retries=retries,
            seconds=seconds,
            batch_rows=self.row_limit.most,
            limit_s=0.0 if self.gate is None else min(seconds, self.gate.take_waited_s()),
        )

    def failed(self, error: BaseException, *, row: int | None, attempt: int) -> UdfRuntimeError:
        """Returns the error of the run for an error without forgiveness; the caller chains both."""
        return raised_for(
            error,
            udf=self.udf.name,
            row=row,
            attempt=attempt,
            max_attempts=self.policy.max_attempts(error),
        )


def load_function(udf: UDF) -> Callable[..., object]:
    """Returns this process's callable of a UDF.

    Raises:
        UdfFailedError: The class of a stateful UDF raised in its constructor or `setup`.
    """
    try:
        return udf.load()
    except UdfRuntimeError:
        raise
    except BaseException as error:
        if passes_through(error):
            raise
        raise raised_for(error, udf=udf.name, row=None) from cause_of(error)


def close_results(results: object) -> None:
    """Ends the function behind an iterator of results; an iterator without `close` needs no end."""
    close = getattr(results, "close", None)
    if callable(close):
        close()


def passes_through(error: BaseException) -> bool:
    """Tells whether an exception is no failure of the UDF: an interrupt, or a final error.

    SystemExit and the panics of native libraries, which are no Exception either, are failures of
    the row.
    """
    final = (
        KeyboardInterrupt,
        GeneratorExit,
        HungCallsError,
        ChunksNotStoredError,
        CallsStoppedError,
    )
    return isinstance(error, final)


class HungCallsError(UdfFailedError):
    """Too many calls exceeded their time limit without an end; no policy forgives this error."""
