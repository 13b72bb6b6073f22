"""Commands of the JVM, served by this process: :func:`serve`.

Tables by path, the planner rule, the catalog and the statements are Java. Their commands run in
Python: in the program that drives the JVM, over the program's own connection, or in a process that
the JVM starts (:mod:`lance_spark.sql.gateway_process`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started

from lance_spark.errors import LanceSparkError

_LOG = logging.getLogger(__name__)

_MODULES: Mapping[str, tuple[str, ...]] = {
    "altering": ("alter_table", "drop_added_columns"),
    "indexes": ("create_index", "drop_index", "list_indexes"),
    "namespaces": ("alter_namespace", "create_namespace", "drop_namespace", "list_namespaces", "load_namespace"),
    "procedures": ("list_procedures", "load_procedure"),
    "reads": ("key_columns", "open_path", "plan_read", "plan_scan", "search_function"),
    "tables": (
        "check_options",
        "create_table",
        "declared_properties",
        "drop_table",
        "is_half_dropped",
        "keep_properties",
        "list_tables",
        "load_table",
        "locate_table",
        "properties",
        "rename_table",
        "replace_empty",
        "stage_create",
        "stage_replace",
        "table_exists_in",
        "truncate",
    ),
    "writes": ("abort_write", "commit_write", "plan_write"),
}
"""Commands by their modules in this package. A function of the same name runs each command."""


def _command(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the function of a command. A program that only reads imports no other module."""
    module = next(module for module, commands in _MODULES.items() if name in commands)
    function: Callable[[Mapping[str, Any]], dict[str, Any]] = getattr(import_module(f"lance_spark.sql.{module}"), name)
    return function


class _Python:
    """A `java.util.function.BiFunction` that runs a command, and never raises."""

    def apply(self, request: str, given: Any) -> object:  # noqa: ANN401 - a Java object
        """Returns the answer as JSON: of the command, or its error; or the JVM's own exception."""
        command = json.loads(request)
        try:
            if command["command"] == "change":
                from lance_spark.sql import statements

                answer = statements.change(command["arguments"], given)
            elif command["command"] == "call":
                from lance_spark.sql import procedures

                answer = procedures.call(command["arguments"], given)
            else:
                answer = _command(command["command"])(command["arguments"])
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


def serve(gateway: JavaGateway, classes: JavaObject) -> None:
    """Registers this process for calls of the JVM. `classes` is PythonGateway.java."""
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    classes.newInstance().use(_Python())


def failed(error: BaseException) -> dict[str, str]:
    """Returns the answer for an error."""
    return {"kind": type(error).__name__, "error": f"{type(error).__module__}.{type(error).__name__}: {error}"}
