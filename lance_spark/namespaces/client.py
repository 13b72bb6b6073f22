"""Calls of a namespace: one client per process and namespace, retries, and typed errors."""

from __future__ import annotations

import functools
import os
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.lance_compat import is_spark_worker, load_lance, plain
from lance_spark.namespaces.errors import NamespaceError, NamespaceUnavailableError
from lance_spark.namespaces.reference import NamespaceClientSpec

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

_FIRST_PATIENCE_S = 5.0
"""How long a process repeats a request to a namespace without an earlier answer."""

_PATIENCE_S = 60.0
"""How long a task, or a process with an earlier answer, repeats a request."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

_REPEATABLE = frozenset(
    {"describe_table", "describe_table_version", "list_namespaces", "list_table_versions"}
) | {
    "describe_namespace",
    "list_tables",
    "namespace_exists",
    "table_exists",
}
"""Operations that change nothing, so that a repeated request is safe."""

_TEXTS = {
    "NAMESPACE_NOT_FOUND": r"^(Namespace|Database) .*(not found|does not exist)|^Namespace not found",
    "TABLE_ALREADY_EXISTS": r"^Table .*already exists",
    "TABLE_NOT_FOUND": r"^Table .*does not exist|^Table not found",
}
"""Messages of `lance-namespace-impls`, by the code that each lacks."""

_answered: set[NamespaceClientSpec] = set()
_lock = threading.Lock()


def call(
    spec: NamespaceClientSpec, operation: str, request: object, *, patience: float | None = None
) -> Any:  # noqa: ANN401 - the response of pylance
    """Sends a request to a namespace. Repeats the request while the namespace is down.

    Args:
        spec: The namespace.
        operation: Name of the operation.
        request: The request.
        patience: Seconds of repeated requests; by default as many as fit the process.

    Raises:
        NamespaceUnavailableError: The namespace does not answer.
        Exception: The error of `lance_namespace`, if the namespace refuses the request.
    """
    function = getattr(client_of(spec), operation)
    if patience is None:
        patience = _PATIENCE_S if spec in _answered or is_spark_worker() else _FIRST_PATIENCE_S
    deadline = time.monotonic() + (patience if operation in _REPEATABLE else 0.0)
    pause = _FIRST_PAUSE_S
    while True:
        try:
            response = function(request)
        except Exception as error:
            if not is_transient(error):
                _answered.add(spec)
                raise
            if time.monotonic() + pause > deadline:
                raise NamespaceUnavailableError(
                    f"{spec.subject} does not answer: {plain(error)}. Check the address in its properties, "
                    "and try again when the namespace answers."
                ) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        else:
            _answered.add(spec)
            return response


def client_of(spec: NamespaceClientSpec) -> LanceNamespace:
    """Returns the client of this process.

    Raises:
        OptionError: The implementation cannot be loaded, or refuses its properties.
    """
    with _lock:
        return _connect(spec)


@functools.lru_cache(maxsize=16)
def _connect(spec: NamespaceClientSpec) -> LanceNamespace:
    load_lance()
    import lance_namespace

    try:
        return lance_namespace.connect(spec.class_path, dict(spec.properties))
    except ValueError as error:
        # The message of the cause may hold properties, and properties may be secrets.
        reason = error.__context__ or error
        module = getattr(reason, "name", None) if isinstance(reason, ModuleNotFoundError) else None
        problem = (
            "cannot be loaded"
            if module is None
            else f"needs the module {module!r}, which is not installed"
        )
        names = ", ".join(name for name, _ in spec.properties) or "none"
        accepted = (
            f"an implementation that accepts the properties {names} ({type(reason).__name__})"
        )
        raise OptionError(
            "namespace_client_impl", spec.implementation, accepted, problem=problem
        ) from None


def is_transient(error: Exception) -> bool:
    """Tells whether a namespace did not answer, or asks to try again later."""
    from lance_namespace.errors import ErrorCode

    # A connection that breaks in the middle of a request is an internal error of pylance's client.
    if isinstance(error, (ConnectionError, TimeoutError)) or "Failed to execute request" in str(
        error
    ):
        return True
    return getattr(error, "code", None) in (ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.THROTTLING)


def is_code(error: Exception, *names: str) -> bool:
    """Tells whether an error has a code of `lance_namespace.errors.ErrorCode`.

    Errors of `lance-namespace-impls` have no code, so their texts decide.
    """
    from lance_namespace.errors import ErrorCode

    code = getattr(error, "code", None)
    if code is not None:
        return code in [ErrorCode[name] for name in names]
    return any(re.search(_TEXTS[name], str(error)) for name in names if name in _TEXTS)


def is_unsupported(error: Exception) -> bool:
    """Tells whether an implementation lacks an operation."""
    # A REST server reports a missing operation of its own implementation as an internal error.
    text = str(error)
    is_lacking = isinstance(error, NotImplementedError) or is_code(error, "UNSUPPORTED")
    return is_lacking or "Not supported:" in text or "not implemented" in text


def explain(error: Exception, what: str, spec: NamespaceClientSpec) -> Exception:
    """Returns an error of this package for an error of `lance_namespace`.

    Args:
        error: The error.
        what: The action, as the object of `cannot`.
        spec: The namespace.
    """
    if isinstance(error, (NamespaceError, OptionError)):
        return error
    if is_unsupported(error):
        return UnsupportedOperationError(
            f"{spec.subject} cannot {what}, because its implementation lacks the operation. Nothing was changed."
        )
    hint = "Check the name and the permissions"
    if is_code(error, "PERMISSION_DENIED", "UNAUTHENTICATED"):
        hint = "Check the credentials in the properties of the namespace"
    return NamespaceError(f"{spec.subject} cannot {what}: {plain(error)}. {hint}.")


def _forget() -> None:
    """Forgets all clients in a forked process: threads of a client do not survive a fork."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()
    _connect.cache_clear()


os.register_at_fork(after_in_child=_forget)
