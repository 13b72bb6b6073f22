"""The places of tables, from the arguments of :func:`lance_spark.connect`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.locations import normalize_uri
from lance_spark.namespaces.reference import NamespaceClientSpec

_STABLE_ROW_IDS, _STORAGE_VERSION = (
    "new_table_enable_stable_row_ids",
    "new_table_data_storage_version",
)
_TRUTHS = {"true": True, "false": False}

_REMOTE = (
    "Open the bucket or folder that holds the tables, connect('s3://bucket/path', storage_options={...}), or a catalog "
    "with a Lance REST namespace, connect(namespace_client_impl='rest', namespace_client_properties={'uri': "
    "'https://...'})."
)


_PUSHDOWN_OPERATIONS = ("QueryTable", "CreateTable")
"""Operations that a client may pass to the service of a namespace, by Lance's namespace format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTableDefaults:
    """The defaults of new tables, from LanceDB's storage options.

    Attributes:
        stable_row_ids: Whether rows keep their ids; None without an option.
        data_storage_version: Lance file format; None without an option.
    """

    stable_row_ids: bool | None = None
    data_storage_version: str | None = None

    @staticmethod
    def split(storage_options: Mapping[str, str]) -> tuple[NewTableDefaults, dict[str, str]]:
        """Returns the defaults, and the options of the store.

        Raises:
            OptionError: A value is not valid.
        """
        options = dict(storage_options)
        text, version = options.pop(_STABLE_ROW_IDS, None), options.pop(_STORAGE_VERSION, None)
        stable = None if text is None else _TRUTHS.get(str(text).lower())
        if text is not None and stable is None:
            raise OptionError(_STABLE_ROW_IDS, text, "true or false")
        return NewTableDefaults(stable_row_ids=stable, data_storage_version=version), options

    def to_options(self) -> dict[str, str]:
        """Returns the options that :meth:`split` understands."""
        stable = None if self.stable_row_ids is None else str(self.stable_row_ids).lower()
        options = {_STABLE_ROW_IDS: stable, _STORAGE_VERSION: self.data_storage_version}
        return {name: text for name, text in options.items() if text is not None}

    def has_stable_row_ids(self, choice: bool | None) -> bool:
        """Returns whether rows of a new table keep their ids, for the choice of a call."""
        return next((value for value in (choice, self.stable_row_ids) if value is not None), True)


def refuse_remote_arguments(**arguments: str | None) -> None:
    """Refuses the arguments of :func:`connect` for a remote database service.

    Raises:
        UnsupportedOperationError: An argument has a value.
    """
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedOperationError(
                f"{name} is an argument for a remote database service, and Spark works on the tables themselves. "
                f"{_REMOTE}"
            )


def refuse_pushdown(operations: Sequence[str] | None) -> None:
    """Refuses operations for the service of a namespace.

    Raises:
        UnsupportedOperationError: An operation for the service is named.
        OptionError: A name is no such operation.
    """
    names = [operations] if isinstance(operations, str) else operations or ()
    option = "namespace_client_pushdown_operations"
    for name in names:
        if name not in _PUSHDOWN_OPERATIONS:
            raise OptionError(option, name, f"a list of {' and '.join(_PUSHDOWN_OPERATIONS)}")
        raise UnsupportedOperationError(
            f"{option} names {name}, which would run in the service of the namespace. Spark and this process read and "
            "write the files of the tables themselves, with the same result. Leave the argument out."
        )


def folder_of(uri: str | os.PathLike[str] | None) -> str:
    """Returns the location of a folder of tables.

    Raises:
        UnsupportedOperationError: The URI means a remote service.
        OptionError: The location is not valid.
    """
    uri = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    if not isinstance(uri, str) or not uri.strip():
        raise OptionError(
            "uri", uri, "the location of a folder of Lance tables, or namespace_client_impl instead"
        )
    if uri.startswith("db://"):
        raise UnsupportedOperationError(
            f"{uri} names a remote database service, and Spark works on the tables themselves. {_REMOTE}"
        )
    return normalize_uri(uri, option="uri")


def client_of(
    uri: object, storage_options: object, implementation: object, properties: object
) -> NamespaceClientSpec:
    """Returns the namespace of the arguments of :func:`connect`.

    Raises:
        OptionError: An argument is not valid together with a namespace.
    """
    if uri is not None:
        accepted = (
            "no location with a namespace, because the namespace tells the locations of its tables"
        )
        raise OptionError("uri", str(uri), accepted)
    if storage_options:
        accepted = "no options with a namespace, whose properties may have storage.*"
        raise OptionError("storage_options", ", ".join(sorted(map(str, storage_options))), accepted)  # type: ignore[call-overload]
    return NamespaceClientSpec.of(implementation, properties)
