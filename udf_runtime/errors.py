"""Errors of the UDF runtime, in a small hierarchy.

Each class derives from :class:`UdfRuntimeError` and from a built-in exception. The attributes of an
error hold its facts. Errors survive pickling, because they travel from worker processes to the
driver. A message states what happened, the place, and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable


class UdfRuntimeError(Exception):
    """Root of all errors of the UDF runtime.

    Example:
        >>> from udf_runtime import UdfRuntimeError, udf
        >>> try:
        ...     udf(lambda: 1)
        ... except UdfRuntimeError as error:
        ...     print(type(error).__name__)
        UdfDefinitionError
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take keyword arguments, which the default protocol of Exception drops.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    cls: type[UdfRuntimeError], args: tuple[object, ...], state: dict[str, object]
) -> UdfRuntimeError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def end_sentence(text: str) -> str:
    """Returns a text with a full stop, unless the text ends with a punctuation mark."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def as_sentence(text: str) -> str:
    """Returns a text with a capital at its start and a full stop at its end."""
    return end_sentence(text[:1].upper() + text[1:])


class UdfDefinitionError(UdfRuntimeError, ValueError):
    """The definition of a UDF, or its binding to columns, cannot work.

    The error is raised before any computation or change.

    Example:
        >>> from udf_runtime import UdfDefinitionError, udf
        >>> try:
        ...     udf(lambda x: x + 1)  # no annotation of the result, and no data_type
        ... except UdfDefinitionError:
        ...     print("give data_type=")
        give data_type=
    """


_CORRECT = (
    "Correct the function or its input, or give on_error=skip_on_error() to leave such rows NULL."
)
_INSTALL = "Install the module in the Python of the UDF, on every machine that runs the UDF."

DRIVER_HINT = (
    "Read the values that the function needs on the driver, and pass them as input columns or constants. To look "
    "values up in another table, join with Spark and fill the column with load_columns or a DataFrame write."
)
"""The remedy for the use of Spark within a UDF."""

_SIGNS_OF_SPARK = ("CONTEXT_ONLY_VALID_ON_DRIVER", "JAVA_GATEWAY_EXITED", "'JavaPackage' object")
"""Parts of PySpark's messages in a process without a Spark driver."""


_DRIVER_CLASSES = frozenset(
    {
        "Catalog",
        "Column",
        "DataFrame",
        "GroupedData",
        "RDD",
        "SQLContext",
        "SparkContext",
        "SparkSession",
    }
)


def refuse_driver_object(value: object, where: Callable[[], str]) -> None:
    """Raises an error for an object of Spark's driver, classic or Connect; imports no Spark.

    Args:
        value: An object in the code of a UDF.
        where: Describes for the message how the UDF holds the object.

    Raises:
        UdfDefinitionError: The object belongs to Spark's driver.
    """
    for cls in type(value).__mro__:
        if cls.__name__ in _DRIVER_CLASSES and cls.__module__.partition(".")[0] == "pyspark":
            raise UdfDefinitionError(
                f"The UDF uses a {cls.__name__} of Spark, which works on the driver alone. Place: {where()}. "
                f"{DRIVER_HINT}"
            )


