"""Access of this process to the store of a namespace's table, with credentials that are renewed."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from lance_spark.lance_compat import load_lance
from lance_spark.namespaces.client import call, explain, is_code
from lance_spark.namespaces.errors import NamespaceError, NamespaceUnavailableError
from lance_spark.namespaces.reference import NamespaceTable

_EXPIRY = "expires_at_millis"
"""The option with the time at which credentials expire."""

_OFFSET = "refresh_offset_millis"
"""The option of Lance with the time before the expiry at which Lance asks for new credentials."""

_LONGEST_OFFSET_S = 60.0
_OFFSET_SHARE = 0.25
"""Share of the lifetime of credentials that is left at their renewal."""

_LIFETIME_S = 600.0
"""How long options without an expiry are used."""

_SILENCE_S = 5.0
"""How long a namespace that gave no answer is not asked again about a table."""

OWN_PROPERTY = "lance_spark.created"
"""Property of a table in its namespace: this package created the table."""

BRANCHES = "/tree/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """The answer of a namespace about a table.

    Attributes:
        location: Location of the table, as this package normalizes it.
        options: Options of the store for Lance. The textual form has none, because options may be
            secrets.
        managed: Whether the namespace keeps the versions of the table.
        is_own: Whether this package made the table, and the namespace keeps properties of tables.
        expires_at: Time at which the options expire.
        renew_at: Time at which the namespace is asked again.
    """

    location: str
    options: dict[str, str] = field(repr=False)
    managed: bool = False
    is_own: bool = False
    expires_at: float = math.inf
    renew_at: float = 0.0

    @property
    def expires(self) -> bool:
        """Whether the options expire."""
        return self.expires_at < math.inf


_accesses: dict[NamespaceTable, TableAccess] = {}
_locks: dict[NamespaceTable, threading.Lock] = {}
_silent: dict[NamespaceTable, tuple[float, str]] = {}
"""Tables whose namespace gave no answer: the moment of the last request, and the error."""

_outside: dict[tuple[NamespaceTable, str], str] = {}
"""Locations outside a table, with the location of the table by the namespace's newest answer."""


def access_of(table: NamespaceTable) -> TableAccess:
    """Returns the access to a table. Asks the namespace shortly before the credentials expire.

    While the namespace is down, valid options of an earlier answer are used.

    Raises:
        NamespaceUnavailableError: The namespace does not answer.
        NamespaceError: The namespace refuses, or lacks the table.
    """
    access = _accesses.get(table)
    if access is None or time.time() >= access.renew_at:
        # A single thread asks; all other threads wait for the answer.
        with _locks.setdefault(table, threading.Lock()):
            access = _accesses.get(table)
            if access is None or time.time() >= access.renew_at:
                access = _renew(table, access)
    return access


def _renew(table: NamespaceTable, old: TableAccess | None) -> TableAccess:
    is_valid = old is not None and time.time() < old.expires_at
    failed_at, problem = _silent.get(table, (0.0, None))
    if problem is not None and not is_valid and time.monotonic() - failed_at < _SILENCE_S:
        # Each thread raises an error of its own: a raise changes the traceback of the exception.
        raise NamespaceUnavailableError(problem)
    try:
        access = describe(table, patience=0.0 if is_valid else None)
    except NamespaceUnavailableError as error:
        if old is not None and is_valid:
            _accesses[table] = replace(old, renew_at=min(time.time() + _SILENCE_S, old.expires_at))
            return old
        _silent[table] = (time.monotonic(), str(error))
        raise
    if access is None:
        raise _lost(table)
    return access


def _access_at(table: NamespaceTable, uri: str) -> TableAccess:
    """Returns the access to a table, for a location.

    An answer with another location may be old: another process dropped the table, and created it
    again. The namespace is then asked once more.
    """
    access, place = access_of(table), plain_location(uri)
    is_inside = f"{place}/".startswith(f"{access.location}/")
    if not is_inside and _outside.get((table, place)) != access.location:
        fresh = describe(table)
        if fresh is None:
            raise _lost(table)
        access = fresh
        _outside[table, place] = access.location
    return access


def refuse_moved(uri: str, storage: Mapping[str, str]) -> None:
    """Refuses a commit at a location that a managed table no longer has.

    Raises:
        NamespaceError: The namespace does not answer, refuses, or tells another location.
    """
    table = NamespaceTable.of(storage)
    if table is None:
        return
    access = _access_at(table, uri)
    if access.managed and not f"{plain_location(uri)}/".startswith(f"{access.location}/"):
        raise NamespaceError(
            f"{table.client.subject} has {table} at another location by now. Location of the commit: {uri}. Location "
            f"in the namespace: {access.location}. Nothing was committed. Open the table again."
        )


