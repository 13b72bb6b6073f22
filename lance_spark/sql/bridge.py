"""What the JVM's side of SQL calls in this process: :func:`serve`.

Spark's planner calls the catalog and the statements, which are Java. Their commands run in Python:
in the program that drives the JVM, over the program's own connection, or in a process that the JVM
starts (:mod:`lance_spark.sql.gateway_process`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started

from lance_spark.errors import LanceSparkError
from lance_spark.sql import altering, indexes, namespaces, procedures, statements, tables

_LOG = logging.getLogger(__name__)

_COMMANDS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "alter_namespace": namespaces.alter_namespace,
    "alter_table": altering.alter_table,
    "call": procedures.call,
    "check_options": tables.check_options,
    "create_index": indexes.create_index,
    "create_namespace": namespaces.create_namespace,
    "create_table": tables.create_table,
    "declared_properties": tables.declared_properties,
    "drop_index": indexes.drop_index,
    "drop_namespace": namespaces.drop_namespace,
    "drop_table": tables.drop_table,
    "is_half_dropped": tables.is_half_dropped,
    "keep_properties": tables.keep_properties,
    "list_indexes": indexes.list_indexes,
    "list_namespaces": namespaces.list_namespaces,
    "list_procedures": procedures.list_procedures,
    "list_tables": tables.list_tables,
    "load_namespace": namespaces.load_namespace,
    "load_procedure": procedures.load_procedure,
    "load_table": tables.load_table,
    "properties": tables.properties,
    "rename_table": tables.rename_table,
    "replace_empty": tables.replace_empty,
    "stage_create": tables.stage_create,
    "stage_replace": tables.stage_replace,
    "table_exists": tables.table_exists_in,
    "truncate": tables.truncate,
}


class _Python:
    """A `java.util.function.BiFunction` that carries out a command; it never raises."""

    def apply(self, request: str, given: Any) -> object:  # noqa: ANN401 - a Java object
        """Returns the answer as JSON: of the command, or its error; or what the JVM threw."""
        asked = json.loads(request)
        try:
            if asked["command"] == "change":
                answer = statements.change(asked["arguments"], given)
            else:
                answer = _COMMANDS[asked["command"]](asked["arguments"])
        except CapturedException as error:
            if error._origin is not None:  # noqa: SLF001 - Spark's own error, which its user is to see
                return error._origin  # noqa: SLF001
            answer = failed(error)
        except Py4JJavaError as error:
            return error.java_exception  # Spark's too, of a class that PySpark has no exception for
        except LanceSparkError as error:
            answer = failed(error)
        except Exception as error:  # noqa: BLE001 - py4j would show its user a stack, and no error
            _LOG.exception("%s failed", asked["command"])
            answer = failed(error)
        return json.dumps(answer)

    class Java:
        """What py4j reads."""

        implements = ("java.util.function.BiFunction",)


def serve(gateway: JavaGateway, classes: JavaObject) -> None:
    """Has the JVM's side of SQL call this process. `classes` is PythonGateway.java."""
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    classes.newInstance().use(_Python())


def failed(error: Exception) -> dict[str, str]:
    """Returns the answer for an error."""
    return {"kind": type(error).__name__, "error": f"{type(error).__module__}.{type(error).__name__}: {error}"}
