"""What the JVM calls in this process: :func:`serve`.

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
"""Commands by the module of this package that has a function of the same name."""


def _command(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the function of a command. A program that only reads imports no other module."""
    module = next(module for module, commands in _MODULES.items() if name in commands)
    function: Callable[[Mapping[str, Any]], dict[str, Any]] = getattr(import_module(f"lance_spark.sql.{module}"), name)
    return function


class _Python:
    """A `java.util.function.BiFunction` that carries out a command; it never raises."""

    def apply(self, request: str, given: Any) -> object:  # noqa: ANN401 - a Java object
        """Returns the answer as JSON: of the command, or its error; or what the JVM threw."""
        asked = json.loads(request)
        try:
            if asked["command"] == "change":
                from lance_spark.sql import statements

                answer = statements.change(asked["arguments"], given)
            elif asked["command"] == "call":
                from lance_spark.sql import procedures

                answer = procedures.call(asked["arguments"], given)
            else:
                answer = _command(asked["command"])(asked["arguments"])
        except CapturedException as error:
            if error._origin is not None:  # noqa: SLF001 - Spark's own error, which its user is to see
                return error._origin  # noqa: SLF001
            answer = failed(error)
        except Py4JJavaError as error:
            return error.java_exception  # Spark's too, of a class that PySpark has no exception for
        except LanceSparkError as error:
            answer = failed(error)
        except BaseException as error:  # noqa: BLE001 - py4j shows no error, and Lance's panics are no Exception
            _LOG.exception("%s failed", asked["command"])
            answer = failed(error)
        return json.dumps(answer)

    class Java:
        """What py4j reads."""

        implements = ("java.util.function.BiFunction",)


def serve(gateway: JavaGateway, classes: JavaObject) -> None:
    """Has the JVM call this process. `classes` is PythonGateway.java."""
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    classes.newInstance().use(_Python())


def failed(error: BaseException) -> dict[str, str]:
    """Returns the answer for an error."""
    return {"kind": type(error).__name__, "error": f"{type(error).__module__}.{type(error).__name__}: {error}"}
