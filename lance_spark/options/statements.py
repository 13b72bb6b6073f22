"""The options of each statement: :data:`STATEMENT_OPTIONS`, and the options that Spark adds.

Reads, writes and SQL statements check their options against this table, by path and in a catalog.
An option outside of the table raises an error with the names of the option and the statement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fnmatch import fnmatchcase

from lance_spark.errors import OptionError, rebuild
from lance_spark.options.io_options import (
    COLUMN_OPTIONS,
    METADATA_OPTION,
    PROPERTY_PREFIX,
    STORAGE_PREFIX,
    TABLE_OPTION,
    VIEW_MARK,
    WRITE_OPTION,
    ReadOptions,
    WriteOptions,
    stored_options,
)

_INTERNAL = "lancespark."
_CREATED_PREFIX = "option."


def _list_options(options: type[ReadOptions] | type[WriteOptions]) -> frozenset[str]:
    return frozenset(
        field.name for field in dataclasses.fields(options) if "parse" in field.metadata
    ) - {"path"}


_STORAGE = frozenset([f"{STORAGE_PREFIX}*"])
_COLUMNS = frozenset(f"*.{option}" for option in COLUMN_OPTIONS)
_BACKFILL = frozenset(
    ["version", "input_columns", "verify_columns", "on_stale", "carry_over_max_bytes"]
)
_NEW_TABLE = frozenset(["data_storage_version", "enable_stable_row_ids"])
_BRANCH = frozenset(["branch"])
_TRANSACTION = frozenset(["txn_app_id", "txn_version"])
_WRITE = _list_options(WriteOptions) | {f"{PROPERTY_PREFIX}*"} | _STORAGE

STATEMENT_OPTIONS: Mapping[str, frozenset[str]] = {
    "SELECT": _list_options(ReadOptions) | _STORAGE,
    "INSERT": (_WRITE | _COLUMNS) - _BACKFILL,
    "INSERT OVERWRITE": (_WRITE | _COLUMNS) - _BACKFILL,
    "STREAM": (_WRITE | _COLUMNS) - _BACKFILL - {"mode", "create_only"} - _TRANSACTION,
    "BACKFILL": (_WRITE | _COLUMNS)
    - _NEW_TABLE
    - {"mergeschema", "max_rows_per_file", "max_bytes_per_file"},
    "CREATE TABLE": (_WRITE | _COLUMNS) - _BACKFILL - _BRANCH - _STORAGE - _TRANSACTION - {"mode"},
    "UPDATE": _BRANCH | _TRANSACTION,
    "DELETE": _BRANCH | _TRANSACTION,
    "MERGE": _BRANCH | _TRANSACTION,
    "REPLACE WHERE": _BRANCH | _TRANSACTION,
}
"""Names, in lower case, with `*` for any text. The remaining statements take no options."""


def check_statement_options(statement: str, options: Mapping[str, str]) -> None:
    """Checks that a statement takes the options.

    Raises:
        OptionError: The statement does not take an option.
    """
    accepted = STATEMENT_OPTIONS[statement]
    for name, value in options.items():
        if not any(fnmatchcase(name.lower(), pattern) for pattern in accepted):
            value_text = "***" if name.lower().startswith(STORAGE_PREFIX) else value
            raise OptionError(
                name,
                value_text,
                ", ".join(sorted(accepted)),
                problem=f"is no option of {statement}",
            )


def options_of_create_table(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the path and the OPTIONS of a CREATE TABLE.

    Spark passes each option twice, among TBLPROPERTIES and its own properties.

    Raises:
        OptionError: An option is neither a read nor a write option, or is malformed.
    """
    table_options = {
        key.removeprefix(_CREATED_PREFIX): text
        for key, text in options.items()
        if key.startswith(_CREATED_PREFIX)
    }
    if "path" in options:
        table_options["path"] = options["path"]
    reads = {f.name for f in dataclasses.fields(ReadOptions)}
    WriteOptions.parse(
        {key: text for key, text in table_options.items() if key.lower() not in reads}
    )
    return table_options


def statement_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a statement, without the location and without stored options."""
    omitted = stored_options(options) | {"path", WRITE_OPTION, TABLE_OPTION, METADATA_OPTION}
    return {key: text for key, text in options.items() if key.lower() not in omitted}


def refuse_internal(options: Mapping[str, str]) -> None:
    """Refuses internal options of a user.

    Args:
        options: All options, by names in lower case.

    Raises:
        OptionError: An option is internal.
    """
    for name, text in options.items():
        if name.startswith(_INTERNAL) and (name, text) != (WRITE_OPTION, VIEW_MARK):
            problem = f"Option {name!r} is internal. Nothing was done. Leave it out: the planner rule sets it."
            raise rebuild(
                OptionError, (problem,), {"option": name, "value": text, "accepted": "nothing"}
            )
