"""Tests, before the first commit to an object store, whether the store isolates concurrent writers.

Each version of a table is one object. A conditional put creates the object only if no object of the
name exists, and so isolates two writers. A store without conditions accepts both puts and reports
success to both writers, although one writer's rows are lost. No error ever reports the loss, so
this module probes the store.

The probe tests the put itself, on its own table in a folder with a random name. The answer is
therefore independent of timing and luck. The probe creates version 2 from version 1 twice. A store
that accepts both ignores conditions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import uuid
from collections.abc import Mapping
from urllib.parse import urlsplit

from lance_spark.commit.attempt import Landed, Lost, attempt_commit
from lance_spark.dataset import FOLDER
from lance_spark.dataset_retries import application_file
from lance_spark.errors import CommitError, UnsafeStoreError
from lance_spark.lance_compat import is_denied, plain
from lance_spark.namespaces.access import lasting_options
from lance_spark.options.io_options import environment_flag
from lance_spark.storage.objects import LanceObjects

_logger = logging.getLogger(__name__)

ALLOW_VARIABLE = "LANCE_SPARK_ALLOW_UNSAFE_COMMITS"
"""Environment variable of the driver: whether to allow commits to a store that ignores
conditional puts."""

ALLOW_OPTION = "allow_unsafe_commits"

PROBES = f"{FOLDER}/probe"
"""Folder of a table for probes. Each probe uses its own subfolder, and deletes the subfolder."""

_SAFE_SCHEMES = frozenset({"file", "file-object-store", "memory", "shared-memory", "s3+ddb"})
"""Schemes without a probe. For the first two, Lance itself creates a file only if the name is
free. For the next two, Lance creates objects under a lock of this process (all four measured with
pylance 14). `s3+ddb` has its condition in DynamoDB, regardless of S3, and a probe would leave
rows in DynamoDB that Lance cannot delete. `file+uring` is excluded: its commits are not
conditional (measured)."""

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
"""Words in names of storage options that identify the user, not the store."""

_USER_IN_URL = re.compile(r"://[^/]*@")

_verdicts: dict[tuple[object, ...], bool] = {}
_lock = threading.Lock()


def refuse_unsafe_store(uri: str, storage: Mapping[str, str], *, allow: bool) -> None:
    """Raises if the store of a location ignores conditional puts.

    Runs in the committing process, and probes each location once per process. The Python processes
    of a Spark application share the answer of a safe store. A probe costs about 16 small requests,
    or 12 on an unsafe store. Local paths and known safe stores cost none. With `allow`, the user
    takes the risk, and the store is not probed.

    Raises:
        UnsafeStoreError: The store ignores conditional puts.
        CommitError: The probe failed, because the store fails or refuses small objects below the
            table. The next commit probes again.
    """
    if allow or "://" not in uri or urlsplit(uri).scheme in _SAFE_SCHEMES:
        return
    location = _location(uri, storage)
    # One probe at a time: other threads wait for the answer.
    with _lock:
        safe = _verdicts.get(location)
        if safe is None:
            safe = _verdicts[location] = _ask_application(location, uri, storage)
    if not safe:
        parts = urlsplit(uri)
        raise UnsafeStoreError(
            "The object store ignores conditional puts, so concurrent writers would lose rows without an error. The "
            f"store {parts.scheme}://{parts.netloc} took two versions under one name. Table: {uri}. Nothing was "
            "committed. Use a store with conditional puts (If-None-Match). If never more than one writer commits, "
            f"allow the store with option('{ALLOW_OPTION}', 'true') or {ALLOW_VARIABLE}=true.",
            uri=uri,
        )


def _ask_application(location: tuple[object, ...], uri: str, storage: Mapping[str, str]) -> bool:
    """Tells whether a store keeps conditions, by the answer to another process, or by a probe."""
    mark = application_file("safe", map(repr, location))
    if mark is not None and os.path.exists(mark):
        return True
    safe = keeps_conditions(f"{uri.rstrip('/')}/{PROBES}/{uuid.uuid4().hex}", storage)
    if safe and mark is not None:
        with contextlib.suppress(OSError), open(mark, "xb"):
            pass
    return safe


def _renew_lock() -> None:
    """Renews the lock in a forked process: a thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603 - one lock per process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def allowed_by_environment() -> bool:
    """Tells whether the driver's environment allows commits to an unsafe store; by default not.

    Raises:
        OptionError: The variable is no flag.
    """
    return environment_flag(ALLOW_VARIABLE)


def keeps_conditions(probe: str, storage: Mapping[str, str]) -> bool:
    """Probes a store for conditional puts, with a table without rows at an unused location.

    Raises:
        CommitError: The store failed.
    """
    import pyarrow as pa
    from lance import LanceOperation

    operation = LanceOperation.Overwrite(pa.schema([("probe", pa.int64())]), [])
    creation = attempt_commit(
        probe, operation, read_version=0, properties={}, storage_options=storage
    )
    if not isinstance(creation, Landed):
        raise _unknown(probe, creation.error)
    try:
        for _ in range(2):
            # Without retries, pylance puts an overwrite directly as the version after the read
            # version. Other operations and a creation first look for newer versions, and then never
            # reach the condition (measured with pylance 14).
            outcome = attempt_commit(
                creation.dataset, operation, read_version=1, properties={}, storage_options=storage
            )
            if isinstance(outcome, Lost) and outcome.race:
                return True
            if not isinstance(outcome, Landed):
                raise _unknown(probe, outcome.error)
        return False
    finally:
        _remove(probe, storage)


def _unknown(probe: str, error: Exception) -> CommitError:
    advice = (
        "Check that the store answers and takes objects. To commit without this probe, set "
        f"option('{ALLOW_OPTION}', 'true') or {ALLOW_VARIABLE}=true."
    )
    if is_denied(error):
        advice = (
            "Check the credentials in the storage.* options or in the environment. The credentials must allow writing "
            "below the table."
        )
    return CommitError(
        f"The probe of the store for conditional puts failed: {plain(error)}. Location: {probe}. Nothing was "
        f"committed. {advice}",
        uri=probe,
    )


def _remove(probe: str, storage: Mapping[str, str]) -> None:
    objects = LanceObjects(probe, tuple(sorted(storage.items())))
    try:
        for path in objects.list(""):
            objects.delete(path)
    except (OSError, ValueError, RuntimeError) as error:
        # The probe has its answer. Only a few small objects remain, in a folder without readers.
        _logger.warning("The probe at %s could not be deleted: %s", probe, error)


def _location(uri: str, storage: Mapping[str, str]) -> tuple[object, ...]:
    """Returns the key of a store: scheme, host, and all options except identity options.

    An extra probe costs less than a wrong answer.
    """
    parts = urlsplit(uri)
    options = {
        key.lower(): value for key, value in without_secrets(lasting_options(storage)).items()
    }
    return (parts.scheme, parts.netloc, *sorted(options.items()))


def without_secrets(storage: Mapping[str, str]) -> dict[str, str]:
    """Returns the storage options without keys, tokens, headers, and URLs with a user name."""
    return {
        key: value
        for key, value in storage.items()
        if not any(word in key.lower() for word in _SECRETS) and not _USER_IN_URL.search(value)
    }
