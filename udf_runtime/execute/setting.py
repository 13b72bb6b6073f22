"""What every way of calling a UDF needs to know, and the steps they share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from udf_runtime.checkpoint.chunks import ChunkFolder, ChunksNotStoredError
from udf_runtime.definition import UDF, Kind
from udf_runtime.errors import UdfFailedError, UdfRuntimeError
from udf_runtime.execute.outputs import Output
from udf_runtime.execute.result import cause_of, raised_for
from udf_runtime.policies import ErrorPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A UDF and what is injected from outside.

    Attributes:
        udf: What runs.
        sleep: Waits a number of seconds between two attempts.
        clock: Seconds, for measuring.
        rng: For waiting times.
        chunks: Where a chunker's chunks go.
    """

    udf: UDF
    sleep: Callable[[float], object]
    clock: Callable[[], float]
    rng: random.Random
    chunks: ChunkFolder | None = None

    @property
    def policy(self) -> ErrorPolicy:
        """The UDF's error policy."""
        return self.udf.on_error

    def output(self) -> Output:
        """Returns the converter of the UDF's results."""
        pandas_kind = self.udf.kind in (Kind.PANDAS, Kind.PANDAS_ITER)
        return Output(self.udf.name, self.udf.data_type, is_columns=self.udf.is_columns, nan_is_null=pandas_kind)

    def failed(self, error: BaseException, *, row: int | None, attempt: int) -> UdfRuntimeError:
        """Returns the error to raise for one that the policy does not forgive; chain that."""
        return raised_for(
            error, udf=self.udf.name, row=row, attempt=attempt, max_attempts=self.policy.max_attempts(error)
        )


def load_function(udf: UDF) -> Callable[..., object]:
    """Returns this process's callable of a UDF.

    Raises:
        UdfFailedError: The class of a stateful UDF raised while it was constructed or set up.
    """
    try:
        return udf.load()
    except UdfRuntimeError:
        raise
    except BaseException as error:
        if passes_through(error):
            raise
        raise raised_for(error, udf=udf.name, row=None) from cause_of(error)


def passes_through(error: BaseException) -> bool:
    """Returns whether an exception is no failure of the UDF: an interrupt, or a final error.

    SystemExit, and the panics of native libraries, which are no Exception either, are failures of
    the row.
    """
    return isinstance(error, (KeyboardInterrupt, GeneratorExit, HungCallsError, ChunksNotStoredError))


class HungCallsError(UdfFailedError):
    """Too many calls ran into their time limit and never came back; no policy forgives this."""
