"""Retries of requests to an object store, as options for Lance.

A store without an earlier answer gets a few seconds, so a wrong endpoint or a missing network shows
at once. After an answer, the store gets about five minutes. An answer counts for the process, for
all processes of a Spark application on the machine, and for tasks and commits started by the
process, because Spark plans and commits in separate processes. Lance never retries a refusal (401,
403 and 404, for example). Options of the user win.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from lance_spark.errors import TableUnreadableError
from lance_spark.lance_compat import is_broken_connection, is_unanswered, load_lance, plain
from lance_spark.namespaces.access import store_options

_SCHEMES = frozenset({"abfss", "az", "gs", "s3", "s3+ddb"})
"""Schemes whose stores take these options."""

RETRIES = {
    "client_max_retries": "1000",
    "client_retry_timeout": "40",
    "lance_aimd_max_retries": "5",
}
"""Options for a store that has answered. Measured with pylance 14: Lance repeats a listing six
times, and any other request as often as `lance_aimd_max_retries` says, each for
`client_retry_timeout` seconds."""

_FIRST = {
    "client_max_retries": "1000",
    "client_retry_timeout": "7",
    "lance_aimd_max_retries": "0",
    "connect_timeout": "4s",
    "timeout": "8s",
}
"""Options of the first request of a process to a store."""

_SILENCE_S = 10.0
"""How long a store that gave no answer is not asked again: a job that fails cleans up at once."""

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Names the folders of a Spark application on this machine, which Spark removes at its end."""

_FOLDER_OF_APPLICATION = "blockmgr-"
"""Prefix of such a folder, before a random id. Without this prefix the variable is a setting of the
user: the folder is shared by applications and users, and remains."""

_Store = tuple[str, str, tuple[tuple[str, str], ...]]

_answered: set[_Store] = set()
_silent: dict[_Store, tuple[float, str]] = {}
"""Stores that gave no answer: the moment of the request, and the error of Lance."""

_locks: dict[_Store, threading.Lock] = {}
"""One lock per store: a silent store delays no request to another store."""


def retry_options(uri: str, storage: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the storage options for Lance; None without any.

    The first call of a process for a store sends a request, and waits for the answer. For a table
    of a namespace, the namespace supplies the options.

    Raises:
        TableUnreadableError: The store gave no answer within 20 seconds.
        NamespaceError: The namespace does not answer, or refuses.
    """
    options = store_options(storage)
    if urlsplit(uri).scheme not in _SCHEMES:
        return options or None
    store = _store(uri, storage)
    if not _is_answered(store):
        # A single thread asks; all other threads wait for the answer.
        with _locks.setdefault(store, threading.Lock()):
            if not _is_answered(store):
                _ask(store, uri, options)
    return _with_defaults(RETRIES, options)


def note_failure(uri: str, storage: Mapping[str, str], error: BaseException) -> None:
    """Notes a failed request. A store without an answer has to answer a first request again."""
    if is_unanswered(error):
        store = _store(uri, storage)
        _answered.discard(store)
        mark = _mark(store)
        if mark is not None:
            with contextlib.suppress(OSError):
                os.unlink(mark)


def has_answered(uri: str, storage: Mapping[str, str]) -> bool:
    """Tells whether a store is known to have answered, without a request."""
    return urlsplit(uri).scheme in _SCHEMES and _is_answered(_store(uri, storage))


def note_answer(uri: str, storage: Mapping[str, str]) -> None:
    """Notes an answer to the parent process."""
    _note_answer(_store(uri, storage))


def _is_answered(store: _Store) -> bool:
    if store in _answered:
        return True
    mark = _mark(store)
    if mark is None or not os.path.exists(mark):
        return False
    _answered.add(store)
    return True


def _note_answer(store: _Store) -> None:
    if store in _answered:
        return
    _answered.add(store)
    mark = _mark(store)
    if mark is not None:
        with contextlib.suppress(OSError), open(mark, "xb"):
            pass


def _mark(store: _Store) -> str | None:
    """Returns the marker file of an answer, shared by all processes of an application.

    None outside of Spark. The name shows no credentials.
    """
    scheme, netloc, options = store
    endpoints = [value for name, value in options if "endpoint" in name.lower()]
    return application_file("answered", [scheme, netloc, *endpoints])


def application_file(kind: str, texts: Iterable[str]) -> str | None:
    """Returns the path of a file shared by the processes of a Spark application on this machine.

    None outside of Spark. The name has a digest of the texts.
    """
    folder = os.environ.get(_LOCAL_DIRS, "").partition(",")[0]
    if not os.path.basename(folder).startswith(_FOLDER_OF_APPLICATION):
        return None
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return os.path.join(folder, f"lance-spark-{kind}-{digest}")


def _ask(store: _Store, uri: str, storage: Mapping[str, str]) -> None:
    failed_at, problem = _silent.get(store, (0.0, None))
    if problem is not None and time.monotonic() - failed_at < _SILENCE_S:
        # Each thread raises an error of its own: a raise changes the traceback of the exception.
        raise _no_answer(uri, problem)
    load_lance()
    from lance.file import LanceFileSession

    try:
        LanceFileSession(uri, _with_defaults(_FIRST, storage)).contains("_versions")
    except (OSError, ValueError, RuntimeError) as error:
        # A refusal is an answer. The next request reports the refusal.
        if is_unanswered(error) or is_broken_connection(error):
            _silent[store] = (time.monotonic(), plain(error))
            raise _no_answer(uri, plain(error)) from error
    _silent.pop(store, None)
    _note_answer(store)


def _no_answer(uri: str, problem: str) -> TableUnreadableError:
    return TableUnreadableError(
        uri,
        f"the store does not answer: {problem}",
        hint="check the endpoint in the options storage.*, and the network; try again when the store answers",
    )


# A forked process starts without locks, because a thread of the parent may have held a lock.
os.register_at_fork(after_in_child=_locks.clear)


def _store(uri: str, storage: Mapping[str, str]) -> _Store:
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc, tuple(sorted(storage.items()))


def _with_defaults(defaults: Mapping[str, str], storage: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower() for name in storage}
    return {**{name: value for name, value in defaults.items() if name not in names}, **storage}
