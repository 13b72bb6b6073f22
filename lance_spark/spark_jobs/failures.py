"""The cause of a failed Spark job, read from Spark's exception. Runs on the driver.

Spark names the exception of a task by the qualified name of its class. Decisions compare classes:
:func:`is_error` looks the name up among the modules of this process.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PythonException

from lance_spark.errors import LanceSparkError, rebuild

MAX_ATTEMPTS = 4
"""How often a task whose process died is submitted."""

_SQLSTATE = re.compile(r"SQLSTATE: (\w{5})")

_STATEMENT_STATES = ("0A", "21", "22", "23", "38", "39", "42", "54", "P0")
"""Classes of SQLSTATE for errors of the statement, its values and its functions. The other classes
are for errors of the system, of files and of Spark itself."""

_FRAME = '  File "'
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFailure:
    """The cause of a failed Spark job.

    Attributes:
        error_type: Qualified name of the exception's class.
        message: Its message, on one line.
        trace: The whole text of Spark's exception.
        retryable: Whether another attempt of the same tasks may succeed.
        raised: Spark's exception.
    """

    error_type: str
    message: str
    trace: str
    retryable: bool
    raised: BaseException = field(compare=False, repr=False)

    @staticmethod
    def of(error: BaseException) -> SparkFailure:
        """Returns the cause of a failed Spark job, of classic Spark or Spark Connect.

        A Python exception outside of a task's own work comes from unpickling the task, or from a
        function of the user, and repeats in each attempt. So does an error of an expression. A
        worker after a kill or a `sys.exit` may succeed alone. Tasks of lance-spark raise failures
        of the store as `OSError`, and the store may serve the next attempt.
        """
        trace = str(error).strip() or repr(error)
        if isinstance(error, PythonException):
            error_type, _, message = _last_exception(trace).partition(": ")
            kind = getattr(builtins, error_type, None)
            retryable = isinstance(kind, type) and (
                not issubclass(kind, Exception)
                or (issubclass(kind, (OSError, MemoryError)) and not _is_of_user(trace))
            )
        else:
            # Py4J names its call on the first line; frames of the JVM follow the message.
            lines = [line for line in trace.splitlines() if not line.startswith("\t")]
            error_type, message = type(error).__name__, " ".join(lines[:2])
            state = _SQLSTATE.search(trace)
            retryable = state is None or not state[1].startswith(_STATEMENT_STATES)
        return SparkFailure(
            error_type=error_type, message=message, trace=trace, retryable=retryable, raised=error
        )

    @property
    def text(self) -> str:
        """Class and message on one line."""
        return f"{self.error_type}: {self.message}" if self.message else self.error_type

    def is_a(self, *classes: type[BaseException]) -> bool:
        """Tells whether the exception is an instance of a class in `classes`."""
        return isinstance(self.raised, classes) or is_error(self.error_type, *classes)


def is_error(error_type: str | None, *classes: type[BaseException]) -> bool:
    """Tells whether a qualified name belongs to a class in `classes` or to a subclass."""
    kind = error_class(error_type)
    return kind is not None and issubclass(kind, classes)


def error_class(error_type: str | None) -> type[BaseException] | None:
    """Returns the exception class with a qualified name.

    Imports no module. Returns None for a class of a module outside of this process.
    """
    module, _, name = (error_type or "").rpartition(".")
    kind = vars(sys.modules.get(module or "builtins", object)).get(name)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


@contextmanager
def raise_task_errors(*classes: type[LanceSparkError], **state: object) -> Iterator[None]:
    """Raises an error of the classes in place of Spark's exception, if a task ended with it.

    Args:
        classes: Classes of errors.
        state: Attributes of the error.
    """
    try:
        yield
    except PythonException as error:
        failure = SparkFailure.of(error)
        kind = error_class(failure.error_type)
        if kind is None or not issubclass(kind, classes):
            raise
        raise rebuild(kind, (failure.message,), state) from error


def _is_of_user(trace: str) -> bool:
    """Tells whether a traceback leads to code of the user, and to no module of lance-spark."""
    files = [
        line.removeprefix(_FRAME).partition('"')[0]
        for line in trace.splitlines()
        if line.startswith(_FRAME)
    ]
    return not any(map(_is_ours, files)) and any("/pyspark/" not in file for file in files)


def _is_ours(file: str) -> bool:
    """Tells whether a file of an executor is a module of this package, in any folder."""
    _, is_below, module = file.rpartition(f"/{_PACKAGE.name}/")
    return bool(is_below) and (_PACKAGE / module).is_file()


def _last_exception(trace: str) -> str:
    """Returns the last exception of a Python traceback, `Type: message` on one line."""
    lines = trace.splitlines()
    if lines[-1].strip().startswith("SQLSTATE:"):
        del lines[-1]
    frames = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while len(rest) > 1 and rest[0].startswith("    "):
        del rest[0]
    return " ".join(line.strip() for line in rest)