class UdfFailedError(UdfRuntimeError, RuntimeError):
    """A UDF raised an exception, and its error policy ends the work.

    The user's exception is the cause (`__cause__`).

    Attributes:
        udf: Name of the UDF.
        row: 0-based position of the row in its batch, or None for kinds of UDF without a known row.
        error_type: Qualified name of the class of the user's exception.
        error_message: Text of the user's exception.
        error_trace: Traceback of the user's exception as text, kept even if the exception cannot be
            pickled.
        attempt: Number of the last attempt, counted from 1.
        max_attempts: Number of attempts under the policy.

    Example:
        >>> from udf_runtime import UdfFailedError
        >>> facts = {"error_type": "KeyError", "error_message": "'w'", "error_trace": "..."}
        >>> error = UdfFailedError(udf="size", row=3, **facts)
        >>> error.udf, error.row, error.error_type
        ('size', 3, 'KeyError')
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
        places = [] if row is None else [f"row {row} of the batch"]
        places += [f"attempt {attempt} of {max_attempts}"] if max_attempts > 1 else []
        raised = f"{error_type}: {error_message}" if error_message else error_type
        super().__init__(
            f"UDF {udf!r} raised {end_sentence(raised)} "
            + (f"Place: {', '.join(places)}. " if places else "")
            + _choose_hint(error_type, error_message)
        )
        self.udf = udf
        self.row = row
        self.error_type = error_type
        self.error_message = error_message
        self.error_trace = error_trace
        self.attempt = attempt
        self.max_attempts = max_attempts


def _choose_hint(error_type: str, message: str) -> str:
    if any(sign in message for sign in _SIGNS_OF_SPARK):
        return f"In a UDF there is no SparkSession, because a SparkSession works on the driver alone. {DRIVER_HINT}"
    return _INSTALL if error_type in ("ModuleNotFoundError", "ImportError") else _CORRECT


class UdfOutputError(UdfRuntimeError, ValueError):
    """A UDF returned the wrong number of rows, or values of another type than its output type.

    Attributes:
        udf: Name of the UDF.
        row: 0-based position in the batch of the first misfit, or None if unknown.

    Example:
        >>> from udf_runtime import UdfOutputError
        >>> error = UdfOutputError("The UDF returned 3 rows for a batch of 4.", udf="size")
        >>> error.udf, error.row
        ('size', None)
    """

    def __init__(self, message: str, *, udf: str, row: int | None = None) -> None:
        super().__init__(message)
        self.udf = udf
        self.row = row

    def at_row(self, row: int) -> UdfOutputError:
        """Returns the error of a batch of one row for the row's position in a larger batch."""
        return UdfOutputError(str(self).replace("row 0 of", f"row {row} of"), udf=self.udf, row=row)


class UdfProcessDiedError(UdfRuntimeError, RuntimeError):
    """The process of a UDF ended without a result.

    Causes are a crash in native code, `os._exit`, and the out-of-memory killer of the system.

    Attributes:
        udf: Name of the UDF.
        exit_code: Exit status of the process; negative for the number of a signal.
        row: 0-based position in the batch of the fatal row, or None if unknown.
        output: Last output of the process.

    Example:
        >>> from udf_runtime import UdfProcessDiedError
        >>> error = UdfProcessDiedError(udf="decode", exit_code=-11, row=7)
        >>> error.exit_code, error.row
        (-11, 7)
    """

    def __init__(
        self, *, udf: str, exit_code: int, row: int | None = None, output: str = ""
    ) -> None:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        place = "" if row is None else f"Place: row {row} of the batch. "
        super().__init__(
            f"The process that ran UDF {udf!r} died ({how}). {place}"
            "Check the native code and the memory that the row needs, or skip such rows with Skip(UdfProcessDiedError)."
        )
        self.udf = udf
        self.exit_code = exit_code
        self.row = row
        self.output = output


class ServiceUnavailableError(UdfRuntimeError, RuntimeError):
    """A service that a UDF calls does not answer for a long time.

    No error policy skips the error. The error ends a backfill as PARTIAL, and computed values are
    kept in checkpoints.

    Attributes:
        udf: Name of the UDF.
        reason: The last error of the service.

    Example:
        >>> from udf_runtime import ServiceUnavailableError
        >>> error = ServiceUnavailableError(udf="caption", reason="HTTP 503 for 600 s")
        >>> error.udf, error.reason
        ('caption', 'HTTP 503 for 600 s')
    """

    def __init__(self, *, udf: str, reason: str) -> None:
        super().__init__(
            f"The service of UDF {udf!r} does not answer: {end_sentence(reason)} "
            "Run the job again when the service answers."
        )
        self.udf = udf
        self.reason = reason


