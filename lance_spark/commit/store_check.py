"""Finds out, before the first commit to an object store, whether it keeps writers apart.

Each version of a table is one object, and two writers are kept apart by a conditional put: it makes
the object only where there is none. A store that ignores the condition takes both puts, and tells
both writers that they succeeded, while one's rows are gone. No error ever says so; that is why it
is looked for. What is looked at is the put itself, with a table of our own in a folder of a random
name, so the answer does not depend on time or luck: version 2 is made twice from version 1. A store
that takes it twice ignores conditions.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Mapping
from urllib.parse import urlsplit

from lance_spark.commit.attempt import Landed, Lost, attempt_commit
from lance_spark.dataset import FOLDER
from lance_spark.errors import CommitError, UnsafeStoreError
from lance_spark.lance_compat import is_denied
from lance_spark.objects import LanceObjects
from lance_spark.options import environment_flag

_logger = logging.getLogger(__name__)

ALLOW_VARIABLE = "LANCE_SPARK_ALLOW_UNSAFE_COMMITS"
"""Environment variable of the driver: whether commits to a store that ignores conditional puts are
allowed."""

ALLOW_OPTION = "allow_unsafe_commits"

PROBES = f"{FOLDER}/probe"
"""Folder of a table in which probes are made; each has a folder of its own there, and takes it
away."""

_SAFE_SCHEMES = frozenset({"file", "file-object-store", "memory", "shared-memory", "s3+ddb"})
"""Schemes that need no probe. Lance itself makes files of the first two under a name only where
there is none, and objects of the next two under a lock of this process (all four measured with
pylance 14). `s3+ddb` has its condition in DynamoDB, whatever S3 does, and a probe would leave rows
there that Lance cannot take away. `file+uring` is not among them: its commits are not conditional
(measured)."""

_SECRETS = (
    "authorization",
    "credential",
    "header",
    "key",
    "password",
    "sas",
    "secret",
    "service_account",
    "signature",
    "token",
)
"""Words in names of storage options that say who asks, not which store is asked."""

_USER_IN_URL = re.compile(r"://[^/]*@")

_verdicts: dict[tuple[object, ...], bool] = {}
_lock = threading.Lock()


def refuse_unsafe_store(uri: str, storage: Mapping[str, str], *, allow: bool) -> None:
    """Refuses a location whose store ignores conditional puts.

    Runs where commits are made; asks each location once per process. It costs some 16 small
    requests, and 12 on a store that is refused. Local paths and stores that are known to be safe
    cost none. Where the user takes the risk (`allow`), nothing is asked.

    Raises:
        UnsafeStoreError: The store ignores conditional puts.
        CommitError: It could not be found out, because the store fails or refuses small objects
            below the table. It is asked again next time.
    """
    if allow or "://" not in uri or urlsplit(uri).scheme in _SAFE_SCHEMES:
        return
    location = _location(uri, storage)
    # One at a time: other threads wait for the answer instead of asking too.
    with _lock:
        safe = _verdicts.get(location)
        if safe is None:
            safe = _verdicts[location] = keeps_conditions(f"{uri.rstrip('/')}/{PROBES}/{uuid.uuid4().hex}", storage)
    if not safe:
        parts = urlsplit(uri)
        raise UnsafeStoreError(
            "the object store ignores conditional puts: it took two versions under one name, so of writers that commit "
            "at the same time all but one would lose what they wrote, and none would notice - at "
            f"{parts.scheme}://{parts.netloc}, asked for {uri} - nothing was committed; use a store with conditional "
            "puts (If-None-Match), or, where never more than one writer commits, allow it with "
            f"option('{ALLOW_OPTION}', 'true') or {ALLOW_VARIABLE}=true",
            uri=uri,
        )


def _renew_lock() -> None:
    """Renews the lock in a forked process: a thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def allowed_by_environment() -> bool:
    """Tells whether the driver's environment allows commits to such a store; by default not.

    Raises:
        OptionError: The variable is no flag.
    """
    return environment_flag(ALLOW_VARIABLE)


def keeps_conditions(probe: str, storage: Mapping[str, str]) -> bool:
    """Tells whether a store keeps conditional puts, with a table of no rows at an unused location.

    Raises:
        CommitError: The store failed.
    """
    import pyarrow as pa
    from lance import LanceOperation

    operation = LanceOperation.Overwrite(pa.schema([("probe", pa.int64())]), [])
    made = attempt_commit(probe, operation, read_version=0, properties={}, storage_options=storage)
    if not isinstance(made, Landed):
        raise _unknown(probe, made.error)
    try:
        for _ in range(2):
            # An overwrite that may not be tried again is put as the version after the one that was
            # read, and nothing is looked at before (measured with pylance 14; other operations, and
            # a creation, look first, and then never meet the condition).
            outcome = attempt_commit(made.dataset, operation, read_version=1, properties={}, storage_options=storage)
            if isinstance(outcome, Lost) and outcome.race:
                return True
            if not isinstance(outcome, Landed):
                raise _unknown(probe, outcome.error)
        return False
    finally:
        _remove(probe, storage)


def _unknown(probe: str, error: Exception) -> CommitError:
    advice = (
        "check that the store answers, and that objects can be written there, or commit without asking, with "
        f"option('{ALLOW_OPTION}', 'true') or {ALLOW_VARIABLE}=true"
    )
    if is_denied(error):
        advice = (
            "check the credentials: give them as storage.* options, or in the environment, and let them write objects "
            "below the table"
        )
    return CommitError(
        f"whether the store keeps conditional puts could not be found out: {error} - at {probe} - nothing was "
        f"committed; {advice}",
        uri=probe,
    )


def _remove(probe: str, storage: Mapping[str, str]) -> None:
    objects = LanceObjects(probe, tuple(sorted(storage.items())))
    try:
        for path in objects.list(""):
            objects.delete(path)
    except (OSError, ValueError, RuntimeError) as error:
        # The answer is known; what is left is a few small objects in a folder that nothing reads.
        _logger.warning("a probe could not be deleted: %s - at %s", error, probe)


def _location(uri: str, storage: Mapping[str, str]) -> tuple[object, ...]:
    """Returns what tells one store from another: all options but those of identity.

    One more question costs less than a wrong answer.
    """
    parts = urlsplit(uri)
    options = {key.lower(): value for key, value in without_secrets(storage).items()}
    return (parts.scheme, parts.netloc, *sorted(options.items()))


def without_secrets(storage: Mapping[str, str]) -> dict[str, str]:
    """Returns the storage options without keys, tokens, headers, and URLs that name a user."""
    return {
        key: value
        for key, value in storage.items()
        if not any(word in key.lower() for word in _SECRETS) and not _USER_IN_URL.search(value)
    }
