"""Serves the commands of the Java classes in this process: :func:`serve`.

Tables by path, the planner rule, the catalog and the statements are Java. Their commands run in
Python: in the program that drives the JVM, over the program's own connection, or in a process that
the JVM starts (:mod:`lance_spark.sql.gateway_process`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from lance_spark.errors import LanceSparkError
from lance_spark.jvm.commands import find_command
from lance_spark.jvm.jar import load

_LOG = logging.getLogger(__name__)

_PYTHON_GATEWAY = "lancespark.PythonGateway"

_server: Any = None
"""The Java object of :func:`serve`; None in a process that serves no JVM."""


def is_classic(spark: SparkSession) -> bool:
    """Tells whether a session has its JVM in this process. A Connect session does not."""
    # A Connect session raises an error on access to `_jvm`.
    return type(spark).__module__ == "pyspark.sql.session"


def gateway_of(spark: SparkSession) -> JavaGateway:
    """Returns the connection of a classic session to its JVM."""
    return spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way into the driver's JVM


class _Python:
    """A `java.util.function.BiFunction` that runs a command, and never raises."""

    def apply(self, request: str, java_object: Any) -> object:  # noqa: ANN401 - any class
        """Returns the answer as JSON: of the command, or its error; or the JVM's own exception."""
        command = json.loads(request)
        try:
            answer = find_command(command["command"])(command["arguments"], java_object)
        except CapturedException as error:
            if error._origin is not None:  # noqa: SLF001 - Spark's own error, for its user
                return error._origin  # noqa: SLF001
            answer = failed(error)
        except Py4JJavaError as error:
            return error.java_exception  # also Spark's error, without an exception class in PySpark
        except LanceSparkError as error:
            answer = failed(error)
        except BaseException as error:  # noqa: BLE001 - py4j shows no error, and Lance's panics are no Exception
            _LOG.exception("%s failed", command["command"])
            answer = failed(error)
        return json.dumps(answer)

    class Java:
        """Declaration for py4j."""

        implements = ("java.util.function.BiFunction",)


def serve(gateway: JavaGateway) -> None:
    """Registers this process for the commands of the JVM behind a gateway."""
    global _server  # noqa: PLW0603 - a process serves one JVM
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    server: Any = load(gateway, _PYTHON_GATEWAY).newInstance()
    server.use(_Python())
    _server = server


def show_job(job: Mapping[str, object]) -> None:
    """Sends the state of a job to the web UI and to the event log of the application.

    Sends no state in a process that serves no JVM. A failure only logs a message.

    Args:
        job: Fields of LanceJob.java.
    """
    server = _server
    if server is None:
        return
    try:
        server.showJob(json.dumps(job))
    except (Py4JError, OSError) as error:
        _LOG.debug("The web UI does not show the job %s: %s", job.get("job_id"), error)


def _forget_server() -> None:
    """Leaves the connection to the parent process after a fork."""
    global _server  # noqa: PLW0603 - as above
    _server = None


os.register_at_fork(after_in_child=_forget_server)


def failed(error: BaseException) -> dict[str, str]:
    """Returns the answer for an error."""
    return {
        "kind": type(error).__name__,
        "error": f"{type(error).__module__}.{type(error).__name__}: {error}",
    }
