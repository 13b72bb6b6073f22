"""Content of a local folder without a Lance table, for the error of a missing table."""

from __future__ import annotations

import itertools
import os

ABSENT = "Check the path, or write the table first."
"""The remedy without any knowledge of the location."""

_SHOWN_TABLES = 10
"""Maximum number of tables in an error."""


def describe_folder(folder: str) -> str:
    """Returns the remedy for a local location without a table, from the content of its folder."""
    is_folder = _list_folder(folder)
    names = sorted(is_folder)
    if "_delta_log" in names:
        return "The folder is a Delta table. Read it with spark.read.format('delta')."
    table_names = (
        name for name in names if is_folder[name] and os.path.isdir(f"{folder}/{name}/_versions")
    )
    if tables := list(itertools.islice(table_names, _SHOWN_TABLES + 1)):
        names_of_tables = ", ".join(tables[:_SHOWN_TABLES])
        more = ", ..." if len(tables) > _SHOWN_TABLES else ""
        return f"The folder has the tables {names_of_tables}{more}. Name one of them, such as {folder}/{tables[0]}."
    if any(name.endswith(".parquet") for name in names):
        return "The folder has Parquet files. Read them with spark.read.parquet(...)."
    return ABSENT


def _list_folder(folder: str) -> dict[str, bool]:
    """Returns the entries of a local folder, and whether each is a folder."""
    try:
        with os.scandir(folder) as entries:
            # The listing tells the kind of an entry: no request for each file of the folder.
            return {entry.name: entry.is_dir() for entry in entries}
    except OSError:  # no folder, or no permission to list the folder
        return {}
