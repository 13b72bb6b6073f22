"""Results of a run: values, and a record of each row without a value because of an error.

Plain, picklable values.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from udf_runtime.errors import (
    UdfFailedError,
    UdfOutputError,
    UdfProcessDiedError,
    UdfRuntimeError,
    end_sentence,
)
from udf_runtime.policies.matchers import escape_surrogates, message_of

MOST_TEXT_CHARS = 8192
"""Maximum length of a stored message or trace; there is a record per failed row, possibly many."""

Outcome: TypeAlias = Literal["skipped", "crashed", "unavailable"]
"""The reason why a row has no value."""

_OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row without a value: its error policy skipped the row, or the row killed its process.

    Attributes:
        row: 0-based position in its batch.
        error_type: Qualified name of the exception's class (without a module for built-in classes).
        message: Text of the exception, bounded.
        trace: Traceback as text from the user's function on, bounded. For a dead process, its last
            output.
        attempt: Number of calls for the row, including the last call. Within batches: number of
            calls for the row alone.
        max_attempts: Maximum number of calls under the policy.
        bisect_depth: Number of halvings of a batch until the row was alone; 0 for calls per row.
        outcome: `skipped` by the policy, `crashed`: the row killed its process, and no matcher
            selected the error, or `unavailable`: the row has no result, because its service was
            given up, for the reason in `message`.
    """

    row: int
    error_type: str
    message: str
    trace: str
    attempt: int
    max_attempts: int
    bisect_depth: int
    outcome: Outcome

    def renumber(self, *, rows: int, depth: int) -> RowFailure:
        """Returns the record with its row counted in the batch around the failure's batch."""
        row, texts = self.row + rows, [self.message, self.trace]
        if self.error_type == f"{UdfOutputError.__module__}.{UdfOutputError.__qualname__}":
            texts = [_renumber_place(text, self.row, row) for text in texts]
        return replace(
            self, row=row, message=texts[0], trace=texts[1], bisect_depth=self.bisect_depth + depth
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchResult:
    """The values of a batch.

    Attributes:
        values: A value per row, in order, of exactly the UDF's type. NULL if the function returned
            NULL or failed.
        failures: The failed rows, ascending.
        retries: Number of repeated calls by a `Retry`.
        seconds: Time from the batch's arrival to its result, including waits between attempts.
        batch_rows: Maximum rows of a call, after a call ran out of memory; None before.
        deduplicated: Number of rows without a call, because the UDF was called for equal inputs.
        limit_s: Part of the time in which all calls of the process waited for their service's
            limits. The results of concurrent batches share this time.
    """

    values: pa.Array[Any]
    failures: tuple[RowFailure, ...] = ()
    retries: int = 0
    seconds: float = 0.0
    batch_rows: int | None = None
    deduplicated: int = 0
    limit_s: float = 0.0


def type_name(error: BaseException) -> str:
    """Returns the qualified name of an error's class; without a module for built-in classes."""
    cls = type(error)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def trace_of(error: BaseException) -> str:
    """Returns a bounded traceback as text, from the first frame outside of this package."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    return shortened(
        "".join(traceback.TracebackException(type(error), error, trace, compact=True).format())
    )


def shortened(text: str) -> str:
    """Returns an escaped text of at most `MOST_TEXT_CHARS`; cuts the middle of a longer text."""
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
    outcome: Outcome = "skipped",
) -> RowFailure:
    """Describes the error that cost a row its value."""
    return RowFailure(
        row=row,
        error_type=type_name(error),
        message=shortened(message_of(error)),
        trace=shortened(error.output)
        if isinstance(error, UdfProcessDiedError)
        else trace_of(error),
        attempt=attempt,
        max_attempts=max_attempts,
        bisect_depth=bisect_depth,
        outcome=outcome,
    )


def raised_for(
    error: BaseException, *, udf: str, row: int | None, attempt: int = 1, max_attempts: int = 1
) -> UdfRuntimeError:
    """Returns the error of a run for an error that ends the run; the caller chains the latter.

    Errors from this package itself (a wrong output, a dead process) are returned unchanged. All
    other errors are wrapped in a :class:`UdfFailedError`.
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
    """Returns the error to chain to another error; None if the traceback has no encoding.

    A Spark worker that reports a text with a lone surrogate dies, and its task never ends.
    """
    text = "".join(traceback.format_exception(error))
    return error if escape_surrogates(text) == text else None


def find_cause(error: BaseException) -> BaseException | None:
    """Returns the cause of the error that a run raises for an error of a call."""
    return error.__cause__ if isinstance(error, UdfOutputError) else cause_of(error)


def renumber_error(error: UdfRuntimeError, rows: int) -> UdfRuntimeError:
    """Returns an error with its row counted in the batch around the error's batch."""
    row = getattr(error, "row", None)
    if row is None or rows == 0:
        return error
    renumbered: UdfRuntimeError
    if isinstance(error, UdfFailedError):
        renumbered = UdfFailedError(
            udf=error.udf,
            row=row + rows,
            error_type=error.error_type,
            error_message=error.error_message,
            error_trace=error.error_trace,
            attempt=error.attempt,
            max_attempts=error.max_attempts,
        )
    elif isinstance(error, UdfOutputError):
        renumbered = UdfOutputError(
            _renumber_place(str(error), row, row + rows), udf=error.udf, row=row + rows
        )
    elif isinstance(error, UdfProcessDiedError):
        renumbered = UdfProcessDiedError(
            udf=error.udf, exit_code=error.exit_code, row=row + rows, output=error.output
        )
    else:
        return error
    renumbered.__cause__ = error.__cause__
    return renumbered


def join_parts(parts: list[pa.Array[Any]], udf: str) -> pa.Array[Any]:
    """Returns the values of the parts of a batch as a single array.

    Raises:
        UdfOutputError: The values are too large for an array of their type.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as overflow:
        raise UdfOutputError(
            f"UDF {udf!r} returned too many bytes for one array of a batch: {end_sentence(str(overflow))} "
            "Use a large_ type or smaller batches.",
            udf=udf,
        ) from overflow


def _renumber_place(text: str, row: int, renumbered: int) -> str:
    return text.replace(f"row {row} of the batch", f"row {renumbered} of the batch")


def _is_own(trace: TracebackType) -> bool:
    return os.path.abspath(trace.tb_frame.f_code.co_filename).startswith(_OWN_FILES)