class SkipThresholdExceededError(UdfRuntimeError, RuntimeError):
    """More rows were skipped than the error policy allows.

    Attributes:
        skipped: Number of skipped rows.
        processed: Number of rows passed to the UDF, including the skipped rows.
        limit: The limit as the user gave it, for example `max_skip_count=10`.

    Example:
        >>> from udf_runtime import SkipThresholdExceededError, skip_on_error
        >>> try:
        ...     skip_on_error(max_skip_count=10).check_skips(11, 1000, final=False)
        ... except SkipThresholdExceededError as error:
        ...     print(error.skipped, error.limit)
        11 max_skip_count=10
    """

    def __init__(self, *, skipped: int, processed: int, limit: str) -> None:
        super().__init__(
            f"Too many rows were skipped: {skipped} of {processed}. The limit is {limit}. "
            "Look at the recorded errors, correct the function, or raise the limit."
        )
        self.skipped = skipped
        self.processed = processed
        self.limit = limit


class EnvironmentBuildError(UdfRuntimeError, RuntimeError):
    """A machine cannot build the environment of a UDF.

    Attributes:
        manifest: Name of the manifest.
        reason: Message of the installer or of the system.
        hint: The remedy.

    Example:
        >>> from udf_runtime import EnvironmentBuildError
        >>> error = EnvironmentBuildError(manifest="m", reason="disk is full", hint="Free space.")
        >>> error.manifest, error.hint
        ('m', 'Free space.')
    """

    def __init__(self, *, manifest: str, reason: str, hint: str) -> None:
        super().__init__(
            f"The environment cannot be made: {end_sentence(reason)} Manifest: {manifest!r}. {as_sentence(hint)}"
        )
        self.manifest = manifest
        self.reason = reason
        self.hint = hint


class DevicesBusyError(UdfRuntimeError, TimeoutError):
    """A UDF's process waited in vain for devices: other processes of this machine have them.

    Attributes:
        devices: Ids of the devices.
        share: The requested number of devices, or the share of a single device.
        seconds: The time of the wait.

    Example:
        >>> from udf_runtime import DevicesBusyError
        >>> error = DevicesBusyError(devices=("0",), share=0.5, seconds=3600)
        >>> error.devices, error.share
        (('0',), 0.5)
    """

    def __init__(self, *, devices: tuple[str, ...], share: float, seconds: float) -> None:
        super().__init__(
            f"The devices of this machine are in use: the UDF asks for num_gpus={share:g} of {', '.join(devices)}, and "
            f"waited {seconds:g} seconds for processes of other tasks and jobs. Run the job again after their end, or "
            "give num_gpus below 1 to share a device."
        )
        self.devices = devices
        self.share = share
        self.seconds = seconds


class ArtifactError(UdfRuntimeError, RuntimeError):
    """A machine cannot copy an artifact of a UDF.

    Attributes:
        artifact: Name of the artifact.
        location: Path or URI of the artifact.
        reason: The failure, with the name of the file.
        hint: The remedy.

    Example:
        >>> from udf_runtime import ArtifactError
        >>> facts = {"location": "/models/m", "reason": "the file 'w' is gone"}
        >>> error = ArtifactError(artifact="model", hint="Restore the file.", **facts)
        >>> error.artifact, error.reason
        ('model', "the file 'w' is gone")
    """

    def __init__(self, *, artifact: str, location: str, reason: str, hint: str) -> None:
        super().__init__(
            f"The artifact {artifact!r} cannot be copied: {end_sentence(reason)} Location: {location}. "
            f"{as_sentence(hint)}"
        )
        self.artifact = artifact
        self.location = location
        self.reason = reason
        self.hint = hint

    @staticmethod
    def parse(message: str) -> ArtifactError:
        """Returns the error with the message of another process."""
        match = re.fullmatch(
            r"The artifact '(.*?)' cannot be copied: (.*) Location: (.*?)\. (.*)",
            message,
            re.DOTALL,
        )
        artifact, reason, location, hint = (
            ("", message, "", "") if match is None else match.groups()
        )
        return ArtifactError(artifact=artifact, location=location, reason=reason, hint=hint)


class CheckpointError(UdfRuntimeError, OSError):
    """A checkpoint is damaged or of another format, or the store raised an error.

    Example:
        >>> from udf_runtime import CheckpointError
        >>> from udf_runtime.checkpoint import decode
        >>> try:
        ...     decode(b"no checkpoint")
        ... except CheckpointError:
        ...     print("damaged")
        damaged
    """
