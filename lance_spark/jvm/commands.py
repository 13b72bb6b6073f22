"""Commands of the Java classes, and the functions that run them.

Java names a command by a text. The modules of commands depend on all other modules of the package,
so the first command imports its module. The table COMMANDS alone names modules by texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "catalog.altering": ("alter_table", "drop_added_columns"),
    "indexes": ("create_index", "drop_index", "list_indexes"),
    "catalog.namespaces": (
        "alter_namespace",
        "create_namespace",
        "drop_namespace",
        "list_namespaces",
        "load_namespace",
    ),
    "procedures.calls": ("call", "list_procedures", "load_procedure"),
    "reads": ("key_columns", "open_path", "plan_read", "plan_scan", "search_function"),
    "statements": ("change",),
    "catalog.tables": (
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
    "writes": (
        "abort_batch",
        "abort_write",
        "commit_batch",
        "commit_write",
        "plan_batch",
        "plan_write",
    ),
}
"""Commands by their modules in `lance_spark.sql`. A function of the same name runs each command."""


_WITH_JAVA_OBJECT = ("call", "change", "commit_batch")


def find_command(name: str) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
    """Returns the function of a command. A program of reads imports only the module `reads`.

    The function takes the arguments of the command and its Java object, or None.
    """
    module = next(module for module, commands in COMMANDS.items() if name in commands)
    function = getattr(import_module(f"lance_spark.sql.{module}"), name)
    return function if name in _WITH_JAVA_OBJECT else lambda arguments, _: function(arguments)
