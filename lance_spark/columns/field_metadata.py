"""Metadata of columns, as the caller sets them: :func:`update_field_metadata`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lance_spark.commit.schema_change import change_schema, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, OptionError
from lance_spark.lance_compat import arrow_field_of
from lance_spark.types.mapping import DECLARED_TYPE

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

_RESERVED = ("lance-spark:", "lance-schema:", "lance-encoding:", "ARROW:", DECLARED_TYPE.decode())
"""Prefixes of keys that decide how a column is read, computed or stored."""
_KEYS = frozenset({"path", "metadata", "replace"})


def update_field_metadata(ref: DatasetRef, updates: Sequence[Mapping[str, object]]) -> int:
    """Updates metadata of columns, as :meth:`lance_spark.Table.update_field_metadata` documents.

    Returns the version with all updates, in one commit.

    Raises:
        OptionError: An update is not valid, or sets a reserved key. Nothing was changed.
        ColumnNotFoundError: A column does not exist. Nothing was changed.
        CommitConflictError: Concurrent writers changed the table again and again.
    """
    for update in updates:
        _check(update)
    paths = [str(update["path"]) for update in updates]
    if not updates or len(set(paths)) < len(paths):
        raise OptionError("updates", ", ".join(paths), "one dict or more, each with another path")

    def operation(head: lance.LanceDataset) -> LanceOperation.BaseOperation:
        return set_field_metadata(
            head, {str(update["path"]): _changes(head, update) for update in updates}
        )

    return change_schema(ref, operation).version


def _check(update: Mapping[str, object]) -> None:
    """Checks the form of an update.

    Raises:
        OptionError: The update is not valid.
    """
    path, metadata = update.get("path"), update.get("metadata")
    if not isinstance(path, str) or not path or not set(update) <= _KEYS:
        raise OptionError("updates", dict(update), "dicts with path, metadata and maybe replace")
    if not isinstance(update.get("replace", False), bool):
        raise OptionError("replace", update["replace"], "True or False")
    if not isinstance(metadata, Mapping):
        raise OptionError("metadata", metadata, "a dict of texts; None removes a key")
    for key, value in metadata.items():
        if not _is_text(key) or not (value is None or _is_text(value)):
            raise OptionError("metadata", {key: value}, "a dict of texts; None removes a key")
        if key.startswith(_RESERVED):
            raise OptionError(
                "metadata",
                key,
                f"other keys: {', '.join(_RESERVED)} are for Lance and this package",
            )


def _is_text(value: object) -> bool:
    """Tells whether a value is text that UTF-8 can hold, because Lance stores UTF-8."""
    if not isinstance(value, str):
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _changes(head: lance.LanceDataset, update: Mapping[str, object]) -> dict[str, str | None]:
    """Returns the new values of the keys of a column; None removes a key."""
    path, metadata = str(update["path"]), update["metadata"]
    field = head.lance_schema.field(path)
    if field is None:
        raise ColumnNotFoundError(
            path, head.uri, hint=f"its columns are {', '.join(head.schema.names)}"
        )
    old = (arrow_field_of(field).metadata or {}) if update.get("replace") else {}
    removed = (key.decode() for key in old)
    return {**{key: None for key in removed if not key.startswith(_RESERVED)}, **metadata}  # type: ignore[dict-item]
