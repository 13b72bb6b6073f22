"""The rate limit of a job over all executors: grants calls and tokens to processes.

Runs on the driver, in a background thread. The protocol is in
:mod:`lance_spark.backfill.task.rate_credits`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.backfill.task.rate_credits import GRANTS, limits_folder
from lance_spark.jobs.history import every
from lance_spark.storage.objects import objects_beside
from lance_spark.stored_json import load_object
from udf_runtime.policies import MinuteBudget, RateLimit

if TYPE_CHECKING:
    from lance_spark.backfill.task.messages import BackfillSpec
    from lance_spark.storage.objects import LanceObjects

_LOG = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at the reports. Each look lists and reads an object per process."""

_NUMBER = (int, float)
_MOST_AMOUNT = 1e15
_REPORT = {"calls": _NUMBER, "tokens": _NUMBER, "more_calls": _NUMBER, "more_tokens": _NUMBER}


@dataclass(slots=True)
class _Share:
    """A budget per minute, and its grants to the processes.

    Attributes:
        unit: Field of the reports with the used amount.
        budget: The limit; None: no limit.
        granted: Amounts that each process may use in all.
    """

    unit: str
    budget: MinuteBudget | None
    granted: dict[str, int] = field(default_factory=dict)

    def grant(self, reports: Mapping[str, Mapping[str, float]], at: float) -> None:
        """Grants the available amount evenly to the processes that want more."""
        if self.budget is None:
            return
        needs = {
            process: int(report[self.unit] + report[f"more_{self.unit}"] + 0.5)
            - self.granted.get(process, 0)
            for process, report in reports.items()
        }
        needs = {process: need for process, need in needs.items() if need > 0}
        available = self.budget.available(at)
        # The smallest needs first: the rest of an even share goes to the others.
        for place, process in enumerate(
            sorted(needs, key=lambda process: (needs[process], process))
        ):
            amount = min(needs[process], -(-available // (len(needs) - place)))
            if amount > 0:
                self.granted[process] = self.granted.get(process, 0) + amount
                available -= amount
                self.budget.spend(amount, at)


class RateGrants:
    """Grants the calls of a job to its processes. Used by one thread."""

    def __init__(
        self,
        objects: LanceObjects,
        folder: str,
        limit: RateLimit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the folder of the job's reports, its rate limit, and the clock of the driver."""
        self._objects = objects
        self._folder = folder
        self._clock = clock
        calls, tokens = limit.calls_per_minute, limit.tokens_per_minute
        self._calls = _Share("calls", None if calls is None else MinuteBudget(calls))
        self._tokens = _Share("tokens", None if tokens is None else MinuteBudget(tokens))
        self._written: dict[str, list[int]] = {}

    def look(self) -> None:
        """Reads the reports, and writes changed grants. A failure only logs a warning."""
        try:
            reports = self._read_reports()
            at = self._clock()
            for share in (self._calls, self._tokens):
                share.grant(reports, at)
            grants = {
                process: [self._calls.granted.get(process, 0), self._tokens.granted.get(process, 0)]
                for process in {*self._calls.granted, *self._tokens.granted}
            }
            if grants != self._written:
                self._objects.put(
                    f"{self._folder}/{GRANTS}", json.dumps(grants, sort_keys=True).encode()
                )
                self._written = grants
        except Exception as error:  # noqa: BLE001 - without this thread, the job's calls would wait for ever
            _LOG.warning("the rate limit of a job was not granted, and its calls wait: %s", error)

    def _read_reports(self) -> dict[str, dict[str, float]]:
        """Returns the reports by process. A writer of the table may forge a report."""
        reports = {}
        for path in self._objects.list(self._folder):
            process = path.rpartition("/")[2]
            payload = None if process == GRANTS else self._objects.get(path)
            if payload is not None:
                with contextlib.suppress(ValueError):
                    report = load_object(payload, _REPORT)
                    if all(
                        0 <= report[name] <= _MOST_AMOUNT for name in _REPORT
                    ):  # JSON may hold NaN and Infinity
                        reports[process] = report
        return reports


@contextlib.contextmanager
def granting(spec: BackfillSpec, limit: RateLimit | None) -> Iterator[None]:
    """Grants calls while the block runs the tasks of a job; does nothing without a rate limit."""
    if limit is None:
        yield
        return
    grants = RateGrants(objects_beside(spec.home), limits_folder(spec.staging.job_id), limit)
    with every(LOOK_S, grants.look):
        yield
