"""Why a Spark job failed, read from the exception that Spark raised: classic and over Connect."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PythonException

MAX_ATTEMPTS = 4
"""How often a task that died with its process is submitted."""

_SQLSTATE = re.compile(r"SQLSTATE: (\w{5})")

_OF_STATEMENT = ("0A", "21", "22", "23", "38", "39", "42", "54", "P0")
"""Classes of SQLSTATE for errors of the statement, its values and its functions. The classes of
other errors are those of the system, of files and of Spark itself."""

_FRAME = '  File "'
_PACKAGE = Path(__file__).parents[2]


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

    An exception of Python outside of a task's own work comes from unpickling the task, or from a
    function of the user: another attempt ends the same way, and so does an error of an expression.
    A worker that was killed, or that called `sys.exit`, may fare better alone. A store may answer
    the next attempt of a task of lance-spark, which raises its failures as `OSError`.
    """
    trace = str(error).strip() or repr(error)
    if isinstance(error, PythonException):
        error_type, _, message = _last_exception(trace).partition(": ")
        kind = getattr(builtins, error_type, None)
        passes = isinstance(kind, type) and (
            not issubclass(kind, Exception) or (issubclass(kind, (OSError, MemoryError)) and not _is_of_user(trace))
        )
        return SparkFailure(error_type=error_type, message=message, trace=trace, retryable=passes)
    # Py4J says on the first line which call it was; frames of the JVM follow the message.
    lines = [line for line in trace.splitlines() if not line.startswith("\t")]
    state = _SQLSTATE.search(trace)
    passes = state is None or not state[1].startswith(_OF_STATEMENT)
    return SparkFailure(error_type=type(error).__name__, message=" ".join(lines[:2]), trace=trace, retryable=passes)


def _is_of_user(trace: str) -> bool:
    """Tells whether a traceback leads to code of the user, and not to a task of lance-spark."""
    files = [line.removeprefix(_FRAME).partition('"')[0] for line in trace.splitlines() if line.startswith(_FRAME)]
    return not any(map(_is_ours, files)) and any("/pyspark/" not in file for file in files)


def _is_ours(file: str) -> bool:
    """Tells whether a file of an executor is a module of this package, wherever it is installed."""
    _, is_below, module = file.rpartition(f"/{_PACKAGE.name}/")
    return bool(is_below) and (_PACKAGE / module).is_file()


def _last_exception(trace: str) -> str:
    """Returns the last exception of a Python traceback, `Type: message` on one line."""
    lines = trace.splitlines()
    if lines[-1].strip().startswith("SQLSTATE:"):
        del lines[-1]
    frames = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    after = lines[frames[-1] + 1 :] if frames else lines
    while len(after) > 1 and after[0].startswith("    "):
        del after[0]
    return " ".join(line.strip() for line in after)