def _lost(table: NamespaceTable) -> NamespaceError:
    return NamespaceError(
        f"{table.client.subject} lacks {table} by now. Register the table again, or open another."
    )


def describe(table: NamespaceTable, *, patience: float | None = None) -> TableAccess | None:
    """Asks the namespace about a table. Returns None if the namespace lacks the table.

    Args:
        table: The table.
        patience: Seconds of repeated requests while the namespace is down; by default up to a
            minute.

    Raises:
        NamespaceUnavailableError: The namespace does not answer.
        NamespaceError: The namespace refuses.
    """
    load_lance()
    from lance_namespace import DescribeTableRequest

    request = DescribeTableRequest(id=list(table.table_id), vend_credentials=True)
    try:
        return note_access(table, call(table.client, "describe_table", request, patience=patience))
    except Exception as error:
        if is_code(error, "TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND"):
            _accesses.pop(table, None)
            return None
        raise explain(error, f"describe {table}", table.client) from error


def note_access(table: NamespaceTable, response: Any) -> TableAccess:  # noqa: ANN401 - a response of pylance
    """Keeps the answer of a namespace for this process.

    Raises:
        NamespaceError: The answer has no location.
    """
    if not response.location:
        raise NamespaceError(
            f"{table.client.subject} tells no location of {table}. Ask the administrator of the namespace."
        )
    options = dict(response.storage_options or {})
    lifetime, moment, expires_at = _LIFETIME_S, time.time(), math.inf
    if options.get(_EXPIRY, "").isdecimal():
        expires_at = int(options[_EXPIRY]) / 1000
        remaining = max(0.0, expires_at - moment)
        offset = min(_LONGEST_OFFSET_S, _OFFSET_SHARE * remaining)
        options.setdefault(_OFFSET, str(int(1000 * offset)))
        lifetime = remaining - offset
    access = TableAccess(
        location=plain_location(response.location),
        options=options,
        managed=response.managed_versioning is True,
        is_own=OWN_PROPERTY in (response.properties or {}),
        expires_at=expires_at,
        renew_at=moment + lifetime,
    )
    _accesses[table] = access
    _silent.pop(table, None)
    return access


def store_options(storage: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of the store for storage options, which may refer to a namespace.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    table = NamespaceTable.of(storage)
    return dict(storage) if table is None else dict(access_of(table).options)


def lasting_options(storage: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of the store without the times of credentials.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    return {
        name: value
        for name, value in store_options(storage).items()
        if name not in (_EXPIRY, _OFFSET)
    }


def renewal_arguments(storage: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of Lance that let Lance renew credentials; none where nothing expires.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    table = NamespaceTable.of(storage)
    if table is None or not access_of(table).expires:
        return {}
    return _arguments(table)


def version_arguments(uri: str, storage: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of Lance for a dataset at a location, or for a commit.

    With these arguments Lance renews credentials, and keeps the versions of the table itself in the
    namespace, if the namespace manages versions.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    table = NamespaceTable.of(storage)
    if table is None:
        return {}
    managed = is_managed(uri, storage)
    if not managed and not access_of(table).expires:
        return {}
    return {**_arguments(table), "namespace_client_managed_versioning": managed}


def is_managed(uri: str, storage: Mapping[str, str]) -> bool:
    """Tells whether a namespace keeps the versions of the table at a location.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    table = NamespaceTable.of(storage)
    if table is None:
        return False
    access = _access_at(table, uri)
    return access.managed and access.location == plain_location(uri)


def managed_branch_of(uri: str, storage: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns table and name of a branch, if a namespace keeps the versions of the branch.

    Raises:
        NamespaceError: The namespace does not answer, or refuses.
    """
    table = NamespaceTable.of(storage)
    if table is None or BRANCHES not in uri:
        return None
    access = _access_at(table, uri)
    folder = f"{access.location}{BRANCHES}"
    is_branch = access.managed and uri.startswith(folder) and "/_lance_spark" not in uri
    return (access.location, uri.removeprefix(folder)) if is_branch else None


def _arguments(table: NamespaceTable) -> dict[str, Any]:
    from lance_spark.namespaces.provider import RenewingClient

    return {"namespace_client": RenewingClient(table), "table_id": list(table.table_id)}


def plain_location(location: str) -> str:
    """Returns a location of a namespace in the form of `normalize_uri`."""
    if location.startswith("file:"):
        return os.path.abspath(unquote("/" + location.removeprefix("file:").lstrip("/")))
    return location.rstrip("/") if "://" in location else os.path.abspath(location)


def _forget() -> None:
    _locks.clear()
    _silent.clear()
    _outside.clear()
    _accesses.clear()


# A forked process starts without locks, because a thread of the parent may have held a lock.
os.register_at_fork(after_in_child=_forget)
