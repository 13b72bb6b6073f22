"""Why a Spark job failed, read from the exception that Spark raised: classic and over Connect."""

from __future__ import annotations

import builtins
from dataclasses import dataclass

from pyspark.errors import PythonException

MAX_ATTEMPTS = 4
"""How often a task that died with its process is submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFailure:
    """The cause of a failed Spark job; `message` is one line, `trace` all that Spark says.

    `retryable` says whether the same tasks may succeed if they are submitted again.
    """

    error_type: str
    message: str
    trace: str
    retryable: bool


def failure_of(error: BaseException) -> SparkFailure:
    """Returns the cause of a failed Spark job.

    An exception of Python that reaches Spark came from before or after a task's own work, where the
    executor unpickles the job for example; another attempt ends the same way. A worker that was
    killed, or a UDF that called `sys.exit`, may fare better alone.
    """
    trace = str(error).strip() or repr(error)
    if isinstance(error, PythonException):
        error_type, _, message = _last_exception(trace).partition(": ")
        kind = getattr(builtins, error_type, None)
        passes = isinstance(kind, type) and (
            not issubclass(kind, Exception) or issubclass(kind, (OSError, MemoryError))
        )
        return SparkFailure(error_type=error_type, message=message, trace=trace, retryable=passes)
    # Py4J says on the first line which call it was; frames of the JVM follow the message.
    lines = [line for line in trace.splitlines() if not line.startswith("\t")]
    return SparkFailure(error_type=type(error).__name__, message=" ".join(lines[:2]), trace=trace, retryable=True)


def _last_exception(trace: str) -> str:
    """Returns the last exception of a Python traceback, `Type: message` on one line."""
    lines = trace.splitlines()
    if lines[-1].strip().startswith("SQLSTATE:"):
        del lines[-1]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] + 1 :] if frames else lines
    while len(after) > 1 and after[0].startswith("    "):
        del after[0]
    return " ".join(line.strip() for line in after)
