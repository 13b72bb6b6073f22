"""Progress of unfinished ranges. Runs on the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.messages import BackfillSpec

_LOG = logging.getLogger(__name__)

_LOOK_S = 2.0
"""Minimum seconds between looks."""


class InFlightRows:
    """The rows of a job's checkpoints: the progress of long ranges.

    The job's thread lists the checkpoints. Any thread may read the rows.
    """

    def __init__(self, spec: BackfillSpec) -> None:
        self._spec = spec
        self._by_source: dict[str, int] = {}
        self._next_look = time.monotonic() + _LOOK_S

    def look(self) -> None:
        """Lists the checkpoints, at most every few seconds."""
        began = time.monotonic()
        if began < self._next_look:
            return
        try:
            entries = store_of(self._spec).find_all(self._spec.key)
        except OSError as error:
            _LOG.debug("checkpoints of %s cannot be listed: %s", self._spec.snapshot.uri, error)
            return
        self._by_source = {
            source: sum(entry.rows for entry in some if entry.job_id == self._spec.job_id)
            for source, some in entries.items()
        }
        # Listings of many checkpoints are slow, and must not occupy the driver.
        self._next_look = time.monotonic() + max(_LOOK_S, 20 * (time.monotonic() - began))

    def count(self, answered: Collection[str]) -> int:
        """Returns the rows of fragments without an answered range."""
        return sum(rows for source, rows in self._by_source.items() if source not in answered)

    def clear(self) -> None:
        """Forgets the rows at the end of a round."""
        self._by_source = {}
