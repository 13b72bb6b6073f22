"""What comes out of a run: values, and a record of each row that has none because of an error.

Plain, picklable values.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from udf_runtime.errors import UdfFailedError, UdfOutputError, UdfProcessDiedError, UdfRuntimeError
from udf_runtime.policies.matchers import escape_surrogates, message_of

MOST_TEXT_CHARS = 8192
"""Longest message or trace that is kept; a record is made per failed row, and there may be many."""

_OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row without a value: its error policy skipped it, or it killed its process.

    Attributes:
        row: 0-based position in its batch.
        error_type: Qualified name of the exception's class (without a module for built-in ones).
        message: Its text, bounded.
        trace: Its traceback as text from the user's function on, bounded; for a process that died
            what it printed last.
        attempt: How often the row was called, the last time included (within batches: how often the
            row was called alone).
        max_attempts: How often the policy would have called it at most.
        bisect_depth: How often a batch was halved before the row was alone; 0 where rows are called
            one by one.
        outcome: `skipped` by the policy, or `crashed`: it killed its process, and the policy said
            nothing about that.
    """

    row: int
    error_type: str
    message: str
    trace: str
    attempt: int
    max_attempts: int
    bisect_depth: int
    outcome: Literal["skipped", "crashed"]

    def moved(self, *, rows: int, depth: int) -> RowFailure:
        """Returns the record as seen from the batch that the failure's batch is a part of."""
        return replace(self, row=self.row + rows, bisect_depth=self.bisect_depth + depth)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchResult:
    """The values of one batch.

    Attributes:
        values: One value per row, in order; its type is exactly the UDF's. NULL where the function
            gave NULL, and where it failed.
        failures: The rows that failed, ascending.
        retries: Calls that a `Retry` made again.
        seconds: Time from the batch's arrival to its result, waits between attempts included.
    """

    values: pa.Array[Any]
    failures: tuple[RowFailure, ...] = ()
    retries: int = 0
    seconds: float = 0.0


def type_name(error: BaseException) -> str:
    """Returns the qualified name of an error's class; built-in ones without a module."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def trace_of(error: BaseException) -> str:
    """Returns a bounded traceback as text, from the first frame outside of this package."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    return shortened("".join(traceback.TracebackException(type(error), error, trace, compact=True).format()))


def shortened(text: str) -> str:
    """Returns a text, escaped, of at most `MOST_TEXT_CHARS` without the middle of a longer one."""
    text = escape_surrogates(text)
    if len(text) <= MOST_TEXT_CHARS:
        return text
    keep = (MOST_TEXT_CHARS - 64) // 2
    return f"{text[:keep]}\n... {len(text) - 2 * keep} characters left out ...\n{text[-keep:]}"


def row_failure(
    error: BaseException,
    *,
    row: int,
    attempt: int,
    max_attempts: int,
    bisect_depth: int = 0,
    outcome: Literal["skipped", "crashed"] = "skipped",
) -> RowFailure:
    """Describes the error that cost a row its value."""
    return RowFailure(
        row=row,
        error_type=type_name(error),
        message=shortened(message_of(error)),
        trace=shortened(error.output) if isinstance(error, UdfProcessDiedError) else trace_of(error),
        attempt=attempt,
        max_attempts=max_attempts,
        bisect_depth=bisect_depth,
        outcome=outcome,
    )


def raised_for(
    error: BaseException, *, udf: str, row: int | None, attempt: int = 1, max_attempts: int = 1
) -> UdfRuntimeError:
    """Returns what a run raises for an error that ends it; the caller chains the error to it.

    What this package found out itself (a wrong output, a process that died) is raised as it is, and
    everything else within a :class:`UdfFailedError`.
    """
    if isinstance(error, (UdfOutputError, UdfProcessDiedError, UdfFailedError)):
        return error
    return UdfFailedError(
        udf=udf,
        row=row,
        error_type=type_name(error),
        error_message=shortened(message_of(error)),
        error_trace=trace_of(error),
        attempt=attempt,
        max_attempts=max_attempts,
    )


def cause_of(error: BaseException) -> BaseException | None:
    """Returns the error to chain to another one; None if the traceback has no encoding.

    A worker of Spark that reports a text with a lone surrogate dies, and its task never ends.
    """
    text = "".join(traceback.format_exception(error))
    return error if escape_surrogates(text) == text else None


def moved_error(error: UdfRuntimeError, rows: int) -> UdfRuntimeError:
    """Returns an error with its row counted in the batch of which the error's batch is a part."""
    row = getattr(error, "row", None)
    if row is None or rows == 0:
        return error
    moved: UdfRuntimeError
    if isinstance(error, UdfFailedError):
        moved = UdfFailedError(
            udf=error.udf,
            row=row + rows,
            error_type=error.error_type,
            error_message=error.error_message,
            error_trace=error.error_trace,
            attempt=error.attempt,
            max_attempts=error.max_attempts,
        )
    elif isinstance(error, UdfOutputError):
        moved = UdfOutputError(
            str(error).replace(f"row {row} of the batch", f"row {row + rows} of the batch"),
            udf=error.udf,
            row=row + rows,
        )
    elif isinstance(error, UdfProcessDiedError):
        moved = UdfProcessDiedError(udf=error.udf, exit_code=error.exit_code, row=row + rows, output=error.output)
    else:
        return error
    moved.__cause__ = error.__cause__
    return moved


def _is_own(trace: TracebackType) -> bool:
    return os.path.abspath(trace.tb_frame.f_code.co_filename).startswith(_OWN_FILES)
