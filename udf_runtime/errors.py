"""Every error of the UDF runtime, in one small hierarchy.

Each class derives from :class:`UdfRuntimeError` and from the built-in exception that it is, carries
its facts as attributes, survives pickling (errors travel from worker processes to the driver), and
has a message of the form *what happened - where - what to do*.
"""

from __future__ import annotations


class UdfRuntimeError(Exception):
    """Root of all errors of the UDF runtime."""

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take keywords, which the default protocol of Exception does not pass on.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[UdfRuntimeError], args: tuple[object, ...], state: dict[str, object]) -> UdfRuntimeError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UdfDefinitionError(UdfRuntimeError, ValueError):
    """A UDF is defined or bound to columns in a way that cannot work.

    Nothing was computed or changed.
    """


_CORRECT = "correct the function or its input, or give on_error=skip_on_error() to leave such rows NULL"
_INSTALL = "install the module in the Python that runs the UDF, on every machine that does"

DRIVER_HINT = (
    "read what the function needs on the driver, and pass it as input columns or constants; to look values up in "
    "another table, join with Spark and fill the column with load_columns or a DataFrame write"
)
"""What to do instead of using Spark within a UDF."""

_SIGNS_OF_SPARK = ("CONTEXT_ONLY_VALID_ON_DRIVER", "JAVA_GATEWAY_EXITED", "'JavaPackage' object")
"""Parts of messages of PySpark where no driver of Spark is."""


class UdfFailedError(UdfRuntimeError, RuntimeError):
    """A UDF raised, and its error policy says that this ends the work.

    The user's exception is the cause (`__cause__`).

    Attributes:
        udf: Name of the UDF.
        row: 0-based position of the row in its batch, or None where the kind of UDF does not tell
            it.
        error_type: Qualified name of the class of the user's exception.
        error_message: Its text.
        error_trace: Its traceback as text; it survives where the exception itself cannot be
            pickled.
        attempt: Number of the last attempt, counted from 1.
        max_attempts: How many attempts the policy allows.
    """

    def __init__(
        self,
        *,
        udf: str,
        row: int | None,
        error_type: str,
        error_message: str,
        error_trace: str,
        attempt: int = 1,
        max_attempts: int = 1,
    ) -> None:
        where = "in the batch" if row is None else f"row {row} of the batch"
        tries = f", attempt {attempt} of {max_attempts}" if max_attempts > 1 else ""
        super().__init__(
            f"UDF {udf!r} raised {error_type}: {error_message} - {where}{tries} - "
            + _hint_of(error_type, error_message)
        )
        self.udf = udf
        self.row = row
        self.error_type = error_type
        self.error_message = error_message
        self.error_trace = error_trace
        self.attempt = attempt
        self.max_attempts = max_attempts


def _hint_of(error_type: str, message: str) -> str:
    if any(sign in message for sign in _SIGNS_OF_SPARK):
        return f"a SparkSession works on the driver alone, and UDFs run elsewhere: {DRIVER_HINT}"
    return _INSTALL if error_type in ("ModuleNotFoundError", "ImportError") else _CORRECT


class UdfOutputError(UdfRuntimeError, ValueError):
    """A UDF returned the wrong number of rows, or values that do not fit its output type.

    Attributes:
        udf: Name of the UDF.
        row: 0-based position in the batch of the first row that does not fit, or None where it
            is unknown.
    """

    def __init__(self, message: str, *, udf: str, row: int | None = None) -> None:
        super().__init__(message)
        self.udf = udf
        self.row = row


class UdfProcessDiedError(UdfRuntimeError, RuntimeError):
    """The process that ran a UDF ended without an answer.

    A crash in native code, `os._exit`, or the system's out-of-memory killer.

    Attributes:
        udf: Name of the UDF.
        exit_code: Exit status of the process; negative for the signal that ended it.
        row: 0-based position in the batch of the row that did it, or None where it is not known.
        output: What the process printed last.
    """

    def __init__(self, *, udf: str, exit_code: int, row: int | None = None, output: str = "") -> None:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        where = "in the batch" if row is None else f"row {row} of the batch"
        super().__init__(
            f"the process that ran UDF {udf!r} died ({how}) - {where} - "
            "look at what native code or memory this row needs, or skip such rows with Skip(UdfProcessDiedError)"
        )
        self.udf = udf
        self.exit_code = exit_code
        self.row = row
        self.output = output


class SkipThresholdExceededError(UdfRuntimeError, RuntimeError):
    """More rows were skipped than the error policy allows.

    Attributes:
        skipped: Rows that were skipped.
        processed: Rows that the UDF was called for, the skipped ones included.
        limit: The limit as the user gave it, for example `max_skip_count=10`.
    """

    def __init__(self, *, skipped: int, processed: int, limit: str) -> None:
        super().__init__(
            f"too many rows were skipped: {skipped} of {processed} - the limit is {limit} - "
            "look at the recorded errors, correct the function, or raise the limit"
        )
        self.skipped = skipped
        self.processed = processed
        self.limit = limit


class EnvironmentBuildError(UdfRuntimeError, RuntimeError):
    """The environment of a UDF cannot be made on a machine.

    Attributes:
        manifest: Name of the manifest.
        reason: What the installer or the system said.
        hint: What to do.
    """

    def __init__(self, *, manifest: str, reason: str, hint: str) -> None:
        super().__init__(f"the environment cannot be made: {reason} - manifest {manifest!r} - {hint}")
        self.manifest = manifest
        self.reason = reason
        self.hint = hint


class CheckpointError(UdfRuntimeError, OSError):
    """A checkpoint is damaged, of another format, or refused by the store."""
