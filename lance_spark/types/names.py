"""Column names: allowed names for a table, and the columns of a scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.errors import ColumnNameError, UnsupportedTypeError
from lance_spark.types.fields import children_of, storage_type

if TYPE_CHECKING:
    import lance

RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"})
"""Names of columns that Lance itself adds to a scan."""

UNSTORABLE = "has a NUL or half of a surrogate pair, which Arrow cannot store"


def check_column_names(names: Sequence[str], where: str = "the table") -> None:
    """Checks the names of new top-level columns, for every way to add or rename a column.

    Args:
        names: The new names.
        where: The table, for the message.

    Raises:
        ColumnNameError: Lance or Spark could not read a column of this name back.
    """
    for name in names:
        if reason := _problem_of(name):
            raise ColumnNameError(name, reason, where)
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise ColumnNameError(name, f"occurs {count} times", where)


def check_field_names(field: pa.Field[Any], path: str, where: str = "the table") -> None:
    """Checks the names of struct fields in a column, at any depth.

    Raises:
        ColumnNameError: Lance could not read the field back.
    """
    is_struct = pa.types.is_struct(storage_type(field))
    for child in children_of(field):
        below = f"{path}.{child.name}" if is_struct else f"{path}.element"
        if is_struct:
            check_field_name(child.name, path, where)
        check_field_names(child, below, where)


def check_field_name(name: str, path: str, where: str = "the table") -> None:
    """Checks the new name of a field of the struct at a path.

    Raises:
        ColumnNameError: Lance could not read the field back.
    """
    if reason := _problem_of_field(name):
        raise ColumnNameError(f"{path}.{name}", reason, where)


def _problem_of(name: str) -> str | None:
    if "." in name or "`" in name:
        return "has a dot or a backtick, which Lance cannot read"
    if name == "*":
        return "means all columns in Lance"
    if name.lower() in RESERVED:
        return "is the name of a column that Lance itself adds"
    return _problem_of_field(name)


def _problem_of_field(name: str) -> str | None:
    if not name:
        return "is empty"
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        return UNSTORABLE
    return None


def refuse_unreadable(names: Iterable[str], dataset: lance.LanceDataset) -> None:
    """Raises an error for columns of another writer with names that Lance can store but not read.

    Raises:
        UnsupportedTypeError: A name is empty or has a backtick.
    """
    for name in names:
        if not name or "`" in name:
            readable = ", ".join(candidate for candidate in dataset.schema.names if candidate and "`" not in candidate)
            raise UnsupportedTypeError(
                name,
                str(dataset.schema.field(name).type),
                reason="Lance cannot read a top-level column whose name is empty or holds a backtick",
                hint=f"leave it out with the option columns, which may name {readable or 'no other column here'}",
            )


def quote_identifier(name: str) -> str:
    """Returns a column name in backticks, for Spark SQL and Lance SQL.

    Doubled backticks are for Spark SQL. Lance SQL cannot express a name with a backtick.
    """
    return "`" + name.replace("`", "``") + "`"


def requested_columns(names: Iterable[str]) -> dict[str, str] | list[str]:
    """Returns columns for `scanner(columns=)`, each as an expression.

    In a list of names, Lance reads the name `*` as all columns.

    Args:
        names: Top-level columns, and dotted paths of nested fields. A path with dots in its parts
            has each part in backticks.

    Returns:
        Expressions by name, in the order of the names; an empty list for no columns.
    """
    return {name: _expression_of(name) for name in names} or []


def _expression_of(name: str) -> str:
    return name if "`" in name else ".".join(map(quote_identifier, name.split(".")))
