"""Tags that keep a job's snapshot while the job runs, so that nobody's cleanup deletes it. Runs on the driver.

The name of such a tag says when it expires: a job whose driver dies cannot take its tag away, and the next job does.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_PREFIX = "lance-spark-protects-until-"

LIFETIME = timedelta(days=30)
"""Time after which a tag that was left behind is removed."""


def protect(snapshot: DatasetRef, job_id: str, *, now: float | None = None) -> str:
    """Tags a version, and returns the name of the tag. `job_id` is an id of the job's staging."""
    until = int((time.time() if now is None else now) + LIFETIME.total_seconds())
    name = f"{_PREFIX}{until}-{job_id}"
    snapshot.open_latest().tags.create(name, snapshot.version)
    return name


def release(ref: DatasetRef, name: str) -> None:
    """Removes a tag; one that is not there any more is no error."""
    _delete(ref.open_latest(), name)


def remove_expired(dataset: lance.LanceDataset, *, now: float | None = None) -> None:
    """Removes the tags that jobs have left behind and that have expired."""
    at = time.time() if now is None else now
    for name in dataset.tags.list():
        until = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and until.isdecimal() and int(until) < at:
            _LOG.info("removing the expired tag %s of %s", name, dataset.uri)
            _delete(dataset, name)


def _delete(dataset: lance.LanceDataset, name: str) -> None:
    try:
        dataset.tags.delete(name)
    except (OSError, ValueError) as error:
        if name in dataset.tags.list():
            raise
        _LOG.debug("the tag %s of %s is gone: %s", name, dataset.uri, error)
