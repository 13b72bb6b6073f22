"""Tags that protect the snapshot of a running job from cleanups.

Runs on the driver. The name of a tag has its time of expiry: if the driver of a job dies, the next
job deletes the expired tag.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef, tags_of
from lance_spark.errors import TableUnwritableError, panics_as_errors

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_PREFIX = "lance-spark-protects-until-"

_ERRORS = (OSError, ValueError, RuntimeError)
"""Exceptions of pylance, for any cause."""

LIFETIME = timedelta(days=30)
"""Age of a remaining tag at its removal."""


def protect(snapshot: DatasetRef, job_id: str, *, now: float | None = None) -> str:
    """Tags a version, and returns the name of the tag. `job_id` is an id of the job's staging.

    Raises:
        TableUnwritableError: The version cannot be tagged.
        LanceSparkError: The table cannot be opened.
    """
    until = int((time.time() if now is None else now) + LIFETIME.total_seconds())
    name = f"{_PREFIX}{until}-{job_id}"
    dataset = snapshot.open_latest()
    try:
        with panics_as_errors():
            dataset.tags.create(name, snapshot.version)
    except _ERRORS as error:
        reason = f"version {snapshot.version} cannot be tagged to protect it from cleanups: {error}"
        raise TableUnwritableError(snapshot.uri, reason) from error
    return name


def release(ref: DatasetRef, name: str) -> None:
    """Removes a tag, if it exists.

    Raises:
        TableUnwritableError: The tag cannot be removed.
        LanceSparkError: The table cannot be opened.
    """
    _delete(ref.open_latest(), name)


def remove_expired(dataset: lance.LanceDataset) -> None:
    """Removes the expired tags of ended jobs.

    If the removal of a tag fails, the next job tries again.
    """
    try:
        for name in _names(dataset):
            until = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and until.isdecimal() and int(until) < time.time():
                _LOG.info("removing the expired tag %s of %s", name, dataset.uri)
                _delete(dataset, name)
    except _ERRORS as error:
        _LOG.warning("expired tags of %s are not removed yet: %s", dataset.uri, error)


def _names(dataset: lance.LanceDataset) -> list[str]:
    with panics_as_errors():
        return list(tags_of(dataset))


def _delete(dataset: lance.LanceDataset, name: str) -> None:
    try:
        with panics_as_errors():
            dataset.tags.delete(name)
    except _ERRORS as error:
        if name in _names(dataset):
            raise TableUnwritableError(dataset.uri, f"the tag {name} cannot be removed: {error}") from error
        _LOG.debug("the tag %s of %s is gone: %s", name, dataset.uri, error)
